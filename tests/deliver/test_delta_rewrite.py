"""Upserts that write a table's files anew: what is in them stays, whoever wrote them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, QueryBuilder, Schema, write_deltalake
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

import delta_log
from deliver.test_delta_rows import NULLS, PAIR, ROW, TYPES, by_id, open_store, pairs, write
from sparkonce.deliver.columns import DELETED, SEQUENCE
from sparkonce.deliver.delta import newest
from sparkonce.deliver.store import RowsRefused

BY_ID = {"writeMode": "upsert", "keyColumns": "id"}
ALL = t.StructType([t.StructField(name, kind) for name, kind in TYPES.items()])


def test_rows_beside_those_that_change_keep_their_values(tmp_path: Path) -> None:
    """Of every type: they are in a file that is written anew, as nulls and as values."""
    store, epoch = open_store(tmp_path, ALL, **BY_ID)
    arrow = to_arrow_schema(ALL, timezone="Europe/Berlin")
    third = ROW | {"id": 3}
    write(store, epoch, pa.RecordBatch.from_pylist([ROW, NULLS], schema=arrow))
    first = set(delta_log.live(tmp_path))
    for attempt in (2, 3):
        write(store, epoch, pa.RecordBatch.from_pylist([third], schema=arrow), attempt)
    assert first < set(delta_log.live(tmp_path))  # files without a key of the batch stay
    swapped = [NULLS | {"id": 1}, ROW | {"id": 2}]
    write(store, epoch, pa.RecordBatch.from_pylist([*swapped, third], schema=arrow), 4)
    write(store, epoch, pa.RecordBatch.from_pylist([third], schema=arrow), 5)
    assert by_id(tmp_path) == [*swapped, third]
    assert DeltaTable(tmp_path).to_pyarrow_table().sort_by("id").to_pylist() == [*swapped, third]


@pytest.mark.parametrize("legacy", [True, False], ids=["int96", "int64"])
def test_rows_that_another_writer_wrote(tmp_path: Path, legacy: bool) -> None:
    """Spark has timestamps as INT96 unless told otherwise, and dictionaries and versions differ."""
    store, epoch = open_store(tmp_path, ALL, **BY_ID)
    arrow = to_arrow_schema(ALL, timezone="UTC")
    write(store, epoch, pa.RecordBatch.from_pylist([ROW, NULLS, ROW | {"id": 3}], schema=arrow))
    for name in list(delta_log.live(tmp_path)):
        path = tmp_path / name
        table = pq.ParquetFile(path).read()
        pq.write_table(table, path, use_deprecated_int96_timestamps=legacy, compression="zstd")
    row = NULLS | {"id": 3}
    write(store, epoch, pa.RecordBatch.from_pylist([row], schema=arrow), 2)
    write(store, epoch, pa.RecordBatch.from_pylist([row, NULLS], schema=arrow), 3)
    assert by_id(tmp_path) == [ROW, NULLS, row]


def test_a_row_that_is_there_twice(tmp_path: Path) -> None:
    """Delta has no unique keys. Both are changed, as a MERGE would do."""
    store, epoch = open_store(tmp_path, PAIR, **BY_ID)
    double = pa.table({"id": [1, 1, 2], "name": ["a", "b", "c"]})
    write_deltalake(tmp_path, double, mode="append")
    write(store, epoch, pairs((1, "new")))
    assert sorted((row["id"], row["name"]) for row in by_id(tmp_path)) == [
        (1, "new"),
        (1, "new"),
        (2, "c"),
    ]


def test_files_that_lack_columns_of_the_table(tmp_path: Path) -> None:
    store, epoch = open_store(tmp_path, PAIR, **BY_ID)
    write(store, epoch, pairs((1, "a"), (2, "b")))
    DeltaTable(tmp_path).alter.add_columns([Field("more", "long"), Field("at", "timestamp")])
    write_deltalake(
        tmp_path,
        pa.table({"id": [3], "name": ["c"], "more": [7]}),
        mode="append",
        schema_mode="merge",
    )
    write(store, epoch, pairs((1, "A")), 2)  # its file lacks both, and so do all that are touched
    write(store, epoch, pairs((2, "B"), (3, "C"), (4, "D")), 3)
    found = [(row["id"], row["name"], row["more"], row["at"]) for row in by_id(tmp_path)]
    assert found == [
        (1, "A", None, None),
        (2, "B", None, None),
        (3, "C", 7, None),
        (4, "D", None, None),
    ]


def test_what_is_never_null(tmp_path: Path) -> None:
    fields = [Field("id", "long"), Field("name", "string", nullable=False)]
    DeltaTable.create(tmp_path, Schema(fields))
    schema = t.StructType([*PAIR.fields, t.StructField("gone", t.BooleanType())])
    store, epoch = open_store(tmp_path, schema, deleteColumn="gone", **BY_ID)
    arrow = pa.schema([("id", pa.int64()), ("name", pa.string()), (DELETED, pa.bool_())])

    def rows(*given: tuple[int, str | None, bool]) -> pa.RecordBatch:
        named = [dict(zip(arrow.names, row, strict=True)) for row in given]
        return pa.RecordBatch.from_pylist(named, schema=arrow)

    write(store, epoch, rows((1, "a", False), (2, "b", False)))
    with pytest.raises(RowsRefused, match="'name'"):
        write(store, epoch, rows((1, None, False)), 2)
    store.discard(epoch, 2)
    write(store, epoch, rows((1, None, True)), 3)  # a deletion needs no values
    assert by_id(tmp_path) == [{"id": 2, "name": "b"}]


def test_in_partitions_they_are_what_a_dict_would_have(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows move from one partition to another when their value changes; beside another writer."""
    rng = random.Random(seed)
    fields = [Field("by", "string"), Field("id", "long"), Field("n", "integer"), Field("x", "long")]
    DeltaTable.create(tmp_path, Schema(fields), partition_by=["by", "n"])
    schema = t.StructType(
        [
            t.StructField("id", t.LongType()),
            t.StructField("by", t.StringType()),
            t.StructField("n", t.IntegerType()),
            t.StructField("gone", t.BooleanType()),
        ]
    )
    keys = {"writeMode": "upsert", "keyColumns": "id,n", "deleteColumn": "gone", "sequenceBy": "id"}
    store, epoch = open_store(tmp_path, schema, **keys)
    arrow = pa.schema(
        [
            ("id", pa.int64()),
            ("by", pa.string()),
            ("n", pa.int32()),
            (DELETED, pa.bool_()),
            (SEQUENCE, pa.int64()),
        ]
    )
    model: dict[tuple[int, int], tuple[Any, Any]] = {}
    for attempt in range(1, 9):
        if rng.random() < 0.5:
            id_ = 1000 + attempt
            row = pa.table(
                {"by": ["other"], "id": [id_], "n": pa.array([1], pa.int32()), "x": [attempt]}
            )
            write_deltalake(tmp_path, row, mode="append")
            model[id_, 1] = ("other", attempt)
        changes: dict[tuple[int, int], dict[str, Any]] = {}
        known = [*model, *((rng.randrange(30), rng.randrange(3)) for _ in range(20))]
        for key in rng.sample(known, rng.randrange(1, 20)):
            value = rng.choice([None, "a b", "é/%", "x*[y]?", "c"])
            gone = rng.random() < 0.3
            changes[key] = {"by": value, DELETED: gone, SEQUENCE: 0}
            x = model.pop(key, (None, None))[1]
            if not gone:
                model[key] = (value, x)
        rows = [{"id": id_, "n": n} | row for (id_, n), row in changes.items()]
        write(store, epoch, pa.RecordBatch.from_pylist(rows, schema=arrow), attempt)
        table = DeltaTable(tmp_path)
        for found in (
            table.to_pyarrow_table(),
            pa.table(QueryBuilder().register("t", table).execute("SELECT * FROM t").read_all()),
        ):
            read = {(row["id"], row["n"]): (row["by"], row["x"]) for row in found.to_pylist()}
            assert (len(read), read) == (found.num_rows, model)
        assert len(delta_log.rows(tmp_path)) == len(model)


def test_more_rows_than_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not fit goes to the disk, in the attempt's stage, and leaves with it."""
    monkeypatch.setattr(newest, "_MEMORY", "64MB")
    store, epoch = open_store(tmp_path, PAIR, **BY_ID)
    count, half = 600_000, 300_000

    def numbered(first: int, tag: str) -> pa.RecordBatch:
        ids = range(first, first + count)
        names = [f"{tag}{number * 2654435761 % 2**32:080d}" for number in ids]
        return pa.RecordBatch.from_pydict({"id": pa.array(ids, pa.int64()), "name": names})

    write(store, epoch, numbered(0, "old"))
    write(store, epoch, numbered(half, "new"), 2)
    found = DeltaTable(tmp_path).to_pyarrow_table().sort_by("id")
    assert found["id"].to_pylist() == list(range(count + half))
    tags = [name[:3] for name in found["name"].to_pylist()]
    assert tags == ["old"] * half + ["new"] * count
    assert list(tmp_path.glob("_sparkonce-*")) == []
