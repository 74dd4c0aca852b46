"""Under `none` batches may be lost. What was staged for them is removed all the same."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from deliver.postgres_schema import Schema
from sparkonce.deliver.postgres import target
from sparkonce.deliver.sink import TableSink

SCHEMA = StructType([StructField("id", LongType())])


def open_sink(schema: Schema) -> TableSink:
    made = target(
        {
            "url": schema.url,
            "dbtable": f"{schema.name}.target",
            "pipeline": schema.name,
            "guarantee": "none",
        },
        None,
    )
    columns = made._columns(SCHEMA)
    sink = TableSink(made.settings, columns, made.open_store(made.settings, columns), None, None)
    sink.take_over()
    return sink


def staged(schema: Schema) -> list[int]:
    """How many rows are in each of the staging tables."""
    names = schema.rows(
        "relname",
        "pg_class WHERE relname ~ '^sparkonce_[0-9a-f]{12}_' AND relkind = 'r' "
        f"AND relnamespace = '{schema.name}'::regnamespace",
    )
    return [schema.rows("count(*)", name)[0][0] for (name,) in names]


def test_rows_that_the_table_refuses(
    spark: SparkSession, schema: Schema, caplog: pytest.LogCaptureFixture
) -> None:
    schema.execute("CREATE TABLE target (id bigint CHECK (id <> 7))")
    sink = open_sink(schema)
    for _ in range(3):
        sink.write(spark.range(10))
    sink.write(spark.range(5))
    sink.close()
    assert [id_ for (id_,) in schema.rows("id")] == list(range(5))
    assert caplog.text.count("10 rows are lost") == 3
    assert set(staged(schema)) == {0}


def test_attempts_that_fail_as_they_are_staged(spark: SparkSession, schema: Schema) -> None:
    """Their place is free for the next: the first one and no other."""
    schema.execute("CREATE TABLE target (id bigint)")
    sink = open_sink(schema)
    told = "CAST(IF(id = 7, raise_error('no such row'), id) AS bigint) AS id"
    for _ in range(3):
        with pytest.raises(PySparkException, match="no such row"):
            sink.write(spark.range(0, 10, 1, 1).selectExpr(told))
        sink.abandon()
        assert staged(schema) == [0]
    sink.write(spark.range(5))
    sink.abandon()  # as where its progress can't be noted: these rows are on their way
    sink.close()
    assert [id_ for (id_,) in schema.rows("id")] == list(range(5))
    assert staged(schema) == [0]
