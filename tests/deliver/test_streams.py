"""Kafka to a table through Spark, into every kind of database, under every guarantee."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, count, when
from pyspark.sql.streaming.query import StreamingQuery

import sparkonce
from deliver.tables import Table
from parts import wait_until
from sparkonce.errors import FatalError
from sparkonce.local import LocalKafka
from sparkonce.stream.ledger import LedgerError
from sparkonce.stream.settings import PipelineSettings
from stream_jobs import fill

GUARANTEES = ("none", "at_most_once", "at_least_once", "exactly_once")


class Job:
    """From a topic into a table, as often as it is started."""

    def __init__(self, spark: SparkSession, kafka: LocalKafka, topic: str, table: Table) -> None:
        self.spark = spark
        self.kafka = kafka
        self.servers = kafka.bootstrap_servers
        self.topic = topic
        self.table = table
        self.options: dict[str, str] = {}

    def fill(self, first: int, count: int) -> list[str]:
        return [value.decode() for value in fill(self.servers, self.topic, first, count)]

    def frame(self) -> DataFrame:
        source = (
            sparkonce.read_stream(self.spark)
            .option("kafka.bootstrap.servers", self.servers)
            .option("subscribe", self.topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", 40)
            .load()
        )
        return source.select(
            col("value").cast("string").alias("value"),
            col("value").cast("string").cast("long").alias("number"),
            "partition",
            "offset",
        )

    def start(
        self,
        checkpoint: Path,
        frame: DataFrame | None = None,
        observe: Callable[[str], None] | None = None,
        processingTime: str | None = None,  # noqa: N803
        **options: str,
    ) -> StreamingQuery:
        writer = (
            sparkonce.write_stream(frame or self.frame())
            .format(self.table.format)
            .option(self.table.named_by, self.topic)
            .option("checkpointLocation", str(checkpoint))
            .options(**(self.table.options() | self.options | options))
            .trigger(
                **({"processingTime": processingTime} if processingTime else {"availableNow": True})
            )
        )
        return (writer.observe(observe) if observe else writer).start()

    def run(self, checkpoint: Path, **how: object) -> None:
        query = self.start(checkpoint, **how)  # type: ignore[arg-type]
        query.awaitTermination()
        if self.options.get("guarantee") == "none":  # nobody has waited for the last rows
            for thread in threading.enumerate():
                if thread.name == "sparkonce-close":
                    thread.join()

    def values(self) -> list[str]:
        return sorted(row["value"] for row in self.table.rows())


@pytest.fixture
def job(spark: SparkSession, kafka: LocalKafka, topic: str, table: Table) -> Job:
    return Job(spark, kafka, topic, table)


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_all_rows_once_and_none_again_when_started_again(
    job: Job, tmp_path: Path, guarantee: str
) -> None:
    job.options = {"guarantee": guarantee}
    expected = job.fill(0, 100)
    job.run(tmp_path / "c")
    assert job.values() == expected
    expected += job.fill(100, 50)
    job.run(tmp_path / "c")
    assert job.values() == expected


@pytest.mark.parametrize("point", ["open", "offsets", "end", "end:answered"])
def test_a_driver_that_fails_at_a_step(job: Job, tmp_path: Path, point: str) -> None:
    expected = job.fill(0, 100)
    times = 0

    def fail(at: str) -> None:
        nonlocal times
        times += at == point
        if at == point and times == 2:
            raise FatalError(f"stopped at {at}")

    with pytest.raises(Exception, match="stopped at"):
        job.run(tmp_path / "c", observe=fail)
    assert len(job.values()) in (40, 80)
    job.run(tmp_path / "c")
    assert job.values() == expected


def test_a_first_batch_whose_ledger_is_lost_is_asked_about(job: Job, tmp_path: Path) -> None:
    """Looked for under another name, it isn't there."""
    expected = job.fill(0, 30)

    def fail(at: str) -> None:
        if at == "offsets":
            raise FatalError(f"stopped at {at}")

    with pytest.raises(Exception, match="stopped at"):
        job.run(tmp_path / "c", observe=fail)
    lost = {job.table.named_by: f"{job.topic}-other"}
    with pytest.raises(LedgerError, match=r"whether batch 0.*ledgerLost"):
        job.run(tmp_path / "c", **lost)
    job.run(tmp_path / "c")
    assert job.values() == expected


