"""Text that is not valid UTF-8, which Spark keeps and no database does: refused or put aside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, expr

import sparkonce
from deliver.tables import Table
from sparkonce.deliver import utf8

INVALID = [
    *(b"\xff", b"a\x80", b"\xc3", b"\xe2\x82", b"\xc0\x80", b"\xe0\x80\x80", b"\xf0\x80\x80\x80"),
    *(b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80"),
]
"""Bytes that begin nothing, ends that are missing, forms that are too long, halves of surrogate
pairs, and what is beyond the last character."""
VALID = [b"", b"\0", "é 世界 🎉 \uffff \U0010ffff".encode(), b"\xe0\xa0\x80", b"\xee\x80\x80"]
TEXT = "CAST(raw AS STRING)"
SHAPES = {
    "text": TEXT,
    "array": f"array('a', NULL, {TEXT})",
    "key": f"map({TEXT}, 1)",
    "value": f"map(1, {TEXT})",
    "struct": f"named_struct('n', 1, 'in side', {TEXT})",
    "structs": f"array(NULL, named_struct('n', 1, 'in', named_struct('t', array({TEXT}))))",
    "arrays": f"array(NULL, array(), array('a', {TEXT}))",
    "maps": f"array(map('a', {TEXT}))",
    "field of two": f"named_struct('a', 1, 'A', {TEXT})",
    "fields of two": f"array(named_struct('a', 1, 'A', {TEXT}))",
}
NAME = "the name"


def frame(spark: SparkSession, *raw: bytes | None) -> DataFrame:
    rows = [
        (number, bytearray(each) if each is not None else None) for number, each in enumerate(raw)
    ]
    return spark.createDataFrame(rows, "id BIGINT, raw BINARY")


def write(frame: DataFrame, table: Table, run_id: str = "once", **options: str) -> None:
    (
        sparkonce.write(frame)
        .format(table.format)
        .option(table.named_by, "utf8")
        .option("runId", run_id)
        .options(**table.options() | options)
        .save()
    )


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_what_is_invalid(spark: SparkSession, shape: str) -> None:
    shaped = frame(spark, *INVALID, *VALID, None).select(expr(f"IF(raw IS NULL, NULL, {shape})"))
    kind = shaped.schema[0].dataType
    found = shaped.select(utf8.is_invalid(col(shaped.columns[0]), kind)).collect()
    assert [bool(each) for (each,) in found] == [True] * len(INVALID) + [False] * (len(VALID) + 1)


@pytest.mark.parametrize("shape", ["INT", "BINARY", "ARRAY<BINARY>", "STRUCT<a: MAP<INT, INT>>"])
def test_types_without_text_are_not_looked_at(spark: SparkSession, shape: str) -> None:
    kind = spark.createDataFrame([], f"a {shape}").schema[0].dataType
    assert not utf8.has_text(kind)


@pytest.mark.parametrize("shape", [TEXT, SHAPES["array"], SHAPES["value"], SHAPES["struct"]])
def test_it_is_refused_with_the_name_of_the_column(
    spark: SparkSession, table: Table, tmp_path: Path, shape: str
) -> None:
    rows = frame(spark, b"\xc3\xa9", b"\xff").select("id", expr(shape).alias(NAME))
    with pytest.raises(
        Exception, match=rf"column '{NAME}' has text that is not valid UTF-8.*aside"
    ):
        write(rows, table, batchAttempts="1")
    assert table.rows() == []
    assert not list(tmp_path.glob("table/**/*.parquet"))
    write(rows.where("id = 0"), table, "again")
    assert len(table.rows()) == 1


def test_it_is_put_aside(spark: SparkSession, table: Table) -> None:
    if table.dead is None:
        pytest.skip("two tables of Delta can't be committed together")
    told = "IF(id = 3, CAST(raw AS STRING), NULL) AS dead_letter"
    rows = frame(spark, b"\xc3\xa9", b"a\xff", None, b"mine \xff").selectExpr(
        "id", f"{TEXT} AS name", f"array('b', {TEXT}) AS names", told
    )
    write(rows, table, deadLetterTable=table.dead)
    kept = sorted((row["id"], row["name"], row["names"]) for row in table.rows())
    assert kept == [(0, "é", ["b", "é"]), (2, None, ["b", None])]
    dead = {json.loads(row["row"])["id"]: row for row in table.rows("dead")}
    assert {id_: row["reason"] for id_, row in dead.items()} == {
        1: "column 'name' has text that is not valid UTF-8",
        3: "mine \ufffd",
    }
    assert json.loads(dead[1]["row"]) == {"id": 1, "name": "a\ufffd", "names": ["b", "a\ufffd"]}


def test_changes_with_such_a_key_or_such_an_order_are_put_aside(
    spark: SparkSession, table: Table
) -> None:
    if table.dead is None:
        pytest.skip("two tables of Delta can't be committed together")
    columns = ["IF(id < 3, 'a', CAST(raw AS STRING)) AS key", "id = 5 AS gone"]
    order = "IF(id = 3, 'x', CAST(raw AS STRING)) AS at"
    rows = frame(spark, b"1", b"2", b"\xff", b"\xff", b"z", b"\xff")
    options = {"writeMode": "upsert", "keyColumns": "key", "sequenceBy": "at"}
    options |= {"deleteColumn": "gone", "deadLetterTable": table.dead}
    write(rows.selectExpr("id", *columns, order), table, **options)
    kept = sorted((row["id"], row["key"], row["at"]) for row in table.rows())
    assert kept == [(1, "a", "2"), (4, "z", "z")]
    assert sorted(json.loads(row["row"])["id"] for row in table.rows("dead")) == [2, 3, 5]
