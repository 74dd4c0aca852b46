"""What became of the balances that were due: the demo's count, pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sparkonce.console.payments import Balance


@dataclass(frozen=True, slots=True)
class Tally:
    read: int
    lost: int
    """Due, and never read."""
    repeated: int
    """Read before."""
    reordered: int
    """Behind a later balance of the same account."""
    wrong: int
    """Not due: payments are missing in it, or are in it twice."""
    counted: int
    """Payments that are in the last balance of their account."""

    @property
    def is_exact(self) -> bool:
        return not (self.lost or self.repeated or self.reordered or self.wrong)


def tally(due: Iterable[Balance], seen: Iterable[Balance]) -> Tally:
    """Compare balances, in the order read, with those of a run without failures."""
    expected = set(due)
    met: set[Balance] = set()
    latest: dict[str, int] = {}
    last: dict[str, int] = {}
    read = repeated = reordered = wrong = 0
    for balance in seen:
        read += 1
        last[balance.account] = balance.count
        if balance not in expected:
            wrong += 1
        elif balance in met:
            repeated += 1
        else:
            met.add(balance)
            reordered += balance.count < latest.get(balance.account, 0)
            latest[balance.account] = max(balance.count, latest.get(balance.account, 0))
    lost = len(expected) - len(met)
    return Tally(read, lost, repeated, reordered, wrong, counted=sum(last.values()))
