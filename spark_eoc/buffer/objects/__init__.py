"""A buffer in an object store: ``s3://``, ``gs://``, ``az://``, by the package ``obstore``.

For clusters whose machines share no POSIX disk. What it guarantees is what
:mod:`spark_eoc.buffer` guarantees, on a store that creates an object whole or not at all, refuses
to create one that is there, and shows at once what it has stored (S3, GCS, Azure Blob Storage).

* A line below the offset that :meth:`ObjectWriter.sync` returned is in a chunk that is there.
* **The newest writer has the buffer.** There is no lock: a writer that starts creates a control
  chunk with the next epoch under the next number, and the one before is fenced at its next chunk,
  before it acknowledges anything of it.
* Also a writer that was stopped for so long that its next number was written, read and trimmed
  meanwhile acknowledges nothing: it reads the start after it has created a chunk.
* Executors read chunks straight from the store.

Not promised: anything on a store that overwrites silently, or whose objects are deleted by others
(such as a lifecycle rule on the prefix).

``chunk.py`` draws the bytes, ``extent.py`` the names, ``create.py`` holds the rules of fencing,
``store.py`` all requests.
"""

from spark_eoc.buffer.objects.positions import (
    ObjectPosition,
    read_object_positions,
    remove_object_consumer,
)
from spark_eoc.buffer.objects.read import read_object_slice
from spark_eoc.buffer.objects.reader import ObjectReader
from spark_eoc.buffer.objects.store import Objects, ObstoreObjects, is_object_url
from spark_eoc.buffer.objects.writer import ObjectWriter

__all__ = [
    "ObjectPosition",
    "ObjectReader",
    "ObjectWriter",
    "Objects",
    "ObstoreObjects",
    "is_object_url",
    "read_object_positions",
    "read_object_slice",
    "remove_object_consumer",
]
