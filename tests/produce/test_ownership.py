"""Whose the transactional id is: a table of what a coordinator may tell, and ways through it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from oracle import committed, hanging, settle, values
from sparkonce import ProducerIdentity, TransactionalProducer
from sparkonce.errors import (
    BrokerError,
    OwnershipUncertain,
    StateError,
    TransactionTimedOut,
    Unreachable,
)
from sparkonce.local import LocalKafka
from sparkonce.produce import State
from sparkonce.produce.coordinator import TransactionStatus
from sparkonce.produce.identity import EPOCH_MAX
from sparkonce.produce.ownership import Begun, Standing, standing
from sparkonce.verify import DelayResponse, Fault, FaultProxy, LoseRequest, LoseResponse

NO_OFFSET = -1001  # confluent-kafka's word for "none committed"
PATIENCE_S = 60.0
NO, MAYBE, YES = Begun.NO, Begun.MAYBE, Begun.YES


@pytest.mark.parametrize(
    ("state", "producer_id", "epoch", "begun", "version", "expected"),
    [
        ("Empty", 7, 5, NO, 1, Standing.CURRENT),
        ("CompleteCommit", 7, 5, NO, 1, Standing.CURRENT),
        ("PrepareCommit", 7, 5, NO, 2, Standing.CURRENT),
        ("Ongoing", 7, 5, MAYBE, 2, Standing.OPEN),
        # Raised by a time-out, or by the first half of a takeover.
        ("CompleteAbort", 7, 6, YES, 1, Standing.ABORTED),
        ("PrepareAbort", 7, 6, YES, 2, Standing.ABORTED),
        ("CompleteAbort", 7, 6, MAYBE, 2, Standing.ABORTED),
        # A successor of version 1 that has aborted one of its own looks the same.
        ("CompleteAbort", 7, 6, MAYBE, 1, Standing.UNCERTAIN),
        ("CompleteAbort", 7, 6, NO, 2, Standing.UNCERTAIN),
        # Kafka 4.0.0 raises it twice.
        ("CompleteAbort", 7, 7, YES, 2, Standing.ABORTED),
        ("CompleteAbort", 7, 7, YES, 1, Standing.SUCCEEDED),
        ("CompleteAbort", 7, 7, MAYBE, 2, Standing.SUCCEEDED),
        ("CompleteAbort", 7, 8, YES, 2, Standing.SUCCEEDED),
        # Whoever took over has one of these.
        ("Empty", 7, 6, YES, 2, Standing.SUCCEEDED),
        ("Ongoing", 7, 6, YES, 1, Standing.SUCCEEDED),
        ("CompleteCommit", 7, 6, YES, 2, Standing.SUCCEEDED),
        ("CompleteAbort", 8, 6, YES, 2, Standing.SUCCEEDED),
        ("Empty", 8, 0, YES, 2, Standing.SUCCEEDED),
        ("Ongoing", 7, 4, YES, 2, Standing.SUCCEEDED),
    ],
)
def test_what_the_coordinator_tells_means(
    state: str, producer_id: int, epoch: int, begun: Begun, version: int, expected: Standing
) -> None:
    who = ProducerIdentity("id", 7, 5)
    assert standing(who, TransactionStatus(True, state, producer_id, epoch), begun, version) is (
        expected
    )


def test_behind_the_last_epoch_another_producer_id_may_be_ones_own() -> None:
    last = ProducerIdentity("id", 7, EPOCH_MAX)
    fresh = TransactionStatus(True, "Empty", 8, 0)
    assert standing(last, fresh, NO, 2) is Standing.UNCERTAIN
    assert standing(replace(last, epoch=EPOCH_MAX - 1), fresh, NO, 2) is Standing.SUCCEEDED
    assert standing(last, replace(fresh, state="Ongoing"), NO, 2) is Standing.SUCCEEDED


def test_a_forgotten_id_is_nobodys() -> None:
    who = ProducerIdentity("id", 7, 5)
    assert standing(who, TransactionStatus(False, "", -1, -1), YES, 2) is Standing.EXPIRED


def test_a_commit_of_what_others_wrote_notices_that_it_timed_out(
    cluster: LocalKafka, topic: str, open_producer: Any
) -> None:
    """The opener has written nothing itself, and must not take the transaction for empty."""
    servers = cluster.bootstrap_servers
    owner = open_producer(transaction_timeout_ms=1000)
    owner.begin_transaction()
    with TransactionalProducer.join({"bootstrap.servers": servers}, owner.identity) as joined:
        joined.produce(topic, "late")
        joined.flush()
        deadline_s = time.monotonic() + PATIENCE_S
        while hanging(servers, topic):
            assert time.monotonic() < deadline_s, "the coordinator did not time it out"
        if owner._client.transaction_version >= 2:
            with pytest.raises(TransactionTimedOut, match=r"transaction\.timeout\.ms=1000"):
                owner.commit_transaction()
            owner.abort_transaction()
        else:
            # Under version 1 it could as well be a successor's doing.
            with pytest.raises(OwnershipUncertain, match="Read the committed offsets"):
                owner.commit_transaction()
            assert owner.state is State.FAILED
            owner = open_producer()
    with owner.transaction():
        owner.produce(topic, "again")
    assert values(servers, topic) == [b"again"]
    settle(servers, topic)


@pytest.mark.parametrize("api", ["TxnOffsetCommit", "AddPartitionsToTxn"])
def test_what_was_sent_without_an_answer_is_aborted_too(
    cluster: LocalKafka, topic: str, open_producer: Any, api: str
) -> None:
    """It may have arrived: left open, it would be committed with the next transaction."""
    servers, group = cluster.bootstrap_servers, f"group-{topic}"
    lost = LoseResponse(api, times=None)
    with FaultProxy(servers) as proxy:
        producer = open_producer(bootstrap_servers=proxy.bootstrap_servers, max_block_ms=500)
        producer.begin_transaction()
        proxy.add(lost)
        with pytest.raises(Unreachable, match=r"max\.block\.ms=500"):
            if api == "TxnOffsetCommit":
                producer.send_offsets_to_transaction({(topic, 0): 7}, group)
            else:
                producer.add_partitions([(topic, 1)])
        proxy.clear()
        assert proxy.fired(lost) >= 1
        with pytest.raises(StateError, match="MUST_ABORT"):
            producer.commit_transaction()
        producer.abort_transaction()
        with producer.transaction():
            producer.produce(topic, "next", partition=0)
            producer.send_offsets_to_transaction({(topic, 1): 8}, group)
    assert values(servers, topic) == [b"next"]
    assert committed(servers, group, topic, 0) == (NO_OFFSET, "")
    assert committed(servers, group, topic, 1) == (8, "")
    settle(servers, topic)


ENDS_BY = {1: ("DescribeTransactions", "InitProducerId"), 2: ("EndTxn",)}
"""The requests of an abort, by version."""


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("kind", [LoseRequest, LoseResponse, partial(DelayResponse, seconds=0.3)])
@pytest.mark.parametrize("api", [api for apis in ENDS_BY.values() for api in apis])
def test_an_abort_comes_to_its_end_whatever_is_lost_of_it(
    cluster: LocalKafka,
    topic: str,
    open_producer: Any,
    api: str,
    kind: Callable[..., Fault],
    nth: int,
) -> None:
    servers, fault = cluster.bootstrap_servers, kind(api, nth=nth)
    with FaultProxy(servers) as proxy:
        owner = open_producer(bootstrap_servers=proxy.bootstrap_servers)
        if api not in ENDS_BY[owner._client.transaction_version] or (api, nth) == ("EndTxn", 2):
            pytest.skip("an abort of this version has no such request")
        owner.begin_transaction()
        with TransactionalProducer.join({"bootstrap.servers": servers}, owner.identity) as joined:
            joined.produce(topic, "aborted", partition=0)
            joined.flush()
            proxy.add(fault)
            owner.abort_transaction()
            assert proxy.fired(fault) == 1, "the fault never happened: this run proves nothing"
            settle(servers, topic)
            joined.produce(topic, "late", partition=0)
            with pytest.raises(BrokerError):
                joined.flush()
        with owner.transaction():
            owner.produce(topic, "next", partition=0)
    assert values(servers, topic) == [b"next"]
    settle(servers, topic)


def test_what_an_abort_costs(cluster: LocalKafka, topic: str, open_producer: Any) -> None:
    """Printed, for whoever wants to know (pytest -s); nothing is promised."""
    owner = open_producer()
    took_ms = []
    for _ in range(30):
        owner.begin_transaction()
        assert owner.identity
        owner.produce(topic, "aborted", partition=0)
        owner.flush()
        began_s = time.monotonic()
        owner.abort_transaction()
        owner.begin_transaction()
        took_ms.append((time.monotonic() - began_s) * 1000)
        owner.commit_transaction()
    version = owner._client.transaction_version
    print(f"abort and begin under version {version}: {statistics.median(took_ms):.1f} ms")
    assert values(cluster.bootstrap_servers, topic) == []
