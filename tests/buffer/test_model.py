"""Any order of appends, syncs, rolls, kills, restarts, commits and trims, against a list."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from spark_eoc.buffer import (
    BufferOptions,
    ConsumerPosition,
    LineBlock,
    LogReader,
    LogWriter,
    Run,
)
from spark_eoc.buffer.files import Files
from tests.buffer.buffer_logs import die, read_range
from tests.buffer.test_power_cut import Quick

OPTIONS = BufferOptions(segment_bytes=4096, max_buffer_bytes=4 * 4096, retention_ms=0)
LINES = st.lists(st.binary(max_size=2000), max_size=6)
PRODUCERS = st.sampled_from([b"", b"one", b"two"])


class Log(RuleBasedStateMachine):
    """``lines`` is what must be there, ``durable`` how many of them are acknowledged."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="eoc-model-"))
        self.lines: list[bytes] = []
        self.sequences: dict[bytes, int] = {}
        self.durable = 0
        self.epoch = 0
        self.committed = 0
        self.open()

    def open(self) -> None:
        self.writer = LogWriter.open(self.folder / "log", OPTIONS, files=Files(Quick()))
        assert self.writer.epoch > self.epoch
        self.epoch = self.writer.epoch
        self.durable = len(self.lines)
        assert self.writer.end_offset == self.durable

    @rule(lines=LINES, producer=PRODUCERS)
    def append(self, lines: list[bytes], producer: bytes) -> None:
        first = self.sequences.get(producer, 0) + 1
        runs = [Run(producer, len(lines), first)] if lines else []
        block = LineBlock.from_lines(lines, runs)
        assert self.writer.append(block, receive_time_us=1) == len(self.lines)
        self.lines += lines
        if producer and lines:
            self.sequences[producer] = first + len(lines) - 1

    @rule()
    def sync(self) -> None:
        self.durable = self.writer.sync()
        assert self.durable == len(self.lines)

    @rule()
    def roll(self) -> None:
        self.writer.roll()
        self.durable = self.writer.end_offset

    @rule(how=st.sampled_from(["close", "kill"]))
    def restart(self, how: str) -> None:
        # A kill leaves the page cache, and so whatever was appended; only its end is unknown.
        self.writer.close() if how == "close" else die(self.writer)
        self.open()

    @precondition(lambda self: self.durable > self.committed)
    @rule(data=st.data())
    def commit_and_trim(self, data: st.DataObject) -> None:
        self.committed = data.draw(st.integers(self.committed, self.durable))
        position = ConsumerPosition.open(self.folder / "log", files=Files(Quick()))
        position.commit(self.committed)
        position.close()
        assert self.writer.apply_trim() <= self.committed

    @rule(nbytes=st.integers(0, 40_000))
    def ask_for_room(self, nbytes: int) -> None:
        self.writer.room(nbytes)
        self.durable = self.writer.end_offset

    @invariant()
    def all_durable_lines_are_there(self) -> None:
        if not hasattr(self, "writer"):
            return
        reader = LogReader(self.folder / "log")
        start, end = reader.start_offset(), reader.end_offset()
        assert end >= self.durable
        self.durable = max(self.durable, self.writer.end_offset)
        assert end == self.durable
        assert start <= self.committed
        assert read_range(reader, start, end, 3) == self.lines[start:end]
        states = self.writer.producers.items()
        assert {name: state.last_sequence for name, state in states} == self.sequences
        assert reader.epoch_end(self.epoch) == end

    def teardown(self) -> None:
        if hasattr(self, "writer"):
            die(self.writer)
            shutil.rmtree(self.folder)


TestLog = Log.TestCase
TestLog.settings = settings(
    max_examples=25,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
