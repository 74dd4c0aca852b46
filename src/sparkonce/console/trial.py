"""A trial: one job from its first batch to its last, its driver killed twice on the way.

Below `demo`, which shows it. `try_sparkonce` and `try_spark` differ in the sink, and in how the
moment to kill is met: our sink tells where it is, Spark's own is watched from outside.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from sparkonce.console.driver import SPARK, SPARKONCE, Checkpoint, Driver, Run
from sparkonce.console.outputs import Ends, read_balances
from sparkonce.console.payments import BATCHES, TOPIC, Payments
from sparkonce.console.tally import Tally, tally
from sparkonce.errors import SparkonceError
from sparkonce.local import LocalKafka

PARTITIONS = 2
_RUN_TIMEOUT_S = 300.0
_LOOK_EVERY_S = 0.05
_LOOK_CLOSELY_EVERY_S = 0.005

NAMES = {SPARKONCE: "sparkonce", SPARK: "Spark's own sink"}
MOMENTS = {
    "end:answered": "its transaction was committed, Spark's own commit was not written yet",
    "produce:last": "its balances were in Kafka, the transaction was still open",
}
OUTSIDE = "its balances were in Kafka, Spark's own commit was not written yet"


@dataclass(frozen=True, slots=True)
class Outcome:
    """All there is to say about a trial."""

    tally: Tally
    kills: int
    """At a moment that hurts; one that came too late is none."""
    starts: int


@dataclass(frozen=True, slots=True)
class Stage:
    """What both trials have in common."""

    kafka: LocalKafka
    folder: Path
    payments: Payments
    batches_to_die_in: tuple[int, int]
    now: Callable[[str], None]
    """Told what is happening, again and again."""
    event: Callable[[str], None]
    """Told what has happened, once."""


Watch = Callable[[Driver, Checkpoint], float]
"""Looks at a driver that runs, may kill it, and says after how many seconds to look again."""


def draw_deaths(seed: int) -> tuple[int, int]:
    """The batches to die in: neither the first nor the last, and not the same."""
    first, second = sorted(random.Random(f"{seed}/deaths").sample(range(1, BATCHES - 1), 2))
    return first, second


def try_sparkonce(stage: Stage) -> Outcome:
    trial = _Trial(stage, SPARKONCE)
    for batch, (point, moment) in zip(stage.batches_to_die_in, MOMENTS.items(), strict=True):
        trial.run(moment, die_at=point, die_in=batch)
    trial.run()
    return trial.outcome()


def try_spark(stage: Stage) -> Outcome:
    trial = _Trial(stage, SPARK)
    with closing(Ends(stage.kafka.bootstrap_servers, trial.topic, PARTITIONS)) as ends:
        # On a busy machine a kill may come too late to count; then there is another.
        while not trial.is_done and trial.kills < len(stage.batches_to_die_in):
            batch = stage.batches_to_die_in[trial.kills]
            trial.run(OUTSIDE, Ambush(ends.total, batch))
    if not trial.is_done:
        trial.run()
    return trial.outcome()


class Ambush:
    """Kills a driver between a batch's first record in Kafka and its commit in the checkpoint.

    All records of a batch are acknowledged before it is committed, and the next is planned behind
    that: what the topic grows by while a batch is planned and not committed is of that batch.
    """

    def __init__(self, ends: Callable[[], int], first_batch: int) -> None:
        self._ends = ends
        self._first_batch = first_batch
        self._before: dict[int, int] = {}

    def __call__(self, driver: Driver, checkpoint: Checkpoint) -> float:
        batch = checkpoint.planned
        if batch + 1 < self._first_batch:
            return _LOOK_EVERY_S
        if batch >= self._first_batch and not checkpoint.is_committed(batch):
            end = self._ends()
            before = self._before.setdefault(batch, end)
            if end > before and not checkpoint.is_committed(batch):
                driver.kill()
        return _LOOK_CLOSELY_EVERY_S


class _Trial:
    def __init__(self, stage: Stage, sink: str) -> None:
        self.topic = f"balances-{sink}"
        self.kills = 0
        self.is_done = False
        self._stage = stage
        self._name = NAMES[sink]
        self._checkpoint = Checkpoint(stage.folder / sink)
        self._starts = 0
        scratch = stage.folder / "scratch"
        scratch.mkdir(exist_ok=True)
        stage.kafka.create_topic(self.topic, partitions=PARTITIONS)
        self._run = Run(
            sink=sink,
            servers=stage.kafka.bootstrap_servers,
            source=TOPIC,
            target=self.topic,
            checkpoint=str(self._checkpoint.folder),
            scratch=str(scratch),
            per_batch=stage.payments.per_batch,
        )

    def run(
        self, moment: str = "", watch: Watch | None = None, *, die_at: str = "", die_in: int = 0
    ) -> None:
        """Start a driver, and return when it has come to the end, or to its end."""
        self._starts += 1
        who = f"{self._name}, driver {self._starts}"
        with Driver(replace(self._run, die_at=die_at, die_in=die_in)) as driver:
            self._wait(driver, watch, who)
            self.is_done = not driver.was_killed
        if self.is_done:
            self._stage.event(f"{who}: all batches are done.")
            return
        batch = self._checkpoint.planned
        if self._checkpoint.is_committed(batch):
            self._stage.event(f"{who}: killed (-9) behind batch {batch + 1}, a moment too late.")
            return
        self.kills += 1
        self._stage.event(f"{who}: killed (-9) in batch {batch + 1} of {BATCHES}, when {moment}.")

    def outcome(self) -> Outcome:
        self._stage.now(f"{self._name}: reading the balances back")
        seen = read_balances(self._stage.kafka.bootstrap_servers, self.topic, PARTITIONS)
        return Outcome(tally(self._stage.payments.due(), seen), self.kills, self._starts)

    def _wait(self, driver: Driver, watch: Watch | None, who: str) -> None:
        done_before = self._checkpoint.committed_count
        started_s = time.monotonic()
        while driver.is_running():
            look_in_s = watch(driver, self._checkpoint) if watch else _LOOK_EVERY_S
            took_s = time.monotonic() - started_s
            if took_s > _RUN_TIMEOUT_S:
                raise SparkonceError(
                    f"The Spark driver did not come to its end within {_RUN_TIMEOUT_S:g} s: this "
                    "machine is very busy, or the job hangs. Try again with less load."
                )
            done = self._checkpoint.committed_count
            doing = "Spark starts" if done == done_before else "running"
            self._stage.now(f"{who}: {doing}, {done} of {BATCHES} batches done ({took_s:.0f} s)")
            time.sleep(look_in_s)


def complaints(due: int, payments: int, ours: Outcome, theirs: Outcome) -> Sequence[str]:
    """Every reason why this run doesn't show what it should; none if it does."""
    found = []
    count = ours.tally
    if not count.is_exact:
        found.append(
            f"lost {count.lost}, repeated {count.repeated}, reordered {count.reordered}, wrong "
            f"{count.wrong} of {due:,} balances: the promise was broken"
        )
    if count.counted != payments:
        found.append(f"{count.counted:,} payments are in the last balances, not {payments:,}")
    for name, outcome in zip(NAMES.values(), (ours, theirs), strict=True):
        if outcome.kills != len(MOMENTS):
            found.append(
                f"the driver of {name} was killed {outcome.kills} times at the moment that "
                f"matters, not {len(MOMENTS)}: this run proves nothing, try again with less load"
            )
    if not theirs.tally.repeated:
        found.append("Spark's own sink repeated nothing: the kills came at harmless moments")
    return found
