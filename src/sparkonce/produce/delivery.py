"""Delivery reports: what became of what was written, told in the caller's own thread.

Outcomes arrive on the client's loop; user code must not run there, or a slow callback would stop
every connection. They wait here until `poll`, `flush` or a commit serves them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from sparkonce.encode import Rejected
from sparkonce.errors import BrokerError, DeliveryFailed
from sparkonce.produce.lane import Batch


@dataclass(frozen=True, slots=True)
class Delivery:
    """Records in one partition with consecutive offsets, from one call."""

    topic: str
    partition: int
    offset: int
    """Of the first record; -1 where the broker does not tell (acks=0, or an error)."""
    count: int
    rows: Sequence[int] | np.ndarray
    """Which rows of the table that was written."""


OnDelivery = Callable[[BrokerError | None, Delivery], None]


class DeliveryReports:
    def __init__(self) -> None:
        self._ready: deque[Callable[[], None]] = deque()
        self._arrived = threading.Condition()
        self._unheard: BrokerError | None = None

    def per_batch(self, report: OnDelivery) -> Callable[[Batch, BrokerError | None, int], None]:
        """The outcome of a batch as one report."""

        def outcome(batch: Batch, error: BrokerError | None, offset: int) -> None:
            encoded = batch.encoded
            delivery = Delivery(
                encoded.topic, encoded.partition, offset, encoded.count, encoded.rows
            )
            self._add(partial(report, error, delivery))

        return outcome

    def per_row(
        self, reports: Sequence[OnDelivery | None]
    ) -> Callable[[Batch, BrokerError | None, int], None]:
        """The outcome of a batch as a report for each row that asked for one."""

        def outcome(batch: Batch, error: BrokerError | None, offset: int) -> None:
            encoded = batch.encoded
            for place, row in enumerate(encoded.rows):
                report = reports[int(row)]
                if report is None:
                    continue
                at = offset + place if offset >= 0 else offset
                delivery = Delivery(encoded.topic, encoded.partition, at, 1, (int(row),))
                self._add(partial(report, error, delivery))

        return outcome

    def unreported(self, batch: Batch, error: BrokerError | None, offset: int) -> None:
        """The outcome of a batch nobody asked to hear of; a failure must not go unheard."""
        if error is not None and self._unheard is None:
            self._unheard = error

    def refused(self, bad: Rejected, reports: Sequence[OnDelivery | None] | None) -> None:
        """A row that was taken and turned out to be unfit when it was to be sent."""
        error = DeliveryFailed(f"a record to {bad.topic} can't be written: {bad.reason}")
        report = reports[bad.row] if reports else None
        if report is None:
            self._unheard = self._unheard or error
        else:
            delivery = Delivery(bad.topic or "", -1, -1, 1, (bad.row,))
            self._add(partial(report, error, delivery))

    def forget_unreported(self) -> None:
        self._unheard = None

    def raise_unreported(self) -> None:
        if self._unheard is not None:
            error, self._unheard = self._unheard, None
            raise error

    @property
    def are_due(self) -> bool:
        """Whether callbacks wait to be called."""
        return bool(self._ready)

    def serve(self, timeout_s: float = 0.0) -> int:
        """Run the callbacks that are due, waiting for a first one if need be."""
        with self._arrived:
            self._arrived.wait_for(lambda: bool(self._ready), timeout_s)
        served = 0
        while self._ready:
            self._ready.popleft()()
            served += 1
        return served

    def _add(self, call: Callable[[], None]) -> None:
        with self._arrived:
            self._ready.append(call)
            self._arrived.notify_all()
