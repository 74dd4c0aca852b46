"""Draws what is done in a trial, and to how much, from its seed.

Faults are drawn within what happens: which requests a transaction sends follows from the pipeline
and its workload, and a fault of the network comes into force where the transaction opens that it is
meant for. Where a cell has several trials, its *turns* go round among what there is to choose, so
that they don't all choose the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from sparkonce.guarantees import Guarantee
from sparkonce.verify import families as f
from sparkonce.verify.clusters import TRANSACTIONS_LEFT
from sparkonce.verify.contract import BEHIND_SHUFFLES, BETWEEN_SHUFFLES, SHUFFLED, Pipeline
from sparkonce.verify.network import DelayRequest, LoseRequest, LoseResponse
from sparkonce.verify.reach import within_lives
from sparkonce.verify.schedule import (
    AddPartitions,
    Arm,
    AtCommit,
    AwaitAnother,
    AwaitSnapshot,
    Broker,
    Checkpoint,
    Database,
    Kill,
    KillAfter,
    KillExecutor,
    KillIdleWorkers,
    KillOtherExecutor,
    KillSent,
    KillWorker,
    LoseLedger,
    MoreInput,
    Outlast,
    Pause,
    PauseWorker,
    Schedule,
)
from sparkonce.verify.traffic import aimed, is_told_halfway, weaker
from sparkonce.verify.workload import BY_VERSION, Workload

_Choice = TypeVar("_Choice")

# Between data and progress: where a crash hurts under each guarantee.
_HURTS: Final = {
    Guarantee.EXACTLY_ONCE: "offsets",
    Guarantee.AT_LEAST_ONCE: "produce:last",
    Guarantee.AT_MOST_ONCE: "offsets",
    Guarantee.NONE: "produce:last",
}
_SPARK_HURTS: Final = _HURTS | {
    Guarantee.AT_LEAST_ONCE: "open",
    Guarantee.AT_MOST_ONCE: "end:answered",
}

_LONG: Final = 0.3
"""Of trials of a pipeline with state that are undone in one way or another, by chance."""
_MAINTAINED: Final = 0.5
"""Of these."""
_TWO_KILLS: Final = 0.3
"""Of crashes of a pipeline with state. Another life takes its time."""
_WITHOUT_BROKERS: Final = 0.85
"""Of mixed schedules. One broker is disturbed at a time, and takes ten seconds to come back."""
_FOR_EACH_FAULT: Final = 9
"""Transactions of a pipeline that has them cheaply: one for each fault of the network, so that none
undoes what another one has brought about."""
_AWAY_S: Final = 4.0
"""Longer than `max.block.ms`, as such trials have it."""
_UNSENT_S: Final = 2.5
"""Longer than `delivery.timeout.ms`, as such trials have it."""

PLAIN: Final = Workload()
ONE_BATCH: Final = Workload(records=20)
ABORTED: Final = Workload(aborted=9)
WIDE: Final = Workload(records=160, per_batch=80, partitions=8, aborted=12)
LARGE: Final = Workload(
    records=2_000, per_batch=1_000, partitions=4, value_bytes=1_500, batch_size=1_024
)
"""Hundreds of requests a transaction, several under way; values from a few bytes to more than a
batch may have."""
MANY: Final = replace(LARGE, per_batch=250)
"""Where a trial has more transactions."""
SEVERAL: Final = Workload(records=80, per_batch=10)
"""Transactions before a producer id is used up, and behind it."""
SPREAD: Final = Workload(records=80, spread=True)
"""Each batch has two tasks, and each of them has rows of every key."""
SMALL_STATE: Final = Workload(records=60, partitions=1)
LONG_STATE: Final = Workload(records=240, partitions=1)
"""More versions than Spark has deltas before a snapshot, unless it is told otherwise."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What was decided of a trial beforehand."""

    schedule: Schedule
    workload: Workload


def hurts(pipeline: Pipeline, guarantee: Guarantee) -> str:
    return (_SPARK_HURTS if pipeline.spark else _HURTS)[guarantee]


