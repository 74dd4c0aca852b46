"""Progress by the clock: what it meets and can't get over is told, and it is never waited for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import sparkonce.stream.autocommit
from parts import a_producer, wait_until
from sparkonce.errors import FatalError
from sparkonce.local import LocalKafka
from sparkonce.stream.autocommit import AutoCommit


@pytest.fixture
def clock(kafka: LocalKafka, monkeypatch: pytest.MonkeyPatch) -> Iterator[AutoCommit]:
    monkeypatch.setattr(sparkonce.stream.autocommit, "INTERVAL_S", 0.05)
    with a_producer(kafka) as producer:
        clock = AutoCommit(producer)
        yield clock
        clock.close()


def test_an_end_that_nobody_thought_of_is_told_to_the_next_batch(clock: AutoCommit) -> None:
    broken: Any = {"g": {("t", 0): "no offset at all"}}

    def told() -> bool:
        try:
            clock.note(broken)
        except FatalError as error:
            assert "progress is noted no more: AttributeError" in str(error)
            return True
        return False

    wait_until(told, "the query is told")
