"""Jobs with topics and checkpoints of their own, which go with the test."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from jobs import Job
from oracle import read
from sparkonce import Producer
from sparkonce.local import LocalKafka
from sparkonce.stream.report import BatchReport
from sparkonce.stream.steps import Observer

PARTITIONS = 4
COUNT = 1000
EXPECTED = [f"{number:06}".encode() for number in range(COUNT)]
STORE = "spark.sql.streaming.stateStore.providerClass"
_STATE = "org.apache.spark.sql.execution.streaming.state"
PROVIDERS = {
    "hdfs": f"{_STATE}.HDFSBackedStateStoreProvider",
    "rocksdb": f"{_STATE}.RocksDBStateStoreProvider",
}
MakeJob = Callable[..., Job]


def fill(servers: str, topic: str, first: int, count: int) -> list[bytes]:
    """Numbered values, keyed by their last digit; answers them."""
    numbers = range(first, first + count)
    values = [f"{number:06}".encode() for number in numbers]
    with Producer({"bootstrap.servers": servers}) as producer:
        keys = [value[-1:] for value in values]
        producer.produce_arrow(topic, pa.table({"key": keys, "value": values}))
    return values


@contextmanager
def jobs_on(kafka: LocalKafka, folder: Path, **layout: Any) -> Iterator[MakeJob]:
    """Jobs from a topic with a thousand values into one of their own."""
    made: list[str] = []

    def make(count: int = COUNT, **fields: Any) -> Job:
        name = f"j-{uuid.uuid4().hex[:8]}"
        topics = [f"{name}-in", f"{name}-out"]
        if fields.get("kind") == "routed":
            topics.append(f"{name}-out-2")
        for topic in topics:
            kafka.create_topic(topic, **({"partitions": PARTITIONS} | layout))
        made.extend(topics)
        if count:
            fill(kafka.bootstrap_servers, topics[0], 0, count)
        return Job(
            **{
                "servers": kafka.bootstrap_servers,
                "source": topics[0],
                "target": topics[1],
                "name": name,
                "checkpoint": str(folder / name),
            }
            | fields
        )

    yield make
    for topic in made:
        kafka.delete_topic(topic)


def sums_told(job: Job) -> dict[bytes, list[int]]:
    """What was written of each key, in order."""
    told: dict[bytes, list[int]] = defaultdict(list)
    for record in read(job.servers, job.target):
        told[record.key or b""].append(int(record.value or b""))
    return told


class Reports:
    """Remembers what was told of every batch."""

    def __init__(self) -> None:
        self.all: list[BatchReport] = []

    def on_batch(self, report: BatchReport) -> None:
        self.all.append(report)


def write(
    job: Job,
    frame: DataFrame,
    *,
    mode: str = "append",
    observe: Observer | None = None,
    **options: Any,
) -> list[BatchReport]:
    """Write a frame of one's own as the job would; option topic="" for rows that name theirs."""
    reports = Reports()
    writer = job.writer(frame, mode).trigger(availableNow=True).listener(reports)
    for name, value in ({"topic": job.target} | options).items():
        if value != "":
            writer.option(name, value)
    if observe is not None:
        writer.observe(observe)
    writer.start().awaitTermination()
    return reports.all
