"""Drives a table as Spark does: where does the next batch end, its rows, and on from there."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from sparkonce.ingest.reader import open_table
from sparkonce.ingest.settings import TableSettings
from sparkonce.ingest.source import TableSource

Rows = list[dict[str, Any]]


class Follower:
    """A reader without Spark. Positions go through JSON, as they do in a checkpoint."""

    def __init__(self, options: dict[str, str]) -> None:
        self.settings = TableSettings.parse(options)
        self.table = open_table(self.settings)
        self.table.check()
        first = self.table.start(latest=self.settings.starts_at == "latest")
        self.offset = self._noted(first)
        self.batches: list[tuple[str, str, Rows]] = []

    def step(self, rows_max: int | None = None, limit: Any = None) -> Rows:
        """The rows of the next batch; none if there is no batch."""
        return self._next(rows_max, limit) or []

    def drain(self, rows_max: int | None = None) -> Rows:
        """Batches until there is none; a table that is looked at too soon is looked at again."""
        rows: Rows = []
        limit = self.table.newest()  # looked for without a rest between, as with availableNow
        while (batch := self._next(rows_max, limit)) is not None:
            rows += batch  # which may have none: those of a window may all have been changed
        return rows

    def _next(self, rows_max: int | None, limit: Any) -> Rows | None:
        start = self._read(self.offset)
        end = self.table.advance(start, rows_max, limit)
        if end is None:
            return None
        noted = self._noted(end)
        rows = self.read(self.offset, noted)
        self.batches.append((self.offset, noted, rows))
        self.offset = noted
        return rows

    def read(self, start: str, end: str) -> Rows:
        """What a batch has, as a new process would read it."""
        table = open_table(self.settings)
        first, last = self._read(start), self._read(end)
        columns = table.columns()
        names = [column.name for column in columns]
        rows: Rows = []
        for span in table.spans(first, last):
            for batch in table.read(first, last, span, columns):
                *columns_read, unreadable = batch.columns
                assert unreadable.null_count == batch.num_rows
                rows += pa.RecordBatch.from_arrays(columns_read, names=names).to_pylist()
        table.close()
        return rows

    @property
    def all_rows(self) -> Rows:
        return [row for _, _, rows in self.batches for row in rows]

    @property
    def keys(self) -> list[Any]:
        return [row["id"] for row in self.all_rows]

    def reopen(self) -> None:
        """As after a crash: only the offset is left."""
        self.table.close()
        self.table = open_table(self.settings)

    def delete(self) -> None:
        self.table.delete(self._read(self.offset))

    def close(self) -> None:
        self.table.close()

    def _noted(self, position: Any) -> str:
        return json.dumps(self.table.form.to_json(position))

    def _read(self, offset: str) -> Any:
        return self.table.form.from_json(json.loads(offset))


def read_all(options: dict[str, str], schema: StructType | None = None) -> Rows:
    """A table's rows, as the reader gives them to Spark."""
    source = TableSource(options)
    reader = source.streamReader(schema or source.schema())
    try:
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadAllAvailable())
        batches = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
    finally:
        reader.stop()
    return list(pa.Table.from_batches(batches).to_pylist())
