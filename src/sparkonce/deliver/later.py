"""The guarantee `none`: rows are on their way and nobody waits, progress is noted by a clock."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

_EVERY_S = 5.0
_WAITING_MAX = 4
_log = logging.getLogger("sparkonce.deliver")

Action = Callable[[], object]


class Later:
    """One thread that does what it is told; what fails there is lost, and that is said."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="sparkonce-later")
        self._noted_s = time.monotonic()
        # Staged batches that wait take room, so there are only so many of them.
        self._room = threading.BoundedSemaphore(_WAITING_MAX)
        self._unnoted: Action | None = None

    def do(self, load: Action, records: int) -> None:
        self._room.acquire()
        future = self._pool.submit(load)
        future.add_done_callback(lambda done: self._room.release())
        self._tell_failure(future, f"{records} rows are lost")

    def note_at_times(self, note: Action) -> None:
        """Now and then, whatever became of the rows; the last one in any case, at the end."""
        self._unnoted = note
        if time.monotonic() - self._noted_s >= _EVERY_S:
            self._note()

    def close(self) -> None:
        if self._unnoted:
            self._note()
        self._pool.shutdown(wait=True)

    def _note(self) -> None:
        self._noted_s = time.monotonic()
        if self._unnoted:
            self._tell_failure(self._pool.submit(self._unnoted), "progress was not noted")
        self._unnoted = None

    def _tell_failure(self, future: Future[object], what: str) -> None:
        def done(ended: Future[object]) -> None:
            if error := ended.exception():
                _log.warning("%s: %s: %s", self._pipeline, what, error)

        future.add_done_callback(done)
