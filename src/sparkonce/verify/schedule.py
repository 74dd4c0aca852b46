"""What goes wrong in a trial, element by element, drawn from a seed.

An element is frozen, and its repr is the code that makes it again: a schedule is kept as text in
the report and read back by `parse`. Elements beside the proxy's faults name a point of the
pipeline (`contract.POINTS`), which time it is reached, and in which life of the process.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from sparkonce.guarantees import Guarantee
from sparkonce.verify import network
from sparkonce.verify.contract import Pipeline
from sparkonce.verify.network import Fault, ShortRepr, draw_faults


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class At(ShortRepr):
    """Something that happens where a pipeline tells that it has come to a point."""

    point: str
    nth: int = 1
    """Which time the point is reached, counted from 1 in each life."""
    life: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Kill(At):
    """kill -9 of the driver; the next life follows."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class KillWorker(At):
    """kill -9 of the process that has come to the point: on executors, the Python worker."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PauseWorker(At):
    """The process that has come to the point is stopped for a while (SIGSTOP, SIGCONT)."""

    seconds: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class KillExecutor(At):
    """kill -9 of the JVM that this Python worker belongs to; with Spark in one process, of all."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Pause(At):
    """The driver is stopped there, its successor finishes the work, then it goes on: a zombie."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Outlast(At):
    """Held until the coordinator has timed the transaction out."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Broker(At):
    """Something happens to a broker while the pipeline waits at the point."""

    action: str = "kill"
    """kill: with -9, and started again; restart: cleanly; pause: until it is missed."""
    role: str = "leader"
    """leader, coordinator or controller."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Database(At):
    """Something happens to the database server while the pipeline waits at the point."""

    action: str = "kill"
    """kill: all of it with -9, and started again; restart: cleanly."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AtCommit(ShortRepr):
    """When a COMMIT of rows and progress has reached the server and its answer not the client."""

    nth: int = 1
    action: str = "cut"
    """cut: the connection; kill: the server, with -9, and it is started again."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LoseUnreplicated(At):
    """Followers are paused from the point on, the leader is killed at the batch's last record."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MoveLeaders(At):
    """Leaders of the output go from broker to broker while the pipeline goes on."""

    times: int = 4


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class KillSent(ShortRepr):
    """kill -9 when a request has reached the broker and the answer not yet the client."""

    api: str = "EndTxn"
    nth: int = 1
    life: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class KillAfter(ShortRepr):
    """kill -9 once so many records were written; for pipelines that tell no points."""

    records: int
    life: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Checkpoint(ShortRepr):
    """What happens to the pipeline's folder between two lives."""

    action: str
    """lose: all of it; forget_commit: Spark's last commit; copy: it goes on in a copy."""
    after_life: int = 0


Element = Fault | At | AtCommit | KillSent | KillAfter | Checkpoint
Schedule = tuple[Element, ...]

FAMILIES: Final = (
    "network", "crash", "worker", "brokers", "zombie", "timeout", "checkpoint", "database",
)  # fmt: skip
MIXED: Final = "mixed"
EXECUTOR: Final = "executor"
"""On a cluster with executors as processes of their own; in the full preset."""

_VOCABULARY = {
    each.__name__: each
    for each in (
        Kill, KillWorker, PauseWorker, KillExecutor, Pause, Outlast, Broker, LoseUnreplicated,
        MoveLeaders, KillSent, KillAfter, Checkpoint, Database, AtCommit,
    )
} | {name: getattr(network, name) for name in network.__all__}  # fmt: skip


def to_text(schedule: Iterable[Element]) -> tuple[str, ...]:
    return tuple(repr(each) for each in schedule)


def parse(lines: Iterable[str]) -> Schedule:
    """The way back; lines come from our own reports."""
    return tuple(eval(line, {"__builtins__": {}}, _VOCABULARY) for line in lines)


def lives(schedule: Iterable[Element]) -> int:
    """How many lives it takes: one more than the last that is ended on purpose."""
    ends = [each.life for each in schedule if isinstance(each, ENDS)]
    return max(ends, default=-1) + 2 if ends else 1


ENDS = (Kill, Pause, KillSent, KillAfter)
"""Elements that end a life."""