@pytest.mark.parametrize("point", ["fence", "open"])
def test_a_checkpoint_that_is_lost_before_anything_was_recorded(
    job: Job, tmp_path: Path, point: str
) -> None:
    expected = job.fill(0, 30)

    def fail(at: str) -> None:
        if at == point:
            raise FatalError(f"stopped at {at}")

    with pytest.raises(Exception, match="stopped at"):
        job.run(tmp_path / "c", observe=fail)
    job.run(tmp_path / "moved")
    assert job.values() == expected


def test_a_lost_checkpoint_goes_on_from_the_ledger(job: Job, tmp_path: Path) -> None:
    expected = job.fill(0, 60)
    job.run(tmp_path / "c")
    shutil.rmtree(tmp_path / "c")
    expected += job.fill(60, 60)
    job.run(tmp_path / "other")
    assert job.values() == expected


def test_kafkas_group_follows(job: Job, tmp_path: Path) -> None:
    job.fill(0, 100)
    job.run(tmp_path / "c")
    consumer = Consumer({"bootstrap.servers": job.servers, "group.id": job.topic})
    parts = [TopicPartition(job.topic, index) for index in range(2)]
    assert sum(part.offset for part in consumer.committed(parts, timeout=30)) == 100
    consumer.close()


def test_a_second_driver_fences_the_first(job: Job, tmp_path: Path) -> None:
    expected = job.fill(0, 40)
    first = job.start(tmp_path / "c", processingTime="100 milliseconds")
    wait_until(lambda: len(job.values()) == 40, "all are delivered", timeout_s=60)
    job.run(tmp_path / "second")
    expected += job.fill(40, 10)
    with pytest.raises(Exception, match="was taken over by process"):
        first.awaitTermination()
    job.run(tmp_path / "second")
    assert job.values() == expected


def test_state_upserted_row_by_row(job: Job, tmp_path: Path) -> None:
    """The count of each digit, whatever batches it came in."""
    job.fill(0, 100)
    counted = job.frame().groupBy((col("number") % 10).alias("digit")).agg(count("*").alias("n"))
    job.options = {"writeMode": "upsert", "keyColumns": "digit"}
    writer = (
        sparkonce.write_stream(counted)
        .format(job.table.format)
        .outputMode("update")
        .option(job.table.named_by, job.topic)
        .option("checkpointLocation", str(tmp_path / "c"))
        .options(**(job.table.options() | job.options))
        .trigger(availableNow=True)
    )
    writer.start().awaitTermination()
    assert sorted((row["digit"], row["n"]) for row in job.table.rows()) == [
        (digit, 10) for digit in range(10)
    ]


def test_bad_rows_go_to_the_dead_letters(job: Job, tmp_path: Path) -> None:
    if job.table.dead is None:
        pytest.skip("two tables of Delta can't be committed together")
    job.fill(0, 100)
    marked = job.frame().withColumn("dead_letter", when(col("number") % 10 == 0, "a round number"))
    job.run(tmp_path / "c", frame=marked, deadLetterTable=job.table.dead)
    dead = job.table.rows("dead")
    assert (len(job.values()), len(dead)) == (90, 10)
    assert {row["reason"] for row in dead} == {"a round number"}


def save(job: Job, run_id: str) -> None:
    frame = job.spark.range(100).withColumn("value", col("id").cast("string"))
    (
        sparkonce.write(frame)
        .format(job.table.format)
        .option(job.table.named_by, job.topic)
        .option("runId", run_id)
        .options(**job.table.options())
        .save()
    )


def test_a_batch_job_is_written_once_for_each_run_id(job: Job) -> None:
    for run_id in ("monday", "monday", "tuesday"):
        save(job, run_id)
    assert len(job.table.rows()) == 200


def test_a_run_that_version_0_1_0_wrote_is_not_written_again(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what a pipeline has under such a name is not taken for a run."""
    former = property(lambda settings: settings.former_group or settings.pipeline)
    with monkeypatch.context() as then:
        then.setattr(PipelineSettings, "group", former)
        save(job, "monday")
        save(job, "wednesday-run-tuesday")
    assert len(job.table.rows()) == 200
    save(job, "monday")
    assert len(job.table.rows()) == 200
    other = Job(job.spark, job.kafka, f"{job.topic}-run-wednesday", job.table)
    save(other, "tuesday")
    assert len(job.table.rows()) == 300
