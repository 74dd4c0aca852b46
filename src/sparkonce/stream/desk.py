"""Who may write: a desk in the driver where each task of an attempt asks once before it writes.

Brokers number records per producer and partition and drop repeats without looking at them, so two
runs of a task in one transaction could lose what differs. Spark runs a task again for many reasons
(a failure, a lost executor, a stage tried anew) and does not tell Python all of them; the desk
sees them all: the second one who asks for the same place is refused.

A task keeps its line to the desk open while it writes: a line that breaks is a task that died.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sparkonce.errors import SparkonceError
from sparkonce.stream.turns import Queues

_TIMEOUT_S = 60.0
_POLL_S = 0.05
"""How long a closing desk lets one wait."""
_TROUBLE_S = 2.0
_TROUBLE_CHARS_MAX = 20_000
_LINE_BYTES_MAX = 1024 * 1024


_OVER = Queues()
_OVER.doom("the attempt is over")


class SecondAttempt(SparkonceError):
    """This task was run before in the same transaction: it must not write."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where to ask, and the secret that shows one belongs to this pipeline."""

    host: str
    port: int
    secret: str


class Desk:
    """One for each pipeline, in the driver; `close` it with the pipeline."""

    def __init__(self, host: str, bind: str, port: int = 0) -> None:
        self._lock = threading.Condition()
        self._attempt = 0
        self._writing = 0
        self._queues = Queues()
        self._taken: dict[int, str] = {}
        self._trouble: list[str] = []
        desk = self

        class Line(socketserver.StreamRequestHandler):
            disable_nagle_algorithm = True  # one line is not to wait for the last one's receipt

            def handle(self) -> None:
                desk._serve(self.rfile, self.wfile)

        self._server = _Server((bind, port), Line)
        self.place = Place(host, self._server.server_address[1], secrets.token_hex(16))
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=[_POLL_S], name="sparkonce-desk", daemon=True
        )
        self._thread.start()

    def open(self) -> int:
        """A new attempt; from here on, those who ask for an older one are refused."""
        with self._lock:
            self._attempt += 1
            self._taken.clear()
            self._trouble.clear()
            self._writing = 0
            self._queues = Queues()
            return self._attempt

    @property
    def trouble(self) -> str | None:
        """What went wrong first in this attempt, as the task told it.

        Spark may know of a failure before the line of the task has broken: that is waited for.
        """
        with self._lock:
            self._lock.wait_for(lambda: bool(self._trouble) or not self._writing, _TROUBLE_S)
            return self._trouble[0] if self._trouble else None

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _serve(self, lines: Any, answers: Any) -> None:
        asked = _read(lines)
        if asked is None or not _is_same(str(asked.get("secret")), self.place.secret):
            return
        attempt, task, who = int(asked["attempt"]), int(asked["task"]), str(asked["who"])
        refusal = self._take(attempt, task, who)
        answers.write(json.dumps({"refusal": refusal}).encode() + b"\n")
        if refusal:
            return
        told = self._hear(attempt, lines, answers)
        trouble = f"task {task} ({who}) died while it wrote" if told is None else told["trouble"]
        with self._lock:
            if attempt == self._attempt:
                self._writing -= 1
                if trouble:
                    self._trouble.append(trouble)
                    self._queues.doom(trouble)
                self._lock.notify_all()

    def _hear(self, attempt: int, lines: Any, answers: Any) -> dict[str, Any] | None:
        """Serve a task that writes until it says how it ended; None if it never does."""

        def tell(what: dict[str, Any]) -> None:
            answers.write(json.dumps(what).encode() + b"\n")

        while True:
            try:
                said = _read(lines)
            except OSError:
                return None
            if said is None or "trouble" in said:
                return said
            with self._lock:
                queues = self._queues if attempt == self._attempt else _OVER
                if "want" in said:
                    queues.want(tuple(said["want"]), tell)
                elif queues is not _OVER:
                    queues.back(tuple(said["back"]), int(said["sequence"]))

    def _take(self, attempt: int, task: int, who: str) -> str | None:
        with self._lock:
            if attempt != self._attempt:
                return f"attempt {attempt} is over, the driver is at {self._attempt}"
            if task in self._taken:
                return f"task {task} was begun by {self._taken[task]} in the same transaction"
            self._taken[task] = who
            self._writing += 1
            return None


class Line:
    """A task's line to the desk while it may write."""

    def __init__(self, lines: Any) -> None:
        self._lines = lines
        self._lock = threading.Lock()
        self._listener: threading.Thread | None = None

    def tell(self, what: dict[str, Any]) -> None:
        with self._lock:
            self._lines.write(json.dumps(what).encode() + b"\n")
            self._lines.flush()

    def listen(self, hear: Callable[[dict[str, Any] | None], bool]) -> None:
        """Hand on what the desk says, on a thread of its own, until `hear` has had enough; None
        is the end of the line."""

        def run() -> None:
            going_on = True
            while going_on:
                try:
                    said = _read(self._lines)
                except (OSError, ValueError):
                    said = None
                going_on = hear(said) and said is not None

        self._listener = threading.Thread(target=run, name="sparkonce-turns", daemon=True)
        self._listener.start()

    def end(self, trouble: str | None) -> None:
        """Say how it ended; the desk hangs up, and with that whoever listens is done."""
        self.tell({"trouble": trouble})
        if self._listener is not None:
            self._listener.join()


@contextmanager
def claim(place: Place, attempt: int, task: int, task_attempt: int) -> Iterator[Line]:
    """Hold the right to write for as long as the block runs. Raises SecondAttempt."""
    who = f"task attempt {task_attempt}, process {os.getpid()} on {socket.gethostname()}"
    try:
        line = socket.create_connection((place.host, place.port), _TIMEOUT_S)
    except OSError as error:
        raise SparkonceError(
            f"the driver can't be reached at {place.host}:{place.port} ({error}): executors ask "
            "there before they write; open that way, or name a host and port that is open with "
            "the options driverHost and driverPort"
        ) from error
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with line, line.makefile("rwb") as lines:
        asked = {"secret": place.secret, "attempt": attempt, "task": task, "who": who}
        lines.write(json.dumps(asked).encode() + b"\n")
        lines.flush()
        answer = _read(lines)
        if answer is None:
            raise SparkonceError("the driver closed the line: it has stopped, or isn't this one's")
        if answer["refusal"]:
            raise SecondAttempt(f"it must not write a second time: {answer['refusal']}")
        line.settimeout(None)
        trouble: str | None = None
        held = Line(lines)
        try:
            yield held
        except BaseException as error:
            trouble = f"task {task} ({who}): {type(error).__name__}: {error}"[:_TROUBLE_CHARS_MAX]
            raise
        finally:
            held.end(trouble)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128


def _read(lines: Any) -> dict[str, Any] | None:
    """None where the line was closed, or where a stranger speaks."""
    line = lines.readline(_LINE_BYTES_MAX)
    if not line.endswith(b"\n"):
        return None
    try:
        said = json.loads(line)
    except ValueError:
        return None
    return said if isinstance(said, dict) else None


def _is_same(told: str, secret: str) -> bool:
    return secrets.compare_digest(told.encode(errors="replace"), secret.encode())