def draw(
    seed: int,
    pipeline: Pipeline,
    guarantee: Guarantee,
    family: str,
    *,
    brokers: int = 3,
    turn: int | None = None,
) -> Plan:
    """Of one family; `mixed` has elements of several."""
    rng = random.Random(f"{seed}/{pipeline.name}/{guarantee.value}/{family}")
    drawing = _Drawing(rng, pipeline, guarantee, brokers, turn)
    workload = drawing.workload(family)
    if family != f.MIXED:
        return Plan(drawing.of(family, workload), workload)
    return Plan(drawing.mixed(workload), workload)


class _Drawing:
    def __init__(
        self,
        rng: random.Random,
        pipeline: Pipeline,
        guarantee: Guarantee,
        brokers: int,
        turn: int | None,
    ) -> None:
        self._rng = rng
        self._pipeline = pipeline
        self._guarantee = guarantee
        self._brokers = brokers
        self._turn = turn
        self._is_exact = guarantee is Guarantee.EXACTLY_ONCE
        self._points = [each for each in pipeline.points if _is_told(each, pipeline, guarantee)]
        self._inside = [each for each in self._points if each not in f.OUTSIDE]
        # State that an undone attempt left behind must not be what a later one begins from. It is
        # in the way only of one that finds state on disk: in another life, or a second attempt.
        self._has_state = pipeline.is_stateful and self._is_exact
        self._undone = [each for each in self._points if each in f.UNDONE and self._has_state]

    # -- how much ------------------------------------------------------------------------------

    def workload(self, family: str) -> Workload:
        if self._pipeline.provide is not None:
            return PLAIN  # what it reads is no topic
        if not self._is_exact:
            return self._rng.choice([PLAIN, ABORTED])
        own = self._of_family(family)
        if not self._has_state or family in (f.NETWORK, f.BROKERS):
            return own
        if not own.store:
            own = replace(own, store=self._rng.choice(["", "rocksdb"]))
        if family in _UNDOING and self._turn is None and self._rng.random() < _LONG:
            is_maintained = self._rng.random() < _MAINTAINED
            return replace(LONG_STATE, store=own.store, maintained=is_maintained)
        return own

    def _of_family(self, family: str) -> Workload:
        if SHUFFLED in self._points:
            return WIDE  # each executor has rows of each kind
        if family == f.NETWORK and is_told_halfway(self._pipeline):
            own = self._pick([MANY, ABORTED, WIDE])
            return replace(own, records=_FOR_EACH_FAULT * own.per_batch)
        if family in (f.NETWORK, f.WORKER):
            return self._pick([LARGE, ABORTED, WIDE])
        if family in (f.LATE, f.COORDINATOR, f.TIMEOUT, f.EXPIRY, f.RETRY):
            return PLAIN
        if family == f.EPOCHS:
            return SEVERAL
        if family == f.PARTITIONS:
            return SPREAD
        if family == f.STATE:
            store, _, is_long = self._pick(_STATE_TURNS)
            if self._turn is None:
                is_long = self._rng.random() < 0.5
            own = LONG_STATE if is_long else SMALL_STATE
            # The last version gets a snapshot: with HDFS there is one behind so many deltas, with
            # RocksDB at so many versions.
            deltas = own.batches - 1 if store == "hdfs" else own.batches
            return replace(own, store=store, deltas=deltas)
        if family == f.REFUSAL:
            is_one = not self._has_state and self._pick(_REFUSAL_TURNS) == "first batch"
            return ONE_BATCH if is_one else PLAIN
        if family == f.ZOMBIE and self._has_state:
            return replace(PLAIN, store=self._pick(["rocksdb", "", *BY_VERSION]))
        if family == f.CRASH:
            return self._rng.choice([PLAIN, ABORTED, ABORTED, WIDE])
        return self._rng.choice([PLAIN, ABORTED, ABORTED, WIDE, LARGE])

    # -- what ----------------------------------------------------------------------------------

    def of(self, family: str, workload: Workload) -> Schedule:
        return _OF_FAMILY[family](self, workload)

    def mixed(self, workload: Workload) -> Schedule:
        own = f.families(self._pipeline, self._guarantee)
        # These have a workload of their own, or patience that the others must not have.
        apart = (f.PARTITIONS, f.STATE, f.LATE, f.COORDINATOR, f.REFUSAL, f.RETRY)
        own = [each for each in own if each not in apart]
        if self._rng.random() < _WITHOUT_BROKERS:
            own = [each for each in own if each != f.BROKERS]
        chosen: Sequence[str] = self._rng.sample(own, k=min(len(own), self._rng.randint(2, 3)))
        ends = [each for each in chosen if each in (f.CRASH, f.ZOMBIE, f.CHECKPOINT)]
        kept = [each for each in chosen if each not in ends[1:]]  # one way to end a life
        drawn = tuple(element for each in kept for element in self.of(each, workload))
        return within_lives(drawn, self._pipeline, workload)

    def network(self, workload: Workload) -> Schedule:
        if self._is_exact:
            return aimed(self._rng, self._pipeline, workload, self._turn)
        return weaker(self._rng, self._pipeline, self._guarantee, workload)

    def crash(self, workload: Workload) -> Schedule:
        if not self._points:
            return self._crash_unseen(workload)
        times = self._times(workload)
        if not self._is_exact:
            point = hurts(self._pipeline, self._guarantee)
            point = point if point in self._points else self._rng.choice(self._points)
            return (Kill(point=point, nth=times),)
        choices = list(self._points)
        if "end" in choices and self._pipeline.writes_kafka:
            choices.append("sent")
        point = self._pick(choices)
        if not self._pipeline.writes_kafka and self._turn is not None and self._turn % 2:
            # Rows and progress are two writes that must be one.
            point = self._rng.choice([each for each in choices if each in f.DECIDING])
        if point == "sent":
            return (KillSent(nth=times), *self._more)
        if self._undone and self._rng.random() < _TWO_KILLS:
            last = point if point in self._inside else "end"
            first = Kill(point=self._rng.choice(self._undone), nth=self._early(workload))
            return (first, Kill(point=last, nth=2, life=1))
        return (Kill(point=point, nth=1 if point == "fence" else times), *self._more)

    def _crash_unseen(self, workload: Workload) -> Schedule:
        # Records that are in Kafka while their writer does not know it yet: where it hurts.
        is_control = not self._is_exact
        if self._pipeline.writes_kafka and (is_control or self._rng.random() < 0.7):
            return (KillSent(api="Produce", nth=self._rng.randint(1, 2)),)
        return (KillAfter(records=self._rng.randint(1, workload.records)),)

    def worker(self, workload: Workload) -> Schedule:
        point, times = self._pick(self._on_executors), self._times(workload)
        if self._rng.random() < 0.3:
            seconds = round(self._rng.random() * 4, 1)
            return (PauseWorker(point=point, nth=times, seconds=seconds),)
        return (KillWorker(point=point, nth=times),)

    def partitions(self, workload: Workload) -> Schedule:
        """The output gets more partitions, and of two Python workers that know it without them one
        is killed. So of the two tasks that come next one is where they are known, and one is not.

        Between two batches; the driver does not know of them either then. Or the batch has to be
        written again, and for its next attempt the driver asks how many there are.
        """
        nth = self._rng.randint(1, workload.batches - 1)
        tasks = workload.partitions
        before, behind = (
            AwaitAnother(point="produce:first", nth=(each - 1) * tasks + 1)
            for each in (nth, nth + 1)
        )
        point, time = self._pick([("open", nth + 1), ("offsets", nth)])
        added = (AddPartitions(point=point, nth=time), KillIdleWorkers(point=point, nth=time))
        undone = (Outlast(point=point, nth=time),) if point == "offsets" else ()
        return (before, *added, *undone, behind)

    def executor(self, workload: Workload) -> Schedule:
        if SHUFFLED in self._points:
            return self._executor_between_shuffles(workload)
        # With executors of their own, tasks of the batch are run again by others.
        point = self._rng.choice(self._on_executors)
        return (KillExecutor(point=point, nth=self._times(workload)),)

    def _executor_between_shuffles(self, workload: Workload) -> Schedule:
        """An executor is lost with its part of the first shuffle, which others have read.

        Half-way through the tasks behind it: the third that comes is the second of its executor,
        as there are two with one core each; so that one has a whole task behind it. Or when all of
        the second shuffle is there, and records are written: the attempt is given up, and the next
        one finds what is left of both.
        """
        before = self._times(workload) - 1
        half_done = KillOtherExecutor(point=SHUFFLED, nth=before * BETWEEN_SHUFFLES + 3)
        written = KillExecutor(point="produce:first", nth=before * BEHIND_SHUFFLES + 1)
        return (self._pick([half_done, written]),)

    def zombie(self, workload: Workload) -> Schedule:
        free = [each for each in self._inside if each not in self._pipeline.holds]
        if f.COMMITTED in free and self._turn is not None:
            # It finds its own commit, which is not the last one any more, or has all to do yet.
            others = [each for each in free if each not in (f.COMMITTED, "open")]
            point = self._pick([f.COMMITTED, "open", self._rng.choice(others)])
            return (Pause(point=point, nth=self._times(workload)),)
        if not self._has_state or not self._reads_topic:
            return (Pause(point=self._pick(free), nth=self._times(workload)),)
        # The last batch: planned, and its tasks not yet run. They run when the successor has done
        # it all, and write their state where a later life looks for it.
        point = "open" if self._turn is not None or self._rng.random() < 0.7 else self._pick(free)
        return (Pause(point=point, nth=self._batches(workload)), MoreInput())

    def expiry(self, workload: Workload) -> Schedule:
        return (Pause(point="open", nth=self._times(workload), until_expired=True),)

    def epochs(self, workload: Workload) -> Schedule:
        """Around the last transaction under a producer id: its end, and the question for another.

        A zombie that goes on behind it; a crash with its decision sent, or in the next one, or
        none, and the coordinator times it out; answers that are lost.
        """
        last = TRANSACTIONS_LEFT - (1 if self._pipeline.spark else 0)  # the ledger has one before
        ways: list[Schedule] = [
            (Pause(point="end:answered", nth=last),),
            (KillSent(nth=TRANSACTIONS_LEFT),),
            (Kill(point="offsets", nth=last + 1),),
            (Outlast(point="offsets", nth=last),),
            (
                Arm(point="end", nth=last, fault=LoseResponse("EndTxn")),
                Arm(point="end:answered", nth=last, fault=LoseResponse("InitProducerId")),
            ),
        ]
        return self._pick(ways)

    def database(self, workload: Workload) -> Schedule:
        times = self._times(workload)
        if not self._pipeline.writes_kafka and self._rng.random() < 0.6:
            return (AtCommit(nth=times, action=self._rng.choice(["cut", "kill"])),)
        action = self._rng.choice(["kill", "kill", "restart"])
        return (Database(point=self._pick(self._inside), nth=times, action=action),)

    def dump(self, workload: Workload) -> Schedule:
        """Where rows are staged: what is dropped later is what a dump then holds."""
        point = self._pick([each for each in self._inside if each in f.OPEN])
        return (Database(point=point, nth=self._times(workload), action="dump"),)

    def retry(self, workload: Workload) -> Schedule:
        """With one task at a time. The first one's rows are in the stage when the server crashes;
        of the second one's, staged twice, those that do not count stay there. If the server names
        what is staged, these have the first one's name now, and are as many."""
        return (
            Database(point="open", action="hold_log"),
            Database(point="produce:last", nth=1, action="kill"),
            KillWorker(point="produce:last", nth=2),
        )

    def timeout(self, workload: Workload) -> Schedule:
        if self._undone:
            # One batch, and the one behind it: the time between them is the first batch again.
            point, nth = self._pick(self._undone), self._early(workload)
            return (Outlast(point=point, nth=nth), Outlast(point=point, nth=nth + 2), *self._more)
        point = self._pick([each for each in self._inside if each in f.OPEN])
        return (Outlast(point=point, nth=self._times(workload)),)

    def state(self, workload: Workload) -> Schedule:
        """The last batch is undone when its snapshot is written; who comes reads it from disk. Or
        who did it is stopped, and its snapshot removed; then it writes another."""
        _, end, _ = self._pick(_STATE_TURNS)
        point, last = self._rng.choice(self._undone), workload.batches
        if end == "fenced" and workload.store == "hdfs":
            snapshot = AwaitSnapshot(point="offsets", nth=last)
            zombie = Pause(point="offsets", nth=last, until_snapshot=True)
            return (snapshot, zombie, MoreInput())
        snapshot = AwaitSnapshot(point=point, nth=last)
        undo = Outlast if end == "outlast" else Kill
        return (snapshot, undo(point=point, nth=last), MoreInput())

    def late(self, workload: Workload) -> Schedule:
        """A Produce is held up, and all that are sent again for it are lost, so its attempt is
        given up; it arrives when that is over, and the next attempt commits.

        One of the first or of the last that the transaction has: those are waited for by the commit
        itself. Tasks of Spark's tell the point between them each for itself.
        """
        nth = self._times(workload)
        halfway = "produce:first" in self._points and not self._pipeline.spark
        point, held = self._pick(
            [
                ("open", DelayRequest("Produce", until="InitProducerId", cut=True)),
                (
                    "produce:first" if halfway else "open",
                    DelayRequest(
                        "Produce", until=("EndTxn", "InitProducerId"), seconds=0.1, cut=True
                    ),
                ),
            ]
        )
        lost = LoseRequest("Produce", nth=2, lasting_s=_UNSENT_S)
        return (
            Arm(point=point, nth=nth, fault=held),
            Arm(point=point, nth=nth, fault=lost),
        )

    def coordinator(self, workload: Workload) -> Schedule:
        """The decision has no answer for longer than it is waited for.

        The last one is lost: who takes it for granted ends well, and its records are nowhere. Or
        one was taken: who takes it for refused writes it all again.
        """
        last = self._batches(workload)
        lost = Arm(point="end", nth=last, fault=LoseRequest("EndTxn", lasting_s=_AWAY_S))
        taken = Arm(
            point="end",
            nth=self._rng.randint(1, last),
            fault=LoseResponse("EndTxn", lasting_s=_AWAY_S),
        )
        return (self._pick([lost, taken]),)

    def checkpoint(self, workload: Workload) -> Schedule:
        # State that is lost can't be brought back; without it a query refuses to start.
        # Nor can the list of files that Spark keeps there.
        keeps = self._pipeline.is_stateful or self._pipeline.provide is not None
        actions = ["forget_commit", "copy"] if keeps else ["lose", "forget_commit", "copy"]
        action = self._pick(actions)
        last = self._rng.choice([each for each in self._points if each != "fence"])
        return (Kill(point=last, nth=self._early(workload) + 1), Checkpoint(action=action))

    def refusal(self, workload: Workload) -> Schedule:
        """All is decided, and then the ledger or the checkpoint is not the one that belongs to it:
        who goes on would write again what is there. With state the checkpoint is lost: what comes
        later would begin from none."""
        last = Kill(point="end:answered", nth=workload.batches)
        if self._has_state:
            return (last, Checkpoint(action="lose"), MoreInput())
        turn = self._pick(_REFUSAL_TURNS)
        if workload.batches == 1 or turn in ("first batch", "ledger"):
            return (last, LoseLedger())
        if turn == "older copy":
            return (last, Checkpoint(action="age"))
        return (
            Kill(point="end:answered", nth=workload.batches - 1),
            Checkpoint(action="lose"),
            Kill(point="end:answered", life=1),
            Checkpoint(action="former", after_life=1),
        )

    def brokers(self, workload: Workload) -> Schedule:
        several = self._brokers > 1
        return (
            Broker(
                point=self._rng.choice([each for each in self._points if each != "spark-commit"]),
                nth=1,
                action=self._rng.choice(
                    ["kill", "restart", "pause"] if several else ["kill", "restart"]
                ),
                role=self._rng.choice(
                    ["leader", "coordinator", "controller"] if several else ["leader"]
                ),
            ),
        )

    # -- among what ----------------------------------------------------------------------------

    def _pick(self, choices: Sequence[_Choice]) -> _Choice:
        """By turns where there are some, else by chance."""
        if self._turn is None:
            return self._rng.choice(choices)
        return choices[self._turn % len(choices)]

    def _batches(self, workload: Workload) -> int:
        return workload.batches if self._pipeline.batched else 1

    def _times(self, workload: Workload) -> int:
        """Which of the first transactions; with a long history, of all."""
        batches = self._batches(workload)
        return self._rng.randint(1, batches if _is_long(workload) else min(2, batches))

    def _early(self, workload: Workload) -> int:
        """The first transaction; with a long history any that has another behind it."""
        return self._rng.randint(1, self._batches(workload) - 1) if _is_long(workload) else 1

    @property
    def _on_executors(self) -> list[str]:
        return [each for each in self._points if each in f.ON_EXECUTORS]

    @property
    def _more(self) -> tuple[MoreInput, ...]:
        """Where a later life is to read state, if there is any."""
        return (MoreInput(),) if self._has_state and self._reads_topic else ()

    @property
    def _reads_topic(self) -> bool:
        return self._pipeline.provide is None


