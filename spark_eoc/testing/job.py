"""What a workload is told: streams, folders and settings, as one JSON file.

Apart from :mod:`spark_eoc.testing.workload`, which runs it, so that the harness needs no pyspark.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

#: The table that a MySQL stream appends to; made by the harness, `id` is the order of writing.
TABLE_SQL = (
    "CREATE TABLE {table} (id BIGINT AUTO_INCREMENT PRIMARY KEY, value VARCHAR(200), "
    "`offset` BIGINT, batch_id BIGINT, part INT) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4"
)


@dataclass(frozen=True)
class Stream:
    """One query. ``target`` is a table of MySQL or a key prefix of Redis; ``sink`` says which."""

    sink: str
    url: str
    target: str
    folder: str
    listen: str | None
    options: Mapping[str, str] = field(default_factory=dict)
    writer: Mapping[str, Any] = field(default_factory=dict)

    @property
    def buffer(self) -> Path:
        """The source's bufferPath."""
        return Path(self.folder) / "buffer"

    @property
    def checkpoint(self) -> Path:
        """Spark's checkpointLocation."""
        return Path(self.folder) / "checkpoint"


@dataclass(frozen=True)
class Job:
    """All of a run. ``on_failure``: ``end`` the script when a query fails (the default of real
    scripts), ``restart`` that query in the same session, or ``wait`` until all have failed."""

    streams: tuple[Stream, ...]
    folder: str
    on_failure: str = "end"
    settings: Mapping[str, str] = field(default_factory=dict)

    def save(self, name: str = "job.json") -> Path:
        """Writes what :meth:`load` reads."""
        path = Path(self.folder) / name
        path.write_text(json.dumps(asdict(self)))
        return path

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Job:
        """The inverse of :meth:`save`."""
        fields = json.loads(Path(path).read_text())
        return cls(**{**fields, "streams": tuple(Stream(**each) for each in fields["streams"])})

    @property
    def failures(self) -> Path:
        """One JSON object for each query that ended with an error: pid, sink, error."""
        return Path(self.folder) / "failures.jsonl"

    def command(self, name: str = "job.json") -> list[str]:
        """Saves the job and returns the command that runs it with this interpreter."""
        return [sys.executable, "-m", "spark_eoc.testing.workload", str(self.save(name))]
