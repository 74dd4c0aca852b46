"""Kafka to Spark with state to Kafka: a running sum per key of something that is never the same.

Each record adds a random amount, as if an outside service had been asked: a batch that runs again
adds another. What is written has the sum before and after, so whether state and output agree can be
seen in the output alone.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from sparkonce.verify.contract import Job, Record
from sparkonce.verify.history import Running
from sparkonce.verify.pipelines import on_spark

GUARANTEES = on_spark.GUARANTEES
POINTS = on_spark.ALL_POINTS
SPARK = True
SHARES = True
# Rows of a key come out of a shuffle, which promises no order among them.
ORDERED = False


def identity(record: Record) -> str:
    return str(json.loads(record.value or b"{}")["id"])


def running(record: Record) -> Running | None:
    told = json.loads(record.value or b"{}")
    return Running((record.key or b"").decode(), told["before"], told["after"])


class _Sums(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._sum = handle.getValueState("sum", "sum long")

    def handleInputRows(  # noqa: N802
        self, key: tuple[Any, ...], rows: Iterator[Row], timer_values: Any
    ) -> Iterator[Row]:
        stored = self._sum.get()
        total = stored[0] if stored else 0
        for row in rows:
            before, total = total, total + random.randint(1, 1_000_000)
            told = {"id": row.value, "before": before, "after": total}
            yield Row(key=key[0], value=json.dumps(told))
        self._sum.update((total,))

    def close(self) -> None:
        pass


def run(job: Job) -> None:
    spark = on_spark.session()
    spark.conf.set(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    rows = on_spark.read(spark, job).select(
        F.col("key").cast("string").alias("key"), F.col("value").cast("string").alias("value")
    )
    sums = rows.groupBy("key").transformWithState(
        _Sums(), "key string, value string", "Update", "none"
    )
    on_spark.write(sums, job, "update", topic=job.output_topic)
