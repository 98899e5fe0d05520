"""The Redis sink: the ledger's decisions made durable, one script at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import redis
from redis.exceptions import RedisError

from spark_eoc.sinks.entries import Control, LedgerView, Outcome, Staged, Unit, UnitEntry
from spark_eoc.sinks.ledger import Close, Compare, Open
from spark_eoc.sinks.redis.apply import UnitWriter
from spark_eoc.sinks.redis.aside import AsideWriter
from spark_eoc.sinks.redis.bad_rows import bad_last, check_limit, check_stream
from spark_eoc.sinks.redis.checks import check_batch, check_server
from spark_eoc.sinks.redis.keys import (
    LedgerKeys,
    completed_text,
    control_fields,
    half_applied,
    parse_completed,
    parse_control,
    parse_unit,
)
from spark_eoc.sinks.redis.lua_store import STORE_SCRIPT
from spark_eoc.sinks.redis.operations import arrange
from spark_eoc.sinks.redis.publish import Publication, clear_staged, delete_staged
from spark_eoc.sinks.redis.publish_aside import AsidePublication
from spark_eoc.sinks.redis.server import PassingError, Patience, run_script
from spark_eoc.sinks.redis.stage import UnitStager
from spark_eoc.sinks.redis.stage_aside import AsideStager
from spark_eoc.sinks.redis.staged import staging_member
from spark_eoc.sinks.redis.target import Target
from spark_eoc.sinks.rows import Rows
from spark_eoc.sinks.store import CloseDecision, Column, OpenDecision, PublishDecision, Sink

_PUBLISHED = "all of the batch or nothing; the repeat tells which, and does the rest"


@dataclass(frozen=True)
class RedisSink(Sink):
    """Applies one command to one key template, in chunks of at most ``chunk_rows`` operations.

    A unit is applied chunk by chunk; each chunk's writes and the unit entry that counts them are
    one script, so that the entry says exactly which rows are in.
    """

    #: What applies a unit; another class is for tests that break it.
    unit_writer: ClassVar[type[UnitWriter]] = UnitWriter
    #: What publishes a batch; another class is for tests as well.
    publication: ClassVar[type[Publication]] = Publication
    #: The same with dead letters.
    aside_writer: ClassVar[type[AsideWriter]] = AsideWriter
    aside_publication: ClassVar[type[AsidePublication]] = AsidePublication
    letters_in_whole_batches: ClassVar[bool] = True

    target: Target

    def options(self) -> Mapping[str, object]:
        """See :meth:`Sink.options`; the key template is the target."""
        aside = self.target.dead_letter_limit is not None
        letters = {"dead_letter_key": self.target.dead_letters} if aside else {}
        return {**self.target.command.options(aside=aside), **letters}

    def check(self, columns: Sequence[Column]) -> str:
        """See :meth:`Sink.check`; the target's name is the key template."""
        target = self.target
        target.command.check_columns(columns)
        keys = LedgerKeys.of(target.ledger, target.command.key.text)

        def step(client: redis.Redis) -> None:
            check_server(client, target.command, target.ledger)
            if target.dead_letter_limit is not None:
                check_stream(client, target)
            target.replicas.wait(client, keys.waited)

        self._patience("be checked").keep_trying(step)
        return target.command.key.text

    def with_dead_letters(self, limit: int) -> RedisSink:
        """See :meth:`Sink.with_dead_letters`."""
        check_limit(limit)
        return replace(self, target=replace(self.target, dead_letter_limit=limit))

    @property
    def dead_letters_at(self) -> str:
        """See :attr:`Sink.dead_letters_at`."""
        return f"stream {self.target.dead_letters}"

    def open_batch(self, writer_id: str, batch_id: int, decide: OpenDecision) -> Open | Compare:
        """See :meth:`Sink.open_batch`; compare and set, again from the start if it changed."""

        def step(client: redis.Redis) -> Open | Compare:
            while True:
                seen = self._read(client, writer_id, batch_id)
                decision = decide(seen.view)
                if isinstance(decision, Compare) or self._store(client, seen, decision):
                    # A complete batch as well: the run that wrote it may have died waiting.
                    self.target.replicas.wait(client, seen.keys.waited)
                    return decision

        return self._patience("open a batch").keep_trying(step)

    def units(self, writer_id: str, batch_id: int) -> list[UnitEntry]:
        """See :meth:`Sink.units`."""
        key = LedgerKeys.of(self.target.ledger, writer_id).units

        def step(client: redis.Redis) -> list[UnitEntry]:
            return list(units_of(texts_of(client.hgetall(key)), batch_id).values())

        return self._patience("show a batch's units").keep_trying(step)

    def apply(self, unit: Unit, rows: Rows) -> Outcome:
        """See :meth:`Sink.apply`."""
        keys = LedgerKeys.of(self.target.ledger, unit.writer_id)
        aside = self.target.dead_letter_limit is not None
        writer = self.aside_writer if aside else self.unit_writer
        return writer(self.target, keys, unit, rows).apply()

    def close_batch(self, writer_id: str, batch_id: int, decide: CloseDecision) -> None:
        """See :meth:`Sink.close_batch`."""

        def step(client: redis.Redis) -> None:
            while True:
                seen = self._read(client, writer_id, batch_id)
                decision = decide(seen.view, list(units_of(seen.units, batch_id).values()))
                if decision is None or self._store(client, seen, decision):
                    self.target.replicas.wait(client, seen.keys.waited)
                    return

        self._patience("close a batch").keep_trying(step)

    def check_batch(self) -> None:
        """See :meth:`Sink.check_batch`."""
        ledger = self.target.ledger
        self._patience("be checked").keep_trying(lambda client: check_batch(client, ledger))

    def stage(self, unit: Unit, staging_id: str, rows: Rows) -> Outcome:
        """See :meth:`Sink.stage`."""
        keys = LedgerKeys.of(self.target.ledger, unit.writer_id)
        aside = self.target.dead_letter_limit is not None
        stager = AsideStager if aside else UnitStager
        return stager(self.target, keys, unit, staging_id, rows).stage()

    def publish(
        self, writer_id: str, batch_id: int, staged: Sequence[Staged], decide: PublishDecision
    ) -> None:
        """See :meth:`Sink.publish`; refused above a size that keeps the script short."""

        def step(client: redis.Redis) -> None:
            while True:
                seen = self._read(client, writer_id, batch_id)
                units_of(seen.units, batch_id)  # raises if an earlier try ended half-way
                decision = decide(seen.view)
                if decision is None or self._publish(client, seen, decision, staged):
                    self.target.replicas.wait(client, seen.keys.waited)
                    return

        target = self.target
        patience = Patience(target.address, "publish a batch", target.budget_s, _PUBLISHED)
        patience.keep_trying(step)

    def clear_staged(self, writer_id: str) -> None:
        """See :meth:`Sink.clear_staged`; tried once."""

        def step(client: redis.Redis) -> None:
            clear_staged(client, LedgerKeys.of(self.target.ledger, writer_id))

        Patience(self.target.address, "delete what was staged", 0.0).keep_trying(step)

    def discard_staged(
        self, writer_id: str, batch_id: int, epoch: int, staged: Sequence[Staged]
    ) -> None:
        """See :meth:`Sink.discard_staged`."""
        keys = LedgerKeys.of(self.target.ledger, writer_id)
        members = [staging_member(epoch, batch_id, one.staging_id) for one in staged]
        with contextlib.suppress(RedisError), self.target.address.connect() as client:
            delete_staged(client, keys, members)

    def arrange(self, rows: Rows) -> Rows:
        """By target key, so that chunks can go on after a shuffle."""
        arranged = arrange(self.target.command, rows)
        aside = self.target.dead_letter_limit is not None
        return bad_last(self.target, arranged) if aside else arranged

    def _patience(self, what: str) -> Patience:
        return Patience(self.target.address, what, self.target.budget_s)

    def _read(self, client: redis.Redis, writer_id: str, batch_id: int) -> Seen:
        keys = LedgerKeys.of(self.target.ledger, writer_id)
        with client.pipeline(transaction=True) as pipe:
            pipe.hgetall(keys.control)
            pipe.hgetall(keys.units)
            pipe.hget(keys.history, str(batch_id))
            pipe.time()
            return Seen.of(writer_id, keys, batch_id, pipe.execute())

    def _publish(
        self, client: redis.Redis, seen: Seen, decision: Close, staged: Sequence[Staged]
    ) -> bool:
        arguments = [*seen.expected(), *changes(seen.writer_id, decision)]
        batch_id, epoch = decision.completed.batch_id, decision.control.epoch
        aside = self.target.dead_letter_limit is not None
        kind = self.aside_publication if aside else self.publication
        parts = self.target, seen.keys, batch_id, epoch, staged
        return kind(*parts, writer_id=seen.writer_id).send(client, arguments)

    def _store(self, client: redis.Redis, seen: Seen, decision: Open | Close) -> bool:
        """False if the ledger changed since it was read; nothing was stored then."""
        arguments: list[str | int] = [*seen.expected(), *changes(seen.writer_id, decision)]
        keys = [seen.keys.control, seen.keys.units, seen.keys.history]
        answer, *facts = run_script(client, STORE_SCRIPT, keys, arguments)
        if answer == "REFUSED":
            raise PassingError(facts[0])
        if answer == "HALF":
            raise half_applied(int(facts[0]), facts[1])
        return answer == "OK"


