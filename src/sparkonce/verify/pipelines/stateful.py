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

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.state import GroupState

from sparkonce.verify.contract import Job, Record
from sparkonce.verify.history import Running
from sparkonce.verify.pipelines import on_spark

GUARANTEES = on_spark.GUARANTEES
POINTS = on_spark.ALL_POINTS
SPARK = True
SHARES = True
BY_KEY = True
units = on_spark.units
# Rows of a key come out of a shuffle, which promises no order among them.
ORDERED = False


def identity(record: Record) -> str:
    return str(json.loads(record.value or b"{}")["id"])


def running(record: Record) -> Running | None:
    told = json.loads(record.value or b"{}")
    return Running((record.key or b"").decode(), told["before"], told["after"])


def _add(
    key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    total = state.get[0] if state.exists else 0
    for frame in frames:
        told = []
        for identity in frame["value"]:
            before, total = total, total + random.randint(1, 1_000_000)
            told.append(json.dumps({"id": identity, "before": before, "after": total}))
        yield pd.DataFrame({"key": key[0], "value": told})
    state.update((total,))


def run(job: Job) -> None:
    rows = on_spark.read(on_spark.session(job), job).select(
        F.col("key").cast("string").alias("key"), F.col("value").cast("string").alias("value")
    )
    on_spark.write(sums(rows), job, "update", topic=job.output_topic)


def sums(rows: DataFrame) -> DataFrame:
    """Of rows with a key and a value, the identity."""
    # transformWithState starts another Python for every batch: too slow for thousands of trials.
    return rows.groupBy("key").applyInPandasWithState(
        _add,
        outputStructType="key string, value string",
        stateStructType="sum long",
        outputMode="update",
        timeoutConf="NoTimeout",
    )
