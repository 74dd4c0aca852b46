"""What the pipelines through Spark have in common: where they read, how they write and end."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

import sparkonce
from sparkonce.verify.contract import POINTS, Job, Unit

GUARANTEES = ("none", "at_most_once", "at_least_once", "exactly_once")
ALL_POINTS = tuple(point for point in POINTS if point != "committed")
TASK_POINTS = frozenset({"produce:first", "produce:last"})
"""Reached on executors, in a task's place."""

_starting = threading.Lock()


def session(job: Job) -> SparkSession:
    """A session of one's own in the context of this process, which jobs share."""
    with _starting:
        spark = sparkonce.session("verify")
    own = spark.newSession()
    for name, value in {"spark.sql.shuffle.partitions": "2", **job.conf}.items():
        own.conf.set(name, value)
    return own


def read(spark: SparkSession, job: Job) -> DataFrame:
    return (
        sparkonce.read_stream(spark)
        .option("kafka.bootstrap.servers", job.bootstrap_servers)
        .option("subscribe", job.input_topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", job.per_batch)
        .load()
    )


def write(frame: DataFrame, job: Job, mode: str = "append", **options: Any) -> None:
    """To Kafka, until the input ends, as a stream of batches."""
    kafka = {
        "kafka.bootstrap.servers": job.bootstrap_servers,
        "kafka.transactional.id": job.name,
        **{f"kafka.{key}": value for key, value in job.settings.items()},
    }
    write_to("kafka", frame, job, mode, **kafka, **options)


def write_to(form: str, frame: DataFrame, job: Job, mode: str = "append", **options: Any) -> None:
    """Until the input ends, as a stream of batches."""
    writer = (
        sparkonce.write_stream(frame)
        .format(form)
        .outputMode(mode)
        .option("guarantee", job.guarantee)
        .option("checkpointLocation", job.folder)
        .options(**options)
        .trigger(availableNow=True)
        .observe(job.observe)
    )
    committed = _Committed(job)
    frame.sparkSession.streams.addListener(committed)
    try:
        writer.start().awaitTermination()
    finally:
        frame.sparkSession.streams.removeListener(committed)


def units(job: Job) -> dict[str, Unit]:
    """A batch is a transaction: what each holds stands in Spark's own offset log."""
    found: dict[str, Unit] = {}
    planned = {
        int(each.name): each.read_text()
        for each in Path(job.folder, "offsets").glob("*")
        if each.name.isdigit()
    }
    # Where the first batch begins: not at 0 if the checkpoint was lost and begins from the ledger.
    initial = Path(job.folder, "sources", "0", "0")
    before = _offsets(initial.read_text(), job) if initial.exists() else {}
    for number, line in sorted(planned.items()):
        ends = _offsets(line, job)
        found[f"batch {number} of {Path(job.folder).name}"] = {
            int(index): (before.get(index, 0), end) for index, end in ends.items()
        }
        before = ends
    return found


def _offsets(written: str, job: Job) -> dict[str, int]:
    """By partition; the line of JSON is the last, whatever stands before it."""
    offsets: dict[str, int] = json.loads(written.splitlines()[-1]).get(job.input_topic, {})
    return offsets


class _Committed(StreamingQueryListener):
    """Spark reports a batch when it stands in its commit log: the last point of all."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        if event.progress.numInputRows:
            self._job.observe("spark-commit")

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        pass
