"""How long each pipeline really worked while things went wrong.

A round lasts as long as its slowest trial, and its trials wait for each other and for brokers.
The clock of a trial runs in each of its lives from the moment it may begin until the life is over,
and stands while it waits at a point: for the others, for a broker, for its death.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable


class LivedTime:
    """Clocks by trial and life; may be asked from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._running: dict[tuple[int, int], float] = {}
        """Since when."""
        self._lived_s: dict[int, float] = defaultdict(float)

    def start(self, trial: int, life: int) -> None:
        with self._lock:
            self._running.setdefault((trial, life), self._clock())

    def stop(self, trial: int, life: int) -> bool:
        """Whether it was running."""
        with self._lock:
            return self._stop((trial, life))

    def end(self, life: int) -> None:
        """The process of this life is dead or stopped, and with it whatever ran there."""
        with self._lock:
            for key in [key for key in self._running if key[1] == life]:
                self._stop(key)

    def of(self, trial: int) -> float:
        """Seconds, all lives together, without what is running now."""
        with self._lock:
            return self._lived_s[trial]

    def _stop(self, key: tuple[int, int]) -> bool:
        since_s = self._running.pop(key, None)
        if since_s is None:
            return False
        self._lived_s[key[0]] += self._clock() - since_s
        return True
