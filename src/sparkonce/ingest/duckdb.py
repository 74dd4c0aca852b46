"""DuckDB: a file that one process may write, or several may read.

That we can read it means that nobody writes, so no transaction is open that could still add rows
below those we see. A file that is being written is waited for; it is open only while something is
read, so that its writer gets it back.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import duckdb
from pyspark.sql.types import DateType, LongType, StringType, TimestampNTZType, TimestampType

from sparkonce.errors import ConfigError
from sparkonce.ingest.duckdb_types import WHOLE_NUMBERS, as_read, flaw_of, spark_type
from sparkonce.ingest.keyed import Condition, Values, quoted
from sparkonce.ingest.settings import TableSettings
from sparkonce.ingest.table import Column, SourceError, selected
from sparkonce.redaction import keep_secrets_of, redact

_PATIENCE_S = 60.0
_PAUSE_S = 0.05
_DEFAULTS = {"threads": "1", "memory_limit": "512MB"}
"""A task has one core and little memory; what does not fit is spilled to `<file>.tmp`."""
_PARTS = re.compile(r'"(?:[^"]|"")+"|[^."]+')


class DuckdbEngine:
    """A file of DuckDB."""

    def __init__(self, settings: TableSettings) -> None:
        self._settings = settings
        parts = urlsplit(settings.url)
        if parts.netloc or parts.path in ("", "/"):
            raise ConfigError(
                "url must be duckdb:///path/to/file, an absolute path; DuckDB's own settings may "
                "follow it: ?memory_limit=1GB"
            )
        self._path = unquote(parts.path)
        self._config: dict[str, Any] = {**_DEFAULTS, **dict(parse_qsl(parts.query))}
        keep_secrets_of(self._config)
        names = [
            part[1:-1].replace('""', '"') if part.startswith('"') else part
            for part in _PARTS.findall(settings.table)
        ]
        self._schema, self._name = ("main", *names)[-2:]

    @property
    def table(self) -> str:
        return f"{quoted(self._schema)}.{quoted(self._name)}"

    def columns(self) -> Sequence[Column]:
        return self._columns

    @cached_property
    def _columns(self) -> Sequence[Column]:
        found = self.rows(
            "SELECT column_name, data_type, is_nullable FROM duckdb_columns() WHERE "
            "lower(schema_name) = lower(?) AND lower(table_name) = lower(?) "
            "AND database_name = current_database() ORDER BY column_index",
            [self._schema, self._name],
        )
        if not found:
            raise ConfigError(f"dbtable={self._settings.table!r} is no table in {self._path}")
        reads = [as_read(quoted(name), declared) for name, declared, _ in found]
        with closing(self._open(read_only=True)) as connection:
            kinds = connection.sql(f"SELECT {', '.join(reads)} FROM {self.table} LIMIT 0")
            arrow = kinds.to_arrow_reader(1).schema
        return [
            _column(name, declared, read, field.type, nullable=is_nullable)
            for (name, declared, is_nullable), read, field in zip(found, reads, arrow, strict=True)
        ]

    def check(self, order: Sequence[Column]) -> None:
        key = order[-1].name
        if [key] not in self._unique_columns():
            raise ConfigError(
                f"keyColumn={key!r} is not unique: of rows that share a key, those that come "
                "later would be lost. Declare it PRIMARY KEY or UNIQUE, or make a UNIQUE INDEX"
            )

    def rows(self, sql: str, values: Values) -> list[tuple[Any, ...]]:
        with closing(self._open(read_only=True)) as connection:
            return self._run(connection, sql, values).fetchall()

    def batches(
        self, columns: Sequence[Column], order: Sequence[Column], where: Condition
    ) -> Iterator[Any]:
        names = ", ".join(quoted(column.name) for column in order)
        sql = f"SELECT {selected(columns)} FROM {self.table} WHERE {where[0]} ORDER BY {names}"
        with closing(self._open(read_only=True)) as connection:
            try:
                relation = connection.sql(sql, params=where[1])
                yield from relation.to_arrow_reader(self._settings.rows_fetched)
            except (duckdb.Error, OSError) as error:  # Arrow gives DuckDB's errors as OSError
                raise self._failed(error) from error

    def change(self, sql: str, values: Values) -> None:
        with closing(self._open(read_only=False)) as connection:
            self._run(connection, sql, values)

    def given(self, column: Column) -> str:
        return f"CAST(? AS {column.declared})"

    def is_old(self, column: Column, delay_ms: int) -> str | None:
        if not isinstance(column.kind, TimestampType | TimestampNTZType):
            return None
        now = "current_timestamp"
        if isinstance(column.kind, TimestampNTZType):
            now = "timezone('UTC', current_timestamp)"
        return f"{quoted(column.name)} <= {now} - INTERVAL {delay_ms} MILLISECONDS"

    def close(self) -> None:
        """Nothing is kept open."""

    def _open(self, *, read_only: bool) -> duckdb.DuckDBPyConnection:
        deadline_s = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return duckdb.connect(self._path, read_only=read_only, config=self._config)
            except duckdb.Error as error:
                if "lock" not in str(error) or time.monotonic() > deadline_s:
                    raise self._failed(error) from error
                time.sleep(_PAUSE_S)  # until its writer has closed it

    def _run(
        self, connection: duckdb.DuckDBPyConnection, sql: str, values: Values
    ) -> duckdb.DuckDBPyConnection:
        try:
            return connection.execute(sql, values)
        except duckdb.Error as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> SourceError:
        redact(error)
        return SourceError(
            f"DuckDB, {self._path}: {error}. The path in url is absolute; a process that writes "
            "the file must close it now and then, or nobody else can read it"
        )

    def _unique_columns(self) -> list[list[str]]:
        where = "lower(schema_name) = lower(?) AND lower(table_name) = lower(?)"
        constraints = self.rows(
            "SELECT constraint_column_names FROM duckdb_constraints() WHERE "
            f"constraint_type IN ('PRIMARY KEY', 'UNIQUE') AND {where}",
            [self._schema, self._name],
        )
        indexes = self.rows(
            f"SELECT expressions FROM duckdb_indexes() WHERE is_unique AND {where}",
            [self._schema, self._name],
        )
        named = [[_bare(each) for each in text.strip("[]").split(", ")] for (text,) in indexes]
        return [names for (names,) in constraints] + named


def _column(name: str, declared: str, read: str, arrow: Any, *, nullable: bool) -> Column:
    at, kind = quoted(name), spark_type(arrow)
    flaw = flaw_of(at, arrow, declared)
    is_number = declared in WHOLE_NUMBERS
    ordered = isinstance(kind, StringType | DateType | TimestampType | TimestampNTZType)
    counts = at if isinstance(kind, LongType) or is_number else None
    if isinstance(kind, DateType):
        counts = f"date_diff('day', DATE '1970-01-01', {at})"
    elif isinstance(kind, TimestampType | TimestampNTZType):
        counts = f"epoch_us({at})"
    return Column(
        name=name,
        declared=declared,
        kind=kind,
        nullable=nullable,
        read=read if flaw is None else f"CASE WHEN {flaw} THEN NULL ELSE {read} END",
        flaw=flaw,
        text=f"CAST({at} AS VARCHAR)",
        orders=at if is_number else f"CAST({at} AS VARCHAR)" if ordered else None,
        counts=counts,
    )


def _bare(name: str) -> str:
    """As an index spells a column."""
    return name.strip("'").strip('"')
