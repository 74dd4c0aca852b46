"""How often to look for new rows: a look may cost a walk through the whole table.

"Nothing" is an answer that Spark relies on: `processAllAvailable` returns with it. So a rest is
waited for and followed by a look. Only a long one is not: it would hold up the query's other
sources, and `stop()`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

_SHARE = 4
"""A look that found nothing is followed by a rest of this many times its duration."""
_REST_MIN_S = 0.05
_WAIT_MAX_S = 1.0
"""For what is left of a rest; of a look that takes a quarter of it, all of its rest."""

_Found = TypeVar("_Found")


class Pace:
    """Spark asks every few milliseconds; the database shall not be busy with our questions."""

    def __init__(
        self,
        clock_s: Callable[[], float] = time.monotonic,
        sleep_s: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock_s = clock_s
        self._sleep_s = sleep_s
        self._rests_until_s = -float("inf")

    def look(self, search: Callable[[], _Found | None]) -> _Found | None:
        """What the search finds, or nothing where it is far too early to search again."""
        left_s = self._rests_until_s - self._clock_s()
        if left_s > _WAIT_MAX_S:
            return None
        if left_s > 0:
            self._sleep_s(left_s)
        began_s = self._clock_s()
        found = search()
        if found is None:
            now_s = self._clock_s()
            self._rests_until_s = now_s + max(_REST_MIN_S, _SHARE * (now_s - began_s))
        return found
