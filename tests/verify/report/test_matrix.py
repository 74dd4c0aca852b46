"""The matrix says of each cell what was found in it, and its colours mean what they should."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.live import Live
from rich.text import Text

import outcomes
from outcomes import lost, outcome, repeated
from sparkonce.verify.outcome import Defect, Outcome, Verdict
from sparkonce.verify.report.grid import Cell, Grid, Standing, Tone, totals
from sparkonce.verify.report.matrix import Matrix, line


def _cell(*trials: Outcome) -> Cell:
    (cell,) = Grid(trials).cells.values()
    return cell


def _drawn(matrix: Matrix | Text, width: int = 140) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(matrix)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


KEPT = outcome()
ALLOWED = outcome(guarantee="at_least_once", findings=(repeated(1),))
BROKEN = outcome(verdict=Verdict.BROKEN, findings=(lost(3), repeated(1)))
SHOWN = outcome(control=True, verdict=Verdict.SHOWN, findings=(lost(5),))
WEAK = outcome(control=True, verdict=Verdict.WEAK)
UNHIT = outcome(fired=(False, False))
REFUSED = outcome(refused=True)
FAILED = outcome(verdict=Verdict.FAILED, findings=(lost(900),), error="broker 2 is gone")


@pytest.mark.parametrize(
    ("trials", "words", "below", "tone"),
    [
        ((KEPT,) * 12, "✓ 12", "", Tone.CLEAN),
        ((ALLOWED,) * 4, "repeated 4", "4 trials", Tone.EXPECTED),
        ((KEPT, KEPT, BROKEN), "✗ lost 3, repeated 1", "1 of 3 trials", Tone.BROKEN),
        ((FAILED, BROKEN), "✗ lost 3, repeated 1, failed 1", "1 of 2 trials", Tone.BROKEN),
        ((outcome(verdict=Verdict.BROKEN),), "✗ broken", "1 of 1 trial", Tone.BROKEN),
        ((SHOWN, WEAK), "lost 5", "2 trials", Tone.EXPECTED),
        ((WEAK, WEAK), "too weak", "2 trials", Tone.UNPROVEN),
        ((KEPT, FAILED), "✓ 1, failed 1", "2 trials", Tone.UNPROVEN),
        ((FAILED,), "failed 1", "1 trial", Tone.UNPROVEN),
        ((KEPT, KEPT, UNHIT), "✓ 2, 1 without any fault", "", Tone.CLEAN),
        ((UNHIT, UNHIT), "2 without any fault", "2 trials", Tone.UNPROVEN),
        ((REFUSED, KEPT), "✓ 1, refused 1", "", Tone.CLEAN),
        ((REFUSED,), "refused 1", "1 trial", Tone.EXPECTED),
    ],
)
def test_a_cell_says_what_was_found(
    trials: tuple[Outcome, ...], words: str, below: str, tone: Tone
) -> None:
    cell = _cell(*trials)
    assert (cell.words, cell.trial_words, cell.tone) == (words, below, tone)


def test_only_what_broke_the_promise_is_named_in_a_broken_cell() -> None:
    broken = outcome(guarantee="at_least_once", verdict=Verdict.BROKEN, findings=(lost(3),))
    assert _cell(ALLOWED, broken).words == "✗ lost 3"


def test_what_two_readers_saw_is_counted_once() -> None:
    found = (lost(3, "java"), lost(2, "confluent"), lost(2, "confluent"), repeated(0))
    assert totals(outcome(findings=found)) == {Defect.LOST: 4}


def test_rows_go_from_weak_to_strong_and_a_weakened_control_has_its_own() -> None:
    grid = Grid([KEPT, SHOWN, ALLOWED, outcome(guarantee="none")])
    promises = [row.promise for row in grid.rows]
    assert promises == ["none", "at_least_once", "exactly_once (control)", "exactly_once"]


@pytest.mark.parametrize(
    ("trials", "standing"),
    [
        ((), Standing.EMPTY),
        ((KEPT, SHOWN, ALLOWED), Standing.KEPT),
        ((KEPT, WEAK), Standing.WEAK),
        ((KEPT, outcome(guarantee="at_least_once")), Standing.WEAK),
        ((KEPT, FAILED), Standing.FAILED),
        ((UNHIT, SHOWN), Standing.UNSHOWN),
        ((outcome(fired=None),), Standing.UNSHOWN),
        ((REFUSED,), Standing.UNSHOWN),
        ((ALLOWED,), Standing.PARTLY),
        (
            (
                KEPT,
                outcome(guarantee="at_least_once", findings=(repeated(1),), fired=(False, False)),
            ),
            Standing.PARTLY,
        ),
        ((WEAK, FAILED, BROKEN), Standing.BROKEN),
    ],
)
def test_the_worst_outcome_decides(trials: tuple[Outcome, ...], standing: Standing) -> None:
    assert Grid(trials).standing is standing


def test_the_matrix_grows_with_the_outcomes() -> None:
    matrix = Matrix([KEPT])
    assert "✓ 1" in _drawn(matrix)
    matrix.add(KEPT)
    matrix.add(outcome(family="zombie", verdict=Verdict.BROKEN, findings=(lost(3),)))
    matrix.add(outcome(pipeline="[red]balances", guarantee="none", findings=(repeated(2),)))
    drawn = _drawn(matrix)
    for words in ("network", "zombie", "✓ 2", "✗ lost 3", "1 of 1 trial", "[red]balances"):
        assert words in drawn
    assert "lost not shown yet" in drawn
    assert drawn.count("payments") == 1
    assert matrix.standing is Standing.BROKEN


def test_colours_follow_the_tone() -> None:
    cells = {KEPT: "green", ALLOWED: "yellow", SHOWN: "yellow", BROKEN: "bold red", WEAK: "magenta"}
    for trial, style in cells.items():
        (column,) = [c for c in Matrix([trial]).__rich__().columns if c.header == Text("network")]
        (drawn,) = column.cells
        assert isinstance(drawn, Text)
        assert drawn.style == style


def test_it_lives_beside_others_on_a_terminal() -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    matrix = Matrix()
    with Live(matrix, console=console, auto_refresh=False) as live:
        matrix.add(ALLOWED)
        live.refresh()
    assert isinstance(console.file, io.StringIO)
    assert "repeated 1" in console.file.getvalue()


def test_the_legend_names_what_colours_mean() -> None:
    legend = _drawn(Matrix.legend())
    for words in ("✓ nothing found", "allowed or due", "proves nothing", "✗ promise broken"):
        assert words in legend


def test_a_line_tells_a_trial() -> None:
    assert line(outcomes.outcome(number=12, findings=(lost(1200),), verdict=Verdict.BROKEN)) == (
        "   12  payments  exactly_once  network  seed 8842  broken  lost 1,200  7.2 s"
    )
    assert "kept    nothing found  7.2 s" in line(KEPT)
    assert "nothing found; it refused to go on  7.2 s" in line(REFUSED)
    assert "nothing found; no fault came to pass  7.2 s" in line(UNHIT)


def test_a_line_stays_one_line() -> None:
    said = line(outcome(verdict=Verdict.FAILED, error="Traceback:\n  " + "deep " * 100))
    assert "failed  Traceback: deep deep" in said
    assert "\n" not in said
    assert len(said) < 250
