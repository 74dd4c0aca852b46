"""What was measured, kept as JSON: for each mutant, or for the product as it is, its trials."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mutants.mutant import Cell, Mutant

AS_IS = ""
"""The name of what is not sabotaged."""
_NOTICED = ("broken", "weak")
_FAILED = "failed"
_KEPT = ("kept", "shown")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One trial."""

    mutant: str
    tree: str
    """Which state of the product, with its change, and its verifier it was measured on."""
    cell: Cell
    seed: int
    verdict: str
    findings: dict[str, int]
    workload: str
    schedule: list[str]
    happened: list[str]
    """What of the schedule came to pass, and how lives ended."""
    duration_s: float
    """Of the round that it was in, with the other seeds beside it."""
    error: str
    at: int

    @property
    def is_noticed(self) -> bool:
        """A pipeline that only fails does not count, though its user would see it."""
        return self.verdict in _NOTICED

    @property
    def is_failed(self) -> bool:
        return self.verdict == _FAILED

    @property
    def is_kept(self) -> bool:
        return self.verdict in _KEPT


@dataclass(slots=True)
class Results:
    path: Path | None
    all: list[Result] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path | None) -> Results:
        if path is None or not path.exists():
            return cls(path)
        told = json.loads(path.read_text())
        return cls(path, [_result(each) for each in told["results"]])

    def of(self, mutant: str, cell: Cell, seeds: Sequence[int], tree: str) -> list[Result]:
        return [
            each
            for each in self.all
            if (each.mutant, each.cell, each.tree) == (mutant, cell, tree) and each.seed in seeds
        ]

    def has(self, mutant: str, cell: Cell, trials: Mapping[int, int], tree: str) -> bool:
        """By seed, how many trials there should be: a run that ended early left some out."""
        return Counter(e.seed for e in self.of(mutant, cell, [*trials], tree)) == trials

    def put(self, results: Sequence[Result]) -> None:
        """In place of what was measured of the same before, on whatever tree."""
        fresh = {(each.mutant, each.cell, each.seed) for each in results}
        self.all = [e for e in self.all if (e.mutant, e.cell, e.seed) not in fresh]
        self.all += results
        if self.path is not None:
            self._write(self.path)

    def _write(self, path: Path) -> None:
        lines = ",\n".join("  " + json.dumps(asdict(each)) for each in self.all)
        draft = path.with_name(f"{path.name}.draft")
        draft.write_text(f'{{"results": [\n{lines}\n]}}\n')
        draft.replace(path)


@dataclass(frozen=True, slots=True)
class Row:
    """A mutant in one of its cells, and what the seeds have shown."""

    mutant: Mutant
    cell: Cell
    trials: list[Result]
    """In the order of the seeds; there may be several for a seed."""

    @property
    def seeds(self) -> dict[int, bool]:
        """By seed, whether it is noticed."""
        noticed: dict[int, bool] = {}
        for each in self.trials:
            noticed[each.seed] = noticed.get(each.seed, False) or each.is_noticed
        return noticed

    @property
    def is_noticed(self) -> bool:
        """With each seed."""
        return bool(self.trials) and all(self.seeds.values())

    @property
    def first(self) -> int | None:
        """After how many trials."""
        numbers = [number for number, each in enumerate(self.trials, 1) if each.is_noticed]
        return numbers[0] if numbers else None

    @property
    def failed(self) -> int:
        return sum(each.is_failed for each in self.trials)

    @property
    def findings(self) -> str:
        found = {name for each in self.trials if each.is_noticed for name in each.findings}
        return ", ".join(sorted(found))

    @property
    def lasted_s(self) -> float:
        return max((each.duration_s for each in self.trials), default=0.0)


def _result(told: dict[str, Any]) -> Result:
    return Result(**told | {"cell": Cell(**told["cell"])})
