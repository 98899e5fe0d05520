"""Whether the log still goes on where an offset points, and where a new query begins.

What can't be true is refused with both numbers. With ``failOnDataLoss=false`` it is a jump and a
warning instead. Nothing here guesses in silence.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from spark_eoc.buffer.interface import BufferReader
from spark_eoc.errors import OffsetOutOfRangeError
from spark_eoc.source.offsets import SourceOffset
from spark_eoc.source.options import SourceOptions
from spark_eoc.source.values import EARLIEST, LATEST

LOG = logging.getLogger("spark_eoc.source")

_NEXT_STEP = (
    "restore the buffer that belongs to this checkpoint, or start a new checkpoint, or set "
    "failOnDataLoss=false to go on without the missing lines"
)


@dataclass(frozen=True)
class Continuity:
    """The rules for one query and its log."""

    options: SourceOptions
    log: BufferReader

    def first_record(self) -> int:
        """Where a query without a checkpoint begins, by ``startingOffsets``."""
        wanted = self.options.starting_offsets
        if wanted == EARLIEST:
            return self.log.start_offset()
        if wanted == LATEST:
            return self.log.end_offset()
        return self.within(int(wanted), "startingOffsets")

    def locate(self, offset: SourceOffset, what: str) -> int:
        """The record that ``offset`` means in this log.

        Refuses another buffer, records that were trimmed, records that aren't durable, and
        numbers that were given to other records since (the tail was lost, and used again).
        """
        if offset.buffer_id != self.log.buffer_id:
            return self._lost(
                f"{what} belongs to buffer {offset.buffer_id}, and {self.options.buffer_path} "
                f"is buffer {self.log.buffer_id}",
                offset.offset,
                self.log.start_offset(),
            )
        return self._continued(offset, self.within(offset.offset, what), what)

    def within(self, number: int, what: str) -> int:
        """``number`` if its record is retained or the next to come, else refused."""
        self.log.reach(number)
        start = self.log.start_offset()
        if number < start:
            return self._lost(
                f"{what} is {number}, and the first retained record is {start}", number, start
            )
        end = self.log.end_offset()
        if number > end:
            return self._lost(
                f"{what} is {number}, and the log is durable up to {end}", number, end
            )
        return number

    def ordered(self, start: int, end: int) -> None:
        """Refuses a batch that ends before it starts."""
        if start > end:
            self._lost(f"the batch starts at {start}, beyond its end {end}", start, end)

    def _continued(self, offset: SourceOffset, number: int, what: str) -> int:
        # As Kafka's leader epochs: another writer than the checkpoint's wrote the record before
        # `number`, so the one that this query has read was lost, and its number given again.
        if number != offset.offset:
            return number
        start = self.log.start_offset()
        found = self.log.epoch_of(number - 1 if number > start else number)
        if offset.epoch == found or (number == start and offset.epoch < found):
            return number
        ended = min(self.log.epoch_end(offset.epoch), number)
        return self._lost(
            f"{what} is {number} of epoch {offset.epoch}, and in {self.options.buffer_path} that "
            f"record is of epoch {found}, since epoch {offset.epoch} ends at {ended}: the log lost "
            "its tail, and its numbers belong to other records now",
            number,
            ended,
        )

    def _lost(self, what: str, wanted: int, jump: int) -> int:
        if self.options.fail_on_data_loss:
            raise OffsetOutOfRangeError(
                what,
                applied="nothing of this batch",
                next_step=_NEXT_STEP,
                wanted=wanted,
                available=jump,
            )
        LOG.warning("%s; failOnDataLoss=false: going on at record %d", what, jump)
        return jump
