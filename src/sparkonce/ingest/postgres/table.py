"""A table of PostgreSQL: finds the next window of rows that can't change any more, and reads it.

A window ends at the horizon. Where rows are written once, it also ends before the smallest key that
can be seen and must wait: a row may have followed from one with a smaller key, and shall not come
out before it. (Where rows are changed, one that is changed all the time would hold up the others.)
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

from pyspark.sql.types import IntegralType

from sparkonce.errors import ConfigError
from sparkonce.ingest.arrow import pieces
from sparkonce.ingest.pace import Pace
from sparkonce.ingest.position import Form, Mark, Place, Position
from sparkonce.ingest.postgres.batches import Batches
from sparkonce.ingest.postgres.catalog import Relation, find_columns, find_relation
from sparkonce.ingest.postgres.children import Children
from sparkonce.ingest.postgres.connection import Cursor, Desk, arrow_cursor, conninfo
from sparkonce.ingest.postgres.horizon import Horizon, horizon_now, refuse_older
from sparkonce.ingest.postgres.horizon_watch import HorizonWatch
from sparkonce.ingest.postgres.members import carried_over, known_at
from sparkonce.ingest.postgres.transaction_column import (
    check_declared,
    check_filled,
    how_to_add,
    not_yet_had,
)
from sparkonce.ingest.postgres.window import XIDS, Windows, inside
from sparkonce.ingest.settings import TableSettings
from sparkonce.ingest.span import WHOLE, Span, split
from sparkonce.ingest.table import Column, find, order_of, ranged, selected

_LAG_PATIENCE_S: Final = 60.0
_PAUSE_S: Final = 0.1
_SYSTEM: Final = "SELECT system_identifier::text FROM pg_control_system()"
_HORIZON: Final = (
    "SELECT pg_snapshot_xmin(s)::text::bigint, pg_snapshot_xmax(s)::text::bigint "
    "FROM pg_current_snapshot() AS s"
)


class PostgresTable:
    """A table, and the order of its rows."""

    def __init__(self, settings: TableSettings) -> None:
        self._settings = settings
        self._info = conninfo(settings)
        self._desk = Desk(self._info, settings.query_timeout_s)
        self._pace = Pace()
        self._looked_at: Children | None = None
        self._watch = HorizonWatch(settings.table)

    @cached_property
    def _relation(self) -> Relation:
        return self._desk.ask(lambda connection: find_relation(connection, self._settings.table))

    @cached_property
    def _columns(self) -> list[Column]:
        relation = self._relation
        return self._desk.ask(lambda connection: find_columns(connection, relation))

    @cached_property
    def _windows(self) -> Windows:
        order = order_of(self._columns, self._settings)
        name = self._settings.transaction
        transaction = None if name is None else find(self._columns, "transactionColumn", name)
        return Windows(order, transaction, self._settings.key_lag)

    @cached_property
    def _batches(self) -> Batches:
        return Batches(self._relation, self._windows, self._desk.rows)

    @cached_property
    def form(self) -> Form:
        ((system,),) = self._desk.rows(_SYSTEM)
        names = tuple(column.name for column in self._windows.order)
        return Form(names, system, self._settings.former_system)

    def columns(self) -> Sequence[Column]:
        return self._columns

    def check(self) -> None:
        transaction = self._windows.transaction
        if transaction is not None:
            check_declared(transaction)
        key = self._windows.order[-1]
        if self._settings.key_lag is not None and not isinstance(key.kind, IntegralType):
            raise ConfigError(
                f"keyLag is a distance between whole numbers, and keyColumn={key.name!r} is of "
                f"type {key.declared}: leave it out"
            )
        if self._settings.partitions > 1:
            ranged(self._columns, self._settings)
        if self._settings.deletes:
            self._check_delete()
        self._checked_children()
        self._horizon()

    def start(self, *, latest: bool) -> Position:
        if not latest:
            return Position(Mark())
        horizon = self._horizon()
        return Position(Mark(self._last("true"), horizon.xid), is_start=True)

    def newest(self) -> Mark:
        return Mark(xid=self._horizon().xid)

    def advance(
        self, start: Position, rows_max: int | None, limit: Mark | None = None
    ) -> Position | None:
        if start.window is not None:
            return self._page(start, start.window, rows_max)
        if limit is not None:
            return self._look(start, limit.xid, rows_max)
        # How far everything has come is asked within the look: it costs a question, too.
        return self._pace.look(
            lambda: self._look(start, self._horizon(start.done.xid).xid, rows_max)
        )

    def spans(self, start: Position, end: Position) -> list[Span]:
        if self._settings.partitions == 1:
            return [WHOLE]
        _, counts = ranged(self._columns, self._settings)
        rows = self._batches.rows(start, end)
        ((lowest, highest),) = self._desk.rows(f"SELECT min({counts}), max({counts}) FROM {rows}")
        return split(lowest, highest, self._settings.partitions)

    def read(
        self, start: Position, end: Position, span: Span, columns: Sequence[Column]
    ) -> Iterator[Any]:
        names, batches = self._windows.names, self._batches
        self._desk.close()  # a task has asked what it had to
        with arrow_cursor(self._info, self._settings.query_timeout_s) as cursor:
            self._wait_for_replica(cursor, end.end.xid)
            rows = replace(batches, ask=cursor.rows).rows(start, end)
            if span != WHOLE:
                rows += f" AND {inside(span, ranged(self._columns, self._settings)[1])}"
            found = cursor.batches(f"SELECT {selected(columns)} FROM {rows} ORDER BY {names}")
            yield from pieces(found, self._settings.rows_fetched)

    def delete(self, end: Position) -> None:
        self._desk.change(f"DELETE FROM {self._batches.given_out(end, end.done, None)}")
        if end.window is not None:
            window = self._batches.given_out(end, end.window, end.after)
            self._desk.change(f"DELETE FROM {window}")

    def report(self) -> dict[str, Any]:
        return self._watch.report

    def close(self) -> None:
        self._desk.close()

    @property
    def _name(self) -> str:
        return self._relation.sql.as_string(None)

    @property
    def _keeps_order(self) -> bool:
        settings = self._settings
        by_transaction = settings.transaction is not None and settings.update is None
        return settings.outbox or settings.key_lag is not None or by_transaction

    # Windows and pages

    def _look(self, start: Position, xid: int, rows_max: int | None) -> Position | None:
        """A new window and its first page, if there is anything in it."""
        if xid <= start.done.xid:
            return None
        self._refuse_transactions_to_come()
        children = self._checked_children()
        start = carried_over(start, children)
        window = self._window(start, xid, children)
        rows = self._batches.rows(start, Position(window), children)
        found = self._count(rows, (rows_max or 0) + 1)
        if found == 0:
            return None
        is_whole = rows_max is None or found <= rows_max
        return Position(window) if is_whole else self._page(start, window, rows_max)

    def _window(self, start: Position, xid: int, children: Children) -> Mark:
        done, windows = start.done, self._windows
        window = Mark(done.upto, xid, known_at(children, done.children, xid))
        conditions = [windows.beyond(done)]
        if self._keeps_order:
            members = self._batches.members(start, Position(window), children)
            waiting = self._first(windows.pending(done, xid, members))
            conditions += [] if waiting is None else [windows.compared("<", waiting)]
        last = self._last(" AND ".join(conditions))
        return replace(window, upto=last or done.upto)

    def _count(self, rows: str, most: int) -> int:
        counted = f"(SELECT FROM {rows} LIMIT {most}) AS counted"
        ((found,),) = self._desk.rows(f"SELECT count(*) FROM {counted}")
        return int(found)

    def _page(self, start: Position, window: Mark, rows_max: int | None) -> Position:
        """The window's next rows. There may be none left, if they were changed; then it is over."""
        whole = Position(window, is_former=start.is_former)
        if rows_max is None:
            return whole
        rows = self._batches.rows(start, whole)
        which = f"ORDER BY {self._windows.names} OFFSET {rows_max - 1} LIMIT 2"
        # In a first window nearly all rows count, and an index finds the place at once; later ones
        # have few among many, and are better gathered first.
        places = self._places(rows, which, gathered=start.done.upto is not None)
        return whole if len(places) < 2 else replace(start, window=window, after=places[0])

    def _first(self, where: str) -> Place | None:
        which = f"ORDER BY {self._windows.names} LIMIT 1"
        places = self._places(f"{self._name} WHERE {where}", which, gathered=True)
        return places[0] if places else None

    def _last(self, where: str) -> Place | None:
        which = f"ORDER BY {self._windows.backwards} LIMIT 1"
        places = self._places(f"{self._name} WHERE {where}", which, gathered=False)
        return places[0] if places else None

    def _places(self, rows: str, which: str, *, gathered: bool) -> list[Place]:
        shown = ", ".join(str(column.orders) for column in self._windows.order)
        if gathered:
            rows = f"(SELECT {self._windows.names} FROM {rows} OFFSET 0) AS gathered"
        return self._desk.rows(f"SELECT {shown} FROM {rows} {which}")

    # Children

    def _checked_children(self) -> Children:
        """As they are now; those that are new to this reader are looked at more closely."""
        children = self._batches.children()
        transaction = self._windows.transaction
        if transaction is not None and children != self._looked_at:
            updated = self._settings.update is not None
            check_filled(self._desk.rows, self._relation, children, transaction, updated=updated)
            self._looked_at = children
        return children

    def _refuse_transactions_to_come(self) -> None:
        transaction = self._windows.transaction
        if transaction is not None:
            rows = f"{self._name} WHERE {self._windows.to_come}"
            for place in self._places(rows, "LIMIT 1", gathered=False):
                raise not_yet_had(transaction, place)

    # The server

    def _horizon(self, at_least: int = 0) -> Horizon:
        horizon = self._desk.ask(horizon_now)
        deadline_s = time.monotonic() + _LAG_PATIENCE_S
        while horizon.xid < at_least:
            if time.monotonic() > deadline_s:
                raise refuse_older(horizon.xid, at_least)
            time.sleep(_PAUSE_S)  # a replica may be about to catch up
            horizon = self._desk.ask(horizon_now)
        self._refuse_rounds(horizon.next_xid)
        self._watch.note(horizon, self._desk.rows)
        return horizon

    def _wait_for_replica(self, cursor: Cursor, at_least: int) -> None:
        """The task's connection may have been led to another server than the driver's."""
        deadline_s = time.monotonic() + _LAG_PATIENCE_S
        while True:
            ((xid, next_xid),) = cursor.rows(_HORIZON)
            if xid >= at_least:
                break
            if time.monotonic() > deadline_s:
                raise refuse_older(xid, at_least)
            time.sleep(_PAUSE_S)  # between two questions to the server
        self._refuse_rounds(next_xid)

    def _refuse_rounds(self, next_xid: int) -> None:
        has_others = self._settings.transaction is not None or self._settings.key_lag is not None
        if next_xid > XIDS and not has_others:
            raise ConfigError(
                "this server has had more than 4,294,967,296 transactions, so that old rows can "
                "bear the same numbers as new ones. Set keyLag if rows are never changed and keys "
                "grow, or add a column for the transaction, which a trigger fills, and name it as "
                f"transactionColumn: {how_to_add(self._name)}; docs/ingest.md says more"
            )

    def _check_delete(self) -> None:
        ((may, is_replica),) = self._desk.rows(
            f"SELECT has_table_privilege({self._relation.oid}, 'DELETE'), pg_is_in_recovery()"
        )
        if is_replica or not may:
            why = "the server is a read-only replica" if is_replica else "the user may not delete"
            raise ConfigError(
                f"deleteAfterPublishing can't be kept, since {why}: GRANT DELETE and connect to "
                "the primary, or leave it out"
            )
