"""A Spark driver as a child process that is there to be killed, and the checkpoint it leaves.

Between `trial`, which decides when, and `balances`, the program that runs in it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from sparkonce.errors import SparkonceError

SPARKONCE = "sparkonce"
SPARK = "spark"
_LOG_LINES = 40
_GONE_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a driver is told."""

    sink: str
    servers: str
    source: str
    target: str
    checkpoint: str
    scratch: str
    per_batch: int
    die_at: str = ""
    """A point of `observe`; only the sink of sparkonce has them."""
    die_in: int = 0
    """The first batch that it may die in."""


class Driver:
    """One start of the job. Inside the block it runs, or has ended; behind it, it is gone."""

    def __init__(self, run: Run) -> None:
        self._said: deque[str] = deque(maxlen=_LOG_LINES)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sparkonce.console.balances", json.dumps(asdict(run))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=_environment(run),
            # Python and its JVM are one process group: they are killed as one.
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        assert self._process.stdin is not None  # because of PIPE
        self._process.stdin.close()

    def is_running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL, unless it has ended by itself; returns when Python and its JVM are gone."""
        if self.is_running():
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        # Its output ends when the last of those who could write it has ended.
        self._reader.join(_GONE_TIMEOUT_S)
        if self._reader.is_alive():
            raise SparkonceError(
                f"The JVM of the Spark driver {self._process.pid} is still there "
                f"{_GONE_TIMEOUT_S:g} s after the driver. Look for it with "
                f"`ps -g {self._process.pid}`, and kill it."
            )

    @property
    def was_killed(self) -> bool:
        """Whether it ended by SIGKILL; an end that is neither this nor success is an error."""
        code = self._process.wait()
        if code not in (0, -signal.SIGKILL):
            self._reader.join(_GONE_TIMEOUT_S)
            raise SparkonceError(
                f"The Spark driver ended with {code}, and nobody had killed it. The last that it "
                f"said:\n{''.join(self._said)}"
            )
        return code != 0

    def _listen(self) -> None:
        assert self._process.stdout is not None  # because of PIPE
        with self._process.stdout as output:
            for line in output:
                self._said.append(line.decode(errors="replace"))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Spark's own: `offsets/N` is the plan of batch N, `commits/N` says that it is done."""

    folder: Path

    @property
    def planned(self) -> int:
        """The last batch that was planned; -1 before the first."""
        return max(self._numbers("offsets"), default=-1)

    @property
    def committed_count(self) -> int:
        return len(self._numbers("commits"))

    def is_committed(self, batch: int) -> bool:
        return (self.folder / "commits" / str(batch)).exists()

    def _numbers(self, kind: str) -> list[int]:
        try:
            names = os.listdir(self.folder / kind)  # noqa: PTH208  # looked at very often
        except FileNotFoundError:
            return []
        return [int(name) for name in names if name.isdigit()]


def _environment(run: Run) -> dict[str, str]:
    # What a killed process leaves lying about goes with the demo's folder. The other two are for a
    # JVM that lives for seconds: it needs half the CPU time.
    java = f"-Djava.io.tmpdir={run.scratch} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    return os.environ | {
        "TMPDIR": run.scratch,
        "JAVA_TOOL_OPTIONS": f"{os.environ.get('JAVA_TOOL_OPTIONS', '')} {java}".strip(),
        # A demo is no part of the user's history of pipelines.
        "SPARKONCE_HISTORY": "",
    }
