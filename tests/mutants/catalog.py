"""All mutants, by name."""

from __future__ import annotations

from mutants.delivering import DELIVERING
from mutants.mutant import Mutant
from mutants.producing import PRODUCING
from mutants.streaming import STREAMING

MUTANTS: dict[str, Mutant] = {}
for _mutant in (*PRODUCING, *STREAMING, *DELIVERING):
    assert _mutant.name not in MUTANTS, f"{_mutant.name!r} is there twice"
    MUTANTS[_mutant.name] = _mutant
