"""Parts of a batch, and the pace of looks: pure."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sparkonce.ingest.pace import Pace
from sparkonce.ingest.span import WHOLE, Span, split


@given(st.integers(), st.integers(0, 10**6), st.integers(1, 50), st.integers())
def test_every_value_is_in_one_part(low: int, width: int, parts: int, value: int) -> None:
    spans = split(low, low + width, parts)
    assert 1 <= len(spans) <= parts
    assert sum(_holds(span, value) for span in spans) == 1


@given(st.integers(), st.integers(0, 10**6), st.integers(1, 50))
def test_parts_are_of_like_width(low: int, width: int, parts: int) -> None:
    cuts = [low, *(span.low for span in split(low, low + width, parts)[1:]), low + width + 1]
    widths = [after - before for before, after in pairwise(cuts)]
    assert min(widths) >= 1 and max(widths) - min(widths) <= 1


def test_a_batch_without_values_is_one_part() -> None:
    assert split(None, None, 8) == [WHOLE]


def _holds(span: Span, value: int) -> bool:
    return (span.low is None or value >= span.low) and (span.high is None or value < span.high)


def test_a_look_in_vain_is_followed_by_a_rest_of_four_times_its_duration() -> None:
    now_s = 0.0
    looks = 0

    def in_vain() -> None:
        nonlocal now_s, looks
        looks += 1
        now_s += 10

    pace = Pace(lambda: now_s)
    for _ in range(100):
        assert pace.look(in_vain) is None
        now_s += 1
    assert looks == 3  # at 0, 50 and 100: there is a second between two questions
    now_s += 40
    assert pace.look(lambda: "found") == "found"
    assert pace.look(lambda: "again") == "again"
