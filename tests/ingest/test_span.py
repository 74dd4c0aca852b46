"""Parts of a batch, and the pace of looks: pure."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

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
