"""Each fault fires, and has the effect that it is there for, on an independent client."""

from __future__ import annotations

import itertools
import os
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

import oracle
from parts import wait_until
from sparkonce.local import LocalKafka
from sparkonce.verify import (
    CorruptRequest,
    CutMidFrame,
    DelayRequest,
    DelayResponse,
    Did,
    DuplicateRequest,
    Fault,
    FaultProxy,
    LoseRequest,
    LoseResponse,
    Reorder,
    Stall,
)

_numbers = itertools.count(1)
PLAIN = {"enable.idempotence": False}
IDEMPOTENT = {"enable.idempotence": True}


@pytest.fixture
def topic(kafka: LocalKafka) -> str:
    name = f"faults-{os.getpid()}-{next(_numbers)}"
    kafka.create_topic(name)
    return name


def producer(proxy: FaultProxy, settings: dict[str, Any]) -> Producer:
    return Producer(
        {
            "bootstrap.servers": proxy.bootstrap_servers,
            "acks": "all",
            "linger.ms": 0,
            "batch.num.messages": 1,
            "reconnect.backoff.max.ms": 200,
        }
        | settings
    )


def produce(client: Producer, topic: str, *values: bytes) -> None:
    for value in values:
        client.produce(topic, value, partition=0)
        assert client.flush(60) == 0


def release(proxy: FaultProxy) -> None:
    """Make the event that held requests wait for: nobody else here asks for groups."""
    admin = AdminClient({"bootstrap.servers": proxy.bootstrap_servers})
    admin.list_consumer_groups().result(30)


@pytest.mark.parametrize(
    ("fault", "settings", "expected"),
    [
        (LoseRequest("Produce"), PLAIN, [b"a", b"b"]),
        (LoseResponse("Produce"), PLAIN, [b"a", b"a", b"b"]),
        (LoseResponse("Produce"), IDEMPOTENT, [b"a", b"b"]),
        (LoseResponse("Produce", nth=2), PLAIN, [b"a", b"b", b"b"]),
        (DuplicateRequest("Produce"), PLAIN, [b"a", b"a", b"b"]),
        (DuplicateRequest("Produce"), IDEMPOTENT, [b"a", b"b"]),
        (CorruptRequest("Produce", nth=2), PLAIN, [b"a", b"b"]),
        (CorruptRequest("Produce", nth=2), IDEMPOTENT, [b"a", b"b"]),
        (CutMidFrame("Produce"), PLAIN, [b"a", b"b"]),
        (CutMidFrame("Produce", direction="response"), PLAIN, [b"a", b"a", b"b"]),
        (CutMidFrame("Produce", direction="response"), IDEMPOTENT, [b"a", b"b"]),
    ],
)
def test_what_becomes_of_the_records(
    kafka: LocalKafka,
    topic: str,
    seed: int,
    fault: Fault,
    settings: dict[str, Any],
    expected: list[bytes],
) -> None:
    with FaultProxy(kafka.bootstrap_servers, faults=[fault], seed=seed) as proxy:
        produce(producer(proxy, settings), topic, b"a", b"b")
        assert proxy.fired(fault) == proxy.came_to_pass(fault) == 1
    assert oracle.values(kafka.bootstrap_servers, topic) == expected


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_corrupted_batch_is_overtaken_by_those_behind_it(
    kafka: LocalKafka, topic: str, compression: str
) -> None:
    """They have come to the broker when the client hears of it: without numbers they are first."""
    fault = CorruptRequest("Produce")
    with FaultProxy(kafka.bootstrap_servers, faults=[fault]) as proxy:
        client = producer(proxy, {**PLAIN, "compression.type": compression})
        client.produce(topic, b"a", partition=0)
        proxy.wait_fired(fault, timeout_s=30)
        for value in (b"b", b"c"):
            client.produce(topic, value, partition=0)
        assert client.flush(60) == 0
        answers = [e.at_s for e in proxy.log if (e.api, e.did) == ("Produce", Did.ANSWERED)]
        assert len(answers) == 4, "the one that was refused was sent again"
    assert oracle.values(kafka.bootstrap_servers, topic) == [b"b", b"c", b"a"]


