"""Which trials are run: the quick preset, the full one, and one of the book again.

A trial is drawn from the base seed and its number alone. So a later run goes on where the last one
stopped, and any trial can be run again.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sparkonce.errors import ConfigError
from sparkonce.guarantees import Guarantee
from sparkonce.verify.clusters import (
    CLUSTERS,
    FORGETFUL,
    LAST_EPOCHS,
    LAST_EPOCHS_1,
    UNVERIFIED,
    USUAL,
    VERSION_1,
    Cluster,
)
from sparkonce.verify.contract import Pipeline
from sparkonce.verify.controls import bounces, controls
from sparkonce.verify.drawing import draw
from sparkonce.verify.families import (
    BROKERS,
    EPOCHS,
    EXECUTOR,
    EXPIRY,
    LATE,
    MIXED,
    NETWORK,
    PARTITIONS,
    RETRY,
    WORKER,
    families,
    trials_of,
)
from sparkonce.verify.outcome import Outcome, Verdict
from sparkonce.verify.schedule import parse
from sparkonce.verify.trial import Trial
from sparkonce.verify.workload import Workload

_OF_A_KIND: Final = 48
"""Trials of the full preset that are drawn for Spark, or without it, before that may change."""
_ON_A_CLUSTER: Final = 2 * _OF_A_KIND
"""As many for one cluster before another may be started."""
_TURNS: Final = 1_000
_SPARK_SHARE: Final = 0.3
"""Of the trials of the full preset."""
_VERSION_1_SHARE: Final = 0.25
_EXACT_SHARE: Final = 0.85
_EXECUTOR_SHARE: Final = 0.02
_BROKERS_LEFT_OUT: Final = 0.7
_MASTERS: Final = {
    EXECUTOR: "local-cluster[2,1,1024]",
    RETRY: "local[1,4]",
    PARTITIONS: "local[2]",
}
"""Where Spark runs for these: with executors of their own; one task at a time, that is run again
where it failed; two tasks at a time, in Python workers that no other pipeline has written in. None
of them shares it with trials of another kind."""
_EXACTLY: Final = Guarantee.EXACTLY_ONCE
_ON_VERSION_1: Final[Sequence[tuple[str, str]]] = (
    ("producer", NETWORK),
    ("producer", LATE),
    ("joined producers", LATE),
    ("stateless", LATE),
)
"""Of the quick preset; the full one has all of them there."""
_OF_THE_FULL: Final[Sequence[tuple[Cluster, Sequence[tuple[str, str]]]]] = (
    (USUAL, [("shuffled", EXECUTOR)]),
    *(
        (cluster, [(name, family) for name in ("producer", "joined producers", "stateless")])
        for cluster, family in ((FORGETFUL, EXPIRY), (LAST_EPOCHS, EPOCHS), (LAST_EPOCHS_1, EPOCHS))
    ),
)
"""What the full preset has first, beside what the quick one has."""

Seen = Counter[tuple[str, str, str]]
"""Trials that the book has of a cell: a pipeline's name, a guarantee, a family."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What was asked for."""

    pipelines: tuple[Pipeline, ...]
    seed: int
    brokers: int = 3
    runs: int | None = None
    """This many trials at most, in this run."""
    minutes: float | None = None
    """The full preset, for about this long. None: the quick one."""
    only: tuple[str, ...] = ()
    """Words that have to be in a trial's pipeline, guarantee or family, in capitals or not."""
    controls: bool = True
    bounces: bool = False
    """Kafka's own method, in place of all else."""
    replay: int | None = None
    """A trial of the book, again and alone."""

    def wants(self, pipeline: str, guarantee: str, family: str) -> bool:
        told = [each.lower() for each in (pipeline, guarantee, family)]
        return all(any(word.lower() in each for each in told) for word in self.only)


