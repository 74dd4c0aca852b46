"""Topics and producers that go with their test."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sparkonce import TransactionalProducer
from sparkonce.local import LocalKafka

MESSAGE_BYTES = 2000
"""The limit of the topics whose limit is met."""


@contextmanager
def a_topic(cluster: LocalKafka, **layout: Any) -> Iterator[str]:
    name = f"t-{uuid.uuid4().hex[:8]}"
    cluster.create_topic(name, **({"partitions": 4} | layout))
    yield name
    cluster.delete_topic(name)


@contextmanager
def a_producer(cluster: LocalKafka, **settings: Any) -> Iterator[TransactionalProducer]:
    """Under a transactional id of its own, ready to begin."""
    named = {key.replace("_", "."): value for key, value in settings.items()}
    own = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "transactional.id": f"id-{uuid.uuid4().hex[:8]}",
    }
    with TransactionalProducer(own | named) as producer:
        producer.init_transactions()
        yield producer
