"""What the fault proxy did, in order: so that a test can tell a fault that fired from one that
never had its chance.

Links write, in the proxy's thread; tests read and wait, in theirs. Links also wait here, for the
answer to some other request.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from sparkonce.verify.network.faults import ANY_API, Fault
from sparkonce.verify.network.frames import RequestHead

# The oldest events go first; the counts of faults are kept apart and stay right.
EVENTS_KEPT: Final = 1_000_000


class Did(StrEnum):
    """What happened to a connection or a request."""

    CONNECTED = "connected"
    REFUSED = "refused"  # the broker is down, or the proxy accepts nobody
    CLOSED = "closed"
    PASSED = "passed"  # the request went to the broker
    ANSWERED = "answered"  # the broker's answer reached the proxy
    FIRED = "fired"  # a fault took effect
    DELIVERED = "delivered"  # a held request, or a copy, reached the broker and was answered
    UNDELIVERED = "undelivered"  # it couldn't be: the broker was gone


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that the proxy saw or did."""

    did: Did
    connection: int  # counted from 1 in the order of acceptance
    node: int | None  # the broker's id; None until some metadata named it
    request: int = 0  # counted from 1 over all connections; 0 for what isn't about a request
    head: RequestHead | None = None
    fault: Fault | None = None
    at_s: float = field(default_factory=time.monotonic)

    @property
    def api(self) -> str | None:
        """The request's API as Kafka spells it, e.g. `EndTxn`."""
        return self.head.api if self.head else None


@dataclass(frozen=True, slots=True)
class _Awaited:
    apis: tuple[str, ...]
    after_request: int
    not_on_connection: int | None
    came: asyncio.Future[None]

    def is_met_by(self, event: Event) -> bool:
        return (
            event.did is Did.ANSWERED
            and (ANY_API in self.apis or event.api in self.apis)
            and event.request > self.after_request
            and event.connection != self.not_on_connection
        )


class Journal:
    """The events so far, and a place to wait for those to come."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._events: deque[Event] = deque(maxlen=EVENTS_KEPT)
        self._counts: Counter[tuple[Did, Fault]] = Counter()
        self._awaited: list[_Awaited] = []

    def write(self, event: Event) -> None:
        with self._changed:
            self._events.append(event)
            if event.fault is not None:
                self._counts[event.did, event.fault] += 1
                self._changed.notify_all()
        if not self._awaited:
            return
        for awaited in [it for it in self._awaited if it.is_met_by(event)]:
            self._awaited.remove(awaited)
            if not awaited.came.done():
                awaited.came.set_result(None)

    def events(self) -> list[Event]:
        with self._changed:
            return list(self._events)

    def count(self, did: Did, fault: Fault) -> int:
        with self._changed:
            return self._counts[did, fault]

    def wait(self, did: Did, fault: Fault, *, times: int, timeout_s: float) -> bool:
        """Wait in the caller's thread; False if it didn't happen in time."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._counts[did, fault] >= times, timeout=timeout_s
            )

    def answer_to(
        self, *apis: str, after_request: int, not_on_connection: int | None = None
    ) -> asyncio.Future[None]:
        """Done when a later request of one of these APIs has been answered. For the proxy's own
        thread."""
        came = asyncio.get_running_loop().create_future()
        self._awaited.append(_Awaited(apis, after_request, not_on_connection, came))
        return came
