"""A transactional id that nobody used for so long is forgotten: zombies stay out, owners go on.

A broker of its own forgets after three seconds, not seven days.
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from jobs import Job, apart
from oracle import settle, values
from parts import a_producer, a_topic, wait_until
from sparkonce import OffsetAndMetadata, TransactionalProducer
from sparkonce.errors import (
    AbortableError,
    BrokerError,
    FencedError,
    OwnershipUncertain,
    TransactionalIdExpired,
)
from sparkonce.local import LocalKafka
from sparkonce.produce import State
from sparkonce.stream.kafka import KafkaSink, KafkaTarget
from sparkonce.stream.ledger import Entry
from stream_jobs import MakeJob, fill, jobs_on

PATIENCE_S = 60.0
FORGETS = {
    "transactional.id.expiration.ms": "3000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
}


@pytest.fixture(scope="module")
def forgetful() -> Iterator[LocalKafka]:
    with LocalKafka(properties=FORGETS) as cluster:
        yield cluster


@pytest.fixture
def topic(forgetful: LocalKafka) -> Iterator[str]:
    with a_topic(forgetful) as name:
        yield name


@pytest.fixture
def resting_job(forgetful: LocalKafka, tmp_path: Path) -> Iterator[MakeJob]:
    with jobs_on(forgetful, tmp_path) as make:
        yield make


@pytest.fixture
def forgotten(forgetful: LocalKafka) -> Callable[[str], None]:
    """Waits until the cluster has forgotten a transactional id."""

    def wait(name: str) -> None:
        settings = {
            "bootstrap.servers": forgetful.bootstrap_servers,
            "transactional.id": name,
        }
        with TransactionalProducer(settings) as probe:
            is_forgotten = lambda: not probe._coordinator.describe().is_known  # noqa: E731
            wait_until(is_forgotten, f"{name} is forgotten", PATIENCE_S)

    return wait


def _speaks(producer: TransactionalProducer, version: int) -> None:
    """As a client of a cluster that has finalised no more than this; any cluster takes it."""
    producer._client.transaction_version = version


STEPS: dict[str, Callable[[TransactionalProducer, str], object]] = {
    "abort": lambda zombie, topic: zombie.abort_transaction(),
    "commit": lambda zombie, topic: zombie.commit_transaction(),
    "offsets": lambda zombie, topic: zombie.send_offsets_to_transaction({(topic, 0): 1}, topic),
}


@pytest.mark.parametrize("step", ["begin", "begin at once", *STEPS])
@pytest.mark.parametrize("version", [2, 1], ids=["version2", "version1"])
def test_a_zombie_whose_id_was_forgotten_with_its_successors_never_writes_again(
    forgetful: LocalKafka, topic: str, forgotten: Callable[[str], None], version: int, step: str
) -> None:
    """To the cluster it would be the first of its name."""
    servers, name = forgetful.bootstrap_servers, f"id-{uuid.uuid4().hex[:8]}"
    with a_producer(forgetful, transactional_id=name) as zombie:
        _speaks(zombie, version)
        with zombie.transaction():
            zombie.produce(topic, "batch 1")
        if step in STEPS:
            zombie.begin_transaction()
            assert zombie.identity  # an executor might be about to write
        with a_producer(forgetful, transactional_id=name) as successor, successor.transaction():
            successor.produce(topic, "batch 2")
        forgotten(name)
        if step == "begin at once":
            # Not even if it believes to have heard from the coordinator just now.
            zombie._coordinator.questions.heard_at_s = time.monotonic() + PATIENCE_S
            zombie._needs_epoch = True
        with pytest.raises(TransactionalIdExpired, match=r"transactional\.id\.expiration\.ms"):
            if step in STEPS:
                STEPS[step](zombie, topic)
            else:
                zombie.begin_transaction()
        assert zombie.state is State.FAILED
        with pytest.raises(TransactionalIdExpired):
            zombie.begin_transaction()
    assert sorted(values(servers, topic)) == [b"batch 1", b"batch 2"]
    settle(servers, topic)


def test_those_who_joined_are_told_that_the_id_was_forgotten(
    forgetful: LocalKafka, topic: str, forgotten: Callable[[str], None]
) -> None:
    settings = {"bootstrap.servers": forgetful.bootstrap_servers}
    name = f"id-{uuid.uuid4().hex[:8]}"
    with a_producer(forgetful, transactional_id=name) as owner:
        owner.begin_transaction()
        joined = TransactionalProducer.join(settings, owner.identity)
        forgotten(name)
        joined.produce(topic, "late")
        with pytest.raises(TransactionalIdExpired, match="Nothing of an open transaction"):
            joined.flush()
        joined.close()
    assert values(forgetful.bootstrap_servers, topic) == []


# -- pipelines ------------------------------------------------------------------------------------


@pytest.fixture
def resting(spark: SparkSession) -> Iterator[Callable[..., StreamingQuery]]:
    """Starts a job as a query that goes on, and stops it with the test."""
    queries: list[StreamingQuery] = []

    def start(job: Job) -> StreamingQuery:
        frame, mode = job.frame(spark.newSession())
        writer = job.writer(frame, mode).option("topic", job.target)
        writer.option("guarantee", job.guarantee).trigger(processingTime="100 milliseconds")
        queries.append(writer.start())
        return queries[-1]

    yield start
    for query in queries:
        query.stop()


def _written(job: Job) -> list[bytes | None]:
    return sorted(values(job.servers, job.target), key=str)


def _wait_until_written(job: Job, expected: list[bytes]) -> None:
    wait_until(lambda: _written(job) == expected, f"{expected} are there", PATIENCE_S)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("guarantee", ["exactly_once", "none"])
def test_a_query_that_rested_goes_on_under_a_new_producer_id(
    spark: SparkSession,
    resting_job: MakeJob,
    resting: Callable[..., StreamingQuery],
    forgotten: Callable[[str], None],
    guarantee: str,
) -> None:
    job = resting_job(count=5, guarantee=guarantee)
    job.run(spark)
    query = resting(job)
    expected = [f"{number:06}".encode() for number in range(5)]
    for first in (5, 10):
        forgotten(job.name)
        expected += fill(job.servers, job.source, first, 5)
        _wait_until_written(job, expected)
        assert query.isActive
    query.stop()
    settle(job.servers, job.target)
    if guarantee == "exactly_once":
        job.run(spark)
        assert _written(job) == expected


@pytest.mark.timeout(180)
def test_a_query_that_rested_while_another_took_over_is_refused(
    spark: SparkSession,
    resting_job: MakeJob,
    resting: Callable[..., StreamingQuery],
    forgotten: Callable[[str], None],
) -> None:
    """The other one rests by now, too, and is not fenced by the one that is refused."""
    job = resting_job(count=5)
    job.run(spark)
    query = resting(job)
    expected = [f"{number:06}".encode() for number in range(5)]
    assert _written(job) == expected
    successor = replace(job, checkpoint=f"{job.checkpoint}-copy")
    shutil.copytree(job.checkpoint, successor.checkpoint)
    with apart([successor]) as other:
        assert other.wait(PATIENCE_S) == 0, successor.log.read_text()[-5000:]
    forgotten(job.name)
    more = fill(job.servers, job.source, 5, 5)
    with pytest.raises(Exception, match=r"was taken over") as refused:
        query.awaitTermination(int(PATIENCE_S))
    assert successor.checkpoint in str(refused.value)
    assert _written(job) == expected
    # To the cluster the id is still unknown: whoever is refused has left no trace there.
    settings = {"bootstrap.servers": job.servers, "transactional.id": job.name}
    with TransactionalProducer(settings) as probe:
        assert not probe._coordinator.describe().is_known
    with apart([successor]) as other:
        assert other.wait(PATIENCE_S) == 0, successor.log.read_text()[-5000:]
    assert _written(job) == expected + more


class _Batches:
    """A sink's attempts, one after the other, without Spark."""

    def __init__(self, spark: SparkSession, kafka: LocalKafka, topic: str) -> None:
        self.name = f"id-{uuid.uuid4().hex[:8]}"
        options = {
            "kafka.bootstrap.servers": kafka.bootstrap_servers,
            "kafka.transactional.id": self.name,
            "topic": topic,
        }
        frame = spark.createDataFrame([("x",)], "value string")
        self.sink: Any = KafkaTarget.parse(options, None).open(frame, None, None)
        assert isinstance(self.sink, KafkaSink)
        self._topic = topic
        self._entry = Entry(
            query="q",
            batch=-1,
            number=0,
            guarantee="exactly_once",
            host="here",
            pid=1,
            checkpoint="/c",
            sources=None,
        )

    def record(self, **changes: Any) -> Entry:
        entry = self._entry
        entry = replace(entry, batch=entry.batch + 1, number=entry.number + 1, **changes)
        self.sink.record(entry, [{self._topic: {"0": entry.number}}])
        return entry

    def commit(self, **changes: Any) -> None:
        self.sink.fence()
        entry = self.record(**changes)
        self.sink.decide()
        self._entry = entry

    @property
    def newest(self) -> Entry | None:
        held = self.sink.holder()
        assert held is None or isinstance(held, Entry)
        return held


