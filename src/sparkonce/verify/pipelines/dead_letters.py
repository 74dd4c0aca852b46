"""Kafka to Spark to Kafka, each record in the partition that it had, some of them dead letters.

Tasks have partitions of their own, and yet meet: all dead letters have the same key, so those of
all tasks go to one partition. From the first records each task has as many as the others, so that
numbers given twice look like a batch sent again; behind them, each another number. Each record is
due in one topic only, in its own or among the dead letters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import functions as F  # noqa: N812

from sparkonce.verify.contract import Job
from sparkonce.verify.pipelines import on_spark

NAME = "dead letters"
POINTS = on_spark.ALL_POINTS
OUTPUTS = 2
SPARK = True
SHARES = True
units = on_spark.units

_NUMBER = r"^t\d+-(\d{6})"
_ALIKE = 20
"""So many records from the first on: a batch, of the smallest workload."""


def due_in(identity: str) -> Sequence[int]:
    number = int(identity.partition("-")[2][:6])
    return (1,) if _is_dead(number) else (0,)


def _is_dead(number: Any) -> Any:
    """Of a number, or of a column of them. Neighbours are in different partitions: half of the
    records of one are dead letters, and of the other at first half, then a tenth."""
    return (number % 4 == 0) | ((number % 4 == 1) & (number < _ALIKE)) | (number % 20 == 1)


def run(job: Job) -> None:
    rows = on_spark.read(on_spark.session(job), job)
    number = F.regexp_extract(F.col("value").cast("string"), _NUMBER, 1).cast("int")
    is_dead = _is_dead(number)
    marked = rows.select(
        F.when(is_dead, F.lit("dead")).otherwise(F.col("key").cast("string")).alias("key"),
        "value",
        "partition",
        F.when(is_dead, F.lit("it was marked")).alias("dead_letter"),
    )
    topic, dead_letters = job.output_topics
    on_spark.write(marked, job, topic=topic, deadLetterTopic=dead_letters)
