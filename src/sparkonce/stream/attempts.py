"""The steps of one batch in the guarantee's order, tried again a bounded number of times.

An attempt that fails is given up, and the batch is run again under a new epoch; then it fails with
the first cause. What streams and batch jobs have in common.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from sparkonce.errors import FatalError, OutcomeUnknown, SparkonceError
from sparkonce.guarantees import Guarantee
from sparkonce.stream.ledger import Entry, LedgerError, Offsets
from sparkonce.stream.report import BatchReport, Listener
from sparkonce.stream.steps import ORDERS, Sink, Step, Written

_log = logging.getLogger("sparkonce.stream")


class BatchFailed(SparkonceError):
    """A batch could not be written in the attempts it has."""


@dataclass(slots=True)
class _Clock:
    """Where the time of a batch went."""

    started_s: float
    at_s: float
    write_ms: float = 0.0
    transaction_ms: float = 0.0

    @classmethod
    def start(cls) -> _Clock:
        return cls(time.time(), time.monotonic())

    def spent(self, step: Step, since_s: float) -> None:
        spent_ms = (time.monotonic() - since_s) * 1000
        if step is Step.WRITE:
            self.write_ms += spent_ms
        else:
            self.transaction_ms += spent_ms


@dataclass(frozen=True, slots=True)
class Ran:
    """How a batch came to its end."""

    is_recorded: bool
    attempts: int


class Attempts:
    """Writes batches into one sink, and tells the listener what became of each."""

    def __init__(
        self,
        sink: Sink,
        *,
        name: str,
        guarantee: Guarantee,
        attempts_max: int,
        listener: Listener,
        run_id: str | None = None,
        settle: Callable[[], None] | None = None,
    ) -> None:
        """`settle` waits for what is left of an attempt that was given up."""
        self._sink = sink
        self._name = name
        self._guarantee = guarantee
        # What is recorded before it is written is never tried a second time.
        self._attempts_max = 1 if guarantee is Guarantee.AT_MOST_ONCE else attempts_max
        self._listener = listener
        self._run_id = run_id
        self._settle = settle

    def run(
        self,
        frame: DataFrame,
        entry: Entry,
        sources: Sequence[Offsets | str],
        is_nothing: Callable[[Written], bool],
    ) -> Ran:
        """A batch that `is_nothing` costs no transaction, and is not recorded."""
        clock = _Clock.start()
        causes: list[str] = []
        try:
            while True:
                try:
                    written, recorded = self._attempt(frame, entry, sources, is_nothing, clock)
                    break
                except (SparkonceError, PySparkException, Py4JJavaError) as error:
                    causes.append(self._sink.trouble or str(error))
                    self._give_up(error, causes)
                    if self._settle:
                        self._settle()
        except BaseException as failure:
            self._sink.abandon()
            why = causes[0] if causes else str(failure)
            self._report(entry, Written(), "failed", clock, max(1, len(causes)), why)
            raise
        outcome = "committed" if recorded else "empty"
        self._report(entry, written, outcome, clock, len(causes) + 1)
        return Ran(recorded, len(causes) + 1)

    def skipped(self, entry: Entry) -> None:
        """Tell of a batch that the ledger has already."""
        self._report(entry, Written(), "skipped", _Clock.start(), 0)

    def _attempt(
        self,
        frame: DataFrame,
        entry: Entry,
        sources: Sequence[Offsets | str],
        is_nothing: Callable[[Written], bool],
        clock: _Clock,
    ) -> tuple[Written, bool]:
        written = Written()
        for step in ORDERS[self._guarantee]:
            since_s = time.monotonic()
            if step is Step.FENCE:
                self._sink.fence()
            elif step is Step.WRITE:
                written = self._sink.write(frame)
            elif step is Step.RECORD:
                self._sink.record(entry, sources)
            else:
                written = self._sink.decide() or written
            clock.spent(step, since_s)
            is_last = step is ORDERS[self._guarantee][-1]
            if step is Step.WRITE and not is_last and is_nothing(written):
                self._sink.leave_empty()
                return written, False
        return written, True

    def _give_up(self, error: Exception, causes: Sequence[str]) -> None:
        """Abort the attempt; raises unless the batch may be run again."""
        settled = OutcomeUnknown | FatalError | LedgerError
        if isinstance(error, settled) or _is_cancelled(error):
            raise error
        self._sink.abandon()
        if len(causes) >= self._attempts_max:
            raise BatchFailed(
                f"the batch failed {len(causes)} times (batchAttempts={self._attempts_max}). "
                f"The first cause: {causes[0]}"
            ) from error
        _log.warning(
            "%s: attempt %d of %d was aborted, the batch is run again under a new epoch: %s",
            self._name, len(causes), self._attempts_max, causes[-1],
        )  # fmt: skip

    def _report(
        self,
        entry: Entry,
        written: Written,
        outcome: str,
        clock: _Clock,
        attempts: int,
        error: str = "",
    ) -> None:
        producer_id, epoch = self._sink.epoch
        self._listener.on_batch(
            BatchReport(
                pipeline=self._name,
                query_id=entry.query if self._run_id is None else "",
                batch=self._run_id or str(entry.batch),
                guarantee=self._guarantee.value,
                outcome=outcome,
                started_s=clock.started_s,
                records=written.records,
                size_bytes=written.size_bytes,
                dead_letters=written.dead_letters,
                lost=written.lost,
                producer_id=producer_id,
                epoch=epoch,
                attempts=attempts,
                tasks=written.tasks,
                write_ms=clock.write_ms,
                transaction_ms=clock.transaction_ms,
                total_ms=(time.monotonic() - clock.at_s) * 1000,
                targets=written.targets,
                error=error,
            )
        )


def _is_cancelled(error: BaseException) -> bool:
    """By query.stop(), or by the user: no reason to try again."""
    return "SPARK_JOB_CANCELLED" in str(error) or "InterruptedException" in str(error)
