"""Exactly once while brokers die, stop, stall, lose their leaderships and come back.

Each step befalls a cluster of three in the midst of a transaction and beside the writer; a reader
of another client watches meanwhile. What must never happen is in `workload.check_exactly_once`.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from oracle import Watcher, read, settle
from sparkonce import Delivery, Producer, TransactionalProducer
from sparkonce.errors import (
    AbortableError,
    BrokerError,
    DeliveryFailed,
    OutcomeUnknown,
    TransactionTimedOut,
)
from sparkonce.local import LocalKafka
from sparkonce.produce import State
from sparkonce.verify import FaultProxy
from sparkonce.verify.readers import transaction_state
from workload import PARTITIONS, Outcome, check_exactly_once, rows, write

SMALL_BATCHES = {"batch.size": 2048, "max.request.size": 8192}
COUNT = 1000  # values a partition and transaction: several batches each, so that some are under way
PATIENCE_S = 60.0
ENDED_S = PATIENCE_S / 2  # well before transaction.timeout.ms mends it

pytestmark = pytest.mark.slow

Step = Callable[[], object]


@pytest.fixture
def safe_topic(kafka3: LocalKafka) -> str:
    """Three replicas, two of them in sync; it goes with the cluster."""
    name = f"b-{uuid.uuid4().hex[:8]}"
    kafka3.create_topic(name, PARTITIONS, replication=3, config={"min.insync.replicas": "2"})
    return name


@contextmanager
def stepping(steps: Sequence[Step]) -> Iterator[Callable[[int], None]]:
    """A `disturb` for the workload: the next step in each transaction, beside the writer."""
    with ThreadPoolExecutor(1) as beside:
        under_way: list[Future[object]] = []

        def disturb(number: int) -> None:
            if under_way:
                under_way[-1].result()
            if number < len(steps):
                under_way.append(beside.submit(steps[number]))

        yield disturb
        assert len(under_way) == len(steps), "not every step was taken"
        under_way[-1].result()


def write_while(
    kafka: LocalKafka, topic: str, steps: Sequence[Step], **settings: Any
) -> tuple[Outcome, str]:
    """Write through these steps, and check; the transactional id is the topic's name."""
    servers, group = kafka.bootstrap_servers, f"group-{topic}"
    named = {name.replace("_", "."): value for name, value in settings.items()}
    with Watcher(servers, topic) as watcher, stepping(steps) as disturb:
        with TransactionalProducer(
            {"bootstrap.servers": servers, "transactional.id": topic} | SMALL_BATCHES | named
        ) as producer:
            producer.init_transactions()
            outcome = write(producer, topic, group, len(steps) + 2, COUNT, disturb)
        settle(servers, topic, ENDED_S)
    check_exactly_once(servers, topic, group, outcome, watcher)
    return outcome, group


def test_a_leader_killed_in_mid_transaction(kafka3: LocalKafka, safe_topic: str) -> None:
    victim = kafka3.leader_of(safe_topic, 0)

    def another_leads() -> None:
        assert kafka3.leader_of(safe_topic, 0) != victim

    steps = [lambda: kafka3.kill_broker(victim), another_leads, lambda: kafka3.start_broker(victim)]
    write_while(kafka3, safe_topic, steps)


def test_the_coordinator_killed_in_mid_transaction(kafka3: LocalKafka, safe_topic: str) -> None:
    victim = kafka3.coordinator_of(safe_topic)

    def another_coordinates() -> None:
        assert kafka3.coordinator_of(safe_topic) != victim

    steps = [
        lambda: kafka3.kill_broker(victim),
        another_coordinates,
        lambda: kafka3.start_broker(victim),
    ]
    write_while(kafka3, safe_topic, steps)


