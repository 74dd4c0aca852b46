"""Under `none` rows are loaded behind the query, and nobody waits for that without an end."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from sparkonce.deliver.later import Later
from sparkonce.deliver.store import StoreError


@pytest.fixture
def answers() -> Iterator[threading.Event]:
    """Until it is set, the database hangs."""
    answers = threading.Event()
    yield answers
    answers.set()


def test_all_is_done_in_order_by_the_time_it_is_closed() -> None:
    done: list[str] = []
    later = Later("p")
    for number in range(20):
        later.do(lambda name=str(number): done.append(name), 1)  # type: ignore[misc]
    later.note_at_times(lambda: done.append("noted"))
    later.close()
    assert done == [*map(str, range(20)), "noted"]


def test_what_fails_is_said_and_the_rest_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    done: list[str] = []
    later = Later("p")
    later.do(lambda: 1 / 0, 7)
    later.do(lambda: done.append("next"), 1)
    later.close()
    assert done == ["next"]
    assert "p: 7 rows are lost: division by zero" in caplog.text


def test_a_database_that_hangs_is_told_to_the_batch_that_has_no_room(
    answers: threading.Event,
) -> None:
    later = Later("p", patience_s=0.2)
    with pytest.raises(StoreError, match=r"has not come to the end of one in 0\.2 s"):
        for _ in range(6):
            later.do(answers.wait, 1)


def test_a_database_that_hangs_is_told_to_whoever_closes(answers: threading.Event) -> None:
    later = Later("p", patience_s=0.2)
    later.do(answers.wait, 1)
    with pytest.raises(StoreError, match=r"has not come to the end of one in 0\.2 s"):
        later.close()