# Between data and progress: where a crash hurts under each guarantee.
_HURTS = {
    Guarantee.EXACTLY_ONCE: "offsets",
    Guarantee.AT_LEAST_ONCE: "produce:last",
    Guarantee.AT_MOST_ONCE: "offsets",
    Guarantee.NONE: "produce:last",
}
_SPARK_HURTS = _HURTS | {Guarantee.AT_LEAST_ONCE: "open", Guarantee.AT_MOST_ONCE: "end:answered"}


_OUTSIDE = frozenset({"fence", "end:answered", "spark-commit"})
"""Points between two transactions."""
_OPEN = frozenset({"produce:last", "offsets", "end"})
"""Points at which a transaction is open for sure."""
_ON_EXECUTORS = frozenset({"produce:first", "produce:last"})
_UNDONE = frozenset({"offsets", "end"})
"""Points at which the state of a batch is written and the batch not decided."""
_TWO_KILLS = 0.3
"""Of crashes of a pipeline with state. Another life takes its time."""

_WITHOUT_BROKERS = 0.85
"""Of mixed schedules. One broker is disturbed at a time, and takes ten seconds to come back."""

# What a transaction of version 2 consists of. Without InitProducerId: one that comes twice fences
# the very producer that sent it, which is safe, and the end of it.
_SENT = ("Produce", "Produce", "TxnOffsetCommit", "EndTxn")


def hurts(pipeline: Pipeline, guarantee: Guarantee) -> str:
    return (_SPARK_HURTS if pipeline.spark else _HURTS)[guarantee]


def families(pipeline: Pipeline, guarantee: Guarantee) -> list[str]:
    """The columns that a pipeline has trials in."""
    found = ["network", "crash"] if pipeline.writes_kafka else ["crash"]
    # The weaker guarantees are there as controls: these two families make them lose and repeat.
    if guarantee is Guarantee.EXACTLY_ONCE and pipeline.points:
        told = set(pipeline.points)
        if pipeline.writes_kafka:
            found.append("brokers")
        if "postgres" in pipeline.services:
            found.append("database")
        if told - _OUTSIDE - set(pipeline.holds):
            found.append("zombie")
        if told & _OPEN and pipeline.writes_kafka:
            found.append("timeout")
        if pipeline.spark and told & _ON_EXECUTORS:
            found.append("worker")
        if "spark-commit" in told:
            found.append("checkpoint")
    return [each for each in FAMILIES if each in found]


def draw(
    seed: int, pipeline: Pipeline, guarantee: Guarantee, family: str, *, brokers: int = 3
) -> Schedule:
    """A schedule of one family; `mixed` has elements of several."""
    rng = random.Random(f"{seed}/{pipeline.name}/{guarantee.value}/{family}")
    if family == MIXED:
        return _mixed(rng, pipeline, guarantee, brokers)
    return _draw(rng, pipeline, guarantee, family, brokers)


