"""`sparkonce_table` through a real Spark: triggers, restarts, parts, deletion, refusals."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from sparkonce.local.postgres import LocalPostgres

Connect = Callable[[], psycopg.Connection[Any]]
Load = Callable[..., DataFrame]


@pytest.fixture
def load(spark: SparkSession) -> Load:
    def make(**options: str) -> DataFrame:
        given = {"keyColumn": "id", **options}
        return spark.readStream.format("sparkonce_table").options(**given).load()

    return make


class Sink:
    """Parquet files, and the checkpoint that belongs to them."""

    def __init__(self, place: Path) -> None:
        self._rows = place / "rows"
        self._checkpoint = place / "checkpoint"

    def run(self, frame: DataFrame) -> list[int]:
        """All that is there, and then the end; how many rows each batch had."""
        query = self.start(frame, availableNow=True)
        assert query.awaitTermination(90)
        return [progress["numInputRows"] for progress in query.recentProgress]

    def start(self, frame: DataFrame, **trigger: Any) -> StreamingQuery:
        return (
            frame.writeStream.format("parquet")
            .option("path", str(self._rows))
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(**trigger)
            .start()
        )

    def rows(self, spark: SparkSession) -> list[Any]:
        return spark.read.parquet(str(self._rows)).orderBy("id").collect()

    def offsets(self) -> list[str]:
        files = sorted((self._checkpoint / "offsets").glob("[0-9]*"), key=lambda f: int(f.name))
        return [file.read_text().splitlines()[-1] for file in files]


def test_a_table_is_read_in_batches_and_on_from_the_checkpoint(
    spark: SparkSession, load: Load, tmp_path: Path
) -> None:
    file, sink = tmp_path / "a.db", Sink(tmp_path)
    with closing(sqlite3.connect(file, isolation_level=None)) as writer:
        writer.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, price DECIMAL(8,2), at DATETIME)")
        row = "INSERT INTO t (price, at) VALUES (1.25, '2026-01-02 03:04:05')"
        for _ in range(5):
            writer.execute(row)
        frame = load(url=f"sqlite://{file}", dbtable="t", maxRowsPerBatch="2")
        assert (
            frame.schema.simpleString() == "struct<id:bigint,price:decimal(8,2),at:timestamp_ntz>"
        )
        assert [count for count in sink.run(frame) if count] == [2, 2, 1]
        writer.execute(row)
        assert [count for count in sink.run(frame) if count] == [1]
    assert [row.id for row in sink.rows(spark)] == [1, 2, 3, 4, 5, 6]
    assert str(sink.rows(spark)[5]) == str(
        spark.range(1).select(
            F.lit(6).alias("id"),
            F.lit(1.25).cast("decimal(8,2)").alias("price"),
            F.lit("2026-01-02 03:04:05").cast("timestamp_ntz").alias("at"),
        ).first()
    )  # fmt: skip
    assert sink.offsets()[-1] == '{"by": ["id"], "upto": [6]}'
    # A checkpoint that was lost: from an offset that was noted elsewhere.
    again = Sink(tmp_path / "again")
    again.run(load(url=f"sqlite://{file}", dbtable="t", startingOffsets=sink.offsets()[1]))
    assert [row.id for row in again.rows(spark)] == [5, 6]


def test_postgres_in_parts_with_a_transaction_open(
    spark: SparkSession,
    load: Load,
    postgres: LocalPostgres,
    connect: Connect,
    table: str,
    tmp_path: Path,
) -> None:
    sink = Sink(tmp_path)
    with connect() as connection:
        connection.execute(
            f"CREATE TABLE {table} (id bigserial PRIMARY KEY, tags text[], doc jsonb)"
        )
    insert = f"""INSERT INTO {table} (tags, doc) SELECT '{{a,b}}', '{{"x": 1}}'
                 FROM generate_series(1, %s)"""
    open_ = connect()
    with connect() as connection:
        connection.execute(insert, [100])
    open_.execute(insert, [1])
    with connect() as connection:
        connection.execute(insert, [10])
    frame = load(url=postgres.url, dbtable=table, numPartitions="4", fetchsize="7")
    with_task = frame.withColumn("task", F.spark_partition_id())
    assert sum(sink.run(with_task)) == 100
    open_.commit()
    assert sum(sink.run(with_task)) == 11
    rows = sink.rows(spark)
    assert [row.id for row in rows] == list(range(1, 112))
    assert {row.task for row in rows} == {0, 1, 2, 3}
    assert (rows[0].tags, rows[0].doc) == (["a", "b"], '{"x": 1}')


def test_rows_that_come_while_the_query_runs(
    spark: SparkSession,
    load: Load,
    postgres: LocalPostgres,
    connect: Connect,
    table: str,
    tmp_path: Path,
) -> None:
    sink = Sink(tmp_path)
    with connect() as connection:
        connection.execute(f"CREATE TABLE {table} (id bigserial PRIMARY KEY, value text)")
        connection.execute(f"INSERT INTO {table} (value) VALUES ('before')")
    frame = load(url=postgres.url, dbtable=table, startingOffsets="latest")
    query = sink.start(frame, processingTime="0 seconds")
    try:
        _wait(query, lambda: len(sink.offsets()) == 1)  # where it began is noted down
        with connect() as connection:
            connection.execute(f"INSERT INTO {table} (value) VALUES ('one')")
        _wait(query, lambda: len(sink.offsets()) == 2)
        query.processAllAvailable()
    finally:
        query.stop()
    with connect() as connection:
        connection.execute(f"INSERT INTO {table} (value) VALUES ('two')")
    sink.run(frame)
    assert [row.value for row in sink.rows(spark)] == ["one", "two"]


def _wait(query: StreamingQuery, condition: Callable[[], bool]) -> None:
    for _ in range(600):
        if condition():
            return
        assert not query.awaitTermination(0.1), query.exception()
    raise AssertionError("the query has not come that far")


def test_an_outbox_is_given_out_and_then_deleted(
    spark: SparkSession,
    load: Load,
    postgres: LocalPostgres,
    connect: Connect,
    table: str,
    tmp_path: Path,
) -> None:
    with connect() as connection:
        connection.execute(
            f"CREATE TABLE {table} (id bigserial PRIMARY KEY, topic text, key text, value jsonb, "
            "headers jsonb)"
        )
    insert = f"""INSERT INTO {table} (topic, key, value, headers)
        SELECT 'orders', g, '{{"n": 1}}', '{{"h": "x"}}' FROM generate_series(1, %s) g"""
    with connect() as connection:
        connection.execute(insert, [3])
    frame = load(
        url=postgres.url,
        dbtable=table,
        outbox="true",
        deleteAfterPublishing="true",
        maxRowsPerBatch="2",
    )
    published: list[Any] = []
    left: list[list[int]] = []

    def publish(batch: DataFrame, number: int) -> None:
        left.append(_keys(connect, table))
        published.extend(batch.collect())

    def run() -> None:
        query = (
            frame.writeStream.foreachBatch(publish)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(90)

    run()
    assert published[0].asDict(recursive=True) == {
        "topic": "orders",
        "key": b"1",
        "value": b'{"n": 1}',
        "headers": [{"key": "h", "value": b"x"}],
    }
    assert left == [[1, 2, 3], [3]]  # the first two went when their batch was done
    with connect() as connection:
        connection.execute(insert, [1])
    run()
    assert [row.key for row in published] == [b"1", b"2", b"3", b"1"]
    # The third went when the second run began; the last one's row stays until its batch is done.
    assert left == [[1, 2, 3], [3], [4]]
    assert _keys(connect, table) == [4]


def _keys(connect: Connect, table: str) -> list[int]:
    with connect() as connection:
        rows = connection.execute(f"SELECT id FROM {table} ORDER BY id").fetchall()
    return [key for (key,) in rows]


def test_a_schema_of_the_users(spark: SparkSession, tmp_path: Path) -> None:
    file, sink = tmp_path / "a.db", Sink(tmp_path)
    with closing(sqlite3.connect(file, isolation_level=None)) as writer:
        writer.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, anything, n INTEGER)")
        writer.execute("INSERT INTO t VALUES (1, 'x', 2)")
    reader = spark.readStream.format("sparkonce_table").schema("n INT, id STRING")
    frame = reader.options(url=f"sqlite://{file}", dbtable="t", keyColumn="id").load()
    with pytest.raises(
        Exception,
        match=r"column 'id' has the value .* \(INTEGER\), which does",
    ):
        query = sink.start(frame, availableNow=True)
        query.awaitTermination(90)
    reader = spark.readStream.format("sparkonce_table").schema("n INT, id BIGINT")
    frame = reader.options(url=f"sqlite://{file}", dbtable="t", keyColumn="id").load()
    sink.run(frame)
    assert [tuple(row) for row in sink.rows(spark)] == [(2, 1)]


def test_what_is_wrong_is_told_when_the_table_is_named(load: Load, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"unknown option 'keycolum'.*did you mean 'keyColumn'"):
        load(url=f"sqlite://{tmp_path}/a.db", dbtable="t", keyColum="id")


def test_process_all_available_waits_for_a_slow_look(
    spark: SparkSession,
    load: Load,
    postgres: LocalPostgres,
    connect: Connect,
    table: str,
    tmp_path: Path,
) -> None:
    """Row level security makes each look at the table slow, here by sleeping in the server."""
    sink, role = Sink(tmp_path), f"{table}_reader"
    writer = connect()
    writer.autocommit = True
    writer.execute(f"CREATE TABLE {table} (id bigserial PRIMARY KEY)")
    writer.execute(f"INSERT INTO {table} VALUES (0)")
    writer.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'p'")
    try:
        writer.execute(f"GRANT SELECT ON {table} TO {role}")
        writer.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        writer.execute(f"CREATE POLICY slow ON {table} USING (id > 0 OR pg_sleep(0.5) IS NULL)")
        frame = load(url=postgres.url, user=role, password="p", dbtable=table)
        query = sink.start(frame, processingTime="0 seconds")
        try:
            for _ in range(3):
                writer.execute("SELECT pg_current_xact_id()")  # so that there is a look
                query.processAllAvailable()  # it has found nothing, and a rest begins
                writer.execute(f"INSERT INTO {table} SELECT FROM generate_series(1, 100)")
                ((last,),) = writer.execute(f"SELECT max(id) FROM {table}").fetchall()
                query.processAllAvailable()
                assert max(row.id for row in sink.rows(spark)) == last
        finally:
            query.stop()
    finally:
        writer.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


def test_progress_tells_who_holds_the_horizon(
    spark: SparkSession,
    load: Load,
    postgres: LocalPostgres,
    connect: Connect,
    table: str,
    tmp_path: Path,
) -> None:
    sink = Sink(tmp_path)
    writer = connect()
    writer.autocommit = True
    writer.execute(f"CREATE TABLE {table} (id bigserial PRIMARY KEY)")
    writer.execute(f"INSERT INTO {table} VALUES (0)")
    forgotten = connect()
    forgotten.execute("SELECT pg_current_xact_id()")
    row = forgotten.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
    assert row is not None
    writer.execute(f"INSERT INTO {table} DEFAULT VALUES")
    query = sink.start(load(url=postgres.url, dbtable=table), processingTime="0 seconds")
    try:
        query.processAllAvailable()
        _wait(query, lambda: bool(query.lastProgress))
        progress = query.lastProgress
        assert progress is not None
        told = json.loads(progress.sources[0].latestOffset)
        assert told["xid"] == row[0] and told["nextXid"] > row[0]
        assert told["heldSeconds"] >= 0
    finally:
        query.stop()
    assert [row.id for row in sink.rows(spark)] == [0]
