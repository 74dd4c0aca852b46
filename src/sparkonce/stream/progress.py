"""How far a run that ends has come: for `availableNow` and for batch jobs, on stderr.

On a terminal one line is drawn over and over by a thread of rich's, four times a second; where
stderr is a file, lines go to the log instead. A batch itself only adds up a few numbers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from sparkonce.stream.report import BatchReport

logger = logging.getLogger(__name__)

_LOG_EVERY_S = 10.0


class ProgressListener:
    """Shows records, speed, batches and attempts while it is started.

    `total` is the number of records to come, where it is known. Without a terminal there is a log
    line every ten seconds at most, and one for the rest at the end.
    """

    def __init__(
        self, total: int | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total = total
        self._clock = clock
        self._lock = threading.Lock()
        self._totals = _Totals()
        self._logged_s = clock()
        self._is_told = True
        self._drawing: tuple[Progress, TaskID] | None = None

    def start(self) -> None:
        """Begin to draw, if stderr is a terminal."""
        console = Console(stderr=True)
        # Not rich's is_terminal, which colours forced by the environment make true for a file.
        if self._drawing is None and console.file.isatty() and not console.is_dumb_terminal:
            columns = self._columns(console.width)
            progress = Progress(*columns, console=console, refresh_per_second=4)
            task = progress.add_task(self._totals.describe(), total=self._total)
            progress.start()
            self._drawing = (progress, task)
        self._logged_s = self._clock()

    def stop(self) -> None:
        """Leave the last state standing; a second call does nothing."""
        with self._lock:
            if self._drawing is not None:
                self._drawing[0].stop()
                self._drawing = None
            elif not self._is_told:
                self._log()

    def on_batch(self, report: BatchReport) -> None:
        with self._lock:
            self._totals.add(report)
            if self._drawing is not None:
                progress, task = self._drawing
                line = self._totals.describe()
                progress.update(task, completed=self._totals.records, description=line)
            elif self._clock() - self._logged_s >= _LOG_EVERY_S:
                self._log()
            else:
                self._is_told = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _columns(self, width: int) -> list[ProgressColumn]:
        line = TextColumn("{task.description}", markup=False)
        if self._total is None:
            return [SpinnerColumn(), line, TimeElapsedColumn()]
        share: list[ProgressColumn] = [TextColumn("{task.percentage:>3.0f}%")]
        # The figures matter more than the bar: it is drawn where both have room.
        bar: list[ProgressColumn] = [BarColumn(bar_width=width - 90)] if width >= 100 else []
        return [*bar, *share, line, TimeRemainingColumn(compact=True)]

    def _log(self) -> None:
        self._logged_s, self._is_told = self._clock(), True
        share = f"{self._totals.records / self._total:.0%} done: " if self._total else ""
        logger.info("%s%s", share, self._totals.describe())


class _Totals:
    """The sum of the reports so far."""

    def __init__(self) -> None:
        self.records = 0
        self._size_bytes = 0
        self._batches = 0
        self._attempts = 0
        self._started_s = float("inf")
        self._ended_s = float("-inf")

    def add(self, report: BatchReport) -> None:
        self._attempts += report.attempts
        # From the first batch, not from `start`: Spark itself takes seconds to begin.
        self._started_s = min(self._started_s, report.started_s)
        self._ended_s = max(self._ended_s, report.ended_s)
        if report.is_written:
            self._batches += report.outcome == "committed"
            self.records += report.records
            self._size_bytes += report.size_bytes

    def describe(self) -> str:
        """Short enough for a terminal of 80 columns."""
        elapsed_s = self._ended_s - self._started_s
        per_s = 1 / elapsed_s if elapsed_s > 0 else 0.0
        return (
            f"{self.records:,} records, {self.records * per_s:,.0f}/s, "
            f"{self._size_bytes * per_s / 1e6:,.1f} MB/s, "
            f"{self._batches:,} batches, {self._attempts:,} attempts"
        )
