"""Lost, copied and foreign checkpoints, and two drivers at once: refused or fenced, never mixed."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession

from jobs import Job, apart
from oracle import settle, values
from parts import a_producer, a_topic
from sparkonce.errors import BrokerError
from sparkonce.local import LocalKafka
from sparkonce.stream.ledger import LedgerError
from stream_jobs import COUNT, EXPECTED, MakeJob, fill, write


def elsewhere(job: Job, name: str = "elsewhere") -> Job:
    return replace(job, checkpoint=f"{job.checkpoint}-{name}")


@pytest.mark.parametrize("kind", ["keyless", "keyed"])
def test_a_lost_checkpoint_goes_on_from_the_ledger(
    spark: SparkSession, new_job: MakeJob, kind: str
) -> None:
    job = new_job(kind=kind)
    job.run(spark)
    shutil.rmtree(job.checkpoint)
    more = fill(job.servers, job.source, COUNT, 300)
    job.run(spark)
    assert sorted(values(job.servers, job.target)) == EXPECTED + more
    job.run(spark)
    shutil.rmtree(job.checkpoint)
    again = fill(job.servers, job.source, COUNT + 300, 5)
    job.run(spark)
    assert sorted(values(job.servers, job.target)) == EXPECTED + more + again


def both(job: Job, spark: SparkSession) -> DataFrame:
    """Two sources that read the same topic, each at its own pace."""
    slow = replace(job, per_batch=100)
    tagged = [each.read(spark).select("value") for each in (job, slow)]
    return tagged[0].union(tagged[1])


@pytest.mark.parametrize("layout", [1, 2])
def test_a_lost_checkpoint_of_two_sources_of_one_topic(
    spark: SparkSession, kafka: LocalKafka, new_job: MakeJob, layout: int
) -> None:
    """Each source has its own place in the topic, and goes on from there."""
    job = new_job(per_batch=300)
    write(job, both(job, spark))
    assert sorted(values(job.servers, job.target)) == sorted(EXPECTED * 2)
    if layout == 1:
        write_in_layout_1(kafka, job)
    shutil.rmtree(job.checkpoint)
    more = fill(job.servers, job.source, COUNT, 50)
    write(job, both(job, spark))
    assert sorted(values(job.servers, job.target)) == sorted((EXPECTED + more) * 2)


def write_in_layout_1(kafka: LocalKafka, job: Job) -> None:
    """The ledger as version 0.1.0 would have left it."""
    with a_producer(kafka) as producer:
        first, second = (producer.committed_offsets(group) for group in (job.name, f"{job.name}~2"))
        assert first and second
        for where, at in first.items():
            if at.metadata:
                fields = json.loads(at.metadata) | {"sparkonce": 1}
                del fields["state"]
                first[where] = replace(at, metadata=json.dumps(fields))
        with producer.transaction():
            producer.send_offsets_to_transaction(first, job.name)
            producer.send_offsets_to_transaction(second, f"{job.name}-2")
    admin = AdminClient({"bootstrap.servers": job.servers})
    admin.delete_consumer_groups([f"{job.name}~2"])[f"{job.name}~2"].result(30)


def test_the_second_group_of_a_pipeline_is_not_another_pipelines_ledger(
    spark: SparkSession, new_job: MakeJob
) -> None:
    """One is named like the other's second group was, and is further in the same topic."""
    job = new_job(per_batch=300)
    other = replace(new_job(), name=f"{job.name}-2", source=job.source)
    write(job, both(job, spark))
    more = fill(job.servers, job.source, COUNT, 50)
    other.run(spark)
    shutil.rmtree(job.checkpoint)
    write(job, both(job, spark))
    assert sorted(values(job.servers, job.target)) == sorted((EXPECTED + more) * 2)
    other.run(spark)
    assert sorted(values(other.servers, other.target)) == EXPECTED + more


def test_state_that_is_lost_is_not_taken_for_empty(spark: SparkSession, new_job: MakeJob) -> None:
    job = new_job(kind="counting")
    job.run(spark)
    shutil.rmtree(job.checkpoint)
    with pytest.raises(LedgerError, match=r"its state was in the checkpoint.*lostState"):
        job.run(spark)
    fill(job.servers, job.source, COUNT, 10)
    replace(job, options={"lostState": "empty"}).run(spark)
    assert values(job.servers, job.target)[-10:] != []
    assert sorted(values(job.servers, job.target))[:10] == [b"1"] * 10


