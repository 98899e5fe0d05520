"""Contract: one unit, from whatever side it is tried."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa

from spark_eoc.errors import ReplayMismatchError
from spark_eoc.sinks.entries import AlreadyApplied, Applied, Fingerprint, UnitEntry
from spark_eoc.sinks.ledger import Open
from spark_eoc.sinks.rows import Rows
from spark_eoc.testing.contract.hooks import SinkHooks, numbered, refused


class UnitContract(SinkHooks):
    """One unit, from whatever side it is tried."""

    def test_a_unit_is_applied_once(self) -> None:
        """A repeat is AlreadyApplied in whatever order, other rows are a mismatch; neither
        leaves anything."""
        run = self.run()
        run.open(0)
        assert run.apply(0, numbered(1, 2, 3)) == Applied()
        assert run.apply(0, numbered(3, 1, 2)) == AlreadyApplied()
        assert refused(run.apply(0, numbered(1, 2, 4)), ReplayMismatchError)
        assert refused(run.apply(0, numbered(1, 2)), ReplayMismatchError)
        self.require(1, 2, 3)

    def test_partitions_and_batches_are_units_of_their_own(self) -> None:
        """Equal rows in another partition or batch are other rows."""
        run = self.run()
        assert run.batch(0, numbered(1, 2), numbered(1, 2)) == [Applied(), Applied()]
        assert run.batch(1, numbered(1, 2)) == [Applied()]
        self.require(1, 1, 1, 2, 2, 2)

    def test_units_are_those_of_the_batch(self) -> None:
        """What was applied of a batch, whoever asks; nothing of the batch before."""
        run = self.run()
        parts = [numbered(1, 2), numbered(3)]
        run.batch(0, *parts)
        assert run.sink.units("w", 1) == []
        run.open(1)
        run.apply(1, parts[1])
        run.apply(0, parts[0])
        expected = [UnitEntry(p, 1, rows.fingerprint()) for p, rows in enumerate(parts)]
        other = self.run("run-2")
        assert isinstance(other.open(1), Open)
        assert sorted(other.sink.units("w", 1), key=lambda e: e.partition) == expected
        assert other.seen is not None
        assert other.seen.open_units == 2

    def test_copies_of_a_task_at_the_same_time(self) -> None:
        """E6: one applies, the others find it done; none is taken for a bad row."""
        run = self.run()
        for batch_id in range(3):
            run.open(batch_id)
            rows = numbered(*range(batch_id * 100, batch_id * 100 + 50))
            with ThreadPoolExecutor(4) as pool:
                outcomes = list(pool.map(lambda _, r=rows: run.apply(0, r), range(4)))
            assert Applied() in outcomes
            assert set(map(type, outcomes)) <= {Applied, AlreadyApplied}
            run.close()
        self.require(*(b * 100 + n for b in range(3) for n in range(50)))

    def test_a_lost_answer_to_a_unit(self) -> None:
        """The unit entry is looked at before the error is: the rows are there once."""
        run = self.run()
        run.open(0)
        with self.lost_answer():
            outcome = run.apply(0, numbered(1, 2))
        assert outcome in (Applied(), AlreadyApplied())
        run.close()
        self.require(1, 2)

    def test_arrange_depends_on_the_rows_alone(self) -> None:
        """It keeps the rows, and a second time it changes nothing."""
        sink, rows = self.run().sink, numbered(5, 3, 3, 9, 1)
        once = sink.arrange(rows)
        assert once.fingerprint() == rows.fingerprint()
        assert sink.arrange(once).table.equals(once.table)

    def test_numbers_of_any_size_come_back(self) -> None:
        """Batch ids beyond 32 bits, hashes of 64, texts with quotes: as they were given."""
        run = self.run(query_id="q'\"\\ü%s" * 8)
        batch_id, split = 2**40, '{"a": "\'\\"\\\\%s"}'
        run.open(batch_id, adopt=True, split=split)
        rows = Rows(numbered(1).table, pa.chunked_array([[-1]], pa.int64()))
        biggest = Fingerprint(1, 2**64 - 1)
        unit = replace(run.unit(70_000, rows), fingerprint=biggest)
        assert run.sink.apply(unit, rows) == Applied()
        assert run.sink.units("w", batch_id) == [UnitEntry(70_000, batch_id, biggest)]
        run.reported = {70_000: biggest}
        run.close()
        run.open(batch_id + 1)
        assert run.seen is not None
        assert run.seen.control is not None
        assert run.seen.control.query_id == run.query_id
        assert run.seen.control.split == split
