"""A process that is there to be killed, paused and waited for.

It leads a process group of its own: a Spark driver, its JVM and its Python workers are one.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, Self

from sparkonce.errors import SparkonceError
from sparkonce.local.java import short_lived_variable

_INTERPRETED: Final = (
    "--conf spark.sql.codegen.wholeStage=false --conf spark.sql.codegen.factoryMode=NO_CODEGEN"
)
_SHELL: Final = "pyspark-shell"
"""What PySpark submits unless it is told otherwise."""

_LOG_LINES: Final = 10_000
_LAST_LINES: Final = 400
_PR_SET_PDEATHSIG: Final = 1
_STACKS_TIMEOUT_S: Final = 2.0
_GONE_TIMEOUT_S: Final = 30.0


class Child:
    """Inside the block it runs, or has ended; behind it, it is gone.

    Its standard input ends when this process does, be it by kill -9: see `end_with_parent`.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._said: deque[tuple[float, str]] = deque(maxlen=_LOG_LINES)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int:
        """Waits for the end; minus the signal's number if one ended it."""
        return self._process.wait()

    def is_running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL, unless it has ended by itself; returns when none of its group can go on.

        The kernel may still be clearing one of them away.
        """
        if self.is_running():
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        # Its output ends when the last of those who could write it has ended.
        self._reader.join(_GONE_TIMEOUT_S)
        if self._reader.is_alive():
            raise SparkonceError(
                f"A process of the group {self.pid} is still there {_GONE_TIMEOUT_S:g} s after its "
                f"leader was killed. Look for it with `ps -g {self.pid}`, and kill it."
            )
        assert self._process.stdin is not None  # because of PIPE
        self._process.stdin.close()

    def pause(self) -> None:
        os.killpg(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.killpg(self.pid, signal.SIGCONT)

    def tell_where(self) -> str:
        """Where each of its threads is, and what it said before; see `tell_where_on_signal`."""
        if self.is_running():
            os.kill(self.pid, signal.SIGUSR1)
            self._reader.join(_STACKS_TIMEOUT_S)  # it goes on reading meanwhile
        return self.last_words()

    def last_words(self) -> str:
        """The last lines that it wrote."""
        return "".join(line for _, line in list(self._said)[-_LAST_LINES:])

    def said_of(self, name: str) -> list[tuple[float, str]]:
        """Lines with this name in them, and when (by the monotonic clock) they were read."""
        whole = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")
        return [(at_s, line.strip()) for at_s, line in list(self._said) if whole.search(line)]

    def _listen(self) -> None:
        assert self._process.stdout is not None  # because of PIPE
        with self._process.stdout as output:
            for line in output:
                self._said.append((time.monotonic(), line.decode(errors="replace")))


def short_lived(scratch: str) -> dict[str, str]:
    """An environment for a Spark driver that lives for seconds, and may die at any moment."""
    own = {
        "TMPDIR": scratch,
        # It is no part of the user's history of pipelines.
        "SPARKONCE_HISTORY": "",
    }
    # What a killed process leaves lying about goes with the folder.
    java = short_lived_variable(f"-Djava.io.tmpdir={scratch}")
    return os.environ | java | interpreted_variable() | own


def interpreted_variable() -> dict[str, str]:
    """To compile what a few rows go through takes a driver longer than to interpret it."""
    name = "PYSPARK_SUBMIT_ARGS"
    return {name: f"{_INTERPRETED} {os.environ.get(name, _SHELL)}"}


def tell_where_on_signal() -> None:
    """For the child: write the stacks of all threads when it is asked for."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)


def end_with_parent() -> None:
    """For the child: end, with the whole group, when the parent does."""
    if sys.platform == "linux":
        # The kernel does it also to one that is stopped; the rest of its group is then orphaned,
        # woken and hung up on.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        os.read(0, 1)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
