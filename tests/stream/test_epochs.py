"""Across the end of a producer id's epochs: after 32,766 transactions it is another one.

Ids are planted a few transactions before it (`verify.epochs`), on a broker for each version.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

from jobs import Job, apart
from oracle import settle, values
from parts import a_producer, a_topic, wait_until
from sparkonce import ProducerIdentity, TransactionalProducer
from sparkonce.errors import FatalError, FencedError, OwnershipUncertain, TransactionTimedOut
from sparkonce.local import LocalKafka
from sparkonce.produce.identity import EPOCH_MAX
from sparkonce.produce.ownership import Begun
from sparkonce.produce.questions import NotYet
from sparkonce.verify import DelayRequest, DelayResponse, Fault, FaultProxy, LoseResponse
from sparkonce.verify.epochs import plant
from stream_jobs import EXPECTED, MakeJob, Reports, jobs_on

PATIENCE_S = 60.0
BEFORE = EPOCH_MAX - 5
"""With the first epoch after that, four transactions are left under the same producer id."""

LEFT_AT = range(EPOCH_MAX - 2, EPOCH_MAX + 2)
"""The last of them only brokers use."""


class Planted(NamedTuple):
    kafka: LocalKafka
    names: Iterator[str]
    """Transactional ids at the epoch BEFORE, each for one test."""


@pytest.fixture(scope="module", params=[2, 1], ids=["version2", "version1"])
def planted(request: pytest.FixtureRequest) -> Iterator[Planted]:
    names = [f"near-the-end-{number}" for number in range(40)]
    with LocalKafka(transaction_version=request.param) as kafka:
        at_the_end = {f"at-the-end-{epoch}": epoch for epoch in LEFT_AT}
        plant(kafka, dict.fromkeys(names, BEFORE) | at_the_end)
        yield Planted(kafka, iter(names))


@pytest.fixture
def topic(planted: Planted) -> Iterator[str]:
    with a_topic(planted.kafka) as name:
        yield name


def _given(producer: TransactionalProducer) -> ProducerIdentity:
    """The answer of InitProducerId, once the markers are written and there is a producer id."""
    given: list[ProducerIdentity] = []

    def is_given() -> bool:
        with suppress(NotYet):
            given.append(producer._coordinator.init_once(_known(producer), PATIENCE_S))
        return bool(given)

    wait_until(is_given, "the next epoch is given")
    return given[0]


def _known(producer: TransactionalProducer) -> ProducerIdentity:
    assert producer._identity is not None
    return producer._identity


def test_commits_and_aborts_with_others_who_joined(planted: Planted, topic: str) -> None:
    """Each order of the two at the change; nobody ever writes under the last epoch."""
    servers = planted.kafka.bootstrap_servers
    settings = {"bootstrap.servers": servers}
    expected = []
    for commits in itertools.product([True, False], repeat=3):
        used: list[ProducerIdentity] = []
        with a_producer(planted.kafka, transactional_id=next(planted.names)) as owner:
            assert _known(owner).epoch == BEFORE + 1
            owner.begin_transaction()
            with TransactionalProducer.join(settings, owner.identity) as joined:
                # One commit first, and one behind: nothing of the aborted ones goes with it.
                for number, commit in enumerate([True, *commits, *commits, True]):
                    used.append(owner.identity)
                    joined.rejoin(owner.identity)
                    told = f"{commits} {number}".encode()
                    owner.produce(topic, told + b" owner", partition=0)
                    joined.produce(topic, told + b" joined", partition=1)
                    joined.flush()
                    owner.send_offsets_to_transaction({(topic, 0): number}, "group")
                    if commit:
                        owner.commit_transaction()
                        expected += [told + b" owner", told + b" joined"]
                    else:
                        owner.abort_transaction()
                    owner.begin_transaction()
                owner.abort_transaction()
        ids = list(dict.fromkeys(each.producer_id for each in used))
        assert len(ids) == 2, f"the producer id did not change once: {used}"
        assert max(each.epoch for each in used) < EPOCH_MAX, used
        assert next(each.epoch for each in used if each.producer_id == ids[1]) == 0
    assert sorted(values(servers, topic)) == sorted(expected)
    settle(servers, topic)


@pytest.mark.parametrize("epoch", LEFT_AT)
def test_a_name_that_was_left_at_the_end_is_gone_on_with(
    planted: Planted, topic: str, epoch: int
) -> None:
    with a_producer(planted.kafka, transactional_id=f"at-the-end-{epoch}") as producer:
        for number in range(4):
            producer.begin_transaction()
            assert producer.identity.epoch < EPOCH_MAX
            producer.produce(topic, f"{number}")
            if number % 2:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    assert sorted(values(planted.kafka.bootstrap_servers, topic)) == [b"1", b"3"]


def _to_the_last(producer: TransactionalProducer, topic: str) -> None:
    """Begin the last transaction under its producer id, and write into it."""
    while True:
        producer.begin_transaction()
        if _known(producer).epoch == EPOCH_MAX - 1:
            producer.produce(topic, "last")
            producer.flush()
            return
        producer.produce(topic, "before")
        producer.commit_transaction()


@pytest.mark.parametrize(
    "fault",
    [
        LoseResponse("InitProducerId"),
        LoseResponse("EndTxn"),
        DelayResponse("InitProducerId", seconds=0.3),
        DelayRequest("EndTxn", cut=True, seconds=0.3),
        LoseResponse("DescribeTransactions"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("verb", ["commit", "abort"])
def test_what_is_lost_at_the_change_is_asked_again(
    planted: Planted, topic: str, fault: Fault, verb: str
) -> None:
    servers = planted.kafka.bootstrap_servers
    name = next(planted.names)
    is_version_1 = planted.kafka.transaction_version == 1
    if is_version_1 and (fault, verb) == (LoseResponse("InitProducerId"), "commit"):
        pytest.skip("whose answer that is depends on the markers: see the next test")
    with (
        FaultProxy(servers) as proxy,
        a_producer(
            planted.kafka, transactional_id=name, bootstrap_servers=proxy.bootstrap_servers
        ) as producer,
    ):
        _to_the_last(producer, topic)
        former = _known(producer).producer_id
        proxy.add(fault)
        if verb == "commit":
            producer.commit_transaction()
        else:
            producer.abort_transaction()
        with producer.transaction():
            producer.produce(topic, "behind")
        assert _known(producer).producer_id != former
        with producer.transaction():
            producer.produce(topic, "behind")
    last = [b"last"] if verb == "commit" else []
    seen = [value for value in values(servers, topic) if value != b"before"]
    assert sorted(seen) == [b"behind", b"behind", *last]
    settle(servers, topic)


def test_a_last_epoch_whose_answer_was_lost(planted: Planted, topic: str) -> None:
    """Asked the same again, a coordinator does not tell whom it gave it to: it fails."""
    with a_producer(planted.kafka, transactional_id=next(planted.names)) as producer:
        _to_the_last(producer, topic)
        producer.commit_transaction()
        if not producer._needs_epoch:
            pytest.skip("the answer to EndTxn had it")
        former = _known(producer)
        producer._ownership.raise_epoch(former, Begun.NO)
        with pytest.raises(FatalError, match="UNKNOWN"):
            _given(producer)
        with pytest.raises(OwnershipUncertain, match=r"a last epoch .* whose answer was lost"):
            producer.begin_transaction()


@pytest.mark.parametrize("restarted", [False, True], ids=["", "and its coordinator started anew"])
def test_a_new_producer_id_whose_answer_was_lost(
    planted: Planted, topic: str, restarted: bool
) -> None:
    """The coordinator answers the same again, as long as it remembers whom it gave it to."""
    name = next(planted.names)
    with a_producer(planted.kafka, transactional_id=name) as producer:
        _to_the_last(producer, topic)
        producer.commit_transaction()
        if producer._needs_epoch:
            producer._identity = producer._ownership.raise_epoch(_known(producer), Begun.NO)
            producer._needs_epoch = False
        assert _known(producer).epoch == EPOCH_MAX
        given = _given(producer)
        if restarted:
            planted.kafka.restart_broker(1)
            planted.kafka.wait_until_healthy()
            with pytest.raises(OwnershipUncertain, match="whose answer was lost"):
                producer.begin_transaction()
        else:
            producer.begin_transaction()
            assert producer.identity == given


@pytest.mark.parametrize("then", ["timed out", "taken over"])
def test_the_last_transaction_is_ended_by_the_coordinator(
    planted: Planted, topic: str, then: str
) -> None:
    """Where brokers had their bugs: raised once more than a producer may."""
    servers = planted.kafka.bootstrap_servers
    name = next(planted.names)
    with a_producer(planted.kafka, transactional_id=name, transaction_timeout_ms=1500) as producer:
        _to_the_last(producer, topic)
        former = _known(producer).producer_id
        if then == "timed out":
            settle(servers, topic, PATIENCE_S)
            with pytest.raises(TransactionTimedOut):
                producer.commit_transaction()
            producer.abort_transaction()
            successor: Any = producer
        else:
            successor = TransactionalProducer(
                {"bootstrap.servers": servers, "transactional.id": name}
            )
            successor.init_transactions()
            with pytest.raises(FencedError):
                producer.commit_transaction()
        for _ in range(2):
            with successor.transaction():
                successor.produce(topic, "behind")
        assert _known(successor).producer_id != former
        successor.close()
    seen = [value for value in values(servers, topic) if value != b"before"]
    assert seen == [b"behind", b"behind"]
    settle(servers, topic)


# -- pipelines ------------------------------------------------------------------------------------


@pytest.fixture
def new_job(planted: Planted, tmp_path: Path) -> Iterator[MakeJob]:
    with jobs_on(planted.kafka, tmp_path) as make:
        yield make


@pytest.mark.parametrize("kind", ["keyless", "keyed"])
def test_a_query_runs_across_the_change(
    spark: SparkSession, planted: Planted, new_job: MakeJob, kind: str
) -> None:
    job = new_job(kind=kind, name=next(planted.names), per_batch=100)
    reports = Reports()
    frame, mode = job.frame(spark)
    writer = job.writer(frame, mode).option("topic", job.target).listener(reports)
    writer.trigger(availableNow=True).start().awaitTermination()
    assert sorted(values(job.servers, job.target)) == EXPECTED
    assert len({report.producer_id for report in reports.all}) == 2
    assert max(report.epoch for report in reports.all) == EPOCH_MAX - 1
    settle(job.servers, job.target)


POINTS = ["end", "end:answered", "open", "EndTxn lost"]


@pytest.mark.timeout(300)
def test_a_driver_is_killed_right_at_the_change(
    spark: SparkSession, planted: Planted, new_job: MakeJob
) -> None:
    """Before the decision, when it was sent and its answer is lost, behind it, and when the next
    batch has its producer id: in each of the batches around the change."""
    with FaultProxy(planted.kafka.bootstrap_servers) as proxy:
        jobs: list[tuple[str, Job]] = [
            (
                point,
                new_job(
                    name=next(planted.names),
                    per_batch=100,
                    hold_at="end" if point == "EndTxn lost" else point,
                    hold_time=batch,
                    **({"servers": proxy.bootstrap_servers} if point == "EndTxn lost" else {}),
                ),
            )
            for point in POINTS
            for batch in (3, 4, 5)
        ]
        lost = [
            LoseResponse("EndTxn", silent=True, transactional_id=job.name)
            for point, job in jobs
            if point == "EndTxn lost"
        ]
        with apart([job for _, job in jobs]) as driver:
            for fault in lost:
                proxy.add(fault)
            for point, job in jobs:
                if point == "EndTxn lost":
                    job.release()
            for fault in lost:
                proxy.wait_fired(fault, PATIENCE_S)
            os.kill(driver.pid, signal.SIGKILL)
            driver.wait()
    for _, job in jobs:
        again = Job(
            **{
                **{field: getattr(job, field) for field in job.__dataclass_fields__},
                "servers": planted.kafka.bootstrap_servers,
                "hold_at": "",
            }
        )
        again.run(spark)
        assert sorted(values(again.servers, again.target)) == EXPECTED, job
        settle(again.servers, again.target)
