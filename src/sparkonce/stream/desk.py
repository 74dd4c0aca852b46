"""Who may write: a desk in the driver where each task of an attempt asks once before it writes.

Brokers number records per producer and partition and drop repeats without looking at them, so two
runs of a task in one transaction could lose what differs. Spark runs a task again for many reasons
(a failure, a lost executor, a stage tried anew) and does not tell Python all of them; the desk
sees them all: the second one who asks for the same place is refused.

A task keeps its line to the desk open while it writes (`claim`): a line that breaks is a task that
died. The desk also grants turns (`turns`), and sees to it that all tasks of an attempt count the
same partitions of a topic, whenever each of them has looked.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from sparkonce.stream.claim import Place
from sparkonce.stream.listener import Peer, TaskListener
from sparkonce.stream.turns import Queues

_TROUBLE_S: Final = 2.0
_NAMED_MAX: Final = 5
OUTLASTED_S: Final = 15.0
"""Brokers look for transactions that are over every 10 s
(`transaction.abort.timed.out.transaction.cleanup.interval.ms`)."""
TURN_S: Final = 180.0
"""As long as records may take by default to find room and be acknowledged (`max.block.ms` and
`delivery.timeout.ms`)."""


@dataclass(slots=True)
class _Bound:
    """How long an attempt may take from its first record on, and what ends it then."""

    open_s: float
    end: Callable[[], object]
    since_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Claim:
    """What an admitted task may do."""

    attempt: int
    queues: Queues
    task: int | None
    """None for one that only asks of topics."""
    who: str


class Desk:
    """One for each pipeline, in the driver; `close` it with the pipeline."""

    def __init__(self, host: str, bind: str, port: int = 0, *, turn_s: float = TURN_S) -> None:
        """Whoever holds a turn for longer than `turn_s` is given up, and the attempt with him."""
        self._lock = threading.Condition()
        self._turn_s = turn_s
        self._attempt = 0
        self._writing = 0
        self._queues = Queues()
        self._former: list[Queues] = []
        self._taken: dict[int, str] = {}
        self._trouble: list[str] = []
        self._must_take_turns = False
        self._counts: dict[str, int] = {}
        self._bound: _Bound | None = None
        self._claims: dict[Peer, _Claim] = {}
        secret = secrets.token_hex(16)
        self._secret = secret.encode()
        self._listener = TaskListener(bind, port, self)
        self.place = Place(host, self._listener.port, secret)

    def open(self, counts: Mapping[str, int] | None = None) -> int:
        """A new attempt; from here on, those who ask for an older one are refused. `counts` are
        the partitions of topics as the driver knows them."""
        self._listener.check()
        with self._lock:
            self._attempt += 1
            self._taken.clear()
            self._trouble.clear()
            self._must_take_turns = False
            self._writing = 0
            self._counts = dict(counts or {})
            self._former.append(self._queues)
            self._queues = Queues()
            attempt = self._attempt
        self._listener.wake()
        return attempt

    @contextmanager
    def bounded(self, open_s: float, end: Callable[[], object]) -> Iterator[None]:
        """While Spark runs the tasks of the present attempt. Calls `end` where they still do
        `open_s` behind its first record, as long as its transaction may be open: a task that hangs
        before its turn would be waited for without an end."""
        with self._lock:
            self._bound = _Bound(open_s + OUTLASTED_S, end)
        try:
            yield
        finally:
            with self._lock:
                self._bound = None

    @property
    def trouble(self) -> str | None:
        """What went wrong first in this attempt, as the task told it.

        Spark may know of a failure before the line of the task has broken: that is waited for.
        """
        with self._lock:
            self._lock.wait_for(lambda: bool(self._trouble) or not self._writing, _TROUBLE_S)
            return self._trouble[0] if self._trouble else None

    @property
    def must_take_turns(self) -> bool:
        """Whether a task of this attempt met a partition that another one writes to."""
        with self._lock:
            return self._must_take_turns

    @property
    def counts(self) -> dict[str, int]:
        """Of each topic that this attempt came to know, the partitions that its tasks count."""
        with self._lock:
            return dict(self._counts)

    @property
    def peer_count(self) -> int:
        return self._listener.peer_count

    def close(self) -> None:
        self._listener.close()

    # -- on the listener's thread -----------------------------------------------------------------

    def admit(self, peer: Peer, said: dict[str, Any]) -> bool:
        told = str(said.get("secret")).encode(errors="replace")
        if not secrets.compare_digest(told, self._secret):
            return False
        attempt, who = int(said["attempt"]), str(said.get("who"))
        task = None if said.get("task") is None else int(said["task"])
        with self._lock:
            refusal = self._refusal(attempt, task, who)
            if refusal is None:
                self._claims[peer] = _Claim(attempt, self._queues, task, who)
        peer.tell({"refusal": refusal})
        if refusal is not None:
            peer.hang_up()
        return True

    def hear(self, peer: Peer, said: dict[str, Any]) -> None:
        claim = self._claims[peer]
        if "want" in said:
            topic, index = said["want"]
            who = f"task {claim.task} ({claim.who})"
            claim.queues.want((str(topic), int(index)), who, peer.tell)
        elif "back" in said:
            topic, index = said["back"]
            claim.queues.back((str(topic), int(index)), int(said["sequence"]))
        elif "writes" in said:
            with self._lock:
                if self._bound and claim.attempt == self._attempt and not self._bound.since_s:
                    self._bound.since_s = time.monotonic()
        elif "counts" in said:
            peer.tell({"counts": self._agreed(claim.attempt, said["counts"])})
        else:
            trouble, must = said["trouble"], bool(said.get("must_take_turns"))
            self._end(self._claims.pop(peer), trouble, must_take_turns=must)
            peer.hang_up()

    def lost(self, peer: Peer) -> None:
        claim = self._claims.pop(peer, None)
        if claim is not None and claim.task is not None:
            self._end(claim, f"task {claim.task} ({claim.who}) died while it wrote")

    def tick(self, now_s: float) -> None:
        with self._lock:
            former, self._former = self._former, []
            queues = self._queues
        for each in former:
            each.doom("the attempt is over")
        self._end_if_outlasted(now_s)
        if (holder := queues.overdue(now_s - self._turn_s)) is None:
            return
        trouble = (
            f"{holder} for more than {self._turn_s:g} s, longer than its records may take "
            "(delivery.timeout.ms, max.block.ms): it hangs, or its machine is cut off"
        )
        self._doom(queues, trouble)

    def _end_if_outlasted(self, now_s: float) -> None:
        with self._lock:
            bound, queues, attempt = self._bound, self._queues, self._attempt
            if not bound or not bound.since_s or now_s - bound.since_s <= bound.open_s:
                return
            self._bound = None
        writing = sorted(
            f"task {claim.task} ({claim.who})"
            for claim in self._claims.values()
            if claim.attempt == attempt and claim.task is not None
        )
        more = f" and {len(writing) - _NAMED_MAX} more" if len(writing) > _NAMED_MAX else ""
        who = f"{', '.join(writing[:_NAMED_MAX])}{more}" if writing else "tasks that have not begun"
        trouble = (
            f"{who} did not come to an end in transaction.timeout.ms="
            f"{(bound.open_s - OUTLASTED_S) * 1000:.0f} behind the attempt's first record, so the "
            "brokers give it up: look for what holds them on their executors; or raise "
            "transaction.timeout.ms (and the brokers' transaction.max.timeout.ms), or make batches "
            "smaller"
        )
        self._doom(queues, trouble)
        bound.end()

    def _doom(self, queues: Queues, trouble: str) -> None:
        queues.doom(trouble)
        with self._lock:
            if queues is self._queues:
                self._trouble.append(trouble)
                self._lock.notify_all()

    def _refusal(self, attempt: int, task: int | None, who: str) -> str | None:
        if attempt != self._attempt:
            return f"attempt {attempt} is over, the driver is at {self._attempt}"
        if task is None:
            return None
        if task in self._taken:
            return f"task {task} was begun by {self._taken[task]} in the same transaction"
        self._taken[task] = who
        self._writing += 1
        return None

    def _agreed(self, attempt: int, seen: Mapping[str, int]) -> dict[str, int]:
        """The first to ask for a topic has told its count to all others."""
        with self._lock:
            known = self._counts if attempt == self._attempt else {}
            return {
                str(topic): known.setdefault(str(topic), int(count))
                for topic, count in seen.items()
            }

    def _end(self, claim: _Claim, trouble: str | None, *, must_take_turns: bool = False) -> None:
        if trouble is not None:
            claim.queues.doom(trouble)
        with self._lock:
            if claim.attempt == self._attempt:
                self._writing -= 1
                self._must_take_turns |= must_take_turns
                if trouble is not None:
                    self._trouble.append(trouble)
                self._lock.notify_all()