_STATE_TURNS: Final = (
    ("hdfs", "outlast", False),
    ("rocksdb", "kill", False),
    ("hdfs", "kill", True),
    ("rocksdb by version", "kill", False),
    ("hdfs", "fenced", False),
)
"""Where Spark keeps state, how a batch is undone, and whether many were before it. With RocksDB the
maintenance of the same life would put the second attempt's snapshot over that of the first, and
writes the same one only once."""

_REFUSAL_TURNS: Final = ("ledger", "first batch", "older copy", "another's entry")
"""What is lost, or does not belong there."""

_UNDOING: Final = (f.CRASH, f.TIMEOUT, f.ZOMBIE, f.CHECKPOINT, f.MIXED)
"""With state: who reads it then may find a chain of changes, or a snapshot of an undone attempt."""

_OF_FAMILY: Final[Mapping[str, Callable[[_Drawing, Workload], Schedule]]] = {
    f.NETWORK: _Drawing.network,
    f.LATE: _Drawing.late,
    f.CRASH: _Drawing.crash,
    f.WORKER: _Drawing.worker,
    f.PARTITIONS: _Drawing.partitions,
    f.BROKERS: _Drawing.brokers,
    f.COORDINATOR: _Drawing.coordinator,
    f.ZOMBIE: _Drawing.zombie,
    f.TIMEOUT: _Drawing.timeout,
    f.STATE: _Drawing.state,
    f.CHECKPOINT: _Drawing.checkpoint,
    f.REFUSAL: _Drawing.refusal,
    f.DATABASE: _Drawing.database,
    f.DUMP: _Drawing.dump,
    f.RETRY: _Drawing.retry,
    f.EXECUTOR: _Drawing.executor,
    f.EXPIRY: _Drawing.expiry,
    f.EPOCHS: _Drawing.epochs,
}


def _is_long(workload: Workload) -> bool:
    return workload.records == LONG_STATE.records


def _is_told(point: str, pipeline: Pipeline, guarantee: Guarantee) -> bool:
    """Without a promise nothing is fenced, recorded or decided in step with the data."""
    if guarantee is Guarantee.EXACTLY_ONCE:
        return True
    if guarantee is Guarantee.NONE:
        return point in ("fence", "produce:first", "produce:last", "spark-commit")
    return pipeline.spark or point not in ("open", "end")
