"""Progress by the clock: what it meets and can't get over is told, and it is never waited for."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

import sparkonce.stream.autocommit
from parts import wait_until
from sparkonce.errors import FatalError
from sparkonce.local import LocalKafka
from sparkonce.stream.autocommit import AutoCommit
from sparkonce.stream.kafka_owner import KafkaOwner
from sparkonce.stream.kafka_settings import KafkaSettings
from sparkonce.stream.ledger import Entry

ENTRY = Entry(
    query="q", batch=0, number=0, guarantee="none", host="h", pid=1, checkpoint="c", sources=None
)


@pytest.fixture
def clock(kafka: LocalKafka, monkeypatch: pytest.MonkeyPatch) -> Iterator[AutoCommit]:
    monkeypatch.setattr(sparkonce.stream.autocommit, "INTERVAL_S", 0.05)
    options = {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "kafka.transactional.id": f"id-{uuid.uuid4().hex[:8]}",
        "guarantee": "none",
    }
    owner = KafkaOwner(KafkaSettings.parse(options, None))
    with owner.producer as producer:
        producer.init_transactions()
        clock = AutoCommit(owner)
        yield clock
        clock.close()


def test_an_end_that_nobody_thought_of_is_told_to_the_next_batch(clock: AutoCommit) -> None:
    broken: Any = {"g": {("t", 0): "no offset at all"}}

    def told() -> bool:
        try:
            clock.note(broken, ENTRY)
        except FatalError as error:
            assert "progress is noted no more: AttributeError" in str(error)
            return True
        return False

    wait_until(told, "the query is told")
