"""The wait that lets rows gather before they are sent (`linger.ms`).

A thread of its own: rows are encoded where they are taken out, and the client's loop must not
stand still for that. Inside a transaction nothing lingers, the commit sends what is left.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from sparkonce.errors import FatalError


class Linger:
    def __init__(self, send: Callable[[], None], linger_ms: int, send_within_s: float) -> None:
        self._send = send
        self._linger_s = linger_ms / 1000
        self._send_within_s = send_within_s
        self._rows_came = threading.Event()
        self._stopping = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="sparkonce-linger", daemon=True)
        self._thread.start()

    def rows_came(self) -> None:
        """The first row of a new gathering is there. Raises what went wrong with the last one."""
        self.raise_error()
        self._rows_came.set()

    def raise_error(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def stop(self) -> None:
        self._stopping.set()
        self._rows_came.set()
        self._thread.join(self._send_within_s)
        if self._thread.is_alive():
            raise FatalError(
                f"the rows that lingered were not handed over in {self._send_within_s:g} s, longer "
                "than they may wait for room and metadata (max.block.ms): please report it"
            )

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._rows_came.wait()
            self._rows_came.clear()
            if self._stopping.wait(self._linger_s):
                return
            try:
                self._send()
            except Exception as error:  # noqa: BLE001 - told to the caller, by its next call
                self._error = error
