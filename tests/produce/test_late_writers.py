"""Somebody who joined an attempt writes when it has been given up: nothing of it is ever visible.

What an executor sent is held back by the proxy until the attempt's end markers are written, and
then delivered. The version-1 broker does not ask the coordinator about what is written (as none
did before Kafka 3.6): nothing but the producer's epoch keeps such a request out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext, suppress
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from oracle import settle, values
from parts import wait_until
from sparkonce import TransactionalProducer
from sparkonce.errors import Unreachable
from sparkonce.local import LocalKafka
from sparkonce.verify import DelayRequest, DuplicateRequest, FaultProxy, LoseRequest

VERIFICATION = "transaction.partition.verification.enable"
LATE = "late"
RELEASE = "ListGroups"
"""An API that nobody uses but the test: its answer lets go of what is held back."""
PATIENCE_S = 30.0


@pytest.fixture(autouse=True)
def unverified(cluster: LocalKafka) -> Iterator[None]:
    """Leaders take what is written without asking the coordinator, where the version lets them."""
    _verify(cluster, "false")
    yield
    _verify(cluster, "true")


def _verify(cluster: LocalKafka, wanted: str) -> None:
    broker = ConfigResource(
        ResourceType.BROKER,
        str(cluster.broker_ids[0]),
        incremental_configs=[
            ConfigEntry(VERIFICATION, wanted, incremental_operation=AlterConfigOpType.SET)
        ],
    )
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for future in admin.incremental_alter_configs([broker]).values():
        future.result(PATIENCE_S)

    def is_so() -> bool:
        (asked,) = admin.describe_configs([ConfigResource("broker", broker.name)]).values()
        return bool(asked.result(PATIENCE_S)[VERIFICATION].value == wanted)

    wait_until(is_so, f"{VERIFICATION} is {wanted}")


@pytest.fixture
def proxy(cluster: LocalKafka) -> Iterator[FaultProxy]:
    with FaultProxy(cluster.bootstrap_servers) as running:
        yield running


def _release(proxy: FaultProxy, held: DelayRequest | DuplicateRequest) -> None:
    """Let the broker have what was held back, and wait for its answer."""
    admin = AdminClient({"bootstrap.servers": proxy.bootstrap_servers})
    admin.list_consumer_groups().result(PATIENCE_S)
    proxy.wait_delivered(held, PATIENCE_S)


def _hold(proxy: FaultProxy, api: str) -> DelayRequest:
    """Hold back the next request of the late writer; what it sends again is lost."""
    held = DelayRequest(api, client_id=LATE, cut=True, until=RELEASE)
    proxy.add(held)
    proxy.add(LoseRequest(api, nth=2, times=None, client_id=LATE))
    return held


@pytest.mark.parametrize("next_partition", [0, 1], ids=["same partition", "another partition"])
@pytest.mark.parametrize(
    ("api", "in_time"),
    [("Produce", 0), ("Produce", 1), ("AddPartitionsToTxn", 0)],
    ids=["first batch", "second batch", "partition"],
)
def test_what_arrives_behind_an_abort_is_refused(
    cluster: LocalKafka,
    topic: str,
    proxy: FaultProxy,
    open_producer: Any,
    api: str,
    in_time: int,
    next_partition: int,
) -> None:
    servers = cluster.bootstrap_servers
    owner = open_producer()
    if api == "AddPartitionsToTxn" and owner._client.transaction_version > 1:
        pytest.skip("version 2 adds partitions by writing to them")
    owner.begin_transaction()
    settings = {
        "bootstrap.servers": proxy.bootstrap_servers,
        "client.id": LATE,
        "max.block.ms": 500,
    }
    late = TransactionalProducer.join(settings, owner.identity)
    for number in range(in_time):
        late.produce(topic, f"in time {number}", partition=0)
        late.flush()
    held = _hold(proxy, api)
    late.produce(topic, "late", partition=0)
    # Version 1 adds the partition first, and waits for the answer.
    with suppress(Unreachable) if api == "AddPartitionsToTxn" else nullcontext():
        late.flush(0)
    proxy.wait_fired(held, PATIENCE_S)
    late.abandon()

    owner.abort_transaction()
    settle(servers, topic)
    _release(proxy, held)
    with owner.transaction():
        owner.produce(topic, "again", partition=next_partition)
    assert values(servers, topic) == [b"again"]
    settle(servers, topic)


def test_offsets_that_arrive_again_behind_their_commit_keep_nobody_from_reading_the_group(
    cluster: LocalKafka, topic: str, proxy: FaultProxy
) -> None:
    """Left undecided, they would be for ever: no transaction is open that could end them."""
    group = f"group-{topic}"
    again = DuplicateRequest("TxnOffsetCommit", until=RELEASE)
    proxy.add(again)
    settings = {"bootstrap.servers": proxy.bootstrap_servers, "transactional.id": group}
    with TransactionalProducer(settings) as first:
        first.init_transactions()
        with first.transaction():
            first.produce(topic, "once", partition=0)
            first.send_offsets_to_transaction({(topic, 0): 7}, group)
    _release(proxy, again)
    direct = {**settings, "bootstrap.servers": cluster.bootstrap_servers}
    with TransactionalProducer(direct) as second:
        second.init_transactions()
        committed = second.committed_offsets(group)
        assert {place: found.offset for place, found in committed.items()} == {(topic, 0): 7}
        with second.transaction():
            second.produce(topic, "twice", partition=0)
            second.send_offsets_to_transaction({(topic, 0): 8}, group)
    assert values(cluster.bootstrap_servers, topic) == [b"once", b"twice"]
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    (told,) = admin.list_consumer_group_offsets([asked], require_stable=True).values()
    assert [part.offset for part in told.result(PATIENCE_S).topic_partitions] == [8]
