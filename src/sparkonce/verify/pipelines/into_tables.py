"""What the pipelines into databases have in common: what is written, and how a ledger is read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from sparkonce.verify.contract import Job, Record
from sparkonce.verify.pipelines import on_spark

GUARANTEES = ("at_most_once", "at_least_once", "exactly_once")
"""Without a promise rows are on their way while others are read: what a crash then hits is chance,
and a control must not be."""


def rows(job: Job) -> DataFrame:
    return on_spark.read(on_spark.session(job), job).select(
        F.col("key").cast("string").alias("key"), F.col("value").cast("string").alias("value")
    )


def records(values: Iterable[str]) -> list[Record]:
    """Rows as the checker knows them; each is in a place of its own."""
    return [
        Record("the table", 0, number, None, value.encode()) for number, value in enumerate(values)
    ]


def offsets(sources: str | None, job: Job) -> Mapping[int, int]:
    """Of the input topic, from the ledger's column."""
    if sources is None:
        return {}
    # None yet in the entry that a new pipeline begins its ledger with.
    first: Mapping[str, Mapping[str, int]] = next(iter(json.loads(sources)), {})
    return {int(index): offset for index, offset in first.get(job.input_topic, {}).items()}
