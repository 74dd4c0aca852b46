"""The stream reader: Spark's questions, answered by a table.

One lives in a Python process beside the driver, for as long as the query runs, and says where
batches end; copies of it read their parts in tasks. All it keeps is in the offsets: a batch that
Spark runs again, however much later, is asked for by the same two and has the same rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from sparkonce.ingest.duckdb import DuckdbEngine
from sparkonce.ingest.keyed import KeyedTable
from sparkonce.ingest.position import Mark, started
from sparkonce.ingest.postgres.table import PostgresTable
from sparkonce.ingest.rows import RowFitter
from sparkonce.ingest.settings import Kind, TableSettings
from sparkonce.ingest.span import Span
from sparkonce.ingest.sqlite import SqliteEngine
from sparkonce.ingest.table import Table


@dataclass(frozen=True, slots=True)
class Part(InputPartition):
    """What one task reads."""

    start: dict[str, Any]
    end: dict[str, Any]
    span: Span


class TableReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads one table for one query."""

    def __init__(self, settings: TableSettings, schema: StructType) -> None:
        self._settings = settings
        self._schema = schema
        self._opened: Table | None = None
        self._limit: Mark | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": None}  # a connection stays where it is

    # On the driver

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        table = self._table()
        if self._settings.starts_at.startswith("{"):
            start = table.form.from_json(json.loads(self._settings.starts_at))
        else:
            start = table.start(latest=self._settings.starts_at == "latest")
        return table.form.to_json(start)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        rows_max = self._settings.rows_max
        return ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._limit = self._table().newest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        table = self._table()
        position = table.form.from_json(start)
        if position.is_start:
            return table.form.to_json(started(position))
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        end = table.advance(position, rows_max, self._limit)
        return start if end is None else table.form.to_json(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """`latestOffset` in a query's progress; asked for at each trigger."""
        return self._table().report()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        table = self._table()
        first, last = table.form.from_json(start), table.form.from_json(end)
        if first.is_start or first == last:
            return []
        return [Part(start, end, span) for span in table.spans(first, last)]

    def commit(self, end: dict[str, Any]) -> None:
        if self._settings.deletes:
            table = self._table()
            table.delete(table.form.from_json(end))

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.close()

    # In a task

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Part)
        table = open_table(self._settings)
        try:
            rows = RowFitter(self._settings, self._schema, table.columns())
            start, end = table.form.from_json(partition.start), table.form.from_json(partition.end)
            for batch in table.read(start, end, partition.span, rows.columns):
                yield rows.fit(batch)
        finally:
            table.close()

    def _table(self) -> Table:
        if self._opened is None:
            table = open_table(self._settings)
            table.check()
            RowFitter(self._settings, self._schema, table.columns())  # refuses what can't be
            self._opened = table
        return self._opened


def open_table(settings: TableSettings) -> Table:
    if settings.kind is Kind.POSTGRES:
        return PostgresTable(settings)
    engine = SqliteEngine if settings.kind is Kind.SQLITE else DuckdbEngine
    return KeyedTable(engine(settings), settings)
