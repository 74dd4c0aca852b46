"""A cluster for each version of the transaction protocol, and topics that go with their test."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

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
    name = f"t-{uuid.uuid4().hex[:8]}"
    cluster.create_topic(name, partitions=4)
    yield name
    cluster.delete_topic(name)


@pytest.fixture
def open_producer(cluster: LocalKafka) -> Iterator[Open]:
    """Transactional producers under one transactional id, closed with the test."""
    name = f"id-{uuid.uuid4().hex[:8]}"
    opened: list[TransactionalProducer] = []

    def open_one(**settings: Any) -> TransactionalProducer:
        named = {key.replace("_", "."): value for key, value in settings.items()}
        producer = TransactionalProducer(
            {"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": name} | named
        )
        opened.append(producer)
        producer.init_transactions()
        return producer

    yield open_one
    for producer in opened:
        producer.close()


@pytest.fixture
def plain_topic(kafka: LocalKafka) -> Iterator[str]:
    name = f"p-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(name, partitions=4)
    yield name
    kafka.delete_topic(name)
