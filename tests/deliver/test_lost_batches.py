"""Under `none` batches may be lost. What was staged for them is removed all the same."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from deliver.postgres_schema import Schema, stage
from deliver.test_postgres_locks import wait_until
from sparkonce.deliver.postgres import target
from sparkonce.deliver.sink import TableSink
from sparkonce.errors import FencedError

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


def test_another_thread_loads_while_it_is_asked_whose_the_ledger_is(schema: Schema) -> None:
    """They have one connection for what is written."""
    schema.execute("CREATE TABLE target (id bigint)")
    sink = open_sink(schema)
    store, epoch = sink._store, sink._held.epoch
    part = stage(store, epoch, [{"id": id_} for id_ in range(5)])
    with ThreadPoolExecutor(1) as pool:
        loading = store.begin(epoch)
        loading.load([part])
        asked = pool.submit(sink.check_owner)
        waiting = "pg_locks WHERE NOT granted AND pid <> pg_backend_pid()"
        wait_until(lambda: asked.done() or schema.rows("count(*)", waiting) == [(1,)])
        loading.commit()
        asked.result()
    sink.close()
    assert [id_ for (id_,) in schema.rows("id")] == list(range(5))


def test_a_driver_that_is_fenced_is_told_so(schema: Schema) -> None:
    schema.execute("CREATE TABLE target (id bigint)")
    sink, successor = open_sink(schema), open_sink(schema)
    successor.check_owner()
    with pytest.raises(FencedError, match="has taken over"):
        sink.check_owner()
    successor.close()
    sink.close()


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
