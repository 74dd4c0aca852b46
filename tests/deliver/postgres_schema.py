"""A schema of PostgreSQL for tests of the store, without Spark: rows staged as a task would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
from psycopg.rows import dict_row
from pyspark.sql.types import LongType, StringType, StructField, StructType

from sparkonce.deliver.columns import BAD, ROW, SEQUENCE, Columns
from sparkonce.deliver.postgres import target
from sparkonce.deliver.postgres.store import PostgresStore
from sparkonce.deliver.store import Loaded, Part

ID, NAME = StructField("id", LongType()), StructField("name", StringType())
SCHEMA = StructType([ID, NAME])
ASIDE = {BAD: None, ROW: None}
"""What is staged beside the columns where bad rows have a place to go to."""
_ARROW = {
    int: pa.int64(),
    bool: pa.bool_(),
    float: pa.float64(),
    Decimal: pa.decimal128(38, 10),
    datetime: pa.timestamp("us"),
}
_NUMBERS = ("id", "parent", "at", SEQUENCE)

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Schema:
    url: str
    name: str

    def execute(self, statement: str) -> list[dict[str, Any]]:
        with psycopg.connect(self.url, row_factory=dict_row) as connection:
            connection.execute(f"SET search_path = {self.name}")
            done = connection.execute(statement)
            return done.fetchall() if done.description else []

    def connect(self) -> psycopg.Connection[Any]:
        """One whose transaction stays open."""
        connection = psycopg.connect(self.url)
        connection.execute(f"SET search_path = {self.name}")
        connection.commit()
        return connection

    def store(self, schema: StructType = SCHEMA, **options: str) -> PostgresStore:
        given = {
            "url": self.url,
            "dbtable": f"{self.name}.target",
            "ledgerTable": f"{self.name}.ledger",
            "pipeline": self.name,
        }
        if dead := options.pop("dead", None):
            given["deadLetterTable"] = f"{self.name}.{dead}"
        made = target(given | options, None)
        columns = Columns.plan(
            schema, made.settings, type_of=made.type_of, nested_as_json=made.nested_as_json
        )
        return PostgresStore(made.settings, columns)

    def open(self, schema: StructType = SCHEMA, **options: str) -> tuple[PostgresStore, int]:
        store = self.store(schema, **options)
        store.prepare()
        return store, store.take_over().epoch

    def write(self, store: PostgresStore, rows: Sequence[Row]) -> Loaded:
        """One batch, from the start of a driver to its end."""
        store.prepare()
        epoch = store.take_over().epoch
        try:
            return write(store, epoch, rows)
        finally:
            store.close()

    def rows(self, what: str = "id, name", table: str = "target") -> list[tuple[Any, ...]]:
        with self.connect() as connection:
            return connection.execute(f"SELECT {what} FROM {table} ORDER BY 1").fetchall()


def stage(store: PostgresStore, epoch: int, rows: Sequence[Row], attempt: int = 1) -> Part:
    batch = batch_of(rows)
    name = store.stage(epoch, attempt)(attempt, batch.schema, iter([batch]))
    return Part(attempt, name, batch.num_rows, batch.nbytes)


def write(store: PostgresStore, epoch: int, rows: Sequence[Row], attempt: int = 1) -> Loaded:
    """One batch, as the sink does it."""
    part = stage(store, epoch, rows, attempt)
    transaction = store.begin(epoch)
    try:
        loaded = transaction.load([part])
        transaction.commit()
        return loaded
    finally:
        transaction.rollback()
        store.discard(epoch, attempt)


def batch_of(rows: Sequence[Row]) -> pa.RecordBatch:
    """Of the types that values have; a column of nulls is text, or what its name says."""
    fields = []
    for name in rows[0]:
        kinds = {type(row[name]) for row in rows} - {type(None)}
        null = pa.int64() if name in _NUMBERS else pa.string()
        fields.append((name, _ARROW.get(kinds.pop(), pa.string()) if kinds else null))
    return pa.RecordBatch.from_pylist([dict(row) for row in rows], schema=pa.schema(fields))
