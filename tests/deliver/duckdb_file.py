"""A file of DuckDB for tests of the store, without Spark: rows staged as a task would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
from pyspark.sql.types import StructType

from deliver.postgres_schema import SCHEMA, Row, batch_of
from sparkonce.deliver.columns import Columns
from sparkonce.deliver.duckdb import target
from sparkonce.deliver.duckdb.store import DuckDBStore
from sparkonce.deliver.store import Loaded, Part


@dataclass(frozen=True)
class Warehouse:
    path: Path

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        with duckdb.connect(str(self.path)) as connection:
            return connection.execute(statement).fetchall()

    def rows(self, what: str = "id, name", table: str = "target") -> list[tuple[Any, ...]]:
        return self.execute(f"SELECT {what} FROM {table} ORDER BY 1")

    def store(self, schema: StructType = SCHEMA, **options: str) -> DuckDBStore:
        given = {"path": str(self.path), "dbtable": "target", "pipeline": "p"}
        if dead := options.pop("dead", None):
            given["deadLetterTable"] = dead
        made = target(given | options, None)
        columns = Columns.plan(schema, made.settings, type_of=made.type_of, nested_as_json=False)
        return DuckDBStore(made.settings, columns)

    def write(self, store: DuckDBStore, rows: Sequence[Row], attempt: int = 1) -> Loaded:
        """One batch, from the start of a driver to its end."""
        store.prepare()
        epoch = store.take_over().epoch
        batch = batch_of(rows)
        name = store.stage(epoch, attempt)(1, batch.schema, iter([batch]))
        transaction = store.begin(epoch)
        try:
            loaded = transaction.load([Part(1, name, batch.num_rows, batch.nbytes)])
            transaction.commit()
            return loaded
        finally:
            transaction.rollback()
            store.discard(epoch, attempt)
            store.close()
