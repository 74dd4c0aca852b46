"""A part of a batch: a range of the partition column, for one task."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """From `low`, inclusive, to `high`, exclusive; None is open, and rows without a value are in
    the part that has no `low`."""

    low: int | None = None
    high: int | None = None


WHOLE = Span()


def split(lowest: int | None, highest: int | None, parts: int) -> list[Span]:
    """Ranges of equal width that cover everything, even what was not there to be measured."""
    if lowest is None or highest is None:
        return [WHOLE]
    width = highest - lowest + 1
    count = min(parts, width)
    cuts = [lowest + width * index // count for index in range(1, count)]
    return [Span(low, high) for low, high in zip([None, *cuts], [*cuts, None], strict=True)]