class Presets:
    """Draws the trials that were asked for, in their order; knows nothing of running them."""

    def __init__(self, wish: Wish) -> None:
        self._wish = wish

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
        elsewhere = [(UNVERIFIED, _ON_VERSION_1)]
        if asked.minutes:
            yield from self._by_chance()
            elsewhere += _OF_THE_FULL
        for pipeline in asked.pipelines:
            for guarantee in pipeline.guarantees:
                for family in families(pipeline, guarantee):
                    yield pipeline.name, guarantee.value, family
        for cluster, cells in elsewhere:
            for name, family in cells:
                if any(pipeline.name == name for pipeline in asked.pipelines):
                    yield _in(cluster, name), _EXACTLY.value, family
        if asked.controls:
            for control in controls(asked.brokers):
                yield control.title, control.guarantee.value, control.family

    def _by_chance(self) -> Iterator[tuple[str, str, str]]:
        """The cells that `full` draws from."""
        for pipeline in self._wish.pipelines:
            for guarantee in pipeline.guarantees:
                own = families(pipeline, guarantee)
                if not own:
                    continue
                for family in [*own, MIXED, *([EXECUTOR] if WORKER in own else [])]:
                    yield pipeline.name, guarantee.value, family
                    if guarantee is _EXACTLY and pipeline.writes_kafka:
                        for cluster in (VERSION_1, UNVERIFIED):
                            yield f"{pipeline.name}, {cluster.name}", guarantee.value, family

    def first(self, numbers: Iterator[int], outcomes: Sequence[Outcome]) -> list[Trial]:
        """What a run begins with, given what the book has: all of it, unless time decides."""
        if self._wish.replay is not None:
            return [self._again(self._wish.replay, next(numbers), outcomes)]
        if self._wish.bounces:
            number = next(numbers)
            return [replace(bounces(), number=number, seed=self._seed(number))]
        if not self._wish.minutes:
            return self._quick(numbers, Counter())[: self._wish.runs]
        # What the book lacks of each cell; then chance decides. A trial that failed says nothing.
        seen = Counter(
            (each.pipeline, each.guarantee, each.family)
            for each in outcomes
            if each.verdict is not Verdict.FAILED
        )
        drawn = self._quick(numbers, seen)
        for cluster, cells in _OF_THE_FULL:
            drawn += self._elsewhere(numbers, cluster, cells, seen)
        return drawn[: self._wish.runs]

    def of_weaker(
        self, numbers: Iterator[int], weak: Collection[tuple[str, Guarantee]]
    ) -> Iterator[Trial]:
        """Another trial of each cell of these pipelines and guarantees."""
        for pipeline in self._wish.pipelines:
            for guarantee in pipeline.guarantees:
                for family in families(pipeline, guarantee):
                    is_weak = (pipeline.name, guarantee) in weak
                    if is_weak and self._wish.wants(pipeline.name, guarantee.value, family):
                        yield self._trial(next(numbers), pipeline, guarantee, family)

    def _again(self, number: int, as_number: int, outcomes: Sequence[Outcome]) -> Trial:
        found = [each for each in outcomes if each.number == number]
        if not found:
            raise ConfigError(f"there is no trial {number} in the book: its page lists them all")
        outcome = found[0]
        cluster = CLUSTERS[outcome.cluster]
        known = [*controls(self._wish.brokers), bounces()]
        for pipeline in self._wish.pipelines:
            guarantee = Guarantee(outcome.guarantee)
            drawn = self._trial(0, pipeline, guarantee, outcome.family, cluster)
            known.append(replace(drawn, workload=Workload()))  # as it was before books told it
        alike = [trial for trial in known if trial.name == outcome.pipeline]
        if not alike:
            raise ConfigError(
                f"trial {number} was one of the pipeline {outcome.pipeline!r}, which is not among "
                "those given: name the same --pipeline as then, and leave out --only"
            )
        workload = outcome.workload
        return replace(
            alike[0],
            number=as_number,
            seed=outcome.seed,
            guarantee=Guarantee(outcome.guarantee),
            family=outcome.family,
            schedule=parse(outcome.schedule),
            workload=Workload.parse(workload) if workload else alike[0].workload,
        )

    def _quick(self, numbers: Iterator[int], seen: Seen) -> list[Trial]:
        """Each cell, as often as its trials are too different for one; and the controls."""
        drawn: list[Trial] = []
        for pipeline in self._wish.pipelines:
            for guarantee in pipeline.guarantees:
                for family in families(pipeline, guarantee):
                    if self._wish.wants(pipeline.name, guarantee.value, family):
                        drawn += self._cell(numbers, pipeline, guarantee, family, USUAL, seen)
        drawn += self._elsewhere(numbers, UNVERIFIED, _ON_VERSION_1, seen)
        if self._wish.controls:
            drawn += self._controls(numbers, seen)
        return drawn

    def _elsewhere(
        self,
        numbers: Iterator[int],
        cluster: Cluster,
        cells: Sequence[tuple[str, str]],
        seen: Seen,
    ) -> list[Trial]:
        """Cells by pipeline and family, on a cluster of another kind."""
        by_name = {pipeline.name: pipeline for pipeline in self._wish.pipelines}
        return [
            trial
            for name, family in cells
            if name in by_name and self._wish.wants(_in(cluster, name), _EXACTLY.value, family)
            for trial in self._cell(numbers, by_name[name], _EXACTLY, family, cluster, seen)
        ]

    def _cell(
        self,
        numbers: Iterator[int],
        pipeline: Pipeline,
        guarantee: Guarantee,
        family: str,
        cluster: Cluster,
        seen: Seen,
    ) -> list[Trial]:
        """Its trials go round among what there is to choose, from where the seed begins."""
        cell = f"{self._wish.seed}/{pipeline.name}/{guarantee.value}/{family}/{cluster.name}"
        first = random.Random(cell).randrange(_TURNS)
        return [
            self._trial(next(numbers), pipeline, guarantee, family, cluster, first + index)
            for index in range(
                seen[_name(pipeline, cluster), guarantee.value, family],
                trials_of(pipeline, guarantee, family),
            )
        ]

    def _controls(self, numbers: Iterator[int], seen: Seen) -> Iterator[Trial]:
        for control in controls(self._wish.brokers):
            cell = (control.title, control.guarantee.value, control.family)
            if self._wish.wants(*cell) and not seen[cell]:
                number = next(numbers)
                yield replace(control, number=number, seed=self._seed(number))

    def full(self, numbers: Iterator[int]) -> Iterator[Trial]:
        """Without end, unless nothing that is drawn here was asked for."""
        if not any(self._wish.wants(*cell) for cell in self._by_chance()):
            return
        drawn = [
            each for each in self._wish.pipelines if any(families(each, g) for g in each.guarantees)
        ]
        with_spark = [each for each in drawn if each.spark]
        others = [each for each in drawn if not each.spark]
        for number in numbers:
            rng = random.Random(f"{self._wish.seed}/{number}/cell")
            # In blocks, so that rounds are full, and clusters worth their start.
            use_spark = random.Random(f"{self._wish.seed}/{number // _OF_A_KIND}").random()
            block = random.Random(f"{self._wish.seed}/{number // _ON_A_CLUSTER}/cluster")
            is_old = block.random() < _VERSION_1_SHARE
            cluster = block.choice([VERSION_1, UNVERIFIED]) if is_old else USUAL
            of_kind = with_spark if use_spark < _SPARK_SHARE or not others else others
            pipeline = rng.choice(of_kind or others)
            is_exact = _EXACTLY in pipeline.guarantees
            if is_old and not (is_exact and pipeline.writes_kafka):
                continue  # only what writes in Kafka's transactions sees their version
            guarantee = (
                _EXACTLY
                if is_exact and (is_old or rng.random() < _EXACT_SHARE)
                else rng.choice(pipeline.guarantees)
            )
            own = families(pipeline, guarantee)
            family = MIXED if rng.random() < 0.5 else rng.choice(own)
            if family == BROKERS and rng.random() < _BROKERS_LEFT_OUT:
                family = MIXED
            if WORKER in own and rng.random() < _EXECUTOR_SHARE:
                family = EXECUTOR
            if self._wish.wants(_name(pipeline, cluster), guarantee.value, family):
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
        return Trial(
            number=number,
            seed=seed,
            pipeline=pipeline,
            guarantee=guarantee,
            family=family,
            schedule=plan.schedule,
            workload=plan.workload,
            cluster=cluster,
            master=_MASTERS.get(family, ""),
            shares=family not in _MASTERS,
        )

    def _seed(self, number: int) -> int:
        return random.Random(f"{self._wish.seed}/{number}").randrange(2**32)


def _name(pipeline: Pipeline, cluster: Cluster) -> str:
    return _in(cluster, pipeline.name)


def _in(cluster: Cluster, name: str) -> str:
    """A pipeline's name as reports have it."""
    return f"{name}, {cluster.name}" if cluster.name else name
