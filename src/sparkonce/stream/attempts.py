"""The steps of one batch in the guarantee's order, tried again a bounded number of times.

An attempt that fails is given up, and the batch is run again under a new epoch; then it fails with
the first cause. An attempt by which the sink learnt to write in another way is not counted. What
streams and batch jobs have in common.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from sparkonce.errors import FatalError, FencedError, OutcomeUnknown, SparkonceError
from sparkonce.guarantees import Guarantee
from sparkonce.stream.ledger import Entry, LedgerError, Offsets
from sparkonce.stream.report import BatchReport, Listener
from sparkonce.stream.runs import RunSpent
from sparkonce.stream.steps import ORDERS, LayoutRefuted, Sink, Step, Written

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


class Computed(Protocol):
    """What Spark computes for a batch: rows, and the state that they come from."""

    def prepare(self, entry: Entry, *, is_first: bool) -> None:
        """Before an attempt: remove what an aborted one left. Only while this driver is the owner:
        one that is fenced would remove what belongs to its successor, or write over it."""

    def seal(self, entry: Entry) -> Entry:
        """All rows are written. Adds to the entry which state belongs to them, or raises if what
        was computed must not be decided."""

    def settle(self, entry: Entry, *, has_computed: bool) -> None:
        """The attempt was aborted: wait until nothing of it runs any more. `has_computed`: it had
        come to where Spark is asked for rows."""


@dataclass(frozen=True, slots=True)
class Ran:
    """How a batch came to its end."""

    recorded: Entry | None
    """None where it was not worth a transaction."""
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
    ) -> None:
        self._sink = sink
        self._name = name
        self._guarantee = guarantee
        # What is recorded before it is written is never tried a second time.
        self._attempts_max = 1 if guarantee is Guarantee.AT_MOST_ONCE else attempts_max
        self._listener = listener
        self._run_id = run_id

    def run(
        self,
        frame: DataFrame,
        entry: Entry,
        sources: Sequence[Offsets | str],
        is_nothing: Callable[[Written], bool],
        computed: Computed | None = None,
    ) -> Ran:
        """A batch that `is_nothing` costs no transaction, and is not recorded."""
        clock = _Clock.start()
        causes: list[str] = []
        uncounted = 0
        try:
            while True:
                steps: list[Step] = []
                try:
                    is_first = not causes
                    written, recorded = self._attempt(
                        frame, entry, sources, is_nothing, computed, clock, steps, is_first=is_first
                    )
                    break
                except (SparkonceError, PySparkException, Py4JJavaError) as error:
                    causes.append(self._sink.trouble or str(error))
                    uncounted += isinstance(error, LayoutRefuted)
                    self._give_up(error, causes, len(causes) - uncounted)
                    if computed:
                        self._settle(computed, entry, steps, causes)
        except BaseException as failure:
            why = causes[0] if causes else str(failure)
            self._abandon_at_last()
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
        computed: Computed | None,
        clock: _Clock,
        steps: list[Step],
        *,
        is_first: bool,
    ) -> tuple[Written, Entry | None]:
        """`steps` is told each as it begins."""
        written = Written()
        for step in ORDERS[self._guarantee]:
            steps.append(step)
            since_s = time.monotonic()
            if step is Step.FENCE:
                if computed:
                    computed.prepare(entry, is_first=is_first)
                self._sink.fence()
            elif step is Step.WRITE:
                written = self._sink.write(frame)
            elif step is Step.RECORD:
                self._sink.record(entry, sources)
            else:
                written = self._sink.decide() or written
            clock.spent(step, since_s)
            if step is not Step.WRITE or step is ORDERS[self._guarantee][-1]:
                continue
            if computed:
                entry = computed.seal(entry)
            if is_nothing(written):
                self._sink.leave_empty()
                return written, None
        return written, entry

    def _give_up(self, error: Exception, causes: Sequence[str], counted: int) -> None:
        """Abort the attempt; raises unless the batch may be run again. `counted` attempts of those
        that failed are among the ones it has."""
        settled = OutcomeUnknown | FatalError | LedgerError | RunSpent
        if isinstance(error, settled) or _is_cancelled(error):
            raise error
        try:
            self._sink.abandon()
        except FencedError:
            raise  # whoever took over has aborted it, and says more than the cause
        except Exception as failed:  # noqa: BLE001 - told; any sink has errors of its own
            raise BatchFailed(
                f"{causes[0]}. The attempt could not be aborted either, which the next start does: "
                f"{failed}"
            ) from error
        if isinstance(error, LayoutRefuted):
            _log.warning(
                "%s: an attempt was aborted, the batch is run again in turns; not one of its %d "
                "attempts: %s",
                self._name, self._attempts_max, causes[-1],
            )  # fmt: skip
            return
        if counted >= self._attempts_max:
            raise BatchFailed(
                f"the batch failed {len(causes)} times (batchAttempts={self._attempts_max}). "
                f"The first cause: {causes[0]}"
            ) from error
        _log.warning(
            "%s: attempt %d of %d was aborted, the batch is run again under a new epoch: %s",
            self._name, counted, self._attempts_max, causes[-1],
        )  # fmt: skip

    def _settle(
        self, computed: Computed, entry: Entry, steps: Sequence[Step], causes: Sequence[str]
    ) -> None:
        try:
            computed.settle(entry, has_computed=Step.WRITE in steps)
        except SparkonceError as unsettled:
            # Where a query ends with it, why the attempt failed is what its owner needs to know.
            told = f"{unsettled}. The first cause: {causes[0]}"
            raise type(unsettled)(told) from unsettled

    def _abandon_at_last(self) -> None:
        """The query fails for another reason, which must not be hidden by this."""
        try:
            self._sink.abandon()
        except Exception as failed:  # noqa: BLE001 - logged; any sink has errors of its own
            _log.warning(
                "%s: the attempt could not be aborted, which the next start does: %s",
                self._name, failed,
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