@dataclass(frozen=True)
class Seen:
    """A ledger as it was read at one instant, and what a store must find unchanged.

    ``servers``, in a cluster, names the primaries that were there at the newest open.
    """

    writer_id: str
    keys: LedgerKeys
    view: LedgerView
    batch_id: int
    units: dict[str, str]
    servers: str = ""

    @classmethod
    def of(cls, writer_id: str, keys: LedgerKeys, batch_id: int, reply: list[Any]) -> Seen:
        """From the answers to :meth:`RedisSink._read`."""
        control, units, completed, now = reply
        fields = texts_of(control)
        found = parse_control(fields)
        texts = texts_of(units)
        open_batch = None if found is None else found.open_batch
        # An open batch of another query is asked about too, hence not always `batch_id`.
        batch = batch_id if open_batch is None else open_batch
        of_batch = {p: t for p, t in texts.items() if t.partition("|")[0] == str(batch)}
        history = {} if completed is None else {batch_id: parse_completed(completed.decode())}
        now_us = now[0] * 1_000_000 + now[1]
        open_units = 0 if open_batch is None else len(of_batch)
        view = LedgerView(found, history, open_units, now_us)
        return cls(writer_id, keys, view, batch, of_batch, fields.get("servers", ""))

    def expected(self) -> list[str | int]:
        """The store script's arguments that describe what was read."""
        control = self.view.control
        state = ["", "", "", ""] if control is None else _state(control)
        pairs = [text for pair in self.units.items() for text in pair]
        return [*state, self.batch_id, len(self.units), *pairs]


def _state(control: Control) -> list[str]:
    open_batch = "" if control.open_batch is None else str(control.open_batch)
    return [str(control.epoch), control.token, open_batch, str(control.last_complete)]


def changes(
    writer_id: str, decision: Open | Close, more: Mapping[str, str] | None = None
) -> list[str | int]:
    """The store script's arguments that say what is stored; ``more`` are fields of control."""
    fields = {**control_fields(writer_id, decision.control), **(more or {})}
    pairs: list[str | int] = [len(fields), *(text for pair in fields.items() for text in pair)]
    if isinstance(decision, Open):
        return ["1" if decision.reset else "", "", *pairs, "", ""]
    completed = decision.completed
    return ["", decision.prune_below, *pairs, completed.batch_id, completed_text(completed)]


def units_of(units: dict[str, str], batch_id: int) -> dict[int, UnitEntry]:
    """The units of one batch, of the whole units hash."""
    return {
        int(partition): parse_unit(int(partition), text)
        for partition, text in units.items()
        if text.partition("|")[0] == str(batch_id)
    }


def texts_of(fields: Any) -> dict[str, str]:
    """A hash as text."""
    return {name.decode(): value.decode("utf-8", "replace") for name, value in fields.items()}
