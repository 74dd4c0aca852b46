"""Who writes where: rows are left where they lie right, and exchanged where not."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from sparkonce.errors import AbortableError
from sparkonce.stream.layout import Apart, InTurns, Layout, Overlap, check_apart, layout_of


def layout(
    frame: DataFrame,
    partitions: int | None = 8,
    *,
    kept: bool = False,
    enough: int | None = None,
) -> Layout:
    return layout_of(
        frame, frame.columns, keeps_partition=kept, partition_count=partitions, enough=enough
    )


def rows(spark: SparkSession, tasks: int, *columns: str) -> DataFrame:
    made = spark.range(0, 100, 1, tasks).selectExpr(
        "cast(id as string) value", "cast(id % 10 as string) key", "cast(id % 3 as int) partition"
    )
    return made.select("value", *columns)


@pytest.mark.parametrize(
    ("tasks", "partitions", "expected"),
    [
        (4, 8, Apart(4, 4)),
        (8, 8, Apart(8, 8)),
        (20, 8, Apart(8, 8)),
        (20, 1, Apart(1, 1)),
        (1, 8, Apart(1, 1)),
    ],
)
def test_rows_without_a_key_are_shared_among_tasks(
    spark: SparkSession, tasks: int, partitions: int, expected: Layout
) -> None:
    assert layout(rows(spark, tasks), partitions) == expected


def test_without_a_single_target_even_those_take_turns(spark: SparkSession) -> None:
    assert layout(rows(spark, 4), None) == InTurns(4)


def test_little_work_takes_as_many_tasks_as_are_enough(spark: SparkSession) -> None:
    assert layout(rows(spark, 4), enough=2) == Apart(2, 2)
    assert layout(rows(spark, 4), enough=9) == Apart(4, 4)
    assert layout(rows(spark, 4, "partition"), kept=True, enough=2) == Apart(2, 1)
    assert layout(rows(spark, 4, "key"), enough=2) == InTurns(2)


def test_a_single_task_has_nobody_to_keep_apart_from(spark: SparkSession) -> None:
    for columns in ([], ["key"], ["partition"], ["key", "partition"]):
        assert layout(rows(spark, 1, *columns)) == Apart(1, 1)
    assert layout(rows(spark, 9, "key").coalesce(1), None) == Apart(1, 1)


def test_rows_with_a_key_take_turns(spark: SparkSession) -> None:
    for partitions in (8, 1, None):
        assert layout(rows(spark, 4, "key"), partitions) == InTurns(4)
        shouted = rows(spark, 4, "key").withColumnRenamed("key", "KEY")
        assert layout(shouted, partitions) == InTurns(4)


def test_rows_that_lie_by_partition_stay(spark: SparkSession) -> None:
    plain = rows(spark, 4, "partition")
    assert layout(plain) == InTurns(4)
    assert layout(plain, kept=True) == Apart(4, 1)
    for frame in (
        plain.repartition(3, "partition"),
        plain.repartition("partition").withColumn("value", F.upper("value")),
        plain.repartitionById(3, F.col("partition")),
        plain.groupBy("partition").agg(F.max("value").alias("value")),
    ):
        assert isinstance(layout(frame), Apart), frame._jdf.queryExecution().toString()


def test_rows_that_lie_by_something_else_do_not(spark: SparkSession) -> None:
    plain = rows(spark, 4, "key", "partition")
    for frame in (
        plain.repartition(3),
        plain.repartition(3, "key"),
        plain.repartition(3, "key", "partition"),
        plain.repartition(3, "partition").withColumn("partition", F.length("key")),
        plain.orderBy("partition"),
    ):
        assert layout(frame) == InTurns(0), frame._jdf.queryExecution().toString()


def test_a_plan_is_not_run_to_be_looked_at(spark: SparkSession) -> None:
    ran = spark.sparkContext.accumulator(0)

    def count(batches: Iterable[object]) -> Iterable[object]:
        ran.add(1)
        return batches

    frame = rows(spark, 4, "partition")
    for adaptive in (True, False):
        spark.conf.set("spark.sql.adaptive.enabled", adaptive)
        try:
            seen = frame.mapInArrow(count, frame.schema)  # type: ignore[arg-type]
            layout(seen.repartition(3).select("value"))
            layout(seen.repartition(3, "partition"))
            layout(seen.groupBy("value").agg(F.max("partition").alias("partition")))
        finally:
            spark.conf.unset("spark.sql.adaptive.enabled")
    assert ran.value == 0
    seen.collect()
    assert ran.value == 4, "it counts"


def test_tasks_that_are_not_known_beforehand_have_no_shares(spark: SparkSession) -> None:
    assert layout(rows(spark, 4).repartition(3)) == InTurns(0)


def test_in_a_stream_tasks_are_known_and_how_rows_lie_is_not(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1").write_text("1\n2\n3\n")
    made = spark.readStream.text(str(tmp_path / "in"))
    made = made.selectExpr("value", "cast(value as int) partition").repartition(3, "partition")
    seen: list[Layout] = []

    def look(batch: DataFrame, _: int) -> None:
        seen.extend([layout(batch.select("value")), layout(batch), layout(batch, kept=True)])

    writer = made.writeStream.foreachBatch(look)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    assert seen == [Apart(3, 3), InTurns(3), Apart(3, 1)]


def test_two_tasks_at_one_partition_are_found() -> None:
    check_apart([])
    check_apart([(0, "a", 0), (0, "a", 1), (1, "a", 2), (1, "b", 0), (0, "a", 0)])
    with pytest.raises(Overlap, match="tasks 0 and 2 both wrote to partition 1 of b") as found:
        check_apart([(0, "b", 1), (1, "a", 1), (2, "b", 1)])
    assert isinstance(found.value, AbortableError), "the attempt can be given up"