@pytest.fixture
def batches(spark: SparkSession, forgetful: LocalKafka, topic: str) -> Iterator[_Batches]:
    made = _Batches(spark, forgetful, topic)
    made.sink.take_over()
    yield made
    made.sink.close()


@pytest.mark.parametrize("end", ["empty", "recorded", "aborted"])
def test_an_id_that_is_forgotten_in_mid_batch_costs_an_attempt_at_most(
    batches: _Batches, forgotten: Callable[[str], None], end: str
) -> None:
    batches.commit()
    batches.sink.fence()
    forgotten(batches.name)
    if end == "empty":
        batches.sink.leave_empty()
    elif end == "aborted":
        batches.sink.abandon()
    else:
        with pytest.raises(AbortableError, match=r"transactional\.id\.expiration\.ms"):
            batches.record()
        batches.sink.abandon()
    batches.commit()
    is_there = lambda: batches.newest is not None and batches.newest.number == 2  # noqa: E731
    wait_until(is_there, "the second entry is there", PATIENCE_S)


def test_a_driver_that_never_recorded_anything_does_not_go_on(
    batches: _Batches, forgotten: Callable[[str], None]
) -> None:
    """Whose successor's entries may have expired as well."""
    forgotten(batches.name)
    with pytest.raises(OwnershipUncertain, match=r"offsets\.retention\.minutes"):
        batches.sink.fence()


def test_a_driver_goes_on_only_from_the_entry_that_it_left(
    batches: _Batches, forgetful: LocalKafka, forgotten: Callable[[str], None], topic: str
) -> None:
    batches.commit()
    wait_until(lambda: batches.newest, "the entry is there", PATIENCE_S)
    with a_producer(forgetful, transactional_id=batches.name) as successor:
        note = successor.committed_offsets(batches.name)[topic, 0].metadata
        signed = note.replace('"number":1', '"number":2').replace('"pid":1', '"pid":2')
        with successor.transaction():
            successor.send_offsets_to_transaction(
                {(topic, 0): OffsetAndMetadata(1, signed)}, batches.name
            )
    forgotten(batches.name)
    with pytest.raises(FencedError, match="process 2 on here"):
        batches.sink.fence()
    with pytest.raises(BrokerError):
        batches.sink.fence()
