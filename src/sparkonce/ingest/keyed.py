"""Tables whose rows become visible in the order of their keys: SQLite and DuckDB.

There is no open transaction that could still add a row below one that is visible: SQLite has one
writer at a time, and a DuckDB file that can be read is open in no other process that writes. So a
position is a place in the order, and a batch is what lies between two of them. Update times need
more: a row may still get the very time that was read last. So those that are too young are left
for later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Protocol

from sparkonce.ingest.position import Form, Mark, Place, Position, Scalar
from sparkonce.ingest.settings import TableSettings
from sparkonce.ingest.span import WHOLE, Span, split
from sparkonce.ingest.table import Column, order_of, ranged

Values = list[Scalar]
Condition = tuple[str, Values]
"""SQL with question marks, and what stands for them."""


class Engine(Protocol):
    """What differs between SQLite and DuckDB."""

    @property
    def table(self) -> str:
        """Its name as SQL takes it."""

    def columns(self) -> Sequence[Column]: ...

    def check(self, order: Sequence[Column]) -> None: ...

    def rows(self, sql: str, values: Values) -> list[tuple[Any, ...]]: ...

    def batches(
        self, columns: Sequence[Column], order: Sequence[Column], where: Condition
    ) -> Iterator[Any]: ...

    def change(self, sql: str, values: Values) -> None: ...

    def given(self, column: Column) -> str:
        """What stands for a value of an order column in SQL."""

    def is_old(self, column: Column, delay_ms: int) -> str | None:
        """SQL: an update time lies that far back. None if the column does not tell the time."""

    def close(self) -> None: ...


class KeyedTable:
    """A table of SQLite or DuckDB."""

    def __init__(self, engine: Engine, settings: TableSettings) -> None:
        self._engine = engine
        self._settings = settings

    @cached_property
    def _order(self) -> tuple[Column, ...]:
        return order_of(self._engine.columns(), self._settings)

    @property
    def form(self) -> Form:
        return Form(tuple(column.name for column in self._order))

    def columns(self) -> Sequence[Column]:
        return self._engine.columns()

    def check(self) -> None:
        self._engine.check(self._order)
        if self._settings.partitions > 1:
            ranged(self.columns(), self._settings)

    def start(self, *, latest: bool) -> Position:
        return Position(self.newest(), is_start=True) if latest else Position(Mark())

    def newest(self) -> Mark:
        return Mark(self._last((self._is_due(), [])))

    def advance(
        self, start: Position, rows_max: int | None, limit: Mark | None = None
    ) -> Position | None:
        where = self._and((self._is_due(), []), self._beyond(start.done))
        if limit is not None:
            where = self._and(where, self._within(limit))
        place = self._nth(where, rows_max) if rows_max is not None else None
        place = place or self._last(where)
        return None if place is None else Position(Mark(place))

    def spans(self, start: Position, end: Position) -> list[Span]:
        if self._settings.partitions == 1:
            return [WHOLE]
        _, counts = ranged(self.columns(), self._settings)
        where, values = self._between(start, end)
        sql = f"SELECT min({counts}), max({counts}) FROM {self._engine.table} WHERE {where}"
        ((lowest, highest),) = self._engine.rows(sql, values)
        return split(lowest, highest, self._settings.partitions)

    def read(
        self, start: Position, end: Position, span: Span, columns: Sequence[Column]
    ) -> Iterator[Any]:
        where = self._between(start, end)
        if span != WHOLE:
            where = self._and(where, self._inside(span))
        return self._engine.batches(columns, self._order, where)

    def delete(self, end: Position) -> None:
        where, values = self._within(end.done)
        self._engine.change(f"DELETE FROM {self._engine.table} WHERE {where}", values)

    def report(self) -> dict[str, Any] | None:
        return None

    def close(self) -> None:
        self._engine.close()

    # SQL

    def _nth(self, where: Condition, number: int) -> Place | None:
        return self._place(where, f"ORDER BY {self._names} LIMIT 1 OFFSET {number - 1}")

    def _last(self, where: Condition) -> Place | None:
        backwards = ", ".join(f"{quoted(column.name)} DESC" for column in self._order)
        return self._place(where, f"ORDER BY {backwards} LIMIT 1")

    def _place(self, where: Condition, which: str) -> Place | None:
        shown = ", ".join(str(column.orders) for column in self._order)
        sql = f"SELECT {shown} FROM {self._engine.table} WHERE {where[0]} {which}"
        rows = self._engine.rows(sql, where[1])
        return rows[0] if rows else None

    def _between(self, start: Position, end: Position) -> Condition:
        return self._and(self._beyond(start.done), self._within(end.done))

    def _beyond(self, mark: Mark) -> Condition:
        return ("true", []) if mark.upto is None else self._compared(">", mark.upto)

    def _within(self, mark: Mark) -> Condition:
        return ("false", []) if mark.upto is None else self._compared("<=", mark.upto)

    def _compared(self, how: str, place: Place) -> Condition:
        """Spelled out: DuckDB does not take rows between two others."""
        *before, key = [(quoted(each.name), self._engine.given(each)) for each in self._order]
        last = f"{key[0]} {how} {key[1]}"
        if not before:
            return f"({last})", list(place)
        ((update, given),) = before
        strict, loose = how[0], f"{how[0]}="
        sql = f"({update} {loose} {given} AND ({update} {strict} {given} OR {last}))"
        return sql, [place[0], *place]

    def _inside(self, span: Span) -> Condition:
        _, counts = ranged(self.columns(), self._settings)
        bounds = [] if span.low is None else [f"{counts} >= {span.low}"]
        bounds += [] if span.high is None else [f"{counts} < {span.high}"]
        sql = " AND ".join(bounds)
        return (f"({sql} OR {counts} IS NULL)" if span.low is None else f"({sql})"), []

    def _is_due(self) -> str:
        if self._settings.update is None:
            return "true"
        return self._engine.is_old(self._order[0], self._settings.update_delay_ms) or "true"

    @property
    def _names(self) -> str:
        return ", ".join(quoted(column.name) for column in self._order)

    @staticmethod
    def _and(one: Condition, other: Condition) -> Condition:
        return f"{one[0]} AND {other[0]}", one[1] + other[1]


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
