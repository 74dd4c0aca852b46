"""A table of Delta for tests, read by a replay of its log; and batches as the sink writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql.types import LongType, StringType, StructField, StructType

import delta_log
from sparkonce.deliver.columns import Columns
from sparkonce.deliver.conformance import ENTRY, SOURCES
from sparkonce.deliver.delta import target
from sparkonce.deliver.delta.store import DeltaStore
from sparkonce.deliver.store import Part
from sparkonce.deliver.target import TableTarget

ID, NAME = StructField("id", LongType()), StructField("name", StringType())
FIELDS = pa.schema([("id", pa.int64()), ("name", pa.string())])
UPSERTS = {"writeMode": "upsert", "keyColumns": "id"}
KINDS = ["files", "partitions", "rows", "upsert", "merge"]
"""The ways into a table: files as they are, whole or by partition; rows through delta-rs; files
written anew, and delta-rs's merge."""


class DeltaFolder:
    supports_dead_letters = False

    def __init__(self, folder: Path) -> None:
        self.path = folder / "the table"

    def target(self, **options: str) -> TableTarget:
        if "pipeline" in options:
            options["txnAppId"] = options.pop("pipeline")
        given = {"txnAppId": "payments", "path": str(self.path), "createTable": "true"}
        return target(given | options, None)

    def rows(self, table: str = "target") -> list[dict[str, Any]]:
        return delta_log.rows(self.path)

    def staged(self) -> int:
        return len(list(self.path.glob("_sparkonce-*")))

    # -- beyond what every store is asked -----------------------------------------------------

    def store(self, *more: StructField, **options: str) -> DeltaStore:
        made = self.target(**options)
        schema = StructType([ID, NAME, *more])
        columns = Columns.plan(schema, made.settings, type_of=made.type_of, nested_as_json=False)
        return DeltaStore(made.settings, columns)

    def open(self, **options: str) -> tuple[DeltaStore, int]:
        store = self.store(**options)
        store.prepare()
        return store, store.take_over().epoch

    def open_kind(self, kind: str) -> tuple[DeltaStore, int]:
        if kind == "partitions":
            DeltaTable.create(self.path, FIELDS, mode="ignore", partition_by="name")
        if kind in ("rows", "merge") and not DeltaTable.is_deltatable(str(self.path)):
            DeltaTable.create(self.path, FIELDS)
            self.table().alter.add_constraint({"some": "id > 0"})
        return self.open(**options_of(kind))

    def table(self) -> DeltaTable:
        return DeltaTable(self.path)


def options_of(kind: str) -> dict[str, str]:
    return UPSERTS if kind in ("upsert", "merge") else {}


def stage(
    store: DeltaStore, epoch: int, rows: Sequence[Mapping[str, Any]], attempt: int = 1
) -> Part:
    fields = [("id", pa.int64()), *((name, pa.string()) for name in rows[0] if name != "id")]
    batch = pa.RecordBatch.from_pylist([dict(row) for row in rows], schema=pa.schema(fields))
    name = store.stage(epoch, attempt)(attempt, batch.schema, iter([batch]))
    return Part(attempt, name, batch.num_rows, batch.nbytes)


def write(
    store: DeltaStore,
    epoch: int,
    ids: Sequence[int],
    number: int,
    name: str = "a",
    attempt: int | None = None,
) -> None:
    """One batch, as the sink does it."""
    attempt = number if attempt is None else attempt
    part = stage(store, epoch, [{"id": id_, "name": name} for id_ in ids], attempt)
    transaction = store.begin(epoch)
    transaction.load([part])
    transaction.note(replace(ENTRY, number=number, batch=number), SOURCES)
    transaction.commit()
    store.discard(epoch, attempt)


def ids(database: DeltaFolder) -> list[int]:
    return sorted(row["id"] for row in database.rows())
