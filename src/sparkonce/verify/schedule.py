"""What goes wrong in a trial, element by element.

An element is frozen, and its repr is the code that makes it again: a schedule is kept as text in
the book and read back by `parse`; `drawing` draws them from a seed. Elements beside the proxy's
faults name a point of the pipeline (`contract.POINTS`), which time it is reached, and in which life
of the process.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from sparkonce.verify import network
from sparkonce.verify.network import Fault, ShortRepr


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
class KillIdleWorkers(At):
    """kill -9 of the Python workers that have written in this life, but for the last of them; at a
    point where none of them has a task. The next tasks are in that one and in new ones."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AwaitAnother(At):
    """Held until another one has come to the point: two tasks are then in two Python workers."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PauseWorker(At):
    """The process that has come to the point is stopped for a while (SIGSTOP, SIGCONT)."""

    seconds: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class KillExecutor(At):
    """kill -9 of the JVM that this Python worker belongs to; with Spark in one process, of all."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class KillOtherExecutor(At):
    """kill -9 of the JVM of another executor: what that one has computed is computed again, and
    what the one at the point has computed stays."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Pause(At):
    """The driver is stopped there, its successor finishes the work, then it goes on: a zombie."""

    until_expired: bool = False
    """It goes on only when the cluster has forgotten its transactional id."""
    until_snapshot: bool = False
    """It goes on only when Spark's maintenance, which it wakes with, has written a snapshot of the
    last batch: of what it remembers."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Arm(At):
    """From this point on a fault of the network is in force: it hits what comes behind it."""

    fault: Fault


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AwaitSnapshot(At):
    """Held until Spark's maintenance has written a snapshot of the state of the open batch."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Outlast(At):
    """Held until the coordinator has timed the transaction out."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AddPartitions(At):
    """The topics of the output get more partitions while the pipeline waits at the point."""

    to: int = 7
    """So many in all. With 7 every key of a trial is at home in another one than with 2."""


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
    """kill: all of it with -9, and started again; restart: cleanly; dump: `pg_dump` locks all
    tables, and dumps are made one after the other, until the end of this life; hold_log: what no
    commit waits for is not on disk when the server is killed later."""


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
    """lose: all of it; forget_commit: Spark's last commit; copy: it goes on in a copy; age: it is
    as it was before its last batch; former: the one that was lost is there again."""
    after_life: int = 0

    @property
    def must_be_refused(self) -> bool:
        """Whether nobody can go on with what is there then."""
        return self.action in ("age", "former")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LoseLedger(ShortRepr):
    """The pipeline's group is deleted between two lives, as if its offsets had expired."""

    after_life: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MoreInput(ShortRepr):
    """When all have come to their end, zombies too, more is written, and a new life works it off.

    Only a new life reads from disk what the others left there.
    """

    records: int = 20


Element = Fault | At | AtCommit | KillSent | KillAfter | Checkpoint | LoseLedger | MoreInput
Schedule = tuple[Element, ...]

_OUTLASTED_MS: Final = 5_000
_BLOCKED_MS: Final = 3_000
_DELIVERED_MS: Final = 2_000
_ASKED_MS: Final = 1_500

_VOCABULARY = {
    each.__name__: each
    for each in (
        AddPartitions, Arm, AtCommit, AwaitAnother, AwaitSnapshot, Broker, Checkpoint, Database,
        Kill, KillAfter, KillExecutor, KillIdleWorkers, KillOtherExecutor, KillSent, KillWorker,
        LoseLedger, LoseUnreplicated, MoreInput, MoveLeaders, Outlast, Pause, PauseWorker,
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


def faults_of(schedule: Iterable[Element]) -> list[Fault]:
    """Of the network: those that are in force from the start, and those that come into it."""
    return [
        each.fault if isinstance(each, Arm) else each
        for each in schedule
        if isinstance(each, Fault | Arm)
    ]


def settings_for(schedule: Sequence[Element]) -> dict[str, str]:
    """Of the Kafka client: patience that is over before these faults are."""
    found: dict[str, str] = {}
    if any(isinstance(each, Outlast) for each in schedule):
        found["transaction.timeout.ms"] = str(_OUTLASTED_MS)
    away = {fault.api for fault in faults_of(schedule) if fault.lasting_s}
    if "EndTxn" in away:
        found["max.block.ms"] = str(_BLOCKED_MS)
    if "Produce" in away:
        found["delivery.timeout.ms"] = str(_DELIVERED_MS)
        found["request.timeout.ms"] = str(_ASKED_MS)
    return found
