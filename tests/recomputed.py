"""A driver whose rows depend on when they are computed, with an executor lost on the way.

`python tests/recomputed.py <kind> <sink> <folder> <servers> <topic>`: half of the rows' places are
asked from a service, at the map side of a shuffle; the tasks behind it are held once half of them
are done. Whoever started it then kills an executor, lets the service say something else, and
releases them: what that executor had computed is computed again, and rows are in other places.
With the kind `between`, a stream's, it is the driver that is held, when all is shuffled and nothing
is written yet.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import SparkContext, TaskContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import sparkonce
from sparkonce.verify.disturb import executor_of

ROWS, PLACES = 400, 4
_CONF = {
    # Spark's own protection, from 4.1 on; batch jobs run under any version.
    **{
        f"spark.sql.shuffle.orderIndependentChecksum.{part}": "false"
        for part in ("enabled", "enableFullRetryOnMismatch", "enableQueryLevelRollbackOnMismatch")
    },
    "spark.sql.files.maxPartitionBytes": "1000000",
    "spark.sql.files.openCostInBytes": "1000000",
    # So that each of the two executors has a part of everything.
    "spark.cores.max": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1",
}
_Pass = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def placing(folder: Path) -> Callable[..., Column]:
    """Spark takes it for a function of the row."""

    def place(number):  # type: ignore[no-untyped-def]  # hints would choose the kind of UDF
        return (number + int((folder / "service").read_text())) % PLACES

    return F.udf(place, "long")


def holding(folder: Path) -> _Pass:
    """Holds the second half of the tasks until they are released."""

    def hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() >= PLACES // 2 and not (folder / "released").exists():
            (folder / f"held.{executor_of(os.getpid())}").touch()
            while not (folder / "released").exists():
                time.sleep(0.02)
        yield from batches

    return hold


def telling(folder: Path) -> _Pass:
    """Which executors have had tasks."""

    def tell(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        (folder / f"ran.{executor_of(os.getpid())}").touch()
        yield from batches

    return tell


def executors() -> set[str]:
    """Those that Spark has, by their ids."""
    found: Any = SparkContext.getOrCreate()._jsc.sc().getExecutorIds()
    return {found.apply(index) for index in range(found.size())}


def holding_driver(folder: Path) -> Callable[[str], None]:
    """Until an executor is gone that is there now, and Spark knows it."""

    def hold(point: str) -> None:
        if point != "open" or (folder / "shuffled").exists():
            return
        before = executors()
        (folder / "shuffled").touch()
        while before <= executors():
            time.sleep(0.02)

    return hold


def rows(spark: SparkSession, kind: str, folder: Path) -> DataFrame:
    inputs = str(folder / "input")
    if kind in ("stream", "between"):
        return spark.readStream.schema("id long").parquet(inputs)
    return spark.read.schema("id long").parquet(inputs)


def main() -> None:
    kind, sink, at, servers, topic = sys.argv[1:]
    folder = Path(at)
    spark = sparkonce.session("recomputed", "local-cluster[2,1,1024]", _CONF)
    placed = rows(spark, kind, folder).withColumn("place", placing(folder)("id"))
    # By a hash that puts each of the four places into a part of its own.
    frame = placed.repartition(PLACES, "place")
    passing = telling(folder) if kind == "between" else holding(folder)
    frame = frame.mapInArrow(passing, "id long, place long")
    if sink == "kafka":
        # What writes is a stage of its own: a task of it that ran twice would be refused.
        frame = frame.repartition(2, "id").selectExpr("cast(id as string) value")
    if kind == "kept":
        frame = spark.createDataFrame(frame.rdd, frame.schema)
    options = {
        "kafka": {
            "kafka.bootstrap.servers": servers, "topic": topic, "kafka.transactional.id": topic,
        },
        "duckdb": {
            "path": str(folder / "shop.duckdb"), "dbtable": "target", "createTable": "true",
            "pipeline": "shop",
        },
    }[sink]  # fmt: skip
    if kind in ("stream", "between"):
        writer = (
            sparkonce.write_stream(frame).format(sink).options(**options)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
        )  # fmt: skip
        if kind == "between":
            writer = writer.observe(holding_driver(folder))
        writer.start().awaitTermination()
    else:
        sparkonce.write(frame).format(sink).options(**options).option("runId", "1").save()
    spark.stop()


if __name__ == "__main__":
    main()
