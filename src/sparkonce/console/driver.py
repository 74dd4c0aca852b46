"""A Spark driver as a child process that is there to be killed, and the checkpoint it leaves.

Between `trial`, which decides when, and `balances`, the program that runs in it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from sparkonce.errors import SparkonceError
from sparkonce.verify.child import Child, short_lived

SPARKONCE = "sparkonce"
SPARK = "spark"


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


class Driver(Child):
    """One start of the job."""

    def __init__(self, run: Run) -> None:
        super().__init__(
            [sys.executable, "-m", "sparkonce.console.balances", json.dumps(asdict(run))],
            short_lived(run.scratch),
        )

    @property
    def was_killed(self) -> bool:
        """Whether it ended by SIGKILL; an end that is neither this nor success is an error."""
        code = self.exit_code
        if code not in (0, -signal.SIGKILL):
            self.kill()  # it has ended; now all that it said is here
            raise SparkonceError(
                f"The Spark driver ended with {code}, and nobody had killed it. The last that it "
                f"said:\n{self.last_words()}"
            )
        return code != 0


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
