"""What became of numbered records: the demo's count, pure.

Record number n is written to partition n modulo PARTITIONS, and numbers grow, so every loss,
repeat and change of order shows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

PARTITIONS = 4


@dataclass(frozen=True, slots=True)
class Tally:
    """What became of numbered records."""

    read: int
    lost: int
    duplicated: int
    reordered: int
    foreign: int
    """Read, though nobody wrote them there."""

    @property
    def is_exact(self) -> bool:
        return not (self.lost or self.duplicated or self.reordered or self.foreign)


def tally(records: int, seen: Iterable[tuple[int, int]]) -> Tally:
    """Compare (partition, number) pairs, in the order read, with the numbers below `records`."""
    met: set[int] = set()
    largest: dict[int, int] = {}
    read = duplicated = reordered = foreign = 0
    for partition, number in seen:
        read += 1
        if not 0 <= number < records or number % PARTITIONS != partition:
            foreign += 1
        elif number in met:
            duplicated += 1
        else:
            met.add(number)
            reordered += number < largest.get(partition, -1)
            largest[partition] = max(number, largest.get(partition, -1))
    return Tally(read, records - len(met), duplicated, reordered, foreign)
