"""The course of a verification on the terminal: the matrix, what is happening, how far it is.

Where there is no terminal, one line for each trial.
"""

from __future__ import annotations

from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from sparkonce.verify.outcome import Outcome, Verdict
from sparkonce.verify.report.matrix import Matrix, line


class CourseView:
    def __init__(self, console: Console, matrix: Matrix) -> None:
        self._console = console
        self._matrix = matrix
        self._progress = Progress(
            SpinnerColumn(),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
            console=console,
        )
        self._task = self._progress.add_task("", total=None)
        self._live = (
            Live(Group(matrix, self._progress), console=console, refresh_per_second=4)
            if console.is_terminal
            else None
        )

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._progress.update(self._task, description="")
            self._live.stop()

    def expect(self, trials: int | None) -> None:
        self._progress.update(self._task, total=trials)

    def say(self, text: str) -> None:
        self._progress.update(self._task, description=text)

    def add(self, outcome: Outcome) -> None:
        self._matrix.add(outcome)
        self._progress.advance(self._task)
        task = self._progress.tasks[self._task]
        if task.total is not None and task.completed > task.total:
            self.expect(int(task.completed))  # controls that were weak have had another chance
        bad = outcome.verdict in (Verdict.BROKEN, Verdict.FAILED, Verdict.WEAK)
        if self._live is None or bad:
            self._console.print(line(outcome), markup=False, highlight=False, soft_wrap=True)
