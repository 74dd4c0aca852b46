"""Transactions against a real broker, in both versions of the protocol, read by another client."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from typing import Any

import pyarrow as pa
import pytest

from oracle import committed, hanging, read, settle, values
from sparkonce import OffsetAndMetadata, ProducerIdentity, TransactionalProducer
from sparkonce.errors import (
    BrokerError,
    ConfigError,
    FencedError,
    OutcomeUnknown,
    StateError,
    TransactionTimedOut,
    Unreachable,
)
from sparkonce.local import LocalKafka
from sparkonce.produce import State
from sparkonce.verify import DelayResponse, FaultProxy


def test_a_joined_producer_goes_on_in_the_next_transaction(
    cluster: LocalKafka, topic: str, open_producer: Any
) -> None:
    owner = open_producer()
    settings = {"bootstrap.servers": cluster.bootstrap_servers}
    owner.begin_transaction()
    with TransactionalProducer.join(settings, owner.identity) as joined:
        for number in range(4):
            joined.rejoin(owner.identity)
            joined.produce(topic, f"{number}", partition=0)
            joined.flush()
            if number % 2:
                owner.abort_transaction()
            else:
                owner.commit_transaction()
            owner.begin_transaction()
    owner.abort_transaction()
    assert values(cluster.bootstrap_servers, topic) == [b"0", b"2"]


def test_an_aborted_transaction_that_was_shared_never_shares_its_epoch_with_the_next(
    cluster: LocalKafka, topic: str, open_producer: Any
) -> None:
    """Somebody who joined it may be slow to write, and must not get into the next one."""
    owner = open_producer()
    owner.begin_transaction()
    settings = {"bootstrap.servers": cluster.bootstrap_servers}
    with TransactionalProducer.join(settings, owner.identity) as slow:
        owner.abort_transaction()
        owner.begin_transaction()
        owner.produce(topic, "next", partition=0)
        owner.flush()
        with pytest.raises(BrokerError):
            slow.produce(topic, "late", partition=1)
            slow.flush()
        owner.commit_transaction()
        slow.abandon()
    assert values(cluster.bootstrap_servers, topic) == [b"next"]


def test_a_turn_goes_on_from_where_another_process_ended(
    cluster: LocalKafka, topic: str, open_producer: Any
) -> None:
    """Two joined producers at one partition, one after the other, three times."""
    owner = open_producer()
    settings = {"bootstrap.servers": cluster.bootstrap_servers}
    owner.begin_transaction()
    written = 0
    with (
        TransactionalProducer.join(settings, owner.identity) as first,
        TransactionalProducer.join(settings, owner.identity) as second,
    ):
        for turn in range(6):
            writer = first if turn % 2 == 0 else second
            rows = [f"{turn}-{number}" for number in range(5)]
            table = pa.table({"value": rows, "partition": pa.array([0] * 5, pa.int32())})
            told: list[object] = []
            for batches in writer.encode_arrow(topic, table):
                writer.produce_turn(batches, written, lambda *of, told=told: told.append(of[1]))
                written += sum(batch.count for batch in batches)
            writer.flush()
            assert told == [None]
    owner.commit_transaction()
    expected = [f"{turn}-{number}".encode() for turn in range(6) for number in range(5)]
    assert values(cluster.bootstrap_servers, topic) == expected


def test_the_cluster_speaks_the_version_under_test(
    cluster: LocalKafka, open_producer, request: pytest.FixtureRequest
) -> None:
    open_producer()
    wanted = 2 if "version2" in request.node.name else 1
    assert open_producer()._client.transaction_version == wanted


def test_committed_records_are_seen_with_their_offsets_and_aborted_ones_are_not(
    cluster: LocalKafka, topic: str, open_producer
) -> None:
    servers = cluster.bootstrap_servers
    producer = open_producer()
    for number in range(6):
        producer.begin_transaction()
        producer.produce(topic, f"value-{number}", key=f"key-{number}")
        producer.send_offsets_to_transaction(
            {(topic, 0): OffsetAndMetadata(number, f"batch {number}")}, f"group-{topic}"
        )
        producer.flush()
        assert f"value-{number}".encode() not in values(servers, topic, while_open=True)
        assert f"value-{number}".encode() in values(servers, topic, "read_uncommitted")
        if number % 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    assert sorted(values(servers, topic)) == [b"value-0", b"value-2", b"value-4"]
    assert committed(servers, f"group-{topic}", topic) == (4, "batch 4")
    settle(servers, topic)


def test_several_topics_and_partitions_are_one_write(
    cluster: LocalKafka, topic: str, open_producer
) -> None:
    second = f"{topic}-second"
    cluster.create_topic(second, partitions=2)
    try:
        producer = open_producer()
        table = pa.table(
            {
                "topic": [topic, second] * 500,
                "key": [f"k{n}" for n in range(1000)],
                "value": [f"v{n}" for n in range(1000)],
            }
        )
        with producer.transaction():
            producer.produce_arrow(None, table)
            producer.flush()
            assert values(cluster.bootstrap_servers, topic, while_open=True) == []
            assert values(cluster.bootstrap_servers, second, while_open=True) == []
        seen = values(cluster.bootstrap_servers, topic) + values(cluster.bootstrap_servers, second)
        assert sorted(seen) == sorted(f"v{n}".encode() for n in range(1000))
    finally:
        cluster.delete_topic(second)


def test_a_block_that_raises_leaves_nothing(cluster: LocalKafka, topic: str, open_producer) -> None:
    producer = open_producer()
    with pytest.raises(ZeroDivisionError), producer.transaction():
        producer.produce(topic, "lost")
        producer.flush()
        1 / 0  # noqa: B018
    with producer.transaction():
        producer.produce(topic, "kept")
    assert values(cluster.bootstrap_servers, topic) == [b"kept"]


def test_transactional_and_plain_records_share_a_partition(
    cluster: LocalKafka, topic: str, open_producer
) -> None:
    from sparkonce import Producer

    transactional = open_producer()
    with Producer({"bootstrap.servers": cluster.bootstrap_servers}) as plain:
        transactional.begin_transaction()
        transactional.produce(topic, "aborted", partition=0)
        transactional.flush()
        plain.produce(topic, "plain", partition=0)
        plain.flush()
        transactional.abort_transaction()
        with transactional.transaction():
            transactional.produce(topic, "committed", partition=0)
    assert values(cluster.bootstrap_servers, topic) == [b"plain", b"committed"]


def test_a_successor_aborts_what_is_open_and_fences_the_zombie(
    cluster: LocalKafka, topic: str, open_producer
) -> None:
    zombie = open_producer()
    zombie.begin_transaction()
    zombie.produce(topic, "before")
    zombie.flush()
    successor = open_producer()
    zombie.produce(topic, "after")
    with pytest.raises(FencedError, match=r"another producer with the same transactional\.id"):
        zombie.commit_transaction()
    assert zombie.state is State.FAILED
    with pytest.raises(FencedError):
        zombie.begin_transaction()
    with successor.transaction():
        successor.produce(topic, "successor")
    assert values(cluster.bootstrap_servers, topic) == [b"successor"]
    settle(cluster.bootstrap_servers, topic)


def test_an_idle_zombie_is_fenced_and_does_not_fence_back(
    cluster: LocalKafka, topic: str, open_producer
) -> None:
    zombie = open_producer()
    with zombie.transaction():
        zombie.produce(topic, "first")
    successor = open_producer()
    with pytest.raises(FencedError), zombie.transaction():
        zombie.produce(topic, "zombie")
    with successor.transaction():
        successor.produce(topic, "second")
    assert sorted(values(cluster.bootstrap_servers, topic)) == [b"first", b"second"]


@pytest.mark.parametrize("next_step", ["commit", "produce", "offsets", "abort"])
def test_a_timed_out_transaction_is_told_apart_from_fencing_and_recovered_from(
    cluster: LocalKafka, topic: str, open_producer, next_step: str
) -> None:
    servers = cluster.bootstrap_servers
    producer = open_producer(transaction_timeout_ms=1000)
    # What is slow the first time (topics, coordinators, the broker's own code) is done here: the
    # time-out is to strike between the flush and the next step, not before.
    with producer.transaction():
        producer.produce(topic, "early")
        producer.send_offsets_to_transaction({(topic, 0): 0}, f"group-{topic}")
    producer.begin_transaction()
    producer.produce(topic, "late")
    producer.flush()
    deadline_s = time.monotonic() + 60
    while hanging(servers, topic):
        assert time.monotonic() < deadline_s, "the coordinator did not time the transaction out"
    if next_step != "abort":
        with pytest.raises(TransactionTimedOut, match=r"transaction\.timeout\.ms=1000"):
            if next_step == "produce":
                producer.produce(topic, "later")
                producer.flush()
            elif next_step == "offsets":
                producer.send_offsets_to_transaction({(topic, 0): 1}, f"group-{topic}")
            else:
                producer.commit_transaction()
        with pytest.raises(StateError, match="MUST_ABORT"):
            producer.commit_transaction()
    producer.abort_transaction()
    with producer.transaction():
        producer.produce(topic, "again")
    assert sorted(values(servers, topic)) == [b"again", b"early"]
    settle(servers, topic)


def _write_joined(servers: str, identity: ProducerIdentity, topic: str, partition: int) -> None:
    with TransactionalProducer.join({"bootstrap.servers": servers}, identity) as joined:
        for number in range(500):
            joined.produce(topic, f"{partition}-{number}", partition=partition)
        joined.flush()


@pytest.mark.parametrize("decision", ["commit", "abort"])
def test_other_processes_write_into_one_transaction(
    cluster: LocalKafka, topic: str, open_producer, decision: str
) -> None:
    servers = cluster.bootstrap_servers
    producer = open_producer()
    producer.begin_transaction()
    producer.add_partitions([(topic, partition) for partition in range(4)])
    context = multiprocessing.get_context("spawn")
    writers = [
        context.Process(target=_write_joined, args=(servers, producer.identity, topic, part))
        for part in range(4)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0, 0]
    assert values(servers, topic, while_open=True) == []
    if decision == "abort":
        producer.abort_transaction()
        assert values(servers, topic) == []
        return
    producer.commit_transaction()
    seen = read(servers, topic)
    for part in range(4):
        lane = [record.value for record in seen if record.partition == part]
        assert lane == [f"{part}-{number}".encode() for number in range(500)]
    settle(servers, topic)


def test_a_joined_writer_of_a_fenced_attempt_is_refused(
    cluster: LocalKafka, topic: str, open_producer
) -> None:
    owner = open_producer()
    owner.begin_transaction()
    owner.add_partitions([(topic, 0)])
    settings = {"bootstrap.servers": cluster.bootstrap_servers}
    joined = TransactionalProducer.join(settings, owner.identity)
    joined.produce(topic, "first", partition=0)
    joined.flush()
    open_producer()
    joined.produce(topic, "second", partition=0)
    with pytest.raises(FencedError):
        joined.flush()
    with pytest.raises(FencedError):
        joined.produce(topic, "third", partition=0)
    joined.close()
    assert values(cluster.bootstrap_servers, topic) == []


def test_a_joined_writer_may_only_write(cluster: LocalKafka, topic: str, open_producer) -> None:
    owner = open_producer()
    owner.begin_transaction()
    settings = {"bootstrap.servers": cluster.bootstrap_servers}
    with TransactionalProducer.join(settings, owner.identity) as joined:
        for verb in ("begin_transaction", "commit_transaction", "abort_transaction"):
            with pytest.raises(StateError, match="JOINED"):
                getattr(joined, verb)()
    with pytest.raises(ConfigError, match="contradicts the identity"):
        TransactionalProducer.join(settings | {"transactional.id": "other"}, owner.identity)


def test_an_empty_transaction_costs_nothing(cluster: LocalKafka, topic: str, open_producer) -> None:
    producer = open_producer()
    producer.begin_transaction()
    before = producer.identity
    producer.commit_transaction()
    for decide in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        decide()
    producer.begin_transaction()
    assert producer.identity == before
    producer.commit_transaction()
    with producer.transaction():
        producer.produce(topic, "kept")
    assert values(cluster.bootstrap_servers, topic) == [b"kept"]


def test_closing_aborts_what_is_open(cluster: LocalKafka, topic: str, open_producer) -> None:
    producer = open_producer()
    producer.begin_transaction()
    producer.produce(topic, "lost")
    producer.flush()
    producer.close()
    assert producer.state is State.CLOSED
    assert values(cluster.bootstrap_servers, topic) == []
    settle(cluster.bootstrap_servers, topic)
    with pytest.raises(StateError, match="CLOSED"):
        producer.begin_transaction()


def test_offsets_of_an_unknown_topic_abort_the_transaction_only(
    cluster: LocalKafka, topic: str, open_producer
) -> None:
    producer = open_producer(max_block_ms=3000)
    producer.begin_transaction()
    producer.produce(topic, "lost")
    with pytest.raises(BrokerError, match="UNKNOWN_TOPIC"):
        producer.send_offsets_to_transaction({("no-such-topic", 0): 1}, f"group-{topic}")
    producer.abort_transaction()
    with producer.transaction():
        producer.produce(topic, "kept")
    assert values(cluster.bootstrap_servers, topic) == [b"kept"]


def test_writing_that_breaks_off_can_only_be_aborted(
    cluster: LocalKafka, topic: str, open_producer
) -> None:
    """A full buffer stops a write in its midst: what was sent before is no whole thing."""
    servers = cluster.bootstrap_servers
    with FaultProxy(servers, faults=[DelayResponse("Produce", nth=2, seconds=3)]) as proxy:
        producer = open_producer(
            bootstrap_servers=proxy.bootstrap_servers,
            max_block_ms=1000,
            buffer_memory=65536,
            batch_size=16384,
            max_request_size=65536,
            connections_per_broker=1,
        )
        producer.begin_transaction()
        rows = pa.table({"value": [b"x" * 5000] * 400, "partition": pa.array([0] * 400)})
        with pytest.raises(Unreachable, match=r"buffer\.memory=65536"):
            for _ in range(40):
                producer.produce_arrow(topic, rows)
        with pytest.raises(StateError, match="MUST_ABORT"):
            producer.flush()
        with pytest.raises(StateError, match="MUST_ABORT"):
            producer.commit_transaction()
        while producer.state is not State.READY:
            # Its answer comes behind the one that is held back, later than max.block.ms allows.
            with contextlib.suppress(OutcomeUnknown):
                producer.abort_transaction()
        with producer.transaction():
            producer.produce(topic, "whole")
    assert values(servers, topic) == [b"whole"]


@pytest.mark.parametrize("writes", [True, False])
def test_what_only_joined_writers_wrote_is_committed(
    cluster: LocalKafka, topic: str, open_producer, writes: bool
) -> None:
    servers = cluster.bootstrap_servers
    owner = open_producer()
    owner.begin_transaction()
    with TransactionalProducer.join({"bootstrap.servers": servers}, owner.identity) as joined:
        if writes:
            joined.produce(topic, "joined")
    owner.commit_transaction()
    assert values(servers, topic) == ([b"joined"] if writes else [])
    with owner.transaction():
        owner.produce(topic, "owner")
    assert sorted(values(servers, topic)) == ([b"joined", b"owner"] if writes else [b"owner"])
