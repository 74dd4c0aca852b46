"""A pipeline's first batch: its ledger has begun before, so that one which is lost is noticed."""

from __future__ import annotations

import logging
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession

from jobs import Job
from oracle import committed_offset, settle, values
from parts import a_producer, a_topic
from sparkonce.errors import FatalError
from sparkonce.local import LocalKafka
from sparkonce.stream.checkpoint import Checkpoint, CheckpointFolder
from sparkonce.stream.ledger import Entry, LedgerError, last_entry
from stream_jobs import COUNT, EXPECTED, PROVIDERS, STORE, MakeJob, fill, sums_told, write


def stop_at(job: Job, spark: SparkSession, point: str) -> None:
    """The driver ends there, the first time."""

    def stop(at: str) -> None:
        if at == point:
            raise FatalError(f"stopped at {at}")

    with pytest.raises(Exception, match=f"stopped at {point}"):
        job.run(spark, observe=stop)


def lose_ledger(job: Job) -> None:
    admin = AdminClient({"bootstrap.servers": job.servers})
    for done in admin.delete_consumer_groups([job.name], request_timeout=30).values():
        done.result()


def ledger_of(kafka: LocalKafka, job: Job) -> Entry | None:
    with a_producer(kafka) as producer:
        return last_entry(producer.committed_offsets(job.name))


def state_of(job: Job, spark: SparkSession) -> Checkpoint:
    return CheckpointFolder(spark, job.checkpoint).read()


@pytest.mark.parametrize("point", ["open", "produce:last", "offsets", "end", "end:answered"])
@pytest.mark.parametrize("kind", ["keyless", "routed"])
def test_a_first_batch_whose_ledger_is_lost_is_asked_about(
    spark: SparkSession, new_job: MakeJob, point: str, kind: str
) -> None:
    job = new_job(kind=kind)
    stop_at(job, spark, point)
    assert state_of(job, spark) == replace(state_of(job, spark), planned=0, committed=None), (
        "it is in its first batch"
    )
    lose_ledger(job)
    with pytest.raises(LedgerError, match=r"nobody knows whether batch 0.*ledgerLost"):
        job.run(spark)
    was_written = point == "end:answered"
    replace(job, options={"ledgerLost": "skip" if was_written else "replay"}).run(spark)
    written = values(job.servers, job.target)
    if kind == "routed":
        written += values(job.servers, f"{job.target}-2")
    assert sorted(written) == EXPECTED
    settle(job.servers, job.target)


