"""Which trials are run, in which rounds, and how long: the quick preset, and the full one.

A trial is drawn from the base seed and its number alone. So a later run goes on where the last one
stopped, and any trial can be run again.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import chain, count, islice
from pathlib import Path
from typing import Final

from sparkonce.errors import ConfigError
from sparkonce.guarantees import Guarantee
from sparkonce.local import LocalKafka, LocalPostgres
from sparkonce.verify.contract import Pipeline
from sparkonce.verify.controls import VERSION_1, bounces, controls
from sparkonce.verify.outcome import Outcome, Verdict
from sparkonce.verify.promises import judge, missing
from sparkonce.verify.report.book import Book
from sparkonce.verify.round import Round
from sparkonce.verify.schedule import (
    EXECUTOR,
    MIXED,
    Pause,
    Schedule,
    draw,
    families,
    parse,
    to_text,
)
from sparkonce.verify.shrink import shrink
from sparkonce.verify.trial import Trial

_TOGETHER: Final = 48
"""Trials in a round. They share a process: with Spark, its start takes longer than they do."""
_MORE_CHANCES: Final = 2
_SHRINK_BUDGET: Final = 12
_SPARK_SHARE: Final = 0.3
"""Of the trials of the full preset."""
_EXECUTOR_SHARE: Final = 0.02
_BROKERS_LEFT_OUT: Final = 0.7
_CLUSTER: Final = "local-cluster[2,1,1024]"
PROPERTIES: Final = {
    # Timed-out transactions are looked for every 10 s by default.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "log.retention.check.interval.ms": "60000",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What was asked for."""

    pipelines: tuple[Pipeline, ...]
    seed: int
    brokers: int = 3
    runs: int | None = None
    """This many trials at most, in this run."""
    minutes: float | None = None
    """The full preset, for about this long. None: the quick one, each cell once."""
    only: tuple[str, ...] = ()
    """Words that have to be in a trial's pipeline, guarantee or family; one a kind is enough."""
    controls: bool = True
    bounces: bool = False
    """Kafka's own method, in place of all else."""
    replay: int | None = None
    """A trial of the book, again and alone."""

    def wants(self, pipeline: str, guarantee: str, family: str) -> bool:
        told = (pipeline, guarantee, family)
        return all(any(word in each for each in told) for word in self.only)


