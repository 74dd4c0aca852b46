"""Every type that Spark has, into every kind of table and back by the database's own client."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as t

import sparkonce
from deliver.tables import Table
from sparkonce.errors import ConfigError

SCHEMA = t.StructType(
    [
        t.StructField("id", t.LongType()),
        t.StructField("flag", t.BooleanType()),
        t.StructField("tiny", t.ByteType()),
        t.StructField("small", t.ShortType()),
        t.StructField("whole", t.IntegerType()),
        t.StructField("single", t.FloatType()),
        t.StructField("double", t.DoubleType()),
        t.StructField("price", t.DecimalType(38, 18)),
        t.StructField("text", t.StringType()),
        t.StructField("raw", t.BinaryType()),
        t.StructField("day", t.DateType()),
        t.StructField("moment", t.TimestampType()),
        t.StructField("local", t.TimestampNTZType()),
        t.StructField("tags", t.ArrayType(t.StringType())),
        t.StructField("counts", t.MapType(t.StringType(), t.IntegerType())),
        t.StructField("inner", t.StructType([t.StructField("a", t.IntegerType())])),
    ]
)
FULL: dict[str, Any] = {
    "id": 2**63 - 1,
    "flag": True,
    "tiny": -128,
    "small": -(2**15),
    "whole": 2**31 - 1,
    "single": 0.5,
    "double": 1e300,
    "price": Decimal("12345678901234567890.123456789012345678"),
    "text": "Grüße, 世界 🎉 'quoted' \\ \n",
    "raw": b"\x00\xff",
    "day": dt.date(1582, 10, 15),
    "moment": dt.datetime(2026, 3, 29, 1, 30, 0, 123456, tzinfo=dt.UTC),
    "local": dt.datetime(1999, 12, 31, 23, 59, 59, 999999),
    "tags": ["a", None, "c"],
    "counts": {"x": 1},
    "inner": {"a": None},
}
EMPTY: dict[str, Any] = dict.fromkeys(FULL) | {"id": 1}
NESTED = ("tags", "counts", "inner")


def write(spark: SparkSession, table: Table, schema: t.StructType, *rows: dict[str, Any]) -> None:
    frame = spark.createDataFrame([tuple(row[f.name] for f in schema) for row in rows], schema)
    (
        sparkonce.write(frame)
        .format(table.format)
        .option(table.named_by, "types")
        .option("runId", "once")
        .options(**table.options())
        .save()
    )


def test_every_type_and_its_null(spark: SparkSession, table: Table) -> None:
    write(spark, table, SCHEMA, FULL, EMPTY)
    empty, full = sorted(table.rows(), key=lambda row: row["id"])
    assert empty == EMPTY
    for name, expected in FULL.items():
        found = full[name]
        if name == "counts" and isinstance(found, list):
            found = dict(found)  # Arrow's way to give a map
        assert found == expected, name


def test_what_has_no_counterpart_is_refused_before_anything_is_made(
    spark: SparkSession, table: Table
) -> None:
    odd = t.StructType([t.StructField("id", t.LongType()), t.StructField("odd", t.NullType())])
    with pytest.raises(ConfigError, match=r"'odd'.*cast"):
        write(spark, table, odd, {"id": 1, "odd": None})


def test_nested_values_are_jsonb_in_postgres(spark: SparkSession, table: Table) -> None:
    if table.format != "postgres":
        pytest.skip("the others have nested types of their own")
    write(spark, table, SCHEMA, FULL)
    (row,) = table.rows()
    assert json.loads(json.dumps({name: row[name] for name in NESTED})) == {
        "tags": ["a", None, "c"],
        "counts": {"x": 1},
        "inner": {"a": None},
    }
