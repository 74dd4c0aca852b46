"""A JVM as our child: started through the warden, signalled through it, gone when we are gone.

Stands between a broker and the operating system. Stopping and pausing return when the kernel says
that it has happened, not when the signal was sent.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from sparkonce.errors import LocalError

_WARDEN = Path(__file__).with_name("warden.py")
_SIGNAL_TIMEOUT_S = 10.0


class Jvm:
    """One running (or ended) JVM; a new start is a new object."""

    def __init__(self, command: list[str], *, output: Path, scratch: Path | None = None) -> None:
        """Start `command`, its output appended to a file.

        `scratch` is a folder to delete should this Python process die without stopping the JVM.
        """
        self._lock = threading.Lock()  # one order and its answer at a time
        self._unread = b""
        self._paused = False
        self._warden = subprocess.Popen(
            [sys.executable, "-I", "-S", _WARDEN, output, scratch or "", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            # A session of its own: Ctrl-C in the terminal is for us, not for the brokers.
            start_new_session=True,
        )
        first = self._next_event(time.monotonic() + _SIGNAL_TIMEOUT_S)
        if first is None or not first.startswith("pid "):
            self._warden.wait()
            raise LocalError(
                f"The process {command[0]} could not be started. Its output is in {output}."
            )
        self.pid = int(first.removeprefix("pid "))

    def is_alive(self) -> bool:
        """Whether the process exists; a paused one does."""
        return self._warden.poll() is None

    def is_paused(self) -> bool:
        return self._paused and self.is_alive()

    def terminate(self, timeout_s: float) -> bool:
        """Ask it to shut down and wait; False if it is still there after the timeout."""
        if self._paused:
            self.resume()
        return self._order(signal.SIGTERM, "exited", timeout_s)

    def kill(self) -> None:
        """SIGKILL; returns when the process is gone."""
        self._insist(signal.SIGKILL, "exited")

    def pause(self) -> None:
        """SIGSTOP: its sockets stay open and nobody answers."""
        if not self._paused:
            self._insist(signal.SIGSTOP, "stopped")
            self._paused = True

    def resume(self) -> None:
        if self._paused:
            self._insist(signal.SIGCONT, "continued")
            self._paused = False

    def _insist(self, order: signal.Signals, answer: str) -> None:
        if not self._order(order, answer, _SIGNAL_TIMEOUT_S):
            raise LocalError(
                f"The process {self.pid} didn't react to {order.name} within "
                f"{_SIGNAL_TIMEOUT_S:g} s; it may hang in the kernel, on a disk that doesn't "
                "answer. Look at its state with `ps`."
            )

    def _order(self, order: signal.Signals, answer: str, timeout_s: float) -> bool:
        """Send a signal and wait for its effect, or for the process's end."""
        with self._lock:
            if not self.is_alive():
                return True
            assert self._warden.stdin is not None  # because of PIPE
            try:
                self._warden.stdin.write(bytes([order]))
            except BrokenPipeError:  # it ended just now
                self._warden.wait()
                return True
            deadline = time.monotonic() + timeout_s
            while (event := self._next_event(deadline)) is not None:
                if event.startswith("exited"):
                    self._warden.wait()
                    return True
                if event == answer:
                    return True
            # No event: out of time, or a warden that was killed and took the JVM with it.
            return not self.is_alive()

    def _next_event(self, deadline: float) -> str | None:
        """The warden's next line; None when time is up or the warden is gone."""
        assert self._warden.stdout is not None  # because of PIPE
        descriptor = self._warden.stdout.fileno()
        while b"\n" not in self._unread:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select([descriptor], [], [], left_s)[0]:
                return None
            chunk = os.read(descriptor, 4096)
            if not chunk:
                self._warden.wait()
                return None
            self._unread += chunk
        line, self._unread = self._unread.split(b"\n", 1)
        return line.decode()
