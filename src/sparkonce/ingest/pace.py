"""How often to look for new rows: a look may cost a walk through the whole table."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

_SHARE = 4
"""A look that found nothing is followed by a rest of this many times its duration."""
_REST_MIN_S = 0.05

_Found = TypeVar("_Found")


class Pace:
    """Spark asks every few milliseconds; the database shall not be busy with our questions."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._rests_until_s = -float("inf")

    def look(self, search: Callable[[], _Found | None]) -> _Found | None:
        """What the search finds, or nothing where it is too early to search again."""
        began_s = self._clock_s()
        if began_s < self._rests_until_s:
            return None
        found = search()
        if found is None:
            now_s = self._clock_s()
            self._rests_until_s = now_s + max(_REST_MIN_S, _SHARE * (now_s - began_s))
        return found
