"""The way to one address: opened when it is needed, opened again after a pause when it broke.

Pure bookkeeping of the client's loop; the client opens and closes what this says.
"""

from __future__ import annotations

from sparkonce.errors import BrokerError, Unreachable
from sparkonce.wire.address import Address
from sparkonce.wire.connection import Connection, Done
from sparkonce.wire.request import Request

RECONNECT_MS = 20
RECONNECT_MAX_MS = 1_000


class Link:
    def __init__(self, address: Address) -> None:
        self.address = address
        self.connection: Connection | None = None
        self.last_error: BrokerError | None = None
        self._opening = False
        self._wanted = False
        self._failures = 0
        self._open_again_s = 0.0
        self._waiting: list[tuple[Request, Done, float]] = []

    def send(self, request: Request, done: Done, deadline_s: float) -> None:
        if self.connection is not None:
            self.connection.send(request, done, deadline_s)
        else:
            self._waiting.append((request, done, deadline_s))

    def want(self) -> None:
        """Somebody will send as soon as the connection is open."""
        self._wanted = True

    def claim_opening(self, now_s: float) -> bool:
        """Whether to open now: somebody waits, and the pause after a failure is over."""
        if self.connection or self._opening or not (self._wanted or self._waiting):
            return False
        self._opening = now_s >= self._open_again_s
        return self._opening

    def next_wake_s(self) -> float | None:
        """When the loop should look here again."""
        if self.connection is not None:
            return self.connection.next_deadline_s()
        wakes = [deadline_s for _, _, deadline_s in self._waiting]
        if (self._wanted or self._waiting) and not self._opening:
            wakes.append(self._open_again_s)
        return min(wakes, default=None)

    def expire(self, now_s: float) -> None:
        if self.connection is not None:
            return self.connection.expire(now_s)
        late = [entry for entry in self._waiting if entry[2] <= now_s]
        self._waiting = [entry for entry in self._waiting if entry[2] > now_s]
        for request, done, _ in late:
            why = self.last_error or "it does not answer"
            done(Unreachable(f"{request.api} could not be sent to {self.address}: {why}"))

    def opened(self, connection: Connection) -> None:
        self._opening = self._wanted = False
        self._failures = 0
        self.connection = connection
        waiting, self._waiting = self._waiting, []
        for request, done, deadline_s in waiting:
            connection.send(request, done, deadline_s)

    def lost(self, error: BrokerError, now_s: float) -> None:
        """The connection broke or could not be opened; those who wait may know another address."""
        self.connection = None
        self._opening = self._wanted = False
        self.last_error = error
        pause_ms = min(RECONNECT_MAX_MS, RECONNECT_MS * 2 ** min(self._failures, 10))
        self._failures += 1
        self._open_again_s = now_s + pause_ms / 1000
        waiting, self._waiting = self._waiting, []
        for _, done, _ in waiting:
            done(error)
