"""Runs trials: in rounds, on one cluster after the other, until all are done or time is over.

`presets` says which trials these are. Outcomes go into the book, and the book to the disk, as soon
as their round is over: the next run goes on where this one was stopped, and first with what was
drawn and had not come to its turn.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import chain, count, groupby, islice
from pathlib import Path
from typing import Final

from sparkonce.local import LocalKafka, LocalPostgres
from sparkonce.verify.clusters import CLUSTERS, FOR_MANY, USUAL, Cluster
from sparkonce.verify.outcome import Outcome, Verdict
from sparkonce.verify.presets import Presets, Wish
from sparkonce.verify.promises import missing
from sparkonce.verify.report.book import Book
from sparkonce.verify.round import Round
from sparkonce.verify.schedule import Pause, Schedule, to_text
from sparkonce.verify.shrink import shrink
from sparkonce.verify.trial import Trial

_TOGETHER: Final = 48
"""Trials in a round. They share a process: with Spark, its start takes longer than they do."""
_WAITS_MAX: Final = 4 * _TOGETHER
"""Trials that are drawn while one waits for others of its kind."""
_MORE_CHANCES: Final = 2
_SHRINK_BUDGET: Final = 12


class Campaign:
    """Runs rounds, adds outcomes to a book, and tells of each as it comes."""

    def __init__(
        self,
        wish: Wish,
        book: Book,
        *,
        build: int = 0,
        told: Callable[[Outcome], None] = lambda outcome: None,
        heard: Callable[[str], None] = lambda text: None,
        saved: Callable[[Book], None] = lambda book: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wish = wish
        self._presets = Presets(wish)
        self._book = book
        self._before_s = book.elapsed_s
        self._build = build
        self._told = told
        self._heard = heard
        self._saved = saved
        self._clock = clock
        self._began_s = clock()
        self._postgres: LocalPostgres | None = None

    def run(self) -> None:
        """To the end of what was asked for. However it ends, the book is saved."""
        self._presets.check()
        self._began_s = self._clock()
        try:
            with (
                tempfile.TemporaryDirectory(prefix="sparkonce-verify-") as folder,
                self._database() as self._postgres,
            ):
                for cluster, rounds in self._plan():
                    self._heard("starting Kafka")
                    with cluster.start(self._wish.brokers) as kafka:
                        for trials in rounds:
                            self._round(kafka, trials, Path(folder))
        finally:
            if self._book.outcomes:
                self._save()

    def _save(self) -> None:
        elapsed_s = self._before_s + self._clock() - self._began_s
        self._book = replace(self._book, elapsed_s=round(elapsed_s, 1))
        self._saved(self._book)

    def _database(self) -> AbstractContextManager[LocalPostgres | None]:
        wanted = any("postgres" in each.services for each in self._wish.pipelines)
        return LocalPostgres(settings=FOR_MANY) if wanted else nullcontext()

    @property
    def book(self) -> Book:
        """All outcomes so far."""
        return self._book

    @property
    def planned(self) -> int | None:
        """How many trials it will be, unless controls are weak; None where time decides."""
        if self._wish.minutes:
            return None
        return len(self._presets.first(count(self._book.next_number), self._book.outcomes))

    def _plan(self) -> Iterator[tuple[Cluster, Iterator[list[Trial]]]]:
        """A cluster, and the rounds on it; one after the other."""
        numbers = count(self._book.next_number)
        drawn = self._presets.first(numbers, self._book.outcomes)
        for cluster in CLUSTERS.values():
            own = [trial for trial in drawn if trial.cluster is cluster]
            if own:
                rounds = in_rounds(own)
                is_usual = cluster is USUAL
                yield cluster, chain(rounds, self._once_more(numbers)) if is_usual else rounds
        if self._wish.minutes:
            runs = None if self._wish.runs is None else max(0, self._wish.runs - len(drawn))
            # What a former run had drawn and not run comes first, else it would never come.
            endless = self._presets.full(chain(self._book.gaps, numbers))
            for cluster, trials in groupby(islice(endless, runs), lambda trial: trial.cluster):
                yield cluster, self._in_time(in_rounds(trials))
                # Here, before the next cluster is looked for: it may be the only one there is.
                if self._is_late():
                    return

    def _once_more(self, numbers: Iterator[int]) -> Iterator[list[Trial]]:
        """Further trials of weaker guarantees, where those so far have not shown what they must.

        Nobody waits for an answer under `none`: if a broker is lost just then, so are the records,
        and the crash that was to repeat them repeats nothing.
        """
        asked = self._wish
        if asked.runs is not None or asked.replay is not None or asked.bounces:
            return
        for _ in range(_MORE_CHANCES):
            weak = {(each.pipeline, each.guarantee) for each in missing(self._book.outcomes)}
            yield from in_rounds(self._presets.of_weaker(numbers, weak))

    def _is_late(self) -> bool:
        return self._clock() >= self._began_s + (self._wish.minutes or 0) * 60

    def _in_time(self, rounds: Iterator[list[Trial]]) -> Iterator[list[Trial]]:
        for trials in rounds:
            if self._is_late():
                return
            yield trials

    def _round(self, kafka: LocalKafka, trials: Sequence[Trial], folder: Path) -> None:
        names = ", ".join(dict.fromkeys(trial.name for trial in trials))

        def heard(text: str) -> None:
            self._heard(f"{len(trials)} trials ({names}): {text}")

        round_ = Round(kafka, trials, folder, postgres=self._postgres, heard=heard)
        outcomes = [replace(outcome, build=self._build) for outcome in round_.run()]
        for outcome in outcomes:
            self._book = self._book.add(outcome)
        self._save()
        for outcome in outcomes:
            self._told(outcome)
        # Behind all else: it takes minutes, and who stops it must not lose what it is about.
        by_number = {trial.number: trial for trial in trials}
        for outcome in outcomes:
            if outcome.verdict is Verdict.BROKEN:
                self._shrink(kafka, by_number[outcome.number], outcome, folder)

    def _shrink(self, kafka: LocalKafka, trial: Trial, outcome: Outcome, folder: Path) -> None:
        """Look for the shortest schedule that still breaks the promise, by running it alone; the
        shortest so far is in the book at every moment."""

        def keep(schedule: Schedule) -> None:
            self._book = self._book.put(replace(outcome, shrunk=to_text(schedule)))
            self._save()

        def fails(schedule: Schedule) -> bool:
            self._heard(
                f"trial {trial.number} broke its promise: with {len(schedule)} of its faults"
            )
            alone = [replace(trial, schedule=schedule)]
            (again,) = Round(kafka, alone, folder, postgres=self._postgres).run()
            is_broken = again.verdict is Verdict.BROKEN
            if is_broken:
                keep(schedule)
            return is_broken

        keep(shrink(trial.schedule, fails, _SHRINK_BUDGET))


_Kind = tuple[bool, bool, bool, frozenset[int]]


def _kind(trial: Trial) -> _Kind:
    """Of a process: with Spark or without, stopped or killed, and when state is maintained."""
    is_paused = any(isinstance(each, Pause) for each in trial.schedule)
    is_maintained = trial.workload.maintained
    return trial.pipeline.spark, is_paused, is_maintained, trial.awaits_snapshot


def in_rounds(trials: Iterable[Trial]) -> Iterator[list[Trial]]:
    """Together goes what may share a process and ends its lives in the same way.

    What is rare does not wait for ever until a round is full.
    """
    waiting: dict[_Kind, list[Trial]] = {}
    since: dict[_Kind, int] = {}
    for drawn, trial in enumerate(trials):
        if not trial.pipeline.shares or not trial.shares:
            yield [trial]
            continue
        kind = _kind(trial)
        waiting.setdefault(kind, []).append(trial)
        since.setdefault(kind, drawn)
        for each in list(waiting):
            if len(waiting[each]) == _TOGETHER or drawn - since[each] >= _WAITS_MAX:
                del since[each]
                yield waiting.pop(each)
    yield from waiting.values()
