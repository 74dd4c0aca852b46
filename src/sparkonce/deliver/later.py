"""The guarantee `none`: rows are on their way and nobody waits, progress is noted by a clock."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Final

from sparkonce.deliver.store import StoreError

_EVERY_S = 5.0
_WAITING_MAX = 4
_PATIENCE_S: Final = 300.0
_log = logging.getLogger("sparkonce.deliver")

Action = Callable[[], object]


class Later:
    """One thread that does what it is told; what fails there is lost, and that is said."""

    def __init__(self, pipeline: str, *, patience_s: float = _PATIENCE_S) -> None:
        """`patience_s`: as long as the database may take for one thing before that is told."""
        self._pipeline = pipeline
        self._patience_s = patience_s
        # Staged batches that wait take room, so there are only so many of them.
        self._waiting: queue.Queue[tuple[Action, str] | None] = queue.Queue(_WAITING_MAX)
        self._noted_s = time.monotonic()
        self._unnoted: Action | None = None
        # Where the database hangs for good, the driver's process must come to its end all the same.
        self._thread = threading.Thread(target=self._run, name="sparkonce-later", daemon=True)
        self._thread.start()

    def do(self, load: Action, records: int) -> None:
        self._put((load, f"{records} rows are lost"))

    def note_at_times(self, note: Action) -> None:
        """Now and then, whatever became of the rows; the last one in any case, at the end."""
        self._unnoted = note
        if time.monotonic() - self._noted_s >= _EVERY_S:
            self._note()

    def close(self) -> None:
        """Until all is done; raises where the database does not come to it in time."""
        if self._unnoted:
            self._note()
        self._put(None)
        while self._thread.is_alive():
            waiting = self._waiting.qsize()
            self._thread.join(self._patience_s)
            if self._thread.is_alive() and self._waiting.qsize() == waiting:
                raise self._stuck()

    def _note(self) -> None:
        self._noted_s = time.monotonic()
        if self._unnoted:
            self._put((self._unnoted, "progress was not noted"))
        self._unnoted = None

    def _put(self, what: tuple[Action, str] | None) -> None:
        try:
            self._waiting.put(what, timeout=self._patience_s)
        except queue.Full:
            raise self._stuck() from None

    def _stuck(self) -> StoreError:
        return StoreError(
            f"{self._pipeline}: batches wait to be loaded, and the database has not come to the "
            f"end of one in {self._patience_s:g} s: it hangs, or can't be reached. What waits is "
            "lost, as guarantee=none allows; look into the database's log"
        )

    def _run(self) -> None:
        while (what := self._waiting.get()) is not None:
            action, lost = what
            try:
                action()
            except Exception as error:  # noqa: BLE001 - said: this is all that `none` promises
                _log.warning("%s: %s: %s", self._pipeline, lost, error)
