"""Tables with partitions: tasks write their files, and the driver only adds them."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, QueryBuilder, Schema
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

import delta_log
from deliver.test_delta_rows import PAIR, by_id, open_store, pairs, write
from sparkonce.deliver.delta import files
from sparkonce.deliver.delta.store import DeltaStore
from sparkonce.deliver.store import Part, RowsRefused, StoreError

BY = ["part of", "Number", "is_it", "day"]
SCHEMA = t.StructType(
    [
        t.StructField("part of", t.StringType()),
        t.StructField("id", t.LongType()),
        t.StructField("Number", t.IntegerType()),
        t.StructField("is_it", t.BooleanType()),
        t.StructField("day", t.DateType()),
        t.StructField("map", t.MapType(t.StringType(), t.DoubleType())),
        t.StructField("at", t.TimestampType()),
    ]
)
VALUES: dict[str, list[Any]] = {
    "part of": [None, "a b", "é/%:=", "x*[y]?", "../up", "a+b&#'\"\\", ".", "null"],
    "Number": [None, -(2**31), 0, 7],
    "is_it": [None, True, False],
    "day": [None, dt.date(1, 1, 1), dt.date(2026, 7, 1), dt.date(9999, 12, 31)],
}


def partitioned(path: Path, *by: str) -> None:
    fields = Schema.from_json(SCHEMA.json()).fields
    DeltaTable.create(path, Schema(fields), partition_by=list(by))


def some_rows(rng: random.Random, first: int, count: int) -> list[dict[str, Any]]:
    return [
        {name: rng.choice(values) for name, values in VALUES.items()}
        | {
            "id": number,
            "map": rng.choice([None, [], [("k", float(number))]]),
            "at": rng.choice([None, dt.datetime(2026, 1, 1, tzinfo=dt.UTC)]),
        }
        for number in range(first, first + count)
    ]


def batch_of(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    schema = to_arrow_schema(SCHEMA, timezone="Europe/Berlin")
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def staged_files(store: DeltaStore, epoch: int, batch: pa.RecordBatch, attempt: int) -> list[Part]:
    """In two tasks."""
    stage, half = store.stage(epoch, attempt), batch.num_rows // 2
    pieces = {7: batch.slice(0, half), 8: batch.slice(half)}
    return [
        Part(task, stage(task, batch.schema, iter([rows])), rows.num_rows, rows.nbytes)
        for task, rows in pieces.items()
    ]


@pytest.mark.parametrize("by", [BY[:1], BY[1:3], BY])
def test_files_of_the_tasks_become_the_tables(tmp_path: Path, seed: int, by: list[str]) -> None:
    """Not written a second time; and four readers find each row with its values."""
    rng = random.Random(f"{seed} {by}")
    partitioned(tmp_path, *by)
    store, epoch = open_store(tmp_path, SCHEMA)
    written: list[dict[str, Any]] = []
    for attempt in range(1, 4):
        rows = some_rows(rng, 1000 * attempt, rng.randrange(2, 60))
        written += rows
        parts = staged_files(store, epoch, batch_of(rows), attempt)
        staged = Counter(path.read_bytes() for part in parts for path in Path(part.name).iterdir())
        before = delta_log.files(tmp_path)
        transaction = store.begin(epoch)
        transaction.load(parts)
        transaction.commit()
        store.discard(epoch, attempt)
        added = [path for path in tmp_path.rglob("*.parquet") if path.name not in before]
        assert Counter(path.read_bytes() for path in added) == staged
    expected = {row["id"]: row for row in written}
    table = DeltaTable(tmp_path)
    assert as_read(table.to_pyarrow_table()) == expected
    assert as_read(QueryBuilder().register("t", table).execute("SELECT * FROM t").read_all()) == (
        expected
    )
    assert as_read_of_log(tmp_path) == expected
    assert as_read_of_folders(tmp_path, by) == expected
    for row in rng.sample(written, 5):
        filters = [(name, "=", row[name]) for name in by if row[name] is not None]
        found = table.to_pyarrow_table(filters=filters or None)
        assert row["id"] in found["id"].to_pylist(), filters


def as_read(found: Any) -> dict[int, dict[str, Any]]:
    table = pa.table(found).select(SCHEMA.names)
    table = table.cast(to_arrow_schema(SCHEMA, timezone="UTC"))
    rows = {row["id"]: row for row in table.to_pylist()}
    assert len(rows) == table.num_rows
    return rows


def as_read_of_log(path: Path) -> dict[int, dict[str, Any]]:
    found = [row | _typed(row) for row in delta_log.rows(path)]
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: {name: row[name] for name in SCHEMA.names} for row in found}


def as_read_of_folders(path: Path, by: list[str]) -> dict[int, dict[str, Any]]:
    """By their names alone, as readers do that know of Hive's partitions and not of Delta's."""
    hive = ds.partitioning(pa.schema([(name, pa.string()) for name in by]), flavor="hive")
    found = ds.dataset(path, format="parquet", partitioning=hive, exclude_invalid_files=True)
    rows = found.to_table().to_pylist()
    return {row["id"]: {name: (row | _typed(row))[name] for name in SCHEMA.names} for row in rows}


def _typed(row: Mapping[str, Any]) -> dict[str, Any]:
    """Values of partitions, from their text."""
    read = {
        "Number": int,
        "is_it": {"true": True, "false": False}.__getitem__,
        "day": dt.date.fromisoformat,
    }
    return {
        name: read[name](row[name]) if isinstance(row[name], str) else row[name] for name in read
    }


def test_what_a_task_holds_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By rows in memory, by open files, by the size of one; no row is lost at these bounds."""
    monkeypatch.setattr(files, "HELD_BYTES_MAX", 2_000)
    monkeypatch.setattr(files, "FILE_BYTES_MAX", 6_000)
    monkeypatch.setattr(files, "OPEN_MAX", 3)
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    many = tmp_path / "many"
    with files.DataFiles(many, schema, ("name",)) as data:
        for first in range(0, 5_000, 50):
            rows = [{"id": n, "name": f"n{n % 7}"} for n in range(first, first + 50)]
            data.write(pa.RecordBatch.from_pylist(rows, schema=schema))
            assert data._held_bytes < 2_000
            assert len(data._open) <= 3
    found = {path: pq.read_table(path)["id"].to_pylist() for path in many.iterdir()}
    assert sorted(id_ for ids in found.values() for id_ in ids) == list(range(5_000))
    for path, ids in found.items():
        (partition,) = files.partition(pq.read_metadata(path).metadata).values()
        assert {f"n{id_ % 7}" for id_ in ids} == {partition}
    whole = tmp_path / "whole"
    with files.DataFiles(whole, schema, ()) as data:
        for first in range(0, 5_000, 50):
            rows = [{"id": n, "name": "x"} for n in range(first, first + 50)]
            data.write(pa.RecordBatch.from_pylist(rows, schema=schema))
    tables = [pq.read_table(path) for path in whole.iterdir()]
    assert len(tables) > 5
    assert max(table.nbytes for table in tables) < 6_000 + 2_000 + 1_000
    assert sorted(pa.concat_tables(tables)["id"].to_pylist()) == list(range(5_000))


