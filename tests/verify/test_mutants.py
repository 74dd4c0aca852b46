"""Every mutant still applies: measuring them takes long, and they must not rot meanwhile."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from mutants.__main__ import _measure
from mutants.catalog import MUTANTS
from mutants.cell import draw
from mutants.measure import measure, tree
from mutants.mutant import Cell, Change, DoesNotApply, Mutant, copy_source
from mutants.results import AS_IS, Result, Results, Row

SOURCE = Path(__file__).parents[2] / "src"
OWN = ("mutant", "tree")
"""What a process that measures is not told, and so does not tell."""
CELLS = sorted({cell for each in MUTANTS.values() for cell in each.cells}, key=str)


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=lambda each: each.name)
def test_it_applies_and_says_something_else(mutant: Mutant) -> None:
    for path, text in mutant.texts().items():
        before = ast.dump(ast.parse((SOURCE / path).read_text()))
        assert ast.dump(ast.parse(text, str(path))) != before
        compile(text, str(path), "exec")


def test_none_is_a_mere_mistake(tmp_path: Path) -> None:
    """A call that is not there, or has an argument too many, breaks no rule: it only raises."""
    shutil.copytree(SOURCE, tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    changed: list[str] = []
    for number, mutant in enumerate(MUTANTS.values()):
        for path, text in mutant.texts().items():
            # Beside the module itself, so that all are checked at once.
            beside = Path("src", path).with_name(f"{path.stem}_mutant_{number}.py")
            (tmp_path / beside).write_text(text)
            changed.append(str(beside))
    settings = SOURCE.parent / "pyproject.toml"
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", str(settings), *changed],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": "src"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_its_cell_is_in_a_preset(cell: Cell) -> None:
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


def test_a_copy_differs_from_the_product_in_what_is_sabotaged_alone(tmp_path: Path) -> None:
    mutant = next(iter(MUTANTS.values()))
    copied = copy_source(tmp_path, mutant)
    files = {path.relative_to(SOURCE) for path in SOURCE.rglob("*.py")}
    assert files == {path.relative_to(copied) for path in copied.rglob("*.py")}
    others = {each for each in files if (copied / each).read_text() != (SOURCE / each).read_text()}
    assert others == set(mutant.texts())


def test_a_mutant_that_is_changed_is_measured_again() -> None:
    mutant, other = list(MUTANTS.values())[:2]
    states = {tree(None), tree(mutant), tree(other)}
    assert len(states) == 3
    again = replace(mutant, changes=mutant.changes[:1])
    assert tree(mutant) in states and tree(again) not in states


def gone(name: str) -> Mutant:
    change = Change("errors.py", "no such text", "")
    return Mutant(name=name, sabotages="", cells=(CELLS[0],), changes=(change,))


def test_one_that_does_not_apply_does_not_end_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _measure([gone("first"), gone("second")], [1], Results.read(tmp_path / "kept"), again=True)
    said = capsys.readouterr().err
    assert "first: it does not apply" in said and "second: it does not apply" in said


def test_what_a_process_had_measured_is_kept_where_it_ended_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one that is over before its first line is whole, too."""
    line = json.dumps({k: v for k, v in asdict(result("kept", 1)).items() if k not in OWN})
    program = tmp_path / "python"
    program.write_text(
        f"#!{sys.executable}\n"
        "import json, sys\n"
        f"told = json.loads(sys.argv[-1])\n"
        f"open(told['results'], 'w').write({line!r} + '\\n{{\"half')\n"
        "print('no brokers')\n"
        "sys.exit(3)\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    measured = measure(None, [CELLS[0]], [1])
    assert [each.verdict for each in measured.results] == ["kept"]
    assert measured.why_early == "no brokers\n"


def result(verdict: str, seed: int, mutant: str = "m", tree: str = "now") -> Result:
    return Result(
        mutant=mutant,
        tree=tree,
        cell=CELLS[0],
        seed=seed,
        verdict=verdict,
        findings={"lost": 1} if verdict == "broken" else {},
        workload="",
        schedule=[],
        happened=[],
        duration_s=1.0,
        error="",
        at=0,
    )


def row(*trials: Result) -> Row:
    return Row(Mutant(name="m", sabotages="", cells=(CELLS[0],), changes=()), CELLS[0], [*trials])


def test_it_is_noticed_where_each_seed_has_a_trial_that_breaks() -> None:
    seen = row(result("kept", 1), result("broken", 1), result("weak", 2))
    assert seen.is_noticed and seen.first == 2 and seen.findings == "lost"
    assert not row(result("broken", 1), result("kept", 2)).is_noticed
    assert not row().is_noticed


def test_a_pipeline_that_only_fails_is_not_noticed() -> None:
    failed = row(result("failed", 1))
    assert (failed.is_noticed, failed.failed, failed.first) == (False, 1, None)


def test_results_are_kept_and_measured_anew_where_the_sources_were_changed(tmp_path: Path) -> None:
    path = tmp_path / "mutants.json"
    Results.read(path).put([result("kept", seed, AS_IS) for seed in (1, 2)])
    again = Results.read(path)
    assert again.has(AS_IS, CELLS[0], {1: 1, 2: 1}, "now")
    assert not again.has(AS_IS, CELLS[0], {1: 1, 2: 1, 3: 1}, "now")
    assert not again.has(AS_IS, CELLS[0], {1: 1, 2: 2}, "now"), "it ended before the second"
    assert not again.has(AS_IS, CELLS[0], {1: 1, 2: 1}, "later")
    again.put([result("broken", 1, AS_IS, "later")])
    assert [each.verdict for each in Results.read(path).all] == ["kept", "broken"]