def _draw(
    rng: random.Random, pipeline: Pipeline, guarantee: Guarantee, family: str, brokers: int
) -> Schedule:
    if family == "network":
        return _network(rng, guarantee)
    if not pipeline.points:
        # Records that are in Kafka while their writer does not know it yet: where it hurts.
        is_control = guarantee is not Guarantee.EXACTLY_ONCE
        if pipeline.writes_kafka and (is_control or rng.random() < 0.7):
            return (KillSent(api="Produce", nth=rng.randint(1, 2)),)
        return (KillAfter(records=rng.randint(1, 60)),)
    times = 1 if pipeline.name == "batch" else rng.randint(1, 2)
    points = [each for each in pipeline.points if _is_told(each, pipeline, guarantee)]
    point = rng.choice(points)
    inside = [each for each in points if each not in _OUTSIDE]
    # State that an undone attempt left behind must not be what a later one begins from. It is in
    # the way only of one that finds state on disk: in another life, or in a second attempt.
    must_agree = pipeline.is_stateful and guarantee is Guarantee.EXACTLY_ONCE
    undone = [each for each in points if each in _UNDONE and must_agree]
    if family == "crash" and undone and rng.random() < _TWO_KILLS:
        last = point if point in inside else "end"
        return (Kill(point=rng.choice(undone)), Kill(point=last, nth=2, life=1))
    if family == "crash":
        if guarantee is not Guarantee.EXACTLY_ONCE:
            worst = hurts(pipeline, guarantee)
            point = worst if worst in points else point
        elif "end" in points and pipeline.writes_kafka and rng.random() < 0.15:
            return (KillSent(nth=times),)
        return (Kill(point=point, nth=1 if point == "fence" else times),)
    if family == "worker":
        places = [each for each in points if each in _ON_EXECUTORS]
        point = rng.choice(places)
        if rng.random() < 0.3:
            return (PauseWorker(point=point, nth=times, seconds=round(rng.random() * 4, 1)),)
        return (KillWorker(point=point, nth=times),)
    if family == EXECUTOR:
        # With executors of their own, tasks of the batch are run again by others.
        places = [each for each in points if each in _ON_EXECUTORS]
        return (KillExecutor(point=rng.choice(places), nth=times),)
    if family == "zombie":
        free = [each for each in inside if each not in pipeline.holds]
        return (Pause(point=rng.choice(free), nth=times),)
    if family == "database":
        if not pipeline.writes_kafka and rng.random() < 0.6:
            return (AtCommit(nth=times, action=rng.choice(["cut", "kill"])),)
        action = rng.choice(["kill", "kill", "restart"])
        return (Database(point=rng.choice(inside), nth=times, action=action),)
    if family == "timeout" and undone:
        # The first batch, and the one behind it: the second time is the first batch again.
        point = rng.choice(undone)
        return (Outlast(point=point), Outlast(point=point, nth=3))
    if family == "timeout":
        return (Outlast(point=rng.choice([each for each in inside if each in _OPEN]), nth=times),)
    if family == "checkpoint":
        # State that is lost can't be brought back; without it a query refuses to start.
        # Nor can the list of files that Spark keeps there.
        keeps = pipeline.is_stateful or pipeline.provide is not None
        actions = ["forget_commit", "copy"] if keeps else ["lose"]
        action = rng.choice([*actions, "forget_commit", "copy"])
        last = rng.choice([each for each in points if each != "fence"])
        return (Kill(point=last, nth=max(2, times)), Checkpoint(action=action))
    actions = ["kill", "restart", "pause"] if brokers > 1 else ["kill", "restart"]
    roles = ["leader", "coordinator", "controller"] if brokers > 1 else ["leader"]
    return (
        Broker(
            point=rng.choice([each for each in points if each != "spark-commit"]),
            nth=1,
            action=rng.choice(actions),
            role=rng.choice(roles),
        ),
    )


def _network(rng: random.Random, guarantee: Guarantee) -> Schedule:
    if guarantee is Guarantee.EXACTLY_ONCE:
        return draw_faults(rng.randrange(2**32), rng.randint(2, 5), apis=_SENT, within=6)
    if guarantee is Guarantee.AT_LEAST_ONCE:
        return draw_faults(rng.randrange(2**32), rng.randint(2, 4), apis=["Produce"], within=6)
    # The request that is lost where nobody sends it again.
    return (network.LoseRequest("Produce", nth=rng.randint(1, 2), every=2, times=2),)


def _mixed(rng: random.Random, pipeline: Pipeline, guarantee: Guarantee, brokers: int) -> Schedule:
    own = families(pipeline, guarantee)
    if rng.random() < _WITHOUT_BROKERS:
        own = [each for each in own if each != "brokers"]
    chosen: Sequence[str] = rng.sample(own, k=min(len(own), rng.randint(2, 3)))
    ends = [each for each in chosen if each in ("crash", "zombie", "checkpoint")]
    kept = [each for each in chosen if each not in ends[1:]]  # one way to end a life
    return tuple(
        element for each in kept for element in _draw(rng, pipeline, guarantee, each, brokers)
    )


def _is_told(point: str, pipeline: Pipeline, guarantee: Guarantee) -> bool:
    """Without a promise nothing is fenced, recorded or decided in step with the data."""
    if guarantee is Guarantee.EXACTLY_ONCE:
        return True
    if guarantee is Guarantee.NONE:
        return point in ("fence", "produce:first", "produce:last", "spark-commit")
    return pipeline.spark or point not in ("open", "end")