def test_a_partition_that_rows_do_not_name(tmp_path: Path) -> None:
    fields = [Field("id", "long"), Field("extra", "integer"), Field("name", "string")]
    DeltaTable.create(tmp_path, Schema(fields), partition_by=["extra", "name"])
    store, epoch = open_store(tmp_path, PAIR)
    write(store, epoch, pairs((1, "a"), (2, None), (3, "")))
    found = DeltaTable(tmp_path).to_pyarrow_table().sort_by("id")
    assert found.select(["id", "name", "extra"]).to_pylist() == [
        {"id": 1, "name": "a", "extra": None},
        {"id": 2, "name": None, "extra": None},
        {"id": 3, "name": None, "extra": None},  # to Delta an empty text is null there
    ]


@pytest.mark.parametrize("name", [None, ""])
def test_a_partition_that_is_never_null(tmp_path: Path, name: str | None) -> None:
    fields = [Field("id", "long"), Field("name", "string", nullable=False)]
    DeltaTable.create(tmp_path, Schema(fields), partition_by=["name"])
    store, epoch = open_store(tmp_path, PAIR)
    parts = staged_files(store, epoch, pairs((1, "a"), (2, name)), 1)
    with pytest.raises(RowsRefused, match="'name'"):
        store.begin(epoch).load(parts)


@pytest.mark.parametrize("kind", ["decimal(10,2)", "timestamp", "double", "binary"])
def test_partitions_whose_text_is_not_the_same_everywhere(tmp_path: Path, kind: str) -> None:
    """They are written by delta-rs."""
    fields = [Field("id", "long"), Field("name", "string"), Field("by", kind)]
    DeltaTable.create(tmp_path, Schema(fields), partition_by=["by"])
    store, epoch = open_store(tmp_path, PAIR)
    write(store, epoch, pairs((1, "a")))
    assert DeltaTable(tmp_path).to_pyarrow_table().to_pylist() == [
        {"id": 1, "name": "a", "by": None}
    ]


def test_a_constraint_that_comes_while_rows_are_staged(tmp_path: Path) -> None:
    """Files that lack the partition's column can't be checked: the batch is run again."""
    fields = [Field("id", "long"), Field("name", "string")]
    DeltaTable.create(tmp_path, Schema(fields), partition_by=["name"])
    store, epoch = open_store(tmp_path, PAIR)
    parts = staged_files(store, epoch, pairs((1, "a"), (2, "b")), 1)
    DeltaTable(tmp_path).alter.add_constraint({"small": "id < 100"})
    transaction = store.begin(epoch)
    with pytest.raises(StoreError, match="run again"):
        transaction.load(parts)
    transaction.rollback()
    store.discard(epoch, 1)
    write(store, epoch, pairs((1, "a"), (2, "b")), attempt=2)
    assert [(row["id"], row["name"]) for row in by_id(tmp_path)] == [(1, "a"), (2, "b")]
    with pytest.raises(RowsRefused):
        write(store, epoch, pairs((3, "a"), (100, "b")), attempt=3)
