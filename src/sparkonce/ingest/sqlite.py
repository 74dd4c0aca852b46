"""SQLite: one writer at a time, so keys that are given out on insert become visible in order.

Rows are read in pages, each a statement of its own: a writer waits for a page at most, never for
Spark. Types are those that columns were declared with, since values may be of any.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import LongType, StringType, TimestampNTZType

from sparkonce.errors import ConfigError
from sparkonce.ingest.arrow import from_values
from sparkonce.ingest.keyed import Condition, Values, quoted
from sparkonce.ingest.settings import TableSettings
from sparkonce.ingest.sqlite_types import reader_of, spark_type, text_of, to_text
from sparkonce.ingest.table import Column, SourceError
from sparkonce.redaction import redact

_PATIENCE_S = 60.0
"""For a writer that holds the file."""


_HIDDEN = 1
"""Of a virtual table; generated columns have other numbers."""


@dataclass(frozen=True, slots=True)
class _Declared:
    name: str
    kind: str
    not_null: bool
    is_key: bool


class SqliteEngine:
    """A file of SQLite."""

    def __init__(self, settings: TableSettings) -> None:
        self._settings = settings
        parts = urlsplit(settings.url)
        if parts.netloc or parts.query:
            raise ConfigError("url must be sqlite:///path/to/file, an absolute path and no more")
        self._path = unquote(parts.path)
        self._name = _unquoted(settings.table)

    @property
    def table(self) -> str:
        return quoted(self._name)

    def columns(self) -> Sequence[Column]:
        return self._columns

    @cached_property
    def _columns(self) -> Sequence[Column]:
        found = self._declared()
        if not found:
            raise ConfigError(f"dbtable={self._name!r} is no table in {self._path}")
        keys = [each.name for each in found if each.is_key]
        return [
            _column(each.name, each.kind, nullable=not (each.not_null or _is_rowid(each, keys)))
            for each in found
        ]

    def check(self, order: Sequence[Column]) -> None:
        key = order[-1].name
        if [key] not in self._unique_columns():
            raise ConfigError(
                f"keyColumn={key!r} is not unique: of rows that share a key, those that come "
                "later would be lost. Name the primary key, or a column with a UNIQUE index"
            )
        if self._settings.deletes and self._reuses_keys(key):
            raise ConfigError(
                f"deleteAfterPublishing needs keys that are never used again, and SQLite starts "
                f"anew after the last row was deleted: declare {key!r} as INTEGER PRIMARY KEY "
                "AUTOINCREMENT"
            )

    def rows(self, sql: str, values: Values) -> list[tuple[Any, ...]]:
        with closing(self._open("ro")) as connection:
            return self._fetched(connection, sql, values)

    def batches(
        self, columns: Sequence[Column], order: Sequence[Column], where: Condition
    ) -> Iterator[Any]:
        names = ", ".join(quoted(column.name) for column in order)
        selected = ", ".join([*(column.read for column in columns), names])
        sql = f"SELECT {selected} FROM {self.table} WHERE {where[0]}"
        beyond = f" AND ({names}) > ({', '.join('?' for _ in order)})"
        last = f" ORDER BY {names} LIMIT {self._settings.rows_fetched}"
        with closing(self._open("ro")) as connection:
            page = self._fetched(connection, sql + last, where[1])
            while page:
                yield _batch(page, columns)
                if len(page) < self._settings.rows_fetched:
                    return
                place = list(page[-1][len(columns) :])
                page = self._fetched(connection, sql + beyond + last, where[1] + place)

    def change(self, sql: str, values: Values) -> None:
        with closing(self._open("rw")) as connection, connection:
            self._fetched(connection, sql, values)

    def given(self, column: Column) -> str:
        return "?"

    def is_old(self, column: Column, delay_ms: int) -> str | None:
        if not isinstance(column.kind, TimestampNTZType | StringType):
            return None
        time = f"julianday({quoted(column.name)})"
        # What SQLite does not take for a time is no time: there is nothing to wait for.
        return f"({time} IS NULL OR {time} <= julianday('now', '-{delay_ms / 1000:.3f} seconds'))"

    def close(self) -> None:
        """Nothing is kept open."""

    def _open(self, mode: str) -> sqlite3.Connection:
        try:
            connection = sqlite3.connect(
                f"file:{quote(self._path)}?mode={mode}", uri=True, timeout=_PATIENCE_S
            )
        except sqlite3.OperationalError as error:
            redact(error)
            raise SourceError(
                f"{self._path} can't be opened: {error}. The path in url is absolute, and must be "
                "there on every machine that runs tasks"
            ) from error
        connection.text_factory = to_text
        return connection

    def _fetched(
        self, connection: sqlite3.Connection, sql: str, values: Sequence[Any]
    ) -> list[tuple[Any, ...]]:
        try:
            return connection.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            redact(error)
            raise SourceError(f"SQLite, {self._path}: {error}") from error

    def _declared(self) -> list[_Declared]:
        found = self.rows(f"PRAGMA table_xinfo({self.table})", [])
        return [
            _Declared(name, kind, bool(not_null), bool(key))
            for _, name, kind, not_null, _, key, hidden in found
            if hidden != _HIDDEN
        ]

    def _unique_columns(self) -> list[list[str]]:
        unique = [[each.name for each in self._declared() if each.is_key]]
        for _, index, is_unique, _, is_partial in self.rows(f"PRAGMA index_list({self.table})", []):
            if is_unique and not is_partial:
                parts = self.rows(f"PRAGMA index_info({quoted(index)})", [])
                unique.append([name for _, _, name in parts])
        return unique

    def _reuses_keys(self, key: str) -> bool:
        column = next(each for each in self._columns if each.name == key)
        if not isinstance(column.kind, LongType):
            return False
        ((sql,),) = self.rows(
            "SELECT sql FROM sqlite_schema WHERE type = 'table' AND lower(name) = lower(?)",
            [self._name],
        )
        return re.search(r"\bAUTOINCREMENT\b", sql, re.IGNORECASE) is None


def _batch(page: Sequence[Sequence[Any]], columns: Sequence[Column]) -> Any:
    """As Arrow; behind the columns, the texts of values that are not of their column's type."""
    found = []
    texts: dict[int, list[str | None]] = {}
    for index, column in enumerate(columns):
        kind = to_arrow_type(column.kind or StringType(), timezone="UTC")
        values = [row[index] for row in page]
        array, unfit = from_values(values, reader_of(column.kind), kind)
        found.append(array)
        for row in unfit:
            texts.setdefault(row, [None] * len(columns))[index] = text_of(values[row])
    unreadable = pa.array([texts.get(row) for row in range(len(page))], pa.list_(pa.string()))
    names = [*(column.name for column in columns), ""]
    return pa.RecordBatch.from_arrays([*found, unreadable], names=names)


def _is_rowid(column: _Declared, keys: list[str]) -> bool:
    """The one kind of primary key that can't be null without saying so."""
    return keys == [column.name] and column.kind.upper() == "INTEGER"


def _column(name: str, declared: str, *, nullable: bool) -> Column:
    kind = spark_type(declared)
    ordered = isinstance(kind, LongType | StringType | TimestampNTZType)
    return Column(
        name=name,
        declared=declared or "none",
        kind=kind,
        nullable=nullable,
        read=quoted(name),
        orders=quoted(name) if ordered else None,
        counts=quoted(name) if isinstance(kind, LongType) else None,
    )


def _unquoted(name: str) -> str:
    plain = name.removeprefix("main.")
    return plain[1:-1].replace('""', '"') if plain.startswith('"') else plain