@pytest.mark.parametrize("kind", [LoseRequest, LoseResponse])
def test_silence_lasts_until_the_client_gives_up(
    kafka: LocalKafka, topic: str, kind: type[LoseRequest] | type[LoseResponse]
) -> None:
    fault = kind("Produce", silent=True)
    with FaultProxy(kafka.bootstrap_servers, faults=[fault]) as proxy:
        settings = {**PLAIN, "socket.timeout.ms": 1000, "request.timeout.ms": 1000}
        produce(producer(proxy, settings), topic, b"a")
        assert proxy.fired(fault) == 1
    arrived = 1 if kind is LoseRequest else 2
    assert oracle.values(kafka.bootstrap_servers, topic) == [b"a"] * arrived


def test_acks_0_is_duplicated_with_no_answer_to_match(kafka: LocalKafka, topic: str) -> None:
    fault = DuplicateRequest("Produce", nth=2)
    with FaultProxy(kafka.bootstrap_servers, faults=[fault]) as proxy:
        produce(producer(proxy, {**PLAIN, "acks": "0"}), topic, b"a", b"b", b"c")
        expected = [b"a", b"b", b"b", b"c"]
        wait_until(
            lambda: oracle.values(kafka.bootstrap_servers, topic) == expected, "all arrived", 60
        )
        assert proxy.fired(fault) == 1


def test_cuts_in_mid_frame_corrupt_nothing(kafka: LocalKafka, topic: str, seed: int) -> None:
    cuts = [
        CutMidFrame("Produce", every=3, times=None),
        CutMidFrame("Produce", nth=2, every=5, times=None, direction="response"),
    ]
    values = [b"%d-" % number + b"x" * 100_000 for number in range(20)]
    with FaultProxy(kafka.bootstrap_servers, faults=cuts, seed=seed) as proxy:
        produce(producer(proxy, IDEMPOTENT), topic, *values)
        assert all(proxy.fired(cut) >= 3 for cut in cuts)
    assert oracle.values(kafka.bootstrap_servers, topic) == values


def test_a_copy_over_another_connection(kafka: LocalKafka, topic: str) -> None:
    fault = DuplicateRequest("Produce", own_connection=True)
    with FaultProxy(kafka.bootstrap_servers, faults=[fault]) as proxy:
        produce(producer(proxy, PLAIN), topic, b"a")
        proxy.wait_delivered(fault, timeout_s=30)
    assert oracle.values(kafka.bootstrap_servers, topic) == [b"a", b"a"]


def test_a_copy_that_comes_late(kafka: LocalKafka, topic: str) -> None:
    fault = DuplicateRequest("Produce", until="ListGroups")
    with FaultProxy(kafka.bootstrap_servers, faults=[fault]) as proxy:
        produce(producer(proxy, PLAIN), topic, b"a", b"b")
        assert oracle.values(kafka.bootstrap_servers, topic) == [b"a", b"b"]
        assert (proxy.fired(fault), proxy.came_to_pass(fault)) == (1, 0)
        release(proxy)
        proxy.wait_delivered(fault, timeout_s=30)
        assert proxy.came_to_pass(fault) == 1
    assert oracle.values(kafka.bootstrap_servers, topic) == [b"a", b"b", b"a"]


def test_a_request_that_is_held_in_line(kafka: LocalKafka, topic: str) -> None:
    fault = DelayRequest("Produce", until="ListGroups", seconds=0.1)
    with FaultProxy(kafka.bootstrap_servers, faults=[fault]) as proxy:
        client = producer(proxy, PLAIN)
        client.produce(topic, b"a", partition=0)
        proxy.wait_fired(fault, timeout_s=30)
        assert oracle.values(kafka.bootstrap_servers, topic) == []
        release(proxy)
        assert client.flush(60) == 0
    assert oracle.values(kafka.bootstrap_servers, topic) == [b"a"]


@pytest.mark.parametrize(
    ("settings", "late"), [(PLAIN, [b"a", b"b", b"a"]), (IDEMPOTENT, [b"a", b"b"])]
)
def test_a_request_that_comes_after_its_own_retry(
    kafka: LocalKafka, topic: str, settings: dict[str, Any], late: list[bytes]
) -> None:
    fault = DelayRequest("Produce", until="ListGroups", cut=True)
    with FaultProxy(kafka.bootstrap_servers, faults=[fault]) as proxy:
        produce(producer(proxy, settings), topic, b"a", b"b")
        assert oracle.values(kafka.bootstrap_servers, topic) == [b"a", b"b"]
        assert (proxy.fired(fault), proxy.came_to_pass(fault)) == (1, 0)
        release(proxy)
        proxy.wait_delivered(fault, timeout_s=30)
        assert proxy.came_to_pass(fault) == 1
    assert oracle.values(kafka.bootstrap_servers, topic) == late