def until_aborted(servers: str, transactional_id: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while (state := transaction_state(servers, transactional_id)) != "CompleteAbort":
        assert time.monotonic() < deadline_s, f"{transactional_id} stays in state {state}"


@pytest.mark.parametrize("version", [1, 2])
def test_what_a_lone_broker_times_out_while_it_comes_back_stays_invisible(version: int) -> None:
    """Kafka 4.3.0 and 4.3.1 write no markers into partitions that have no leader just then, and
    call the transaction ended (KAFKA-20734): the next commit makes visible what was aborted."""
    names = [f"lone-{number}" for number in range(8)]
    often = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
    with (
        LocalKafka(1, transaction_version=version, properties=often) as kafka,
        ExitStack() as producers,
    ):
        servers = kafka.bootstrap_servers
        settings = {"bootstrap.servers": servers, "transaction.timeout.ms": 5000}
        writers: dict[str, TransactionalProducer] = {}
        for name in names:
            kafka.create_topic(name, 16)  # it takes its time to make leaders of them all
            named = TransactionalProducer({**settings, "transactional.id": name})
            writers[name] = producers.enter_context(named)
            writers[name].init_transactions()
        for name, writer in writers.items():
            writer.begin_transaction()
            writer.produce(name, b"undone")
            writer.flush()
        kafka.kill_broker(1)
        kafka.start_broker(1)
        for name, writer in writers.items():
            until_aborted(servers, name)
            with pytest.raises(TransactionTimedOut):
                writer.commit_transaction()
            writer.abort_transaction()
            with writer.transaction():
                writer.produce(name, b"done")
        for name in names:
            assert [seen.value for seen in read(servers, name)] == [b"done"]


def test_all_brokers_restarted_one_after_the_other(kafka3: LocalKafka, safe_topic: str) -> None:
    steps: list[Step] = []
    for broker in kafka3.broker_ids:
        steps.append(lambda broker=broker: kafka3.stop_broker(broker))
        steps.append(lambda broker=broker: kafka3.start_broker(broker))
    write_while(kafka3, safe_topic, steps)


def test_leaders_that_move_in_mid_transaction(
    kafka3: LocalKafka, safe_topic: str, seed: int
) -> None:
    rng = random.Random(seed)

    def move() -> None:
        partition = rng.randrange(PARTITIONS)
        others = set(kafka3.broker_ids) - {kafka3.leader_of(safe_topic, partition)}
        kafka3.move_leader(safe_topic, partition, rng.choice(sorted(others)))

    write_while(kafka3, safe_topic, [move] * 8)


def test_a_leader_that_stalls_and_wakes_up(kafka3: LocalKafka, safe_topic: str) -> None:
    """Its connections stay open and nothing is answered; awake, it still has requests to act on."""
    victim = kafka3.leader_of(safe_topic, 0)

    def another_leads() -> None:
        assert kafka3.leader_of(safe_topic, 0) != victim

    steps = [
        lambda: kafka3.pause_broker(victim),
        another_leads,
        lambda: kafka3.resume_broker(victim),
        kafka3.wait_until_healthy,
    ]
    write_while(kafka3, safe_topic, steps, request_timeout_ms=1000)


def test_a_cluster_killed_in_mid_transaction_and_started_again(
    kafka3: LocalKafka, safe_topic: str
) -> None:
    def restart_all() -> None:
        for broker in kafka3.broker_ids:
            kafka3.kill_broker(broker)
        # Side by side: one alone waits for a quorum.
        with ThreadPoolExecutor(len(kafka3.broker_ids)) as threads:
            list(threads.map(kafka3.start_broker, kafka3.broker_ids))

    write_while(kafka3, safe_topic, [restart_all])


def test_a_network_gone_for_longer_than_the_delivery_timeout(
    cluster: LocalKafka, topic: str, seed: int
) -> None:
    """The records are given up, the abort waits for the network, and all is written again."""
    servers, group = cluster.bootstrap_servers, f"group-{topic}"
    with (
        FaultProxy(servers, seed=seed) as proxy,
        Watcher(servers, topic) as watcher,
        TransactionalProducer(
            {
                "bootstrap.servers": proxy.bootstrap_servers,
                "transactional.id": topic,
                "delivery.timeout.ms": 1500,
                "request.timeout.ms": 500,
                "max.block.ms": 5000,
            }
            | SMALL_BATCHES
        ) as producer,
    ):
        producer.init_transactions()
        back = threading.Thread(target=_accept_after_giving_up, args=(proxy, producer))

        def vanish(number: int) -> None:
            if number == 1:
                proxy.stop_accepting()
                assert proxy.cut_all() > 0
                back.start()

        outcome = write(producer, topic, group, 4, COUNT, vanish)
        back.join()
    assert outcome.aborted > 0, "nothing was given up: this run proves nothing"
    check_exactly_once(servers, topic, group, outcome, watcher)


def _accept_after_giving_up(proxy: FaultProxy, producer: TransactionalProducer) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while producer.state is not State.ABORTING and time.monotonic() < deadline_s:
        time.sleep(0.01)
    proxy.accept()


def test_one_of_three_brokers_lost_stops_nothing_and_two_stop_writing_but_lose_nothing(
    kafka3: LocalKafka, safe_topic: str
) -> None:
    servers, told = kafka3.bootstrap_servers, Told()
    first, second = _leaders(kafka3, safe_topic)[:2]
    patient = {"bootstrap.servers": servers} | SMALL_BATCHES
    hasty = patient | {
        "delivery.timeout.ms": 3000,
        "request.timeout.ms": 1000,
        "max.block.ms": 3000,
    }
    with Producer(patient) as producer:
        producer.produce_arrow(safe_topic, rows(0, 100), told)
        producer.flush()
        kafka3.kill_broker(first)
        producer.produce_arrow(safe_topic, rows(100, 100), told)
        producer.flush()
        assert told.failed == []
        assert told.acknowledged == 200 * PARTITIONS, "the loss of one broker stopped writes"
    with (
        Producer(hasty) as plain,
        TransactionalProducer(hasty | {"transactional.id": safe_topic}) as transactional,
    ):
        plain.produce_arrow(safe_topic, rows(200, 100), told)
        plain.flush()
        transactional.init_transactions()
        transactional.begin_transaction()
        transactional.produce_arrow(safe_topic, rows(300, 100))
        transactional.flush()
        assert told.acknowledged == 300 * PARTITIONS
        kafka3.kill_broker(second)

        plain.produce_arrow(safe_topic, rows(1000, 10), told)
        transactional.produce_arrow(safe_topic, rows(2000, 10))
        plain.flush()
        assert told.acknowledged == 300 * PARTITIONS, "acknowledged by one replica out of three"
        for error in told.failed:
            assert isinstance(error, DeliveryFailed)
            _tells_why(str(error))
        assert told.failed, "writes went on with one replica out of three"
        with pytest.raises(AbortableError) as doomed:
            transactional.commit_transaction()
        _tells_why(str(doomed.value))
        with pytest.raises(OutcomeUnknown, match=r"abort_transaction\(\) again"):
            transactional.abort_transaction()

        with ThreadPoolExecutor(2) as threads:
            list(threads.map(kafka3.start_broker, (first, second)))
        kafka3.wait_until_healthy()
        transactional.abort_transaction()
        with transactional.transaction():
            transactional.produce_arrow(safe_topic, rows(300, 100))
        plain.produce_arrow(safe_topic, rows(400, 100), told)
    _check_nothing_lost(servers, safe_topic)


class Told:
    """Delivery reports, counted."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.failed: list[BrokerError] = []

    def __call__(self, error: BrokerError | None, delivery: Delivery) -> None:
        if error is None:
            self.acknowledged += delivery.count
        else:
            self.failed.append(error)


def _leaders(kafka: LocalKafka, topic: str) -> list[int]:
    leaders = dict.fromkeys(kafka.leader_of(topic, part) for part in range(PARTITIONS))
    return [*leaders, *(set(kafka.broker_ids) - set(leaders))]


def _tells_why(message: str) -> None:
    assert "delivery.timeout.ms=3000" in message
    reasons = ("NOT_ENOUGH_REPLICAS", "REQUEST_TIMED_OUT", "Connection refused", "no answer")
    assert any(reason in message for reason in reasons), message


def _check_nothing_lost(servers: str, topic: str) -> None:
    settle(servers, topic, ENDED_S)
    seen = read(servers, topic)
    for partition in range(PARTITIONS):
        lane = [record.value or b"" for record in seen if record.partition == partition]
        numbers = [int(value.partition(b":")[2]) for value in lane]
        # Those given up may be there, once; nobody was told that they are.
        certain = [number for number in numbers if number < 1000]
        assert certain == list(range(500)), f"partition {partition}"
        assert len(set(numbers)) == len(numbers), f"partition {partition}"
        assert not any(number >= 2000 for number in numbers), "a record of the aborted transaction"


@pytest.mark.parametrize("acks", ["1", "all"])
def test_one_replica_or_all_of_them_acknowledge(
    kafka3: LocalKafka, safe_topic: str, acks: str
) -> None:
    told = Told()
    settings = {"bootstrap.servers": kafka3.bootstrap_servers, "acks": acks}
    with Producer(settings) as producer:
        producer.produce_arrow(safe_topic, rows(0, 100), told)
    assert (told.acknowledged, told.failed) == (100 * PARTITIONS, [])
    # Readers see what all replicas in sync have: with acks=1 that is a moment later.
    deadline_s = time.monotonic() + 30
    while len(read(kafka3.bootstrap_servers, safe_topic)) != 100 * PARTITIONS:
        assert time.monotonic() < deadline_s, "acknowledged records never became visible"
