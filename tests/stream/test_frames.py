"""Small steps around the writer, on batch DataFrames."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import IntegerType, StringType, StructType

import sparkonce
from sparkonce.errors import ConfigError
from sparkonce.stream.kafka_settings import check_schema


def half(text: str) -> int:
    number = int(text)
    if number % 2:
        raise ArithmeticError(f"{number} is odd")
    return number // 2


@pytest.mark.parametrize("returns", ["int", IntegerType()])
def test_what_a_guarded_function_raises_marks_the_row(
    spark: SparkSession, returns: str | IntegerType
) -> None:
    rows = spark.createDataFrame([("4",), ("5",), ("x",), ("0",)], "value string")
    halved = rows.select(sparkonce.guarded(half, returns)("value").alias("half"))
    assert halved.schema["half"].dataType.simpleString() == "struct<result:int,error:string>"
    assert [tuple(row.half) for row in halved.collect()] == [
        (2, None),
        (None, "ArithmeticError: 5 is odd"),
        (None, "ValueError: invalid literal for int() with base 10: 'x'"),
        (0, None),
    ]


def test_its_result_may_be_a_struct_of_several_columns(spark: SparkSession) -> None:
    pair = StructType().add("a b", StringType()).add("total", IntegerType())
    join = sparkonce.guarded(lambda a, b: (a + b, len(a + b)), pair)
    rows = spark.createDataFrame([("x", "yz"), ("x", None)], "a string, b string")
    good, bad = (row.joined for row in rows.select(join("a", "b").alias("joined")).collect())
    assert (tuple(good.result), good.error) == (("xyz", 3), None)
    assert bad.result is None
    assert bad.error.startswith("TypeError: ")


def test_rows_it_marks_can_be_written_as_dead_letters(spark: SparkSession) -> None:
    rows = spark.createDataFrame([("4", "t", 1, 9)], "value string, topic string, p int, o long")
    marked = rows.withColumn("half", sparkonce.guarded(half, "string")("value")).select(
        F.col("half.result").alias("value"),
        F.col("half.error").alias("dead_letter"),
        sparkonce.source(partition="p", offset="o"),
    )
    assert check_schema(marked.schema, "out") == ["value", "dead_letter", "source"]
    assert marked.first() == Row(value="2", dead_letter=None, source=Row("t", 1, 9))


def test_source_has_the_names_that_dead_letters_ask_for(spark: SparkSession) -> None:
    rows = spark.createDataFrame([("t", 1, 9)], "topic string, partition int, offset long")
    picked = rows.select(sparkonce.source(), F.lit("v").alias("value"))
    assert picked.first() == Row(source=Row(topic="t", partition=1, offset=9), value="v")


def test_in_a_batch_every_repeat_is_seen(spark: SparkSession) -> None:
    early, late = (datetime(2026, 1, day, tzinfo=UTC) for day in (1, 31))
    rows = spark.createDataFrame(
        [("a", 1, early), ("a", 1, late), ("a", 2, early), ("b", 1, late)],
        "id string, part int, at timestamp",
    )
    kept = sparkonce.deduplicate(rows, ["id", "part"], "1 minute", "at")
    assert sorted((row.id, row.part) for row in kept.collect()) == [("a", 1), ("a", 2), ("b", 1)]
    assert kept.columns == rows.columns


def test_deduplicating_by_nothing_is_refused(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match=r"keys=\[…\]"):
        sparkonce.deduplicate(spark.range(3), [], "1 minute", "at")
