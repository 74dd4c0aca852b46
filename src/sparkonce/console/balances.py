"""The demo's job as a program of its own: payments in, a running balance per account out.

`driver` starts it as `python -m sparkonce.console.balances JSON`, to be killed. Which sink it has
is decided in `_writer`; all else is the same for both.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

import sparkonce
from sparkonce.console.driver import SPARK, Run
from sparkonce.stream.writer import StreamWriter
from sparkonce.verify.child import end_with_parent


class KillAt:
    """Kills the driver where a run is told to die: for `observe`, in the driver and on executors.

    The batch is recognised by Spark's plan for it, since executors know of no batches.
    """

    def __init__(self, run: Run) -> None:
        self._point = run.die_at
        self._plan = Path(run.checkpoint, "offsets", str(run.die_in))
        self._driver = os.getpgid(0)

    def __call__(self, point: str) -> None:
        if point == self._point and self._plan.exists():
            os.killpg(self._driver, signal.SIGKILL)  # Python and its JVM at the same instant


def start(spark: SparkSession, run: Run) -> StreamingQuery:
    return (
        _writer(balances(spark, run), run)
        .format("kafka")
        .outputMode("update")
        .option("kafka.bootstrap.servers", run.servers)
        .option("topic", run.target)
        .option("checkpointLocation", run.checkpoint)
        .trigger(availableNow=True)
        .start()
    )


def _writer(frame: DataFrame, run: Run) -> StreamWriter | DataStreamWriter:
    if run.sink == SPARK:
        return frame.writeStream
    writer = sparkonce.write_stream(frame).option("kafka.transactional.id", "demo")
    return writer.observe(KillAt(run)) if run.die_at else writer


def balances(spark: SparkSession, run: Run) -> DataFrame:
    payments = (
        sparkonce.read_stream(spark)
        .option("kafka.bootstrap.servers", run.servers)
        .option("subscribe", run.source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", run.per_batch)
        .load()
        .selectExpr("string(key) as account", "bigint(string(value)) as amount")
    )
    state = payments.groupBy("account").agg(
        F.count("*").alias("count"), F.sum("amount").alias("sum")
    )
    return state.select(
        F.col("account").alias("key"), F.to_json(F.struct("account", "count", "sum")).alias("value")
    )


def main() -> None:
    run = Run(**json.loads(sys.argv[1]))
    end_with_parent()
    spark = sparkonce.session("demo", "local[2]")  # so a shuffle has two partitions
    start(spark, run).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
