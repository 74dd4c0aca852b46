"""How many of the faults that were planned came to pass: one that waits in vain tests nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sparkonce.verify.outcome import Outcome, Verdict


@dataclass(frozen=True, slots=True)
class Firing:
    planned: int
    fired: int

    @classmethod
    def of(cls, outcomes: Iterable[Outcome]) -> Firing:
        """Of the trials of which it was noted. One that broke off says nothing."""
        noted = [
            fired
            for each in outcomes
            if each.verdict is not Verdict.FAILED
            for fired in each.faults or ()
        ]
        return cls(len(noted), sum(noted))

    @property
    def words(self) -> str:
        """`475 of 490 (97 %)`; empty where nothing was planned."""
        if not self.planned:
            return ""
        return f"{self.fired:,} of {self.planned:,} ({100 * self.fired // self.planned} %)"
