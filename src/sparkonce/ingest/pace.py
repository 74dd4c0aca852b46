"""How often to look for new rows: a look may cost a walk through the whole table.

"Nothing" is an answer that Spark relies on: `processAllAvailable` returns with it. So it is only
given after a look that began after the question. A rest that is not over is waited for first, and
is bounded, since it holds up the query's other sources.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

_SHARE = 4
"""A look that found nothing is followed by a rest of this many times its duration."""
_REST_MIN_S = 0.05
_REST_MAX_S = 10.0

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
        """What the search finds, once the rest after the one before is over."""
        left_s = self._rests_until_s - self._clock_s()
        if left_s > 0:
            self._sleep_s(left_s)
        began_s = self._clock_s()
        found = search()
        if found is None:
            now_s = self._clock_s()
            rest_s = min(max(_REST_MIN_S, _SHARE * (now_s - began_s)), _REST_MAX_S)
            self._rests_until_s = now_s + rest_s
        return found
