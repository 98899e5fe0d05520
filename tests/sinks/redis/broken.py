"""Sinks that are wrong on purpose: each must be caught by the tests beside it."""

from __future__ import annotations

from typing import Any, ClassVar

from spark_eoc.failpoints import hit
from spark_eoc.sinks.entries import Outcome
from spark_eoc.sinks.redis.apply import UnitWriter
from spark_eoc.sinks.redis.aside import AsideWriter
from spark_eoc.sinks.redis.publish import Publication
from spark_eoc.sinks.redis.publish_aside import AsidePublication
from spark_eoc.sinks.redis.store import RedisSink
from spark_eoc.sinks.rows import Rows


class PositionalSink(RedisSink):
    """Cuts chunks in the order of arrival."""

    def arrange(self, rows: Rows) -> Rows:
        return rows


class _LedgerApartWriter(UnitWriter):
    _entry = "call('HSET', KEYS[2], partition, done)"
    _mark = "try('HSET', KEYS[2], partition, half)"

    def _source(self) -> str:
        source = super()._source()
        assert self._entry in source
        assert self._mark in source
        return source.replace(self._entry, "").replace(self._mark, "nil")

    def _chunk(self, script: Any) -> Outcome | None:
        outcome = super()._chunk(script)
        with self._target.address.connect() as client:
            client.hset(self._keys.units, str(self._unit.partition), self._expected)
        return outcome


class LedgerApartSink(RedisSink):
    """Sets the unit entry in a step of its own, after the chunk's writes."""

    unit_writer: ClassVar[type[UnitWriter]] = _LedgerApartWriter


class _LettersApartWriter(AsideWriter):
    def _all_arguments(self, part: Any, entry: str, letters: Any) -> Any:
        for _, _, reason, row in letters:
            self._client.xadd(self._target.dead_letters, {"row": row, "reason": reason})
        if letters:
            hit("redis.after_chunk")
        return super()._all_arguments(part, entry, ())


class LettersApartSink(RedisSink):
    """Puts dead letters aside in a step of their own, before the chunk's."""

    aside_writer: ClassVar[type[AsideWriter]] = _LettersApartWriter


class _WholeLettersApart(AsidePublication):
    def _asides(self, letters: Any, skipped: Any) -> Any:
        client = self._target.address.connect()
        for letter in letters:
            client.xadd(self._target.dead_letters, {"row": letter[4], "reason": letter[3]})
        hit("redis.after_chunk")
        return super()._asides([], skipped)


class WholeLettersApartSink(RedisSink):
    """The same of a whole batch: before the script that publishes it."""

    aside_publication: ClassVar[type[AsidePublication]] = _WholeLettersApart


class _TokenlessWriter(UnitWriter):
    _fence = "if control[1] ~= token or control[2] ~= batch then"

    def _source(self) -> str:
        source = super()._source()
        assert self._fence in source
        return source.replace(self._fence, "if false then")


class TokenlessSink(RedisSink):
    """Does not look at the control entry when it writes."""

    unit_writer: ClassVar[type[UnitWriter]] = _TokenlessWriter


class _TokenlessPublication(Publication):
    _fence = "if (control[f] or '') ~= take() then return {'CHANGED'} end"

    def _source(self) -> str:
        source = super()._source()
        assert self._fence in source
        return source.replace(self._fence, "take()")


class TokenlessPublishingSink(RedisSink):
    """Does not look at the control entry in the script that publishes."""

    publication: ClassVar[type[Publication]] = _TokenlessPublication


class _UncountedPublication(Publication):
    _count = "if not whole or found ~= tonumber(rows) then"

    def _source(self) -> str:
        source = super()._source()
        assert self._count in source
        return source.replace(self._count, "if false then")


class UncountedSink(RedisSink):
    """Publishes what it finds staged, without counting it."""

    publication: ClassVar[type[Publication]] = _UncountedPublication


class _EagerPublication(Publication):
    def _source(self) -> str:
        source = super()._source()
        check = "if bad and bad[1] == 'BAD' then"
        assert check in source
        return source.replace(check, "if not bad then write(i) end " + check)


class EagerSink(RedisSink):
    """Writes each operation as soon as it is validated."""

    publication: ClassVar[type[Publication]] = _EagerPublication


class HalfwaySink(RedisSink):
    """Its script fails at the fifth operation, as a server might."""

    class _Publication(Publication):
        def _source(self) -> str:
            source = super()._source()
            loop = "for i = 1, n do write(i) end"
            assert loop in source
            return source.replace(
                loop, "for i = 1, n do write(i) if i == 5 then error('boom') end end"
            )

    publication: ClassVar[type[Publication]] = _Publication