class Campaign:
    """Runs rounds, adds outcomes to a book, and tells of each as it comes."""

    def __init__(
        self,
        wish: Wish,
        book: Book,
        *,
        told: Callable[[Outcome], None] = lambda outcome: None,
        heard: Callable[[str], None] = lambda text: None,
        saved: Callable[[Book], None] = lambda book: None,
    ) -> None:
        self._wish = wish
        self._book = book
        self._told = told
        self._heard = heard
        self._saved = saved
        self._began_s = time.monotonic()
        self._postgres: LocalPostgres | None = None

    def run(self) -> None:
        """To the end of what was asked for; what was done is in the book at every moment."""
        self._began_s = time.monotonic()
        before_s = self._book.elapsed_s
        with (
            tempfile.TemporaryDirectory(prefix="sparkonce-verify-") as folder,
            self._database() as self._postgres,
        ):
            for version, rounds in self._plan():
                self._heard("starting Kafka")
                brokers = self._wish.brokers if version == 2 else 1
                with LocalKafka(
                    brokers, transaction_version=version, properties=PROPERTIES
                ) as kafka:
                    for trials in rounds:
                        for outcome in self._round(kafka, trials, Path(folder)):
                            self._book = self._book.add(outcome)
                            self._told(outcome)
                        elapsed_s = before_s + time.monotonic() - self._began_s
                        self._book = replace(self._book, elapsed_s=round(elapsed_s, 1))
                        self._saved(self._book)

    def _database(self) -> AbstractContextManager[LocalPostgres | None]:
        wanted = any("postgres" in each.services for each in self._wish.pipelines)
        return LocalPostgres() if wanted else nullcontext()

    @property
    def book(self) -> Book:
        """All outcomes so far."""
        return self._book

    @property
    def planned(self) -> int | None:
        """How many trials it will be, unless controls are weak; None where time decides."""
        return None if self._wish.minutes else sum(1 for _ in self._few(count()))

    def _plan(self) -> Iterator[tuple[int, Iterator[list[Trial]]]]:
        """Transaction version, and the rounds on a cluster of that version."""
        numbers = count(self._book.next_number)
        drawn = list(self._unseen(numbers) if self._wish.minutes else self._few(numbers))
        for version in (2, 1):
            own = [trial for trial in drawn if (trial.family == VERSION_1) == (version == 1)]
            if own:
                rounds = in_rounds(own)
                yield version, chain(rounds, self._once_more(numbers)) if version == 2 else rounds
        if self._wish.minutes:
            runs = None if self._wish.runs is None else max(0, self._wish.runs - len(drawn))
            yield 2, self._in_time(in_rounds(islice(self._full(numbers), runs)))

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
            yield from in_rounds(
                self._trial(next(numbers), pipeline, guarantee, family)
                for pipeline in asked.pipelines
                for guarantee in pipeline.guarantees
                if (pipeline.name, guarantee) in weak
                for family in families(pipeline, guarantee)
                if asked.wants(pipeline.name, guarantee.value, family)
            )

    def _unseen(self, numbers: Iterator[int]) -> Iterator[Trial]:
        """What the full preset begins with: controls, and cells that the book has nothing of."""
        seen = {(each.pipeline, each.guarantee, each.family) for each in self._book.outcomes}
        for trial in self._quick(numbers):
            if (trial.name, trial.guarantee.value, trial.family) not in seen:
                yield trial

    def _few(self, numbers: Iterator[int]) -> Iterable[Trial]:
        """All presets but the one without end."""
        if self._wish.replay is not None:
            return [self._again(self._wish.replay)]
        if self._wish.bounces:
            number = next(numbers)
            return [replace(bounces(), number=number, seed=self._seed(number))]
        return self._quick(numbers)

    def _again(self, number: int) -> Trial:
        found = [each for each in self._book.outcomes if each.number == number]
        if not found:
            raise ConfigError(f"there is no trial {number} in the book: its page lists them all")
        outcome = found[0]
        known = [*self._quick(count()), bounces()]
        alike = [trial for trial in known if trial.name == outcome.pipeline]
        if not alike:
            raise ConfigError(
                f"trial {number} was one of the pipeline {outcome.pipeline!r}, which is not among "
                "those given: name the same --pipeline as then, and leave out --only"
            )
        return replace(
            alike[0],
            number=self._book.next_number,
            seed=outcome.seed,
            guarantee=Guarantee(outcome.guarantee),
            family=outcome.family,
            schedule=parse(outcome.schedule),
        )

    def _quick(self, numbers: Iterator[int]) -> Iterator[Trial]:
        """Each cell once, and the controls."""
        trials = (
            self._trial(next(numbers), pipeline, guarantee, family)
            for pipeline in self._wish.pipelines
            for guarantee in pipeline.guarantees
            for family in families(pipeline, guarantee)
            if self._wish.wants(pipeline.name, guarantee.value, family)
        )
        drawn: Iterable[Trial] = trials
        if self._wish.controls:
            drawn = (*trials, *self._controls(numbers))
        yield from islice(drawn, self._wish.runs)

    def _controls(self, numbers: Iterator[int]) -> Iterator[Trial]:
        for control in controls(self._wish.brokers):
            if self._wish.wants(control.title, control.guarantee.value, control.family):
                number = next(numbers)
                yield replace(control, number=number, seed=self._seed(number))

    def _full(self, numbers: Iterator[int]) -> Iterator[Trial]:
        """Without end. Who has no other way to be disturbed than by crashes gets more of these."""
        with_spark = [each for each in self._wish.pipelines if each.spark]
        others = [each for each in self._wish.pipelines if not each.spark]
        for number in numbers:
            rng = random.Random(f"{self._wish.seed}/{number}/cell")
            # In blocks, so that rounds are full.
            use_spark = random.Random(f"{self._wish.seed}/{number // _TOGETHER}").random()
            of_kind = with_spark if use_spark < _SPARK_SHARE or not others else others
            pipeline = rng.choice(of_kind or others)
            guarantee = (
                Guarantee.EXACTLY_ONCE
                if Guarantee.EXACTLY_ONCE in pipeline.guarantees and rng.random() < 0.85
                else rng.choice(pipeline.guarantees)
            )
            own = families(pipeline, guarantee)
            family = MIXED if rng.random() < 0.5 else rng.choice(own)
            if family == "brokers" and rng.random() < _BROKERS_LEFT_OUT:
                family = MIXED
            if "worker" in own and rng.random() < _EXECUTOR_SHARE:
                family = EXECUTOR
            if self._wish.wants(pipeline.name, guarantee.value, family):
                yield self._trial(number, pipeline, guarantee, family)

    def _trial(self, number: int, pipeline: Pipeline, guarantee: Guarantee, family: str) -> Trial:
        seed = self._seed(number)
        # Executors of their own can't be shared with trials that want theirs to live.
        on_cluster = family == EXECUTOR
        return Trial(
            number=number,
            seed=seed,
            pipeline=pipeline,
            guarantee=guarantee,
            family=family,
            schedule=draw(seed, pipeline, guarantee, family, brokers=self._wish.brokers),
            master=_CLUSTER if on_cluster else "",
            shares=not on_cluster,
        )

    def _seed(self, number: int) -> int:
        return random.Random(f"{self._wish.seed}/{number}").randrange(2**32)

    def _in_time(self, rounds: Iterator[list[Trial]]) -> Iterator[list[Trial]]:
        deadline_s = self._began_s + (self._wish.minutes or 0) * 60
        for trials in rounds:
            if time.monotonic() >= deadline_s:
                return
            yield trials

    def _round(self, kafka: LocalKafka, trials: Sequence[Trial], folder: Path) -> Iterator[Outcome]:
        by_number = {trial.number: trial for trial in trials}
        names = ", ".join(dict.fromkeys(trial.name for trial in trials))

        def heard(text: str) -> None:
            self._heard(f"{len(trials)} trials ({names}): {text}")

        for outcome in Round(kafka, trials, folder, postgres=self._postgres, heard=heard).run():
            if outcome.verdict is Verdict.BROKEN:
                trial = by_number[outcome.number]
                yield replace(outcome, shrunk=to_text(self._shrunk(kafka, trial, folder)))
            else:
                yield outcome

    def _shrunk(self, kafka: LocalKafka, trial: Trial, folder: Path) -> Schedule:
        """The shortest schedule that still breaks the promise, by running it alone."""

        def fails(schedule: Schedule) -> bool:
            self._heard(
                f"trial {trial.number} broke its promise: with {len(schedule)} of its faults"
            )
            alone = [replace(trial, schedule=schedule)]
            (outcome,) = Round(kafka, alone, folder, postgres=self._postgres).run()
            return judge(trial.guarantee, outcome.findings) is Verdict.BROKEN

        return shrink(trial.schedule, fails, _SHRINK_BUDGET)


def in_rounds(trials: Iterable[Trial]) -> Iterator[list[Trial]]:
    """Together goes what may share a process and ends its lives in the same way."""
    waiting: dict[tuple[bool, bool], list[Trial]] = {}
    for trial in trials:
        if not trial.pipeline.shares or not trial.shares:
            yield [trial]
            continue
        is_paused = any(isinstance(each, Pause) for each in trial.schedule)
        group = waiting.setdefault((trial.pipeline.spark, is_paused), [])
        group.append(trial)
        if len(group) == _TOGETHER:
            yield list(group)
            group.clear()
    for group in waiting.values():
        if group:
            yield group
