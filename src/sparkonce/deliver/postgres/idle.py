"""On executors: connections that wait for the next task, for a while.

A Python worker serves many tasks, and to open a connection takes ADBC longer than to write a
thousand rows: it learns all types of the database. So one is kept from task to task, until nobody
has wanted it for idleTimeout; and where executors serve many pipelines, those of the last few.
"""

from __future__ import annotations

import threading
from typing import Any, Final

_KEPT_MAX: Final = 4


class IdleConnections:
    """By their URLs, those that were used last at the end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[Any, threading.Timer]] = {}

    def take(self, url: str) -> Any:
        """None if there is none; the server may have ended it meanwhile."""
        with self._lock:
            found = self._kept.pop(url, None)
        if found is None:
            return None
        connection, timer = found
        timer.cancel()
        return connection

    def keep(self, url: str, connection: Any, idle_s: float) -> None:
        timer = threading.Timer(idle_s, self._expire, (url, connection))
        timer.daemon = True
        with self._lock:
            surplus: list[tuple[Any, threading.Timer]] = []
            surplus += [self._kept.pop(url)] if url in self._kept else []
            self._kept[url] = connection, timer
            while len(self._kept) > _KEPT_MAX:
                surplus.append(self._kept.pop(next(iter(self._kept))))
            timer.start()
        for each, its_timer in surplus:
            its_timer.cancel()
            each.close()

    def _expire(self, url: str, connection: Any) -> None:
        with self._lock:
            if url not in self._kept or self._kept[url][0] is not connection:
                return  # taken in the last moment
            del self._kept[url]
        connection.close()
