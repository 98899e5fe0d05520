"""What is known of a staged partition, as text beside its chunks; and how large a batch may be."""

from __future__ import annotations

from dataclasses import dataclass

from spark_eoc.errors import BatchTooLargeError
from spark_eoc.sinks.entries import Fingerprint

#: Target keys and values in a batch: for a hash of two fields three a row. The server does nothing
#: else while a batch is published: so many took 0.15 s of its processor (sadd) to 0.6 s (hincrby),
#: 1.2 s where counters come near 2^62 and are followed; twice as long on a busy machine.
MOST_VALUES = 300_000
#: Bytes of a batch as it is staged; of its dead letters as many again.
MOST_BYTES = 32 * 1024 * 1024
#: Bytes of a chunk's rows as the frame gave them: columns that aren't written count, and a sum's
#: rows all. Redis takes no argument above 512 MiB, and closes the connection.
MOST_GIVEN_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True)
class StagedSize:
    """How much is to be published in one script."""

    values: int = 0
    size_bytes: int = 0

    def __add__(self, other: StagedSize) -> StagedSize:
        return StagedSize(self.values + other.values, self.size_bytes + other.size_bytes)

    def check(self, what: str) -> None:
        """Raises BatchTooLargeError if ``what`` is more than one script may publish."""
        if self.values <= MOST_VALUES and self.size_bytes <= MOST_BYTES:
            return
        raise _too_large(
            f"{what} is too large to be published in one Redis script: {self.values} keys and "
            f"values of {MOST_VALUES}, {self.size_bytes} bytes of {MOST_BYTES}",
            values=self.values,
            size_bytes=self.size_bytes,
        )


def check_letters(size_bytes: int, what: str) -> None:
    """Raises BatchTooLargeError if the dead letters of ``what`` are more than go beside a batch."""
    if size_bytes > MOST_BYTES:
        raise _too_large(
            f"the dead letters of {what} are too large to be written by one Redis script: "
            f"{size_bytes} bytes or more of {MOST_BYTES}",
            size_bytes=size_bytes,
        )


def check_given(size_bytes: int, what: str) -> None:
    """Raises BatchTooLargeError if the rows of a chunk of ``what`` can't be kept in one field."""
    if size_bytes > MOST_GIVEN_BYTES:
        raise _too_large(
            f"rows of {what} are too large to be kept for dead letters: {size_bytes} bytes for one "
            f"chunk, compressed, of {MOST_GIVEN_BYTES}; columns that are not written count",
            size_bytes=size_bytes,
        )


def _too_large(what: str, **facts: int) -> BatchTooLargeError:
    return BatchTooLargeError(
        what,
        applied="nothing of this batch",
        next_step='complete this batch with atomicity="partition", since its size is fixed by '
        "now; then stay with that, or make batches smaller (maxRowsPerTrigger, "
        "maxBytesPerTrigger)",
        **facts,
    )


@dataclass(frozen=True)
class StagedEntry:
    """Field ``entry`` of a staged partition: written last, compared before anything is published.

    ``letters`` of the rows were refused when they were staged; they lie in ``pieces`` fields of
    what the frame gave. As text ``<fingerprint>|<chunks>|<values>|<bytes>``, and where there are
    letters ``|<letters>|<pieces>``.
    """

    fingerprint: Fingerprint
    chunks: int
    size: StagedSize
    letters: int = 0
    pieces: int = 0

    def __str__(self) -> str:
        text = f"{self.fingerprint}|{self.chunks}|{self.size.values}|{self.size.size_bytes}"
        return f"{text}|{self.letters}|{self.pieces}" if self.letters else text

    @classmethod
    def parse(cls, text: str) -> StagedEntry:
        """The inverse of ``str``."""
        fingerprint, chunks, values, size_bytes, *aside = text.split("|")
        size = StagedSize(int(values), int(size_bytes))
        return cls(Fingerprint.parse(fingerprint), int(chunks), size, *map(int, aside))


def staging_member(epoch: int, batch_id: int, staging_id: str) -> str:
    """The staged partition in the set of all of them."""
    return f"{epoch}:{batch_id}:{staging_id}"


def parse_member(text: str) -> tuple[int, int, str]:
    """Epoch, batch id and staging id."""
    epoch, batch_id, staging_id = text.split(":")
    return int(epoch), int(batch_id), staging_id
