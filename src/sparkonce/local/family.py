"""A server and the processes that it forks, as our children: signalled together, gone with us.

Stands between LocalPostgres and the operating system, as `jvm.py` does for brokers. Killing and
pausing return when it has happened to every one of them.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from pathlib import Path

from sparkonce.errors import LocalError
from sparkonce.local.owner import Owner

_GUARD = Path(__file__).with_name("guard.py")
_KILL_TIMEOUT_S = 20.0


class Family:
    """One running (or ended) program with its children; a new start is a new object."""

    def __init__(
        self, command: list[str], *, owner: Owner, output: Path, scratch: Path | None = None
    ) -> None:
        """Start `command` as `owner`, its output appended to a file.

        `scratch` is a folder to delete should this Python process die without ending the family.
        """
        self._lock = threading.Lock()  # one order and its answer at a time
        self._paused = False
        ids = [str(owner.uid), str(owner.gid)]
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", _GUARD, output, scratch or "", *ids, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            # A session of its own: Ctrl-C in the terminal is for us, not for the server.
            start_new_session=True,
        )
        first = self._answer()
        if not first.startswith("pid "):
            self._guard.wait()
            raise LocalError(
                f"The program {command[0]} could not be started. Its output is in {output}."
            )
        self.pid = int(first.removeprefix("pid "))

    def is_alive(self) -> bool:
        """Whether any of the processes exists; paused ones do."""
        return self._guard.poll() is None

    def wait(self, timeout_s: float) -> int | None:
        """Wait for the end of all: 0 if the program says that all went well, 1 if not.

        None if it is still there after the timeout.
        """
        try:
            return self._guard.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the first process alone; it passes on what it sees fit."""
        if self._paused:
            self.resume()
        with self._lock:
            self._order(number)

    def kill(self) -> None:
        """SIGKILL for all; returns when they are gone."""
        with self._lock:
            self._order(signal.SIGKILL)
        if self.wait(_KILL_TIMEOUT_S) is None:
            raise LocalError(self._hangs(signal.SIGKILL))

    def pause(self) -> None:
        """SIGSTOP for all: their sockets stay open and nobody answers."""
        self._insist(signal.SIGSTOP, "stopped")
        self._paused = True

    def resume(self) -> None:
        self._insist(signal.SIGCONT, "continued")
        self._paused = False

    def _insist(self, order: signal.Signals, answer: str) -> None:
        with self._lock:
            self._order(order)
            # None at all: it has ended, and that shows in is_alive().
            if self._answer() not in (answer, ""):
                raise LocalError(self._hangs(order))

    def _order(self, order: signal.Signals) -> None:
        assert self._guard.stdin is not None  # because of PIPE
        with contextlib.suppress(BrokenPipeError):  # it ended just now
            self._guard.stdin.write(bytes([order]))

    def _answer(self) -> str:
        assert self._guard.stdout is not None  # because of PIPE
        return self._guard.stdout.readline().decode().strip()

    def _hangs(self, order: signal.Signals) -> str:
        return (
            f"The process {self.pid} or one that it forked didn't react to {order.name}; it may "
            "hang in the kernel, on a disk that doesn't answer. Look at its state with `ps`."
        )
