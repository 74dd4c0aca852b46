"""What becomes of rows in a table of Delta: types, statistics, upserts against a model."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Iterator, Mapping
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, Schema, write_deltalake
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

import delta_log
from sparkonce.deliver.columns import DELETED, SEQUENCE, Columns
from sparkonce.deliver.delta import target
from sparkonce.deliver.delta.store import DeltaStore
from sparkonce.deliver.store import Part
from sparkonce.errors import ConfigError

UTC = dt.UTC
NESTED = t.StructType(
    [
        t.StructField("When", t.TimestampType()),
        t.StructField("list", t.ArrayType(t.StructType([t.StructField("x", t.ByteType())]))),
    ]
)
TYPES: dict[str, t.DataType] = {
    "id": t.LongType(),
    "bool": t.BooleanType(),
    "byte": t.ByteType(),
    "short": t.ShortType(),
    "int": t.IntegerType(),
    "float": t.FloatType(),
    "double": t.DoubleType(),
    "decimal": t.DecimalType(38, 10),
    "Text": t.StringType(),
    "of two": t.StringType(),
    "binary": t.BinaryType(),
    "date": t.DateType(),
    "at": t.TimestampType(),
    "local.at": t.TimestampNTZType(),
    "array": t.ArrayType(t.IntegerType()),
    "map": t.MapType(t.StringType(), t.DoubleType()),
    "struct": NESTED,
}
ROW: dict[str, Any] = {
    "id": 1,
    "bool": True,
    "byte": -128,
    "short": -32768,
    "int": -(2**31),
    "float": 1.5,
    "double": float("inf"),
    "decimal": Decimal("1234567890123456789012345678.0123456789"),
    "Text": "é\0\U0001f600" * 40,
    "of two": "abc",
    "binary": b"\0\xff",
    "date": dt.date(1, 1, 1),
    "at": dt.datetime(1900, 1, 1, 0, 0, 0, 123456, tzinfo=UTC),
    "local.at": dt.datetime(9999, 12, 31, 23, 59, 59, 999999),
    "array": [1, None],
    "map": [("k", None), ("z", 1.0)],
    "struct": {"When": dt.datetime(2026, 7, 1, tzinfo=UTC), "list": [{"x": 1}, None]},
}
NULLS: dict[str, Any] = {"id": 2} | {name: None for name in ROW if name != "id"}


def open_store(path: Path, schema: t.StructType, **options: str) -> tuple[DeltaStore, int]:
    given = {"txnAppId": "p", "path": str(path), "createTable": "true"}
    made = target(given | options, None)
    columns = Columns.plan(schema, made.settings, type_of=made.type_of, nested_as_json=False)
    store = DeltaStore(made.settings, columns)
    store.prepare()
    return store, store.take_over().epoch


def write(store: DeltaStore, epoch: int, batch: pa.RecordBatch, attempt: int = 1) -> None:
    """In two tasks."""
    stage, parts = store.stage(epoch, attempt), []
    for task, piece in enumerate((batch.slice(0, batch.num_rows // 2), batch)):
        some = piece if task == 0 else batch.slice(batch.num_rows // 2)
        if some.num_rows:
            name = stage(task, batch.schema, iter([some]))
            parts.append(Part(task, name, some.num_rows, some.nbytes))
    transaction = store.begin(epoch)
    transaction.load(parts)
    transaction.commit()
    store.discard(epoch, attempt)


def by_id(path: Path) -> list[dict[str, Any]]:
    return sorted(delta_log.rows(path), key=lambda row: row["id"])


# -- types ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["files", "rows", "upsert", "merge"])
def test_values_of_all_types(tmp_path: Path, kind: str) -> None:
    """As an executor hands them over whose session is elsewhere than in UTC."""
    schema = t.StructType([t.StructField(name, type_) for name, type_ in TYPES.items()])
    upserts = kind in ("upsert", "merge")
    options = {"writeMode": "upsert", "keyColumns": "id"} if upserts else {}
    store, epoch = open_store(tmp_path, schema, **options)
    if kind in ("rows", "merge"):
        DeltaTable(tmp_path).alter.add_constraint({"small": "id < 100"})
    arrow = to_arrow_schema(schema, timezone="Europe/Berlin")
    write(store, epoch, pa.RecordBatch.from_pylist([ROW, NULLS], schema=arrow))
    if upserts:
        write(store, epoch, pa.RecordBatch.from_pylist([ROW, NULLS], schema=arrow), attempt=2)
    assert by_id(tmp_path) == [ROW, NULLS]
    there = DeltaTable(tmp_path).to_pyarrow_table().sort_by("id")
    assert there.to_pylist() == [ROW, NULLS]
    for name in delta_log.live(tmp_path):
        assert str(pq.read_schema(tmp_path / name).field("at").type) == "timestamp[us, tz=UTC]"


@pytest.mark.parametrize(
    "kind",
    [
        t.DayTimeIntervalType(),
        t.YearMonthIntervalType(),
        t.CalendarIntervalType(),
        t.VariantType(),
        t.TimeType(),
        t.NullType(),
        t.ArrayType(t.DayTimeIntervalType()),
        t.MapType(t.StringType(), t.VariantType()),
        t.StructType([t.StructField("x", t.NullType())]),
    ],
    ids=lambda kind: kind.simpleString(),
)
def test_types_that_delta_has_not(tmp_path: Path, kind: t.DataType) -> None:
    schema = t.StructType([t.StructField("some", kind)])
    with pytest.raises(ConfigError, match=r"'some'.*cast"):
        open_store(tmp_path / "t", schema)
    assert not (tmp_path / "t").exists()


# -- tables of others -------------------------------------------------------------------------

PAIR = t.StructType([t.StructField("id", t.LongType()), t.StructField("name", t.StringType())])


def pairs(*rows: tuple[int, str | None]) -> pa.RecordBatch:
    fields = pa.schema([("id", pa.int64()), ("name", pa.string())])
    return pa.RecordBatch.from_pylist(
        [{"id": id_, "name": name} for id_, name in rows], schema=fields
    )


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_table_with_partitions_and_columns_of_its_own(tmp_path: Path, mode: str) -> None:
    fields = [
        Field("extra", "timestamp"),
        Field("name", "string"),
        Field("id", "long"),
        Field("twice", "long", metadata={"delta.generationExpression": "id * 2"}),
    ]
    DeltaTable.create(tmp_path, Schema(fields), partition_by="name")
    store, epoch = open_store(tmp_path, PAIR, writeMode=mode, keyColumns="id")
    write(store, epoch, pairs((1, "a"), (2, None), (3, "a")))
    assert [(row["id"], row["name"], row["twice"], row["extra"]) for row in by_id(tmp_path)] == [
        (1, "a", 2, None),
        (2, None, 4, None),
        (3, "a", 6, None),
    ]


def test_a_table_with_columns_that_rows_have_not(tmp_path: Path) -> None:
    fields = [Field("extra", "string"), Field("id", "long"), Field("name", "string")]
    DeltaTable.create(tmp_path, Schema(fields))
    store, epoch = open_store(tmp_path, PAIR)
    write(store, epoch, pairs((1, "a")))
    assert DeltaTable(tmp_path).to_pyarrow_table().to_pylist() == [
        {"extra": None, "id": 1, "name": "a"}
    ]


def test_a_constraint_that_comes_while_the_query_runs(tmp_path: Path) -> None:
    """Files are no longer added unseen from the next batch on."""
    store, epoch = open_store(tmp_path, PAIR)
    write(store, epoch, pairs((1, "a")))
    ours = set(delta_log.live(tmp_path))
    DeltaTable(tmp_path).alter.add_constraint({"small": "id < 100"})
    write(store, epoch, pairs((2, "b")))
    assert [row["id"] for row in by_id(tmp_path)] == [1, 2]
    assert ours < set(delta_log.live(tmp_path))


# -- columns that came between two runs --------------------------------------------------------

MORE = t.StructType(
    [
        *PAIR.fields,
        t.StructField("local.at", t.TimestampNTZType(), nullable=False),
        t.StructField("list", t.ArrayType(t.IntegerType())),
    ]
)
NEW = {"local.at": dt.datetime(2026, 7, 1), "list": [1, None]}


@pytest.mark.parametrize("kind", ["files", "rows", "upsert", "merge", "partitions"])
def test_a_column_that_is_new_in_the_dataframe(tmp_path: Path, kind: str) -> None:
    """Added, it is null in the rows that are there; a query that runs goes on without it."""
    if kind in ("rows", "merge", "partitions"):
        fields = Schema([Field("id", "long"), Field("name", "string")])
        by = ["name"] if kind == "partitions" else None
        DeltaTable.create(tmp_path, fields, partition_by=by)
    if kind in ("rows", "merge"):
        DeltaTable(tmp_path).alter.add_constraint({"small": "id < 100"})
    upserts = kind in ("upsert", "merge")
    options = {"writeMode": "upsert", "keyColumns": "id"} if upserts else {}
    before, epoch = open_store(tmp_path, PAIR, txnAppId="before", **options)
    write(before, epoch, pairs((1, "a")))
    with pytest.raises(ConfigError, match=r"no column local\.at, list.*mergeSchema"):
        open_store(tmp_path, MORE, **options)
    store, later = open_store(tmp_path, MORE, mergeSchema="true", **options)
    row = {"id": 2, "name": "b", **NEW}
    write(store, later, pa.RecordBatch.from_pylist([row], schema=to_arrow_schema(MORE)))
    write(before, epoch, pairs((3, "c")), attempt=2)
    nulls = dict.fromkeys(NEW)
    assert by_id(tmp_path) == [{"id": 1, "name": "a"} | nulls, row, {"id": 3, "name": "c"} | nulls]
    assert [field.nullable for field in DeltaTable(tmp_path).schema().fields[1:]] == [True] * 3
    version = DeltaTable(tmp_path).version()
    open_store(tmp_path, MORE, mergeSchema="true", **options)
    assert DeltaTable(tmp_path).version() == version + 1  # for taking over: nothing to add


def test_columns_that_two_pipelines_add_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_store(tmp_path, PAIR)
    read = DeltaStore._read_shape
    added: list[str] = []

    def read_and_overtaken(store: DeltaStore) -> Any:
        shape = read(store)
        if not added:
            added.append("local.at")
            DeltaTable(tmp_path).alter.add_columns(Field("local.at", "timestamp_ntz"))
        return shape

    monkeypatch.setattr(DeltaStore, "_read_shape", read_and_overtaken)
    store, epoch = open_store(tmp_path, MORE, txnAppId="other", mergeSchema="true")
    row = {"id": 2, "name": "b", **NEW}
    write(store, epoch, pa.RecordBatch.from_pylist([row], schema=to_arrow_schema(MORE)))
    assert by_id(tmp_path) == [row]


def test_a_column_whose_name_differs_by_its_letters_case_is_not_added(tmp_path: Path) -> None:
    open_store(tmp_path, PAIR)
    schema = t.StructType(
        [t.StructField("id", t.LongType()), t.StructField("Name", t.StringType())]
    )
    with pytest.raises(ConfigError, match=r"no column Name.*Rename") as raised:
        open_store(tmp_path, schema, mergeSchema="true")
    assert "mergeSchema" not in str(raised.value)


def test_a_column_that_is_new_in_the_table(tmp_path: Path) -> None:
    store, epoch = open_store(tmp_path, PAIR)
    DeltaTable(tmp_path).alter.add_columns(Field("more", "long"))
    write(store, epoch, pairs((1, "a")))
    assert by_id(tmp_path) == [{"id": 1, "name": "a", "more": None}]


# -- statistics -------------------------------------------------------------------------------


def test_statistics_hide_no_row(tmp_path: Path, seed: int) -> None:
    """Each row is found by each of its values, by a reader that skips files by statistics, and
    that is misled where some files have them and others not."""
    rng = random.Random(seed)
    kinds: dict[str, t.DataType] = {
        "number": t.LongType(),
        "long": t.LongType(),
        "text": t.StringType(),
        "date": t.DateType(),
        "at": t.TimestampType(),
        "local": t.TimestampNTZType(),
        "float": t.DoubleType(),
        "amount": t.DecimalType(38, 6),
        "bool": t.BooleanType(),
    }
    schema = t.StructType([t.StructField(name, kind) for name, kind in kinds.items()])
    arrow = to_arrow_schema(schema, timezone="UTC")
    store, epoch = open_store(tmp_path, schema)
    other = {name: value for name, value in _random_row(rng, -1) if value is not None}
    write_deltalake(tmp_path, pa.Table.from_pylist([other], schema=arrow), mode="append")
    written: list[dict[str, Any]] = []
    for attempt in range(1, 9):
        rows = [dict(_random_row(rng, 10 * attempt + n)) for n in range(rng.randrange(1, 5))]
        write(store, epoch, pa.RecordBatch.from_pylist(rows, schema=arrow), attempt)
        written += rows
    table = DeltaTable(tmp_path)
    for row in written:
        for name, value in row.items():
            if value is not None:
                found = table.to_pyarrow_table(filters=[(name, "=", value)]).to_pylist()
                assert row["number"] in [each["number"] for each in found], (name, value)


def _random_row(rng: random.Random, number: int) -> Iterator[tuple[str, Any]]:
    letters = "aZ\u00e9\ud7ff\uffff\U0001f600\U0010ffff"
    yield "number", number
    yield "long", rng.choice([-(2**63), 2**63 - 1, rng.randrange(-(10**12), 10**12)])
    text = "".join(rng.choice(letters) for _ in range(rng.choice([0, 1, 31, 32, 33, 34, 80])))
    yield "text", rng.choice([None, text])
    yield "date", rng.choice([None, dt.date.min, dt.date.max, dt.date(2026, 1, 1)])
    moment = dt.datetime(2026, 1, 1, tzinfo=UTC) + dt.timedelta(microseconds=rng.randrange(10**4))
    yield "at", rng.choice([None, moment, moment.replace(year=9999), moment.replace(year=1)])
    yield "local", rng.choice([None, moment.replace(tzinfo=None)])
    yield "float", rng.choice([None, -0.0, 0.0, 1e300, -5e-324, rng.random()])
    amount = Decimal(rng.randrange(-(10**38) + 1, 10**38)).scaleb(-6, Context(prec=38))
    yield "amount", rng.choice([None, Decimal("0.000001"), amount])
    yield "bool", rng.choice([None, True, False])


def test_what_has_no_bounds(tmp_path: Path) -> None:
    """A NaN is greater than all others to Spark, and Parquet's statistics pass over it."""
    kinds = {"a": t.DoubleType(), "b": t.FloatType(), "c": t.DoubleType(), "d": t.BinaryType()}
    schema = t.StructType([t.StructField(name, kind) for name, kind in kinds.items()])
    store, epoch = open_store(tmp_path, schema)
    rows = [
        {"a": 1.0, "b": 1.0, "c": 1.0, "d": b"x"},
        {"a": None, "b": float("nan"), "c": float("-inf"), "d": b"y"},
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=to_arrow_schema(schema, timezone="UTC"))
    part = Part(7, store.stage(epoch, 1)(7, batch.schema, iter([batch])), 2, batch.nbytes)
    transaction = store.begin(epoch)
    transaction.load([part])
    transaction.commit()
    (add,) = delta_log.live(tmp_path).values()
    assert json.loads(add["stats"]) == {
        "numRecords": 2,
        "minValues": {"a": 1.0},
        "maxValues": {"a": 1.0},
        "nullCount": {"a": 1, "b": 0, "c": 0, "d": 0},
    }


