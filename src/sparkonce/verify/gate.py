"""Where pipelines under test report the points that they pass, and wait to be let on.

A server in the verifier's process. Pipelines, in the driver and on executors, call a `Pass`, which
tells the gate and waits for its answer: so what is to happen at a point happens while the pipeline
stands there, and a process that is to die there waits for its death.
"""

from __future__ import annotations

import json
import os
import socket
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Self

from sparkonce.verify.lived import LivedTime

_LOOPBACK: Final = "127.0.0.1"
START: Final = "start"
"""The point before all others: a job waits there until there is room for it."""
_GO: Final = b"go\n"


@dataclass(frozen=True, slots=True)
class Pass:
    """Goes with the pipeline's code to wherever it runs."""

    address: tuple[str, int]
    trial: int
    life: int

    def __call__(self, point: str) -> None:
        self._tell({"point": point})

    def ended(self, error: str = "") -> None:
        self._tell({"ended": error})

    def _tell(self, what: dict[str, str]) -> None:
        told = {"trial": self.trial, "life": self.life, "pid": os.getpid(), **what}
        with socket.create_connection(self.address) as connection:
            connection.sendall(json.dumps(told).encode() + b"\n")
            if connection.recv(len(_GO)) != _GO:
                raise ConnectionError("the verifier is gone")


@dataclass(frozen=True, slots=True)
class Arrival:
    """A pipeline stands at a point."""

    trial: int
    life: int
    point: str
    time: int
    """The how many-th time in this life."""
    pid: int
    at_s: float


Decide = Callable[[Arrival], None]
"""Called while the pipeline waits, in a thread of its own; it goes on when this returns."""


class Gate:
    """Use as a context manager. One for a round of trials."""

    def __init__(self, decide: Decide) -> None:
        self._decide = decide
        self._changed = threading.Condition()
        self._times: Counter[tuple[int, int, str]] = Counter()
        self._ended: dict[tuple[int, int], str] = {}
        self._held: set[tuple[int, int]] = set()
        self._admitted: set[tuple[int, int]] = set()
        self._resting: set[tuple[int, int]] = set()
        self._released: set[tuple[int, int]] = set()
        self.lived = LivedTime()
        """How long each trial really worked; the round ends lives, the gate does all else."""
        self.errors: dict[int, Exception] = {}
        """What went wrong on our side, in `decide` or behind it, by trial: the first of each."""
        self._closing = False
        self._told_s = time.monotonic()
        self._server = _Server((_LOOPBACK, 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, name="sparkonce-gate")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def a_pass(self, trial: int, life: int) -> Pass:
        host, port = self._server.server_address[:2]
        return Pass((str(host), int(port)), trial, life)

    def hold(self, trial: int, life: int) -> None:
        """For `decide`: stay until released, killed, or all is over."""
        self.lived.stop(trial, life)
        with self._changed:
            self._held.add((trial, life))
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._closing or (trial, life) in self._released,
            )
            is_released = (trial, life) in self._released
        if is_released:
            self.lived.start(trial, life)

    def await_arrival(
        self, trial: int, life: int, point: str, number: int, timeout_s: float
    ) -> bool:
        """For `decide`: until the point is reached for the how many-th time; False when the time
        is over."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._closing or self._times[trial, life, point] >= number, timeout_s
            )

    def admit(self, trial: int, life: int, most: int) -> None:
        """For `decide`: wait until so few are on their way that one more may begin."""

        def may_begin() -> bool:
            busy = {each for each in self._admitted if each[1] == life}
            idle = self._held | self._resting | self._ended.keys()
            return self._closing or len(busy - idle) < most

        with self._changed:
            self._changed.wait_for(may_begin)
            self._admitted.add((trial, life))
        self.lived.start(trial, life)

    @contextmanager
    def resting(self, trial: int, life: int) -> Iterator[None]:
        """For `decide`: while it waits for something that costs nothing, others may begin."""
        with self._changed:
            self._resting.add((trial, life))
            self._changed.notify_all()
        was_working = self.lived.stop(trial, life)
        try:
            yield
        finally:
            if was_working:
                self.lived.start(trial, life)
            with self._changed:
                self._resting.discard((trial, life))

    def release(self, life: int) -> None:
        with self._changed:
            self._released |= {held for held in self._held if held[1] == life}
            self._changed.notify_all()

    def is_held(self, trial: int, life: int) -> bool:
        with self._changed:
            return (trial, life) in self._held

    def ended(self, trial: int, life: int) -> str | None:
        """None while it runs; "" if it came to its end; else how it failed."""
        with self._changed:
            return self._ended.get((trial, life))

    def wait(
        self, condition: Callable[[], bool], timeout_s: float, quiet_s: float | None = None
    ) -> bool:
        """Until the condition holds, looked at whenever something is told; False when the time is
        over, or nobody has told anything for so long."""
        began_s = time.monotonic()
        while not condition():
            now_s = time.monotonic()
            last_s = max(began_s, self._told_s)
            if now_s > began_s + timeout_s or (quiet_s and now_s > last_s + quiet_s):
                return False
            with self._changed:
                self._changed.wait(0.2)
        return True

    def hear(self, told: dict[str, Any]) -> None:
        trial, life = int(told["trial"]), int(told["life"])
        self._told_s = time.monotonic()
        if "ended" in told:
            self.lived.stop(trial, life)
            with self._changed:
                self._ended[trial, life] = str(told["ended"])
                self._changed.notify_all()
            return
        point = str(told["point"])
        with self._changed:
            self._times[trial, life, point] += 1
            number = self._times[trial, life, point]
            self._changed.notify_all()
        arrival = Arrival(trial, life, point, number, int(told["pid"]), time.monotonic())
        try:
            self._decide(arrival)
        except Exception as error:  # noqa: BLE001 - told in the trial's outcome
            self.fail(trial, error)

    def fail(self, trial: int, error: Exception) -> None:
        """The first of each counts."""
        self.errors.setdefault(trial, error)


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128


def _handler(gate: Gate) -> type[socketserver.StreamRequestHandler]:
    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            line = self.rfile.readline()
            if not line:
                return
            gate.hear(json.loads(line))
            try:
                self.wfile.write(_GO)
            except OSError:
                return  # it was killed while it stood here

    return Handler
