"""A cluster for each version of the transaction protocol, and topics that go with their test."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from parts import MESSAGE_BYTES, a_producer, a_topic
from sparkonce import TransactionalProducer
from sparkonce.local import LocalKafka

Open = Callable[..., TransactionalProducer]


@pytest.fixture(scope="session")
def kafka_v1() -> Iterator[LocalKafka]:
    """A broker formatted with transaction.version=1, as clusters upgraded from before 4.0 are."""
    with LocalKafka(transaction_version=1) as cluster:
        yield cluster


@pytest.fixture(params=[2, 1], ids=["version2", "version1"])
def cluster(request: pytest.FixtureRequest) -> LocalKafka:
    """Each version of the transaction protocol in turn."""
    name = "kafka" if request.param == 2 else "kafka_v1"
    found = request.getfixturevalue(name)
    assert isinstance(found, LocalKafka)
    return found


@pytest.fixture
def topic(cluster: LocalKafka) -> Iterator[str]:
    with a_topic(cluster) as name:
        yield name


@pytest.fixture
def plain_topic(kafka: LocalKafka) -> Iterator[str]:
    with a_topic(kafka) as name:
        yield name


@pytest.fixture
def small_topic(kafka: LocalKafka) -> Iterator[str]:
    """Takes batches of up to MESSAGE_BYTES."""
    with a_topic(kafka, config={"max.message.bytes": str(MESSAGE_BYTES)}) as name:
        yield name


@pytest.fixture
def graves(kafka: LocalKafka) -> Iterator[str]:
    """A dead-letter topic."""
    with a_topic(kafka, partitions=2) as name:
        yield name


@pytest.fixture
def open_producer(cluster: LocalKafka) -> Iterator[Open]:
    """Transactional producers under one transactional id, closed with the test."""
    name = f"id-{uuid.uuid4().hex[:8]}"

    def open_one(**settings: Any) -> TransactionalProducer:
        return opened.enter_context(a_producer(cluster, **({"transactional_id": name} | settings)))

    with ExitStack() as opened:
        yield open_one
