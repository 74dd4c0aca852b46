"""Partitions are added while a query runs: in each batch, all rows of a key go to one partition,
and rows that name a new partition go there.
"""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from jobs import Job
from oracle import read
from parts import a_topic, add_partitions, wait_until
from sparkonce import Producer
from sparkonce.local import LocalKafka
from sparkonce.stream.report import BatchReport
from stream_jobs import Reports, write

KEYS, PER_BATCH, BATCHES = 12, 120, 6


@pytest.fixture
def source(kafka: LocalKafka) -> Iterator[str]:
    """Each of two partitions has rows of every key in every batch; a value names its batch."""
    with a_topic(kafka, partitions=2) as name:
        numbers = range(PER_BATCH * BATCHES)
        table = pa.table(
            {
                "key": [str(number // 2 % KEYS) for number in numbers],
                "value": [str(number // PER_BATCH) for number in numbers],
                "partition": pa.array([number % 2 for number in numbers], pa.int32()),
            }
        )
        with Producer({"bootstrap.servers": kafka.bootstrap_servers}) as producer:
            producer.produce_arrow(name, table)
        yield name


@pytest.fixture
def target(kafka: LocalKafka) -> Iterator[str]:
    with a_topic(kafka, partitions=2) as name:
        yield name


class Meet:
    """Keeps each of the two tasks of a batch until the other one has written too, so that they are
    in two processes; leaves their ids behind."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.begin_batch()

    def begin_batch(self) -> None:
        (self._folder / str(len(self.batches()))).mkdir(parents=True)

    def __call__(self, point: str) -> None:
        if point == "produce:first":
            batch = self._folder / str(len(self.batches()) - 1)
            (batch / str(os.getpid())).touch()
            wait_until(lambda: len(list(batch.iterdir())) == 2, "both tasks have written")

    def batches(self) -> list[set[int]]:
        """The processes that wrote, batch by batch."""
        folders = sorted(self._folder.glob("*"), key=lambda each: int(each.name))
        return [{int(each.name) for each in folder.iterdir()} for folder in folders]


class GrowBehindTheFirst(Reports):
    """Adds partitions, and kills one of the two processes that have seen the topic without them."""

    def __init__(self, servers: str, topic: str, meet: Meet) -> None:
        super().__init__()
        self._servers = servers
        self._topic = topic
        self._meet = meet

    def on_batch(self, report: BatchReport) -> None:
        super().on_batch(report)
        self._meet.begin_batch()
        if len(self.all) == 1:
            add_partitions(self._servers, self._topic, 7)
            os.kill(min(self._meet.batches()[0]), signal.SIGKILL)


def _job(kafka: LocalKafka, source: str, target: str, folder: Path) -> Job:
    return Job(
        servers=kafka.bootstrap_servers,
        source=source,
        target=target,
        name=f"job-{target}",
        checkpoint=str(folder / "checkpoint"),
        per_batch=PER_BATCH,
    )


@pytest.mark.parametrize("named_by", ["the option", "the rows"])
@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_a_worker_that_knows_and_one_that_does_not(
    spark: SparkSession,
    kafka: LocalKafka,
    tmp_path: Path,
    source: str,
    target: str,
    named_by: str,
    guarantee: str,
) -> None:
    job = _job(kafka, source, target, tmp_path)
    meet = Meet(tmp_path / "met")
    reports = GrowBehindTheFirst(job.servers, target, meet)
    rows = job.read(spark).select("key", "value")
    if named_by == "the rows":
        rows = rows.withColumn("topic", F.lit(target))
    writer = job.writer(rows, "append").option("guarantee", guarantee)
    writer.option("topic", target if named_by == "the option" else None)
    # The driver does not hear of the partitions by itself while the test runs.
    writer.trigger(availableNow=True).listener(reports).observe(meet).start().awaitTermination()
    assert [report.attempts for report in reports.all] == [1] * BATCHES
    first, *later = meet.batches()
    old = max(first)
    assert any(old in workers and len(workers) == 2 for workers in later), "it met a new one"
    seen = read(job.servers, target)
    assert len(seen) == PER_BATCH * BATCHES
    places: dict[tuple[bytes | None, bytes | None], set[int]] = defaultdict(set)
    for record in seen:
        places[record.value, record.key].add(record.partition)
    assert len(places) == BATCHES * KEYS
    assert {place: found for place, found in places.items() if len(found) > 1} == {}


class GrowOnce:
    """Adds partitions as the second batch begins; the driver does not hear of them by itself while
    the test runs."""

    def __init__(self, servers: str, topic: str) -> None:
        self._servers = servers
        self._topic = topic
        self._begun = 0

    def __call__(self, point: str) -> None:
        if point == "open":
            self._begun += 1
            if self._begun == 2:
                add_partitions(self._servers, self._topic, BATCHES)


def test_rows_that_name_a_new_partition_are_no_dead_letters(
    spark: SparkSession, kafka: LocalKafka, tmp_path: Path, source: str, target: str
) -> None:
    """Spark may read from partitions that were added before the driver hears of those that were
    added to the target."""
    job = _job(kafka, source, target, tmp_path)
    rows = job.read(spark).select("key", "value")
    named = F.col("value").cast("string").cast("int")  # each batch has a partition of its own
    by_key = F.col("key").cast("string").cast("int") < KEYS // 2
    with a_topic(kafka, partitions=1) as letters:
        reports = write(
            job,
            rows.withColumn("partition", F.when(~by_key, named)),
            observe=GrowOnce(job.servers, target),
            deadLetterTopic=letters,
        )
    assert [report.attempts for report in reports] == [1] * BATCHES
    assert sum(report.dead_letters for report in reports) == 0
    seen = read(job.servers, target)
    assert len(seen) == PER_BATCH * BATCHES
    assert {
        record.partition == int(record.value or b"")
        for record in seen
        if int(record.key or b"") >= KEYS // 2
    } == {True}
    chosen = {record.partition for record in seen if int(record.key or b"") < KEYS // 2}
    assert chosen == {0, 1}, "for rows without a partition all tasks count what the driver counts"
