"""Exactly once while the network fails in every way the proxy knows, and the control without it.

Each fault hits several requests of one kind; a reader of another client watches meanwhile. The
same faults with idempotence off must repeat and reorder records, or these tests prove nothing.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from oracle import Watcher, read
from parts import a_topic
from sparkonce import Producer, TransactionalProducer
from sparkonce.local import LocalKafka
from sparkonce.verify import (
    CutMidFrame,
    DelayRequest,
    DelayResponse,
    DuplicateRequest,
    Fault,
    FaultProxy,
    LoseRequest,
    LoseResponse,
    draw_faults,
)
from sparkonce.verify.network.faults import TRANSACTION_APIS
from workload import (
    PARTITIONS,
    check_exactly_once,
    order_and_repeats,
    rows,
    write,
    write_plain,
)

# Without InitProducerId: one that is doubled or comes late is a second producer to the cluster,
# which fences the first, as it must. What is lost of it is tested below, by name.
APIS = [api for api in TRANSACTION_APIS if api != "InitProducerId"]
SMALL_BATCHES = {"batch.size": 2048, "max.request.size": 8192}


def _faults() -> Iterator[Fault]:
    for api in ("Produce", "EndTxn", "TxnOffsetCommit"):
        often = {"nth": 2, "every": 5, "times": 4}
        yield CutMidFrame(api, direction="request", **often)
        yield CutMidFrame(api, direction="response", **often)
        yield LoseRequest(api, **often)
        yield LoseResponse(api, **often)
        yield DuplicateRequest(api, **often)
        yield DuplicateRequest(api, own_connection=True, until="EndTxn", **often)
        # Held back until the transaction it belongs to has ended; the client tries again.
        yield DelayRequest(api, cut=True, until="EndTxn", **often)
        yield DelayResponse(api, seconds=0.05, **often)
    yield LoseResponse("InitProducerId")
    yield LoseRequest("InitProducerId")
    yield LoseResponse("FindCoordinator", times=3)
    yield LoseResponse("Metadata", times=3)


@pytest.mark.parametrize("fault", list(_faults()), ids=lambda fault: repr(fault))
def test_a_fault_neither_loses_repeats_nor_reorders(
    cluster: LocalKafka, topic: str, seed: int, fault: Fault
) -> None:
    servers, group = cluster.bootstrap_servers, f"group-{topic}"
    with (
        FaultProxy(servers, faults=[fault], seed=seed) as proxy,
        Watcher(servers, topic) as watcher,
        TransactionalProducer(
            {"bootstrap.servers": proxy.bootstrap_servers, "transactional.id": topic}
            | SMALL_BATCHES
        ) as producer,
    ):
        producer.init_transactions()
        outcome = write(producer, topic, group, transactions=8)
        assert proxy.fired(fault) >= 1, "the fault never happened: this run proves nothing"
    check_exactly_once(servers, topic, group, outcome, watcher)


@pytest.mark.parametrize("number", range(4))
def test_faults_drawn_from_a_seed(cluster: LocalKafka, topic: str, seed: int, number: int) -> None:
    servers, group = cluster.bootstrap_servers, f"group-{topic}"
    faults = draw_faults(seed + number, 6, apis=APIS)
    print(f"faults: {faults}")
    with (
        FaultProxy(servers, faults=faults, seed=seed + number) as proxy,
        Watcher(servers, topic) as watcher,
        TransactionalProducer(
            {
                "bootstrap.servers": proxy.bootstrap_servers,
                "transactional.id": topic,
                "request.timeout.ms": 5000,
            }
            | SMALL_BATCHES
        ) as producer,
    ):
        producer.init_transactions()
        outcome = write(producer, topic, group, transactions=10)
    check_exactly_once(servers, topic, group, outcome, watcher)


@pytest.mark.parametrize("idempotence", ["true", "false"])
def test_a_lost_acknowledgement_repeats_records_only_without_idempotence(
    kafka: LocalKafka, plain_topic: str, seed: int, idempotence: str
) -> None:
    fault = LoseResponse("Produce", nth=3, every=7, times=5)
    with (
        FaultProxy(kafka.bootstrap_servers, faults=[fault], seed=seed) as proxy,
        Producer(
            {"bootstrap.servers": proxy.bootstrap_servers, "enable.idempotence": idempotence}
            | SMALL_BATCHES
        ) as producer,
    ):
        write_plain(producer, plain_topic, batches=60)
        producer.flush()
        assert proxy.fired(fault) >= 1
    reordered, repeated = order_and_repeats(kafka.bootstrap_servers, plain_topic)
    if idempotence == "true":
        assert (reordered, repeated) == (0, 0)
    else:
        assert repeated > 0, "idempotence was off and nothing was repeated: the fault is too weak"


@pytest.mark.parametrize("idempotence", ["true", "false"])
def test_leaders_that_move_reorder_records_only_without_idempotence(
    kafka3: LocalKafka, seed: int, idempotence: str
) -> None:
    """Five requests are under way; the one that comes to the wrong broker is sent again later."""
    topic = f"moving-{idempotence}"
    kafka3.create_topic(topic, partitions=PARTITIONS)
    rng = random.Random(seed)
    settings = {"bootstrap.servers": kafka3.bootstrap_servers, "enable.idempotence": idempotence}
    try:
        with Producer(settings | SMALL_BATCHES) as producer, ThreadPoolExecutor(1) as mover:
            number = 0
            for _ in range(8):
                partition = rng.randrange(PARTITIONS)
                others = set(kafka3.broker_ids) - {kafka3.leader_of(topic, partition)}
                target = rng.choice(sorted(others))
                moved = mover.submit(kafka3.move_leader, topic, partition, target)
                while not moved.done():
                    producer.produce_arrow(topic, rows(number * 100, 100))
                    number += 1
                    # Not further ahead than the buffer: the move and the records share two cores.
                    producer.flush() if number % 10 == 0 else None
                moved.result()
        reordered, repeated = order_and_repeats(kafka3.bootstrap_servers, topic)
    finally:
        kafka3.delete_topic(topic)
    if idempotence == "true":
        assert (reordered, repeated) == (0, 0)
    else:
        assert reordered > 0, "idempotence was off and nothing was reordered: the fault is too weak"


def test_a_request_without_an_answer_is_sent_again_in_time(kafka: LocalKafka) -> None:
    """With nothing else under way nobody else wakes the client's loop, either.

    Found by `sparkonce verify --seed 12`: a broker died, and a flush waited for the next refresh
    of the metadata, minutes away.
    """
    fault = LoseResponse("Produce", silent=True)
    with (
        a_topic(kafka, partitions=1) as topic,
        FaultProxy(kafka.bootstrap_servers, faults=[fault]) as proxy,
        Producer(
            {"bootstrap.servers": proxy.bootstrap_servers, "request.timeout.ms": 1000}
        ) as producer,
    ):
        producer.produce(topic, "once")
        assert producer.flush(30)
        assert proxy.fired(fault) == 1
        assert [seen.value for seen in read(kafka.bootstrap_servers, topic)] == [b"once"]
