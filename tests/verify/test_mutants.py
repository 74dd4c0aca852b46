"""Every mutant still applies: measuring them takes long, and they must not rot meanwhile."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from mutants.catalog import MUTANTS
from mutants.cell import draw
from mutants.mutant import Change, DoesNotApply, Mutant

SOURCE = Path(__file__).parents[2] / "src"
CELLS = sorted({cell for each in MUTANTS.values() for cell in each.cells}, key=str)


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=lambda each: each.name)
def test_it_applies_and_says_something_else(mutant: Mutant) -> None:
    for path, text in mutant.texts().items():
        before = ast.dump(ast.parse((SOURCE / path).read_text()))
        assert ast.dump(ast.parse(text, str(path))) != before
        compile(text, str(path), "exec")


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_its_cell_is_in_the_quick_preset(cell) -> None:
    drawn = draw([cell], [1, 2])
    assert {each.seed for each in drawn} == {1, 2}
    assert len({each.trial.seed for each in drawn}) == len(drawn)
    assert all(each.trial.name == cell.pipeline for each in drawn)


def test_a_text_that_is_not_there_once_is_refused() -> None:
    change = Change("errors.py", "a = 1\n", "a = 2\n")
    assert change.made_in("a = 1\nb = 1\n") == "a = 2\nb = 1\n"
    with pytest.raises(DoesNotApply, match="not there any more"):
        change.made_in("a = 3\n")
    with pytest.raises(DoesNotApply, match="2 times"):
        change.made_in("a = 1\na = 1\n")


def test_the_verifier_is_not_sabotaged() -> None:
    change = Change("verify/checker.py", "def check(", "def check_nothing(")
    mutant = Mutant(name="blind", sabotages="the judge", cells=(), changes=(change,))
    with pytest.raises(DoesNotApply, match="judges"):
        mutant.texts()