def test_a_second_pipeline_with_its_own_checkpoint_is_told_whose_the_name_is(
    spark: SparkSession, new_job: MakeJob
) -> None:
    job = new_job()
    other = elsewhere(replace(new_job(), name=f"{job.name}-other"))
    other.run(spark)
    job.run(spark)
    intruder = replace(other, name=job.name, source=job.source, target=job.target)
    with pytest.raises(LedgerError, match=r"belongs to another checkpoint") as refused:
        intruder.run(spark)
    assert job.checkpoint in str(refused.value) and intruder.checkpoint in str(refused.value)
    assert sorted(values(job.servers, job.target)) == EXPECTED


def test_an_older_copy_of_the_checkpoint_is_refused(spark: SparkSession, new_job: MakeJob) -> None:
    job = new_job()
    job.run(spark)
    copy = elsewhere(job)
    shutil.copytree(job.checkpoint, copy.checkpoint)
    more = fill(job.servers, job.source, COUNT, 100)
    job.run(spark)
    with pytest.raises(LedgerError, match=r"older than the pipeline"):
        copy.run(spark)
    assert sorted(values(job.servers, job.target)) == EXPECTED + more


def test_the_commit_log_may_lose_its_last_entry(spark: SparkSession, new_job: MakeJob) -> None:
    job = new_job()
    job.run(spark)
    for name in ("2", ".2.crc"):
        (Path(job.checkpoint) / "commits" / name).unlink()
    job.run(spark)
    assert sorted(values(job.servers, job.target)) == EXPECTED


@pytest.mark.parametrize("copied", [True, False], ids=["a copy", "its own"])
def test_two_drivers_at_once_the_older_one_is_fenced_and_told_by_whom(
    spark: SparkSession, new_job: MakeJob, copied: bool
) -> None:
    """The older one sleeps in mid-batch, its successor goes to the end, then it wakes up."""
    job = new_job(hold_at="offsets", hold_time=2)
    successor = replace(elsewhere(job), hold_at="") if copied else replace(job, hold_at="")
    with apart([job]) as sleeper:
        if copied:
            shutil.copytree(job.checkpoint, successor.checkpoint)
        successor.run(spark)
        assert sorted(values(job.servers, job.target)) == EXPECTED
        job.release()
        assert sleeper.wait(60) != 0
    told = job.log.read_text()
    assert "was taken over by process" in told
    assert successor.checkpoint in told
    assert sorted(values(job.servers, job.target)) == EXPECTED
    settle(job.servers, job.target)


def test_batches_of_another_sink_are_gone_on_from(spark: SparkSession, new_job: MakeJob) -> None:
    """From Spark's own sink it is a change of one word, with the same checkpoint."""
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
    job.run(spark)
    assert sorted(values(job.servers, job.target)) == EXPECTED + more


def test_a_batch_of_which_nobody_knows_is_asked_about(
    spark: SparkSession, new_job: MakeJob, kafka: LocalKafka
) -> None:
    job = new_job()
    job.run(spark)
    for name in ("2", ".2.crc"):
        (Path(job.checkpoint) / "commits" / name).unlink()
    other = replace(job, name=f"{job.name}-new")
    with pytest.raises(LedgerError, match=r"nobody knows whether batch 2.*ledgerLost"):
        other.run(spark)
    replace(other, options={"ledgerLost": "skip"}).run(spark)
    assert sorted(values(job.servers, job.target)) == EXPECTED


def test_a_topic_that_is_not_there_is_refused_at_start(
    spark: SparkSession, new_job: MakeJob, kafka: LocalKafka
) -> None:
    job = new_job(count=0)
    with pytest.raises(BrokerError, match=r"topic 'nowhere'.*Create it first"):
        replace(job, target="nowhere").start(spark)
    with a_topic(kafka) as letters:
        started = replace(job, options={"deadLetterTopic": letters}).start(spark)
        started.awaitTermination()
