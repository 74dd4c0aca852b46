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
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sparkonce.stream.claim import Place
from sparkonce.stream.listener import Peer, TaskListener
from sparkonce.stream.turns import Queues

_TROUBLE_S: Final = 2.0
TURN_S: Final = 180.0
"""As long as records may take by default to find room and be acknowledged (`max.block.ms` and
`delivery.timeout.ms`)."""


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
        if (holder := queues.overdue(now_s - self._turn_s)) is None:
            return
        trouble = (
            f"{holder} for more than {self._turn_s:g} s, longer than its records may take "
            "(delivery.timeout.ms, max.block.ms): it hangs, or its machine is cut off"
        )
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