# -- upserts ----------------------------------------------------------------------------------


def test_upserts_are_what_a_dict_would_have(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    schema = t.StructType(
        [
            t.StructField("Key One", t.StringType()),
            t.StructField("k2", t.IntegerType()),
            t.StructField("value", t.StringType()),
            t.StructField("at", t.LongType()),
            t.StructField("gone", t.BooleanType()),
        ]
    )
    options = {
        "writeMode": "upsert",
        "keyColumns": "key one,k2",
        "sequenceBy": "at",
        "deleteColumn": "gone",
    }
    arrow = pa.schema(
        [
            ("Key One", pa.string()),
            ("k2", pa.int32()),
            ("value", pa.string()),
            ("at", pa.int64()),
            (DELETED, pa.bool_()),
            (SEQUENCE, pa.int64()),
        ]
    )
    store, epoch = open_store(tmp_path, schema, **options)
    model: dict[tuple[str, int], Mapping[str, Any]] = {}
    clock = 0
    for attempt in range(1, 8):
        changes = []
        for _ in range(rng.randrange(1, 30)):
            clock += 1
            changes.append(
                {
                    "Key One": rng.choice("aA'\""),
                    "k2": rng.randrange(3),
                    "value": rng.choice([None, str(clock)]),
                    "at": clock,
                    DELETED: rng.random() < 0.3,
                    SEQUENCE: clock,
                }
            )
        for row in changes:
            key = (row["Key One"], row["k2"])
            model.pop(key, None)
            if not row[DELETED]:
                model[key] = {name: row[name] for name in ("Key One", "k2", "value", "at")}
        rng.shuffle(changes)
        write(store, epoch, pa.RecordBatch.from_pylist(changes, schema=arrow), attempt)
        rows = {(row["Key One"], row["k2"]): row for row in delta_log.rows(tmp_path)}
        assert len(rows) == len(delta_log.rows(tmp_path))
        assert rows == model


def test_keys_alone(tmp_path: Path) -> None:
    """There is nothing to change in a row that is there."""
    schema = t.StructType([t.StructField("id", t.LongType())])
    store, epoch = open_store(tmp_path, schema, writeMode="upsert", keyColumns="id")
    for attempt, ids in enumerate(([1, 2], [2, 3], [3]), start=1):
        write(store, epoch, pa.RecordBatch.from_pydict({"id": ids}), attempt)
    assert [row["id"] for row in by_id(tmp_path)] == [1, 2, 3]
