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
from itertools import chain, count, groupby, islice
from pathlib import Path
from typing import Final

from sparkonce.errors import ConfigError
from sparkonce.guarantees import Guarantee
from sparkonce.local import LocalKafka, LocalPostgres
from sparkonce.verify.clusters import CLUSTERS, FORGETFUL, UNVERIFIED, USUAL, VERSION_1, Cluster
from sparkonce.verify.contract import Pipeline
from sparkonce.verify.controls import bounces, controls
from sparkonce.verify.drawing import draw
from sparkonce.verify.families import (
    BROKERS,
    EXECUTOR,
    EXPIRY,
    LATE,
    MIXED,
    NETWORK,
    WORKER,
    families,
    trials_of,
)
from sparkonce.verify.outcome import Outcome, Verdict
from sparkonce.verify.promises import judge, missing
from sparkonce.verify.report.book import Book
from sparkonce.verify.round import Round
from sparkonce.verify.schedule import Pause, Schedule, parse, to_text
from sparkonce.verify.shrink import shrink
from sparkonce.verify.trial import Trial
from sparkonce.verify.workload import Workload

_TOGETHER: Final = 48
"""Trials in a round. They share a process: with Spark, its start takes longer than they do."""
_ON_A_CLUSTER: Final = 2 * _TOGETHER
"""Trials of the full preset that are drawn for one cluster before another may be started."""
_TURNS: Final = 1_000
_MORE_CHANCES: Final = 2
_SHRINK_BUDGET: Final = 12
_SPARK_SHARE: Final = 0.3
"""Of the trials of the full preset."""
_VERSION_1_SHARE: Final = 0.25
_EXECUTOR_SHARE: Final = 0.02
_BROKERS_LEFT_OUT: Final = 0.7
_CLUSTER: Final = "local-cluster[2,1,1024]"
_ON_VERSION_1: Final = (
    ("producer", NETWORK),
    ("producer", LATE),
    ("joined producers", LATE),
    ("stateless", LATE),
)
"""Of the quick preset; the full one has all of them there."""
_EXPIRING: Final = (("producer", EXPIRY), ("joined producers", EXPIRY), ("stateless", EXPIRY))


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
        self.check()
        self._began_s = time.monotonic()
        before_s = self._book.elapsed_s
        with (
            tempfile.TemporaryDirectory(prefix="sparkonce-verify-") as folder,
            self._database() as self._postgres,
        ):
            for cluster, rounds in self._plan():
                self._heard("starting Kafka")
                with cluster.start(self._wish.brokers) as kafka:
                    for trials in rounds:
                        for outcome in self._round(kafka, trials, Path(folder)):
                            self._book = self._book.add(outcome)
                            self._told(outcome)
                        elapsed_s = before_s + time.monotonic() - self._began_s
                        self._book = replace(self._book, elapsed_s=round(elapsed_s, 1))
                        self._saved(self._book)

    def check(self) -> None:
        """ConfigError where no trial has the words that were asked for."""
        asked = self._wish
        if asked.replay is not None or asked.bounces or not asked.only:
            return
        cells = list(self._possible())
        if any(asked.wants(*cell) for cell in cells):
            return
        every = [list(dict.fromkeys(words)) for words in zip(*cells, strict=True)]
        pipelines, guarantees, own = (", ".join(words) for words in every)
        raise ConfigError(
            f"no trial has all of these words: --only {' --only '.join(asked.only)}. Pipelines: "
            f"{pipelines}. Guarantees: {guarantees}. Families: {own}"
        )

    def _possible(self) -> Iterator[tuple[str, str, str]]:
        """Every cell that a run like this may have trials in."""
        asked = self._wish
        exactly = Guarantee.EXACTLY_ONCE
        for pipeline in asked.pipelines:
            for guarantee in pipeline.guarantees:
                own = families(pipeline, guarantee)
                if asked.minutes:
                    own += [MIXED] + [EXECUTOR] * (WORKER in own)
                for family in own:
                    yield pipeline.name, guarantee.value, family
                if asked.minutes and guarantee is exactly and pipeline.writes_kafka:
                    for cluster in (VERSION_1, UNVERIFIED):
                        for family in own:
                            yield f"{pipeline.name}, {cluster.name}", guarantee.value, family
        for cluster, cells in ((UNVERIFIED, _ON_VERSION_1), (FORGETFUL, _EXPIRING)):
            for name, family in cells:
                is_there = any(pipeline.name == name for pipeline in asked.pipelines)
                if is_there and (cluster is UNVERIFIED or asked.minutes):
                    yield f"{name}, {cluster.name}", exactly.value, family
        if asked.controls:
            for control in controls(asked.brokers):
                yield control.title, control.guarantee.value, control.family

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

    def _plan(self) -> Iterator[tuple[Cluster, Iterator[list[Trial]]]]:
        """A cluster, and the rounds on it; one after the other."""
        numbers = count(self._book.next_number)
        drawn = list(self._unseen(numbers) if self._wish.minutes else self._few(numbers))
        for cluster in CLUSTERS.values():
            own = [trial for trial in drawn if trial.cluster is cluster]
            if own:
                rounds = in_rounds(own)
                is_usual = cluster is USUAL
                yield cluster, chain(rounds, self._once_more(numbers)) if is_usual else rounds
        if self._wish.minutes:
            runs = None if self._wish.runs is None else max(0, self._wish.runs - len(drawn))
            endless = islice(self._full(numbers), runs)
            for cluster, trials in groupby(endless, lambda trial: trial.cluster):
                if self._is_late():
                    return
                yield cluster, self._in_time(in_rounds(trials))

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
        for trial in (*self._quick(numbers), *self._elsewhere(numbers, FORGETFUL, _EXPIRING)):
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
        cluster = CLUSTERS[outcome.cluster]
        known = [*controls(self._wish.brokers), bounces()]
        for pipeline in self._wish.pipelines:
            guarantee = Guarantee(outcome.guarantee)
            known.append(self._trial(0, pipeline, guarantee, outcome.family, cluster))
        alike = [trial for trial in known if trial.name == outcome.pipeline]
        if not alike:
            raise ConfigError(
                f"trial {number} was one of the pipeline {outcome.pipeline!r}, which is not among "
                "those given: name the same --pipeline as then, and leave out --only"
            )
        workload = outcome.workload
        return replace(
            alike[0],
            number=self._book.next_number,
            seed=outcome.seed,
            guarantee=Guarantee(outcome.guarantee),
            family=outcome.family,
            schedule=parse(outcome.schedule),
            workload=Workload.parse(workload) if workload else alike[0].workload,
        )

    def _quick(self, numbers: Iterator[int]) -> Iterator[Trial]:
        """Each cell, as often as its trials are too different for one; and the controls."""
        drawn: list[Trial] = []
        for pipeline in self._wish.pipelines:
            for guarantee in pipeline.guarantees:
                for family in families(pipeline, guarantee):
                    if self._wish.wants(pipeline.name, guarantee.value, family):
                        drawn += self._cell(numbers, pipeline, guarantee, family, USUAL)
        drawn += self._elsewhere(numbers, UNVERIFIED, _ON_VERSION_1)
        if self._wish.controls:
            drawn += self._controls(numbers)
        yield from islice(drawn, self._wish.runs)

    def _elsewhere(
        self, numbers: Iterator[int], cluster: Cluster, cells: Sequence[tuple[str, str]]
    ) -> list[Trial]:
        """Cells by pipeline and family, on a cluster of another kind."""
        by_name = {pipeline.name: pipeline for pipeline in self._wish.pipelines}
        return [
            trial
            for name, family in cells
            if name in by_name
            and self._wish.wants(f"{name}, {cluster.name}", Guarantee.EXACTLY_ONCE.value, family)
            for trial in self._cell(numbers, by_name[name], Guarantee.EXACTLY_ONCE, family, cluster)
        ]

    def _cell(
        self,
        numbers: Iterator[int],
        pipeline: Pipeline,
        guarantee: Guarantee,
        family: str,
        cluster: Cluster,
    ) -> list[Trial]:
        """Its trials go round among what there is to choose, from where the seed begins."""
        cell = f"{self._wish.seed}/{pipeline.name}/{guarantee.value}/{family}/{cluster.name}"
        first = random.Random(cell).randrange(_TURNS)
        return [
            self._trial(next(numbers), pipeline, guarantee, family, cluster, first + index)
            for index in range(trials_of(pipeline, guarantee, family))
        ]

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
            # In blocks, so that rounds are full, and clusters worth their start.
            use_spark = random.Random(f"{self._wish.seed}/{number // _TOGETHER}").random()
            block = random.Random(f"{self._wish.seed}/{number // _ON_A_CLUSTER}/cluster")
            is_old = block.random() < _VERSION_1_SHARE
            cluster = block.choice([VERSION_1, UNVERIFIED]) if is_old else USUAL
            of_kind = with_spark if use_spark < _SPARK_SHARE or not others else others
            pipeline = rng.choice(of_kind or others)
            is_exact = Guarantee.EXACTLY_ONCE in pipeline.guarantees
            if is_old and not (is_exact and pipeline.writes_kafka):
                continue  # only what writes in Kafka's transactions sees their version
            guarantee = (
                Guarantee.EXACTLY_ONCE
                if is_exact and (is_old or rng.random() < 0.85)
                else rng.choice(pipeline.guarantees)
            )
            own = families(pipeline, guarantee)
            family = MIXED if rng.random() < 0.5 else rng.choice(own)
            if family == BROKERS and rng.random() < _BROKERS_LEFT_OUT:
                family = MIXED
            if WORKER in own and rng.random() < _EXECUTOR_SHARE:
                family = EXECUTOR
            name = f"{pipeline.name}, {cluster.name}" if cluster.name else pipeline.name
            if self._wish.wants(name, guarantee.value, family):
                yield self._trial(number, pipeline, guarantee, family, cluster)

    def _trial(
        self,
        number: int,
        pipeline: Pipeline,
        guarantee: Guarantee,
        family: str,
        cluster: Cluster = USUAL,
        turn: int | None = None,
    ) -> Trial:
        seed = self._seed(number)
        brokers = cluster.brokers or self._wish.brokers
        plan = draw(seed, pipeline, guarantee, family, brokers=brokers, turn=turn)
        # Executors of their own can't be shared with trials that want theirs to live.
        has_executors = family == EXECUTOR
        return Trial(
            number=number,
            seed=seed,
            pipeline=pipeline,
            guarantee=guarantee,
            family=family,
            schedule=plan.schedule,
            workload=plan.workload,
            cluster=cluster,
            master=_CLUSTER if has_executors else "",
            shares=not has_executors,
        )

    def _seed(self, number: int) -> int:
        return random.Random(f"{self._wish.seed}/{number}").randrange(2**32)

    def _is_late(self) -> bool:
        return time.monotonic() >= self._began_s + (self._wish.minutes or 0) * 60

    def _in_time(self, rounds: Iterator[list[Trial]]) -> Iterator[list[Trial]]:
        for trials in rounds:
            if self._is_late():
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
