"""What a table must be able to answer, whatever database it is in; and a column, as all see it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.sql.types import DataType

from sparkonce.errors import ConfigError, SparkonceError
from sparkonce.ingest.position import Form, Mark, Position
from sparkonce.ingest.settings import TableSettings
from sparkonce.ingest.span import Span


class SourceError(SparkonceError):
    """The database did not give what was asked of it; the batch can be tried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column, with the SQL that the database needs around its name."""

    name: str
    declared: str
    """Its type in the database's own words."""
    kind: DataType | None
    """Its type in Spark; None where there is none."""
    nullable: bool
    read: str
    """Gives its values in a form that Arrow can cast to `kind`; null for those with a flaw."""
    flaw: str | None = None
    """Tells the values that Arrow can't have, or would garble; a null tells none."""
    text: str = ""
    """Gives the text of a value that has a flaw."""
    orders: str | None = None
    """Gives its values as JSON has them (whole numbers or text), if it can be part of an order."""
    counts: str | None = None
    """Gives whole numbers, if it can be split into ranges."""


class Table(Protocol):
    """A table and the order of its rows. Connections are opened when they are needed."""

    @property
    def form(self) -> Form: ...

    def columns(self) -> Sequence[Column]: ...

    def check(self) -> None:
        """Refuses what would lose rows or could not be done later."""

    def start(self, *, latest: bool) -> Position: ...

    def newest(self) -> Mark:
        """As far as rows could be given out at this moment; a limit for `advance`."""

    def advance(
        self, start: Position, rows_max: int | None, limit: Mark | None = None
    ) -> Position | None:
        """Where a batch from `start` on may end; None if it would have no rows."""

    def spans(self, start: Position, end: Position) -> list[Span]:
        """The batch in as many parts as were asked for."""

    def read(
        self, start: Position, end: Position, span: Span, columns: Sequence[Column]
    ) -> Iterator[Any]:
        """The rows of a part, in the table's order, as Arrow record batches of `fetchsize` rows at
        most; no more of them are in memory. Behind the columns there is one of lists: null for
        most rows; where a value could not be had, a text for each such column, and nulls."""

    def delete(self, end: Position) -> None:
        """Deletes the rows that were given out up to `end`."""

    def report(self) -> dict[str, Any] | None:
        """For a query's progress, without a question to the database; None if there is nothing."""

    def close(self) -> None: ...


def selected(columns: Sequence[Column]) -> str:
    """SQL for what `Table.read` gives, as PostgreSQL and DuckDB take it."""
    flaws = " OR ".join(f"({column.flaw})" for column in columns if column.flaw)
    texts = ", ".join(
        f"CASE WHEN {column.flaw} THEN {column.text} END" if column.flaw else "NULL"
        for column in columns
    )
    unreadable = f"CASE WHEN {flaws or 'false'} THEN CAST(ARRAY[{texts}] AS text[]) END"
    return ", ".join([*(column.read for column in columns), unreadable])


def find(columns: Sequence[Column], option: str, name: str) -> Column:
    """A column by its name, in any case if it is the only one then."""
    exact = [column for column in columns if column.name == name]
    alike = [column for column in columns if column.name.lower() == name.lower()]
    if not exact and len(alike) != 1:
        raise ConfigError(
            f"{option}={name!r} is no column of the table: it has "
            f"{', '.join(column.name for column in columns)}"
        )
    return (exact or alike)[0]


def order_of(columns: Sequence[Column], settings: TableSettings) -> tuple[Column, ...]:
    """The columns that rows are in order by; refuses those that can't give an order to all rows."""
    options = ("keyColumn",) if settings.update is None else ("updateColumn", "keyColumn")
    found = []
    for option, name in zip(options, settings.order, strict=True):
        column = find(columns, option, name)
        if column.orders is None:
            raise ConfigError(
                f"{option}={column.name!r} is of type {column.declared}, which gives no order that "
                "can be kept: use a column of whole numbers, text, or dates and times"
            )
        if column.nullable:
            raise ConfigError(
                f"{option}={column.name!r} may be null, and rows without a place would be lost: "
                f"declare the column NOT NULL"
            )
        found.append(column)
    return tuple(found)


def ranged(columns: Sequence[Column], settings: TableSettings) -> tuple[Column, str]:
    """The column that splits a batch, and its SQL for whole numbers."""
    column = find(columns, "partitionColumn", settings.partition)
    if column.counts is None:
        raise ConfigError(
            f"partitionColumn={column.name!r} is of type {column.declared}: batches are split into "
            "ranges of whole numbers, dates or timestamps; name another column as partitionColumn, "
            "or leave numPartitions out"
        )
    return column, column.counts
