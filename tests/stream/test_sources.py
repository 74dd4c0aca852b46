"""What a streaming DataFrame reads and keeps, seen in its plan; nothing is started."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import sparkonce
from sparkonce.stream.sources import Source, reading_of

SERVERS = "127.0.0.1:1"


def kafka_rows(spark: SparkSession, topics: str = "payments", **options: str) -> DataFrame:
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", SERVERS)
    if topics:
        reader = reader.option("subscribe", topics)
    return reader.options(**options).load()


def clock(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate").option("rowsPerSecond", "5").load()


# -- sources -----------------------------------------------------------------------------------


def test_a_kafka_source_with_its_options(spark: SparkSession) -> None:
    frame = kafka_rows(spark, "a,b", startingOffsets="earliest").select("value")
    (source,) = reading_of(frame).sources
    assert (source.kind, source.is_kafka) == ("kafka", True)
    assert source.options["kafka.bootstrap.servers"] == SERVERS
    assert source.options["subscribe"] == "a,b"
    assert source.options["startingoffsets"] == "earliest"


@pytest.mark.parametrize(
    ("level", "uncommitted"),
    [(None, True), ("read_uncommitted", True), ("read_committed", False)],
)
def test_whether_aborted_records_are_read(
    spark: SparkSession, level: str | None, uncommitted: bool
) -> None:
    frame = kafka_rows(spark, **({"kafka.isolation.level": level} if level else {}))
    (source,) = reading_of(frame).sources
    assert source.reads_uncommitted is uncommitted


def test_our_own_reader_reads_what_is_committed(spark: SparkSession) -> None:
    reader = sparkonce.read_stream(spark).option("kafka.bootstrap.servers", SERVERS)
    (source,) = reading_of(reader.option("subscribe", "payments").load()).sources
    assert source.is_kafka
    assert not source.reads_uncommitted


def test_our_own_reader_takes_large_pieces_and_does_not_wait_unless_told_otherwise(
    spark: SparkSession,
) -> None:
    reader = sparkonce.read_stream(spark).option("kafka.bootstrap.servers", SERVERS)
    reader = reader.option("subscribe", "payments").option("kafka.max.poll.records", "7")
    (source,) = reading_of(reader.load()).sources
    assert source.options["kafka.max.poll.records"] == "7"
    assert int(source.options["kafka.max.partition.fetch.bytes"]) > 2**20  # Kafka's own
    assert int(source.options["kafka.fetch.max.wait.ms"]) < 500


def test_other_sources_are_not_kafka(spark: SparkSession, tmp_path: Path) -> None:
    (rate,) = reading_of(clock(spark)).sources
    assert rate == Source("rate", {"rowspersecond": "5"})
    (files,) = reading_of(spark.readStream.text(str(tmp_path))).sources
    assert files.kind == f"FileSource[{tmp_path}]"
    assert not rate.is_kafka and not files.is_kafka
    assert not rate.reads_uncommitted and not files.reads_uncommitted


def test_sources_are_in_the_order_in_which_spark_logs_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    def numbers(rows: str) -> DataFrame:
        return (
            spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", rows)
            .option("startTimestamp", rows)
            .load()
            .select("value")
        )

    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1").write_text("7\n")
    files = spark.readStream.text(str(tmp_path / "in")).selectExpr("cast(value as long) value")
    twice = numbers("10")
    frame = numbers("20").union(files).union(twice.union(numbers("30"))).union(twice)
    writer = frame.writeStream.foreachBatch(lambda rows, _: rows.collect())
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(once=True).start().awaitTermination()

    _, _, *logged = (tmp_path / "checkpoint/offsets/0").read_text().split("\n")
    expected = ["20", "logOffset", "10", "30", "10"]
    assert len(logged) == len(expected)
    assert all(mark in line for mark, line in zip(expected, logged, strict=True)), logged
    found = [
        source.options.get("rowsperbatch", "logOffset") for source in reading_of(frame).sources
    ]
    assert found == expected


# -- state -------------------------------------------------------------------------------------


def test_what_has_no_memory_of_the_stream(spark: SparkSession) -> None:
    rows = clock(spark)
    table = spark.range(3).withColumnRenamed("id", "value")
    counted = table.groupBy("value").count()
    for frame in (
        rows.filter("value > 3").withColumn("more", F.lit(1)),
        rows.withWatermark("timestamp", "1 minute"),
        rows.union(rows),
        rows.repartition(3, "value"),
        rows.join(table, "value"),
        rows.join(F.broadcast(counted), "value", "left"),
        rows.join(table.distinct(), "value"),
        rows.select(F.explode(F.array("value", "value")).alias("value")),
        rows.mapInArrow(lambda batches: batches, rows.schema),
    ):
        assert not reading_of(frame).is_stateful, frame._jdf.queryExecution().toString()


def test_what_remembers(spark: SparkSession) -> None:
    rows = clock(spark).withWatermark("timestamp", "1 minute")
    rows.createOrReplaceTempView("clock_rows")
    other = clock(spark).withWatermark("timestamp", "1 minute").withColumnRenamed("value", "other")
    table = spark.range(3).withColumnRenamed("id", "value")
    for frame in (
        rows.groupBy("value").count(),
        rows.groupBy(F.window("timestamp", "1 minute")).count().select("count"),
        rows.join(table, "value").groupBy("value").count(),
        rows.select("value").distinct(),
        rows.dropDuplicates(["value"]),
        rows.dropDuplicatesWithinWatermark(["value"]),
        rows.limit(5),
        rows.join(other, F.expr("value = other")),
        rows.alias("a").join(rows.alias("b"), F.expr("a.value = b.value")),
        spark.sql("select distinct value from clock_rows"),
        rows.groupBy("value").applyInPandasWithState(
            lambda key, frames, state: frames, "value long", "n long", "append", "NoTimeout"
        ),
    ):
        assert reading_of(frame).is_stateful, frame._jdf.queryExecution().toString()


# -- the partition of a row --------------------------------------------------------------------


def test_rows_that_stay_with_their_partition(spark: SparkSession) -> None:
    rows = kafka_rows(spark)
    rows.createOrReplaceTempView("kafka_rows")
    for frame in (
        rows,
        rows.select("partition", "value"),
        rows.withColumn("value", F.upper("value"))
        .filter("offset > 5")
        .select("value", "Partition"),
        rows.withWatermark("timestamp", "1 minute").alias("x").select("x.partition", "x.value"),
        spark.sql("select value, partition from kafka_rows where key is not null"),
        rows.repartition(3, "partition").select("value", "partition"),
        rows.select("value", (F.col("offset") % 4).cast("int").alias("partition"))
        .repartition("partition")
        .filter("value is not null"),
    ):
        assert reading_of(frame).keeps_partition, frame._jdf.queryExecution().toString()


def test_rows_that_do_not(spark: SparkSession) -> None:
    rows = kafka_rows(spark)
    table = spark.range(3).selectExpr("cast(cast(id as string) as binary) key")
    for frame in (
        rows.select("value"),
        rows.select("value", F.col("offset").cast("int").alias("partition")),
        rows.select("value", (F.col("partition") + 1).alias("partition")),
        rows.drop("partition").withColumn("partition", F.lit(0)),
        rows.repartition(3).select("value", "partition"),
        rows.repartition(3, "key").select("value", "partition"),
        rows.repartition(3, "partition", "key").select("value", "partition"),
        rows.repartition(3, "partition").select("value", F.lit(1).alias("partition")),
        rows.repartition(3, "partition").coalesce(2).select("value", "partition"),
        rows.coalesce(1).select("value", "partition"),
        rows.join(table, "key").select("value", "partition"),
        rows.union(kafka_rows(spark, "orders")),
        kafka_rows(spark, "a,b"),
        kafka_rows(spark, "", subscribePattern="a.*"),
        kafka_rows(spark, "", assign='{"a":[0,1]}'),
        kafka_rows(spark, minPartitions="10"),
        kafka_rows(spark, maxRecordsPerPartition="10"),
        clock(spark).withColumn("partition", F.lit(0)),
    ):
        assert not reading_of(frame).keeps_partition, frame._jdf.queryExecution().toString()
