"""MySQL and MariaDB as a sink: rows and unit entry in one READ COMMITTED transaction."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

import pymysql

from spark_eoc.errors import (
    BadRowError,
    ConfigError,
    DeadLetterLimitError,
    SinkUnavailableError,
    SparkEocError,
)
from spark_eoc.failpoints import hit
from spark_eoc.sinks.dead_letters import RefusedRow
from spark_eoc.sinks.entries import Applied, Control, Outcome, Refused, Staged, Unit, UnitEntry
from spark_eoc.sinks.ledger import Compare, Open, decide_after_error, decide_unit
from spark_eoc.sinks.mysql.address import Address
from spark_eoc.sinks.mysql.aside_changes import AsideChanges
from spark_eoc.sinks.mysql.changes import DELETED, arranged, labels, settle
from spark_eoc.sinks.mysql.connection import (
    CONTENT,
    Budget,
    max_packet,
    message,
    number,
    repeat,
    transaction,
)
from spark_eoc.sinks.mysql.create import add_columns, check_width, create_table
from spark_eoc.sinks.mysql.dead_letter_sql import DeadLetterSql
from spark_eoc.sinks.mysql.fit import fit
from spark_eoc.sinks.mysql.given_sql import GivenSql
from spark_eoc.sinks.mysql.insertion import Insertion
from spark_eoc.sinks.mysql.layout import Layout, nearest, written_columns
from spark_eoc.sinks.mysql.ledger_sql import LedgerSql
from spark_eoc.sinks.mysql.load import NotLoadedError, can_load, load_rows
from spark_eoc.sinks.mysql.match import check_table
from spark_eoc.sinks.mysql.refusals import Refusals, SettledError, check_limit
from spark_eoc.sinks.mysql.staging import Staging
from spark_eoc.sinks.mysql.staging_sql import StagingSql
from spark_eoc.sinks.mysql.statement import CHANGE, check_merge
from spark_eoc.sinks.mysql.target import TableShape, check_server, read_shape
from spark_eoc.sinks.mysql.whole_aside import AsideStaging
from spark_eoc.sinks.mysql.write import STATEMENT_BYTES, around, delete_keys
from spark_eoc.sinks.rows import Rows
from spark_eoc.sinks.store import (
    CloseDecision,
    Column,
    Mark,
    OpenDecision,
    PublishDecision,
    Sink,
)

LOGGER = logging.getLogger("spark_eoc.sinks")
T = TypeVar("T")


@dataclass
class MySQLSink(Sink):
    """Appends to, or upserts into, one InnoDB table. See :class:`Sink` for the promises.

    ``budget_s`` is how long errors that may pass are tried again, ``nan_as_null`` writes NaN and
    infinity as NULL, ``allow`` names what is otherwise refused, ``create_table`` makes the table
    where there is none, and ``add_columns`` columns that it lacks. ``columns`` gives names in the
    table, None for what is not written. With ``delete_when`` or ``order_by`` a unit must hold
    every row of its keys. ``load_data`` appends by LOAD DATA LOCAL where that is possible. With
    ``dead_letter_limit`` rows that are refused are put aside in ``dead_letter_table``, by default
    ``<ledger>_dead_letters``.
    """

    letters_in_whole_batches: ClassVar[bool] = True

    address: Address
    table: str
    key: tuple[str, ...] = ()
    upsert: bool = False
    merge: Mapping[str, str] = field(default_factory=dict)
    nan_as_null: bool = False
    allow: tuple[str, ...] = ()
    ledger: str = "spark_eoc"
    budget_s: float = 300.0
    create_table: bool = False
    add_columns: bool = False
    columns: Mapping[str, str | None] = field(default_factory=dict)
    delete_when: str | None = None
    order_by: tuple[str, ...] = ()
    load_data: bool = False
    dead_letter_table: str | None = None
    dead_letter_limit: int | None = None

    def __post_init__(self) -> None:
        self._sql = LedgerSql(self.ledger)
        self._letters = DeadLetterSql(self.dead_letter_table or f"{self.ledger}_dead_letters")
        self._layout: Layout | None = None
        self._shape: TableShape | None = None
        self._staging: Staging | None = None
        self._loads = False

    def marks(self) -> Mapping[str, Mark]:
        """See :meth:`Sink.marks`."""
        if self.delete_when is None:
            return {}
        return {DELETED: Mark("delete_when", self.delete_when)}

    def together(self) -> Sequence[str]:
        """See :meth:`Sink.together`."""
        return self.key if self._ordered else ()

    def options(self) -> Mapping[str, object]:
        """See :meth:`Sink.options`."""
        aside = self.dead_letter_limit is not None
        merge = {name: rule for name, rule in self.merge.items() if rule != "replace"}
        renamed = {name: to for name, to in self.columns.items() if name != to}
        options: dict[str, object] = {
            "mode": "upsert" if self.upsert else "append",
            "key": sorted(self.key),
            "merge": merge,
            "columns": renamed,
            "delete_when": self.delete_when,
            "order_by": list(self.order_by),
        }
        if aside:
            options["dead_letter_table"] = self._letters.within(self.address.database)
        if aside or self.nan_as_null:
            options["nan"] = "null" if self.nan_as_null else "dead_letter"
        return options

    def check(self, columns: Sequence[Column]) -> str:
        """See :meth:`Sink.check`."""
        names = [column.name for column in columns]
        _check_names("key", self.key, names)
        _check_names("order_by", self.order_by, names)
        _check_order(self.order_by, columns)
        check_merge(self.merge, names, self.key)
        written = written_columns(columns, self.columns, [*self.key, *self.merge])
        check_width(len(written))
        return self._driver("looking at the target", lambda c: self._check(c, written))

    def _check(self, connection: Any, written: Mapping[str, Column]) -> str:
        check_server(connection, self.allow)
        connection.query("COMMIT")  # DDL is in no transaction of ours, though it would end it
        named, _, table = self.table.rpartition(".")
        where = named or self.address.database, table
        if self.create_table:
            create_table(connection, where, written, self.key)
        if self.add_columns:
            add_columns(connection, where, written)
        shape = read_shape(connection, *where)
        key = self.key if self.upsert else None
        matched = check_table(shape, written, key, self.allow)
        self._sql.create(connection)
        if self.dead_letter_limit is not None:
            self._letters.create(connection, (shape.database, shape.name))
        self._shape = shape
        self._layout = Layout(
            shape.database,
            shape.name,
            {name: found.name for name, found in matched.items()},
            {
                name: fit(written[name], found, self.nan_as_null, key=name in self.key)
                for name, found in matched.items()
            },
            tuple(self.key),
            self.merge,
        )
        self._loads = self.load_data and can_load(connection, written, matched)
        return f"{shape.database}.{shape.name}"

    def with_dead_letters(self, limit: int) -> MySQLSink:
        """See :meth:`Sink.with_dead_letters`."""
        return replace(self, dead_letter_limit=limit)

    @property
    def dead_letters_at(self) -> str:
        """See :attr:`Sink.dead_letters_at`."""
        return f"table {self._letters.name}"

    def open_batch(self, writer_id: str, batch_id: int, decide: OpenDecision) -> Open | Compare:
        """See :meth:`Sink.open_batch`."""

        def step(connection: Any) -> Open | Compare:
            view = self._sql.view(connection, writer_id, batch_id)
            decision = decide(view)
            if isinstance(decision, Open) and decision.control != view.control:
                exists = view.control is not None
                self._sql.store_open(connection, writer_id, decision, exists=exists)
            return decision

        return self._driver(f"opening batch {batch_id}", step)

    def units(self, writer_id: str, batch_id: int) -> list[UnitEntry]:
        """See :meth:`Sink.units`."""
        return self._driver(
            f"reading the units of batch {batch_id}",
            lambda connection: self._sql.units(connection, writer_id, batch_id),
        )

    def close_batch(self, writer_id: str, batch_id: int, decide: CloseDecision) -> None:
        """See :meth:`Sink.close_batch`."""

        def step(connection: Any) -> None:
            view = self._sql.view(connection, writer_id, batch_id)
            decision = decide(view, self._sql.units(connection, writer_id, batch_id))
            if decision is not None:
                self._sql.store_close(connection, writer_id, decision)

        self._driver(f"completing batch {batch_id}", step)

    def _driver(self, what: str, step: Callable[[Any], T]) -> T:
        return repeat(self.address, self.budget_s, what, step)

    def check_batch(self) -> None:
        """See :meth:`Sink.check_batch`. Needs CREATE and ALTER in the ledger's database."""
        shape, layout = self._shape, self._checked()
        if shape is None:
            raise RuntimeError("check() comes before check_batch()")
        columns = [shape.columns[name] for name in layout.names.values()]
        sql = StagingSql(self._sql)
        ordered = self._ordered
        name = self._driver(
            "preparing to stage", lambda c: sql.prepare(c, shape, columns, changes=ordered)
        )
        parts = self.address, self._sql, sql, name, layout.insert(), layout.fits, ordered
        given = self._driver("preparing to stage", self._given)
        if self.dead_letter_limit is None or given is None:
            self._staging = Staging(*parts, given)
        else:
            limit = self.dead_letter_limit
            self._staging = AsideStaging(*parts, given=given, letters=self._letters, limit=limit)

    def _given(self, connection: Any) -> GivenSql | None:
        given = GivenSql(self._sql)
        if self.dead_letter_limit is not None:
            given.make(connection)
        return given if given.is_there(connection) else None

    def stage(self, unit: Unit, staging_id: str, rows: Rows) -> Outcome:
        """See :meth:`Sink.stage`: rows and what is known of them in one transaction."""
        hit("mysql.before_stage")
        budget: Budget | None = None
        while True:
            try:
                again = budget is not None
                labelled = self._labelled(rows)
                return self._staged().stage(unit, staging_id, labelled, rows, again=again)
            except (pymysql.MySQLError, OSError, BadRowError, DeadLetterLimitError) as error:
                budget = budget or Budget(self.budget_s, self.address)
                refused = _refusal(error, budget, unit)
                if refused is not None:
                    bad = refused.error == BadRowError.__name__
                    return replace(refused, applied="nothing of this batch") if bad else refused

    def _labelled(self, rows: Rows) -> Rows:
        layout = self._checked()
        written = layout.written(rows)
        if not self._ordered:
            return written
        found = labels(rows, self.key, self.order_by, last_only=layout.last_only)
        return replace(written, table=written.table.append_column(CHANGE, found))

    def publish(
        self, writer_id: str, batch_id: int, staged: Sequence[Staged], decide: PublishDecision
    ) -> None:
        """See :meth:`Sink.publish`: one transaction, the control entry locked all the time."""
        self._staged().publish(writer_id, batch_id, staged, decide, self.budget_s)

    def clear_staged(self, writer_id: str) -> None:
        """See :meth:`Sink.clear_staged`."""
        self._staged().clear(writer_id)

    def _staged(self) -> Staging:
        if self._staging is None:
            raise RuntimeError("check_batch() comes before staging")
        return self._staging

    @property
    def _ordered(self) -> bool:
        return self.delete_when is not None or bool(self.order_by)

    def arrange(self, rows: Rows) -> Rows:
        """An upsert's rows in the order of their keys, so that units lock rows in one order."""
        return arranged(rows, self.key, self.order_by) if self.upsert else rows

    def apply(self, unit: Unit, rows: Rows) -> Outcome:
        """See :meth:`Sink.apply`. Whatever goes wrong, the unit entry is looked at first."""
        hit("mysql.before_rows")
        budget: Budget | None = None
        while True:
            try:
                return self._attempt(unit, rows)
            except (pymysql.MySQLError, OSError, BadRowError, DeadLetterLimitError) as error:
                # From the first error on: a unit that takes long has not used up anything.
                budget = budget or Budget(self.budget_s, self.address)
                found = self._look(unit)
                if found is not None:
                    return found
                refused = _refusal(error, budget, unit)
                if refused is not None:
                    return refused

    def _attempt(self, unit: Unit, rows: Rows) -> Outcome:
        if self._loads:
            try:
                return self._within(unit, rows, load=True)
            except NotLoadedError as error:
                self._loads = False  # for this partition
                LOGGER.warning(
                    "partition %d of batch %d is written by INSERT, not LOAD DATA: %s",
                    unit.partition,
                    unit.batch_id,
                    error,
                )
        return self._within(unit, rows)

    def _within(self, unit: Unit, rows: Rows, *, load: bool = False) -> Outcome:
        """Rows and unit entry in one transaction."""
        with transaction(self.address, local_files=load) as connection:
            try:
                refused = [] if load else self._write(connection, rows, unit)
            except SettledError as settled:
                return settled.outcome
            if load:
                load_rows(connection, self._checked(), rows)
            if refused:
                self._put_aside(connection, unit, rows, refused)
            hit("mysql.after_rows")
            outcome = self._enter(connection, unit, len(refused))
            if isinstance(outcome, Applied):
                hit("mysql.after_unit")
                hit("mysql.before_commit")
                connection.query("COMMIT")
                hit("mysql.after_commit")
            return outcome

    def _write(self, connection: Any, rows: Rows, unit: Unit | None = None) -> Sequence[RefusedRow]:
        """Inserts all rows but those that are refused for their content, which it returns.

        Without a limit for them BadRowError names the first.
        """
        layout = self._checked()
        refusals = Refusals(rows, self.key, unit, self.dead_letter_limit, self._look)
        if self._ordered and unit is not None and self.dead_letter_limit is not None:
            return AsideChanges(connection, layout, self.order_by, refusals).write(rows)
        if self._ordered:
            changes = settle(rows, self.key, self.order_by, last_only=layout.last_only)
            delete_keys(connection, layout, changes.deleted, STATEMENT_BYTES)
            rows = changes.written
            refusals = replace(refusals, rows=rows)
        text = around(connection, layout.insert(), STATEMENT_BYTES)
        Insertion(connection, text, layout.fits, refusals).send(layout.written(rows))
        return refusals.found

    def _put_aside(
        self, connection: Any, unit: Unit, rows: Rows, refused: Sequence[RefusedRow]
    ) -> None:
        """Writes the dead letters, in the unit's own transaction."""
        before = self._sql.dead_letters(connection, unit)
        check_limit(unit, len(refused), before, self.dead_letter_limit or 0)
        size = min(STATEMENT_BYTES, max_packet(connection) // 4)
        self._letters.insert(connection, unit, rows, refused, size)

    def _checked(self) -> Layout:
        if self._layout is None:
            raise RuntimeError("check() comes before any row")
        return self._layout

    def _enter(self, connection: Any, unit: Unit, dead_letters: int = 0) -> Outcome:
        """Control entry shared, then unit entry: compare and set, in this order, rows before."""
        control = self._owner(connection, unit)
        entry = self._sql.unit(connection, unit.writer_id, unit.partition)
        outcome = decide_unit(control, entry, unit)
        if isinstance(outcome, Applied):
            stored = UnitEntry(
                unit.partition, unit.batch_id, unit.fingerprint, dead_letters=dead_letters
            )
            self._sql.set_unit(connection, unit.writer_id, stored, exists=entry is not None)
            return Applied(dead_letters)
        return outcome

    def _owner(self, connection: Any, unit: Unit) -> Control | None:
        return self._sql.control(connection, unit.writer_id, "LOCK IN SHARE MODE")

    def _look(self, unit: Unit) -> Outcome | None:
        """What the ledger says of the unit after an error, in a new transaction.

        It waits for the lock of an attempt that may still be committing.
        """
        try:
            entry = repeat(
                self.address,
                self.budget_s,
                f"looking for partition {unit.partition} of batch {unit.batch_id}",
                lambda connection: self._sql.unit(connection, unit.writer_id, unit.partition),
            )
        except SinkUnavailableError as error:
            return _as_row(error)
        return decide_after_error(entry, unit)


def _check_names(option: str, given: Sequence[str], names: Sequence[str]) -> None:
    for name in given:
        if name not in names:
            raise ConfigError(
                f"{option} names {name!r}, which the frame does not have{nearest(name, names)}",
                next_step=f"name columns of {', '.join(names)}",
            )


def _check_order(order_by: Sequence[str], columns: Sequence[Column]) -> None:
    for column in columns:
        if column.json and column.name in order_by:
            raise ConfigError(
                f"order_by names {column.name!r}, of type {column.type}, whose JSON text has no "
                "order",
                next_step="take one of its fields as a column of its own",
            )


def _refusal(error: Exception, budget: Budget, unit: Unit) -> Refused | None:
    """None to try again; an error that is nobody's row and can't pass is raised."""
    if isinstance(error, BadRowError | DeadLetterLimitError):
        return _as_row(error)
    if number(error) in CONTENT:
        return _as_row(
            BadRowError(
                f"the server refused a row of partition {unit.partition}, batch {unit.batch_id}: "
                f"error {number(error)}, {message(error)}",
                applied="nothing of this partition",
                next_step="mend the row or the table, then restart the query",
            )
        )
    try:
        budget.spend(error, f"writing partition {unit.partition} of batch {unit.batch_id}")
    except SinkUnavailableError as spent:
        return _as_row(spent)
    return None


def _as_row(error: SparkEocError) -> Refused:
    return Refused(type(error).__name__, error.what, error.applied, error.next_step)
