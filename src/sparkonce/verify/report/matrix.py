"""The matrix on the terminal: pipelines and guarantees against families of faults, as trials end.

The campaign adds outcomes; rich's thread draws it. Where there is no terminal, `line` says the
same of one trial.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

from rich.table import Table
from rich.text import Text

from sparkonce.verify.outcome import Outcome, Verdict
from sparkonce.verify.report.grid import Cell, Grid, Standing, Tone, found_words, promise_of

_STYLES: Mapping[Tone, str] = {
    Tone.CLEAN: "green",
    Tone.EXPECTED: "yellow",
    Tone.UNPROVEN: "magenta",
    Tone.BROKEN: "bold red",
}
_LEGEND: Mapping[Tone, str] = {
    Tone.CLEAN: "✓ nothing found",
    Tone.EXPECTED: "found, and allowed or due",
    Tone.UNPROVEN: "too weak, failed or without any fault: proves nothing",
    Tone.BROKEN: "✗ promise broken",
}
_ERROR_CHARS_MAX = 120


class Matrix:
    """A renderable for `rich.live.Live`, alone or grouped with a progress bar."""

    def __init__(self, outcomes: Iterable[Outcome] = ()) -> None:
        # rich draws from a thread of its own while outcomes are added.
        self._lock = threading.Lock()
        self._grid = Grid(outcomes)

    def add(self, outcome: Outcome) -> None:
        with self._lock:
            self._grid.add(outcome)

    @property
    def standing(self) -> Standing:
        with self._lock:
            return self._grid.standing

    def __rich__(self) -> Table:
        with self._lock:
            return self._table()

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
        table.add_column("pipeline")
        table.add_column("guarantee")
        families = self._grid.families
        for family in families:
            table.add_column(Text(family))
        not_shown = self._grid.not_shown
        pipeline = None
        for row in self._grid.rows:
            cells = [_drawn(self._grid.cells.get((row, family))) for family in families]
            # Said once, so that the rows of a pipeline read as a group.
            name = "" if row.pipeline == pipeline else row.pipeline
            pipeline = row.pipeline
            promise = Text(row.promise)
            if row in not_shown:
                promise.append(f"\n{not_shown[row]} not shown yet", style=_STYLES[Tone.UNPROVEN])
            table.add_row(Text(name), promise, *cells)
        return table

    @staticmethod
    def legend() -> Text:
        """What the colours mean, in one line."""
        parts = [Text(words, style=_STYLES[tone]) for tone, words in _LEGEND.items()]
        return Text("   ").join(parts)


def line(outcome: Outcome) -> str:
    """One finished trial, for a log."""
    said = f"{outcome.verdict.value:<6}  {_found(outcome)}"
    return (
        f"{outcome.number:>5}  {_flat(outcome.pipeline)}  {_flat(promise_of(outcome))}  "
        f"{_flat(outcome.family)}  seed {outcome.seed}  {said}  {outcome.duration_s:.1f} s"
    )


def _drawn(cell: Cell | None) -> Text:
    if cell is None:
        return Text("·", style="dim")
    drawn = Text(cell.words, style=_STYLES[cell.tone])
    if cell.trial_words:
        drawn.append(f"\n{cell.trial_words}", style="dim not bold")
    return drawn


def _found(outcome: Outcome) -> str:
    found = found_words(outcome)
    if outcome.verdict is Verdict.FAILED:
        return "; ".join(filter(None, (_flat(outcome.error), found))) or "nobody said why"
    notes = [found or "nothing found"]
    if outcome.refused:
        notes.append("it refused to go on")
    if outcome.is_without_fault:
        notes.append("no fault came to pass")
    return "; ".join(notes)


def _flat(text: str) -> str:
    """On one line, and not too long: errors bring whole stack traces."""
    flat = " ".join(text.split())
    return flat if len(flat) <= _ERROR_CHARS_MAX else f"{flat[: _ERROR_CHARS_MAX - 1]}…"