@pytest.mark.parametrize("store", PROVIDERS)
def test_a_first_batch_with_state_is_not_skipped_but_run_again(
    spark: SparkSession, new_job: MakeJob, store: str
) -> None:
    job = new_job(kind="counting", conf={STORE: PROVIDERS[store]})
    stop_at(job, spark, "offsets")
    lose_ledger(job)
    before = state_of(job, spark)
    with pytest.raises(LedgerError, match=r"skip takes batch 0 of .*keeps state"):
        replace(job, options={"ledgerLost": "skip"}).run(spark)
    assert state_of(job, spark) == before
    replace(job, options={"ledgerLost": "replay"}).run(spark)
    assert {sums[-1] for sums in sums_told(job).values()} == {COUNT // 10}


@pytest.mark.parametrize("guarantee", ["at_least_once", "none"])
def test_where_records_may_be_repeated_nobody_is_asked(
    spark: SparkSession, new_job: MakeJob, guarantee: str
) -> None:
    job = new_job(guarantee=guarantee)
    stop_at(job, spark, "produce:last")
    lose_ledger(job)
    job.run(spark)
    assert set(values(job.servers, job.target)) == set(EXPECTED)


def test_the_ledger_has_begun_before_anything_is_planned(
    spark: SparkSession, kafka: LocalKafka, new_job: MakeJob
) -> None:
    job = new_job()
    stop_at(job, spark, "fence")
    checkpoint = state_of(job, spark)
    assert checkpoint.query is not None
    assert (checkpoint.planned, checkpoint.committed) == (None, None)
    begun = ledger_of(kafka, job)
    assert begun is not None
    assert (begun.query, begun.batch, begun.number) == (checkpoint.query, -1, 0)
    # Where the first batch puts its own offsets, so that nothing else is left of it.
    assert committed_offset(job.servers, job.name, job.source, 0) == 0
    assert committed_offset(job.servers, job.name, job.target, 0) < 0
    job.run(spark)
    assert sorted(values(job.servers, job.target)) == EXPECTED
    after = ledger_of(kafka, job)
    assert after is not None and after.query == checkpoint.query


def test_a_driver_that_died_when_it_had_named_the_query(
    spark: SparkSession, kafka: LocalKafka, new_job: MakeJob
) -> None:
    job = new_job()
    CheckpointFolder(spark, job.checkpoint).name_query("9d2bd2e3-8f4a-4a5b-b1b0-5d8b1f0b1c6e")
    job.run(spark)
    assert sorted(values(job.servers, job.target)) == EXPECTED
    after = ledger_of(kafka, job)
    assert after is not None and after.query.startswith("9d2bd2e3")


@pytest.mark.parametrize("point", ["fence", "open", "end"])
def test_a_checkpoint_that_is_lost_before_anything_was_recorded(
    spark: SparkSession, new_job: MakeJob, point: str
) -> None:
    """Its pipeline is as new as it was; whoever still has the old one is told."""
    job = new_job()
    stop_at(job, spark, point)
    moved = replace(job, checkpoint=f"{job.checkpoint}-moved")
    moved.run(spark)
    assert sorted(values(job.servers, job.target)) == EXPECTED
    if point == "fence":
        more = fill(job.servers, job.source, COUNT, 10)
        job.run(spark)  # it has nothing yet, and goes on from the ledger
        assert sorted(values(job.servers, job.target)) == EXPECTED + more
    else:
        with pytest.raises(LedgerError, match="belongs to another checkpoint"):
            job.run(spark)


def test_behind_batches_of_another_sink_a_failure_asks_nobody(
    spark: SparkSession, new_job: MakeJob
) -> None:
    """What was finished when the pipeline began is in the ledger: so it is known that the first
    batch of its own was not written, and where it began."""
    job = new_job()
    frame, _ = job.frame(spark)
    spark_writer = (
        frame.writeStream.format("kafka")
        .option("kafka.bootstrap.servers", job.servers)
        .option("topic", job.target)
        .option("checkpointLocation", job.checkpoint)
        .trigger(availableNow=True)
    )
    spark_writer.start().awaitTermination()
    more = fill(job.servers, job.source, COUNT, 100)
    stop_at(job, spark, "offsets")
    checkpoint = state_of(job, spark)
    assert checkpoint.planned == (checkpoint.committed or 0) + 1
    job.run(spark)
    assert sorted(values(job.servers, job.target)) == EXPECTED + more

    # From there a lost checkpoint goes on, too.
    again = new_job()
    shutil.copytree(f"{job.checkpoint}", f"{again.checkpoint}-copy")
    other = replace(job, name=again.name, checkpoint=f"{again.checkpoint}-copy")
    stop_at(other, spark, "fence")
    lost = replace(other, checkpoint=f"{again.checkpoint}-new")
    last = fill(job.servers, job.source, COUNT + 100, 7)
    lost.run(spark)
    assert sorted(values(job.servers, job.target)) == EXPECTED + more + last


# -- rows that name their topic, and no Kafka source -----------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "1").write_text("a\nb\nc\n")
    return folder


def routed(spark: SparkSession, files: Path, topic: str) -> DataFrame:
    return spark.readStream.text(str(files)).selectExpr("value", f"'{topic}' topic")


def fail_at_offsets(point: str) -> None:
    if point == "offsets":
        raise FatalError("stopped at offsets")


def test_a_ledger_without_a_place_is_asked_about(
    spark: SparkSession, new_job: MakeJob, files: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = new_job(count=0)
    rows = routed(spark, files, job.target)
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(Exception, match="stopped at offsets"),
    ):
        write(job, rows, topic="", observe=fail_at_offsets)
    with pytest.raises(LedgerError, match="ledgerLost"):
        write(job, rows, topic="")
    assert "its ledger has no place before the first rows are written" in caplog.text
    write(job, rows, topic="", ledgerLost="replay")
    assert sorted(values(job.servers, job.target)) == [b"a", b"b", b"c"]
    (files / "2").write_text("d\n")
    write(job, rows, topic="")
    assert sorted(values(job.servers, job.target)) == [b"a", b"b", b"c", b"d"]


def test_the_topic_of_the_dead_letters_is_a_place(
    spark: SparkSession, kafka: LocalKafka, new_job: MakeJob, files: Path
) -> None:
    job = new_job(count=0)
    rows = routed(spark, files, job.target)
    with a_topic(kafka) as letters:
        given = {"topic": "", "deadLetterTopic": letters}
        with pytest.raises(Exception, match="stopped at offsets"):
            write(job, rows, observe=fail_at_offsets, **given)
        write(job, rows, **given)
        assert sorted(values(job.servers, job.target)) == [b"a", b"b", b"c"]
        write(job, rows, **given)
        (files / "2").write_text("d\n")
        write(job, rows, **given)
        assert sorted(values(job.servers, job.target)) == [b"a", b"b", b"c", b"d"]