def test_a_request_that_comes_after_the_end_of_its_transaction(
    kafka: LocalKafka, topic: str
) -> None:
    fault = DelayRequest("Produce", until="EndTxn", cut=True, transactional_id=topic)
    with FaultProxy(kafka.bootstrap_servers, faults=[fault]) as proxy:
        client = producer(proxy, {"transactional.id": topic})
        client.init_transactions(60)
        client.begin_transaction()
        produce(client, topic, b"a")
        client.commit_transaction(60)
        proxy.wait_delivered(fault, timeout_s=30)
        happened = [(event.api, event.did) for event in proxy.log]
        held = happened.index(("Produce", Did.FIRED))
        sent_again = happened.index(("Produce", Did.ANSWERED))
        ended = happened.index(("EndTxn", Did.ANSWERED))
        assert held < sent_again < ended < happened.index(("Produce", Did.DELIVERED))
    assert oracle.values(kafka.bootstrap_servers, topic, "read_uncommitted") == [b"a"]


def test_an_answer_that_comes_late(kafka: LocalKafka, topic: str) -> None:
    fault = DelayResponse("Produce", until="ListGroups")
    with FaultProxy(kafka.bootstrap_servers, faults=[fault]) as proxy:
        client = producer(proxy, PLAIN)
        client.produce(topic, b"a", partition=0)
        proxy.wait_fired(fault, timeout_s=30)
        assert oracle.values(kafka.bootstrap_servers, topic) == [b"a"]
        assert client.flush(0) == 1
        release(proxy)
        assert client.flush(60) == 0
    assert oracle.values(kafka.bootstrap_servers, topic) == [b"a"]


def test_a_stalled_connection_passes_nothing_until_it_is_over(
    kafka: LocalKafka, topic: str
) -> None:
    fault = Stall("Produce", seconds=0.5)
    with FaultProxy(kafka.bootstrap_servers, faults=[fault]) as proxy:
        produce(producer(proxy, PLAIN), topic, b"a")
        (fired,) = [event for event in proxy.log if event.did is Did.FIRED]
        after = [
            event
            for event in proxy.log
            if event.connection == fired.connection and event.at_s > fired.at_s
        ]
        assert (after[0].did, after[0].request) == (Did.PASSED, fired.request)
        # No guess about speed: a stall that is shorter than it says isn't one.
        assert after[0].at_s - fired.at_s >= fault.seconds * 0.9
    assert oracle.values(kafka.bootstrap_servers, topic) == [b"a"]


def test_a_request_that_is_overtaken_by_another_connections(kafka: LocalKafka, topic: str) -> None:
    fault = Reorder("Produce", seconds=60)
    with FaultProxy(kafka.bootstrap_servers, faults=[fault]) as proxy:
        first, second = producer(proxy, PLAIN), producer(proxy, PLAIN)
        first.produce(topic, b"first", partition=0)
        proxy.wait_fired(fault, timeout_s=30)
        produce(second, topic, b"second")
        assert first.flush(60) == 0
    assert oracle.values(kafka.bootstrap_servers, topic) == [b"second", b"first"]


def test_faults_are_added_and_cleared_while_it_runs(kafka: LocalKafka, topic: str) -> None:
    fault = LoseResponse("Produce", times=None)
    with FaultProxy(kafka.bootstrap_servers) as proxy:
        client = producer(proxy, PLAIN)
        produce(client, topic, b"a")
        proxy.add(fault)
        client.produce(topic, b"b", partition=0)
        proxy.wait_fired(fault, timeout_s=30, times=2)
        proxy.clear()
        assert client.flush(60) == 0
        fired = proxy.fired(fault)
    assert oracle.values(kafka.bootstrap_servers, topic) == [b"a"] + [b"b"] * (fired + 1)


def test_only_the_broker_that_is_meant(kafka3: LocalKafka) -> None:
    topic = f"faults-{os.getpid()}-{next(_numbers)}"
    kafka3.create_topic(topic, partitions=3)
    fault = LoseResponse("Produce", node=2, times=None)
    with FaultProxy(kafka3.bootstrap_servers, faults=[fault]) as proxy:
        client = producer(proxy, {**IDEMPOTENT, "message.timeout.ms": 3000})
        for partition in range(3):
            client.produce(topic, b"a", partition=partition)
        client.flush(60)
        fired_on = {event.node for event in proxy.log if event.did is Did.FIRED}
        assert fired_on == {2}
