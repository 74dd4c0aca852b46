"""What became of a micro-batch, and whoever wants to hear of it.

The pipeline makes one report when a batch has ended, however it ended, and tells its listeners in
the thread of the query: the log here, the figures in `metrics`, the past in `history`, a run's
progress in `progress`. By then the batch is decided: nothing a listener does can change it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Protocol

logger = logging.getLogger("sparkonce.stream")

OUTCOMES = ("committed", "empty", "skipped", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """One batch, after its last attempt."""

    pipeline: str
    """The transactional id."""
    query_id: str
    """Spark's query id; "" for a batch job."""
    batch: str
    """The batch id ("12"), or a batch job's run id."""
    guarantee: str
    outcome: str
    """One of OUTCOMES; "skipped" was already written by an earlier run."""
    started_s: float
    """Seconds since 1970."""
    records: int
    size_bytes: int
    dead_letters: int
    lost: int
    """Rows that at_most_once gave up."""
    producer_id: int
    epoch: int
    """-1, as the producer id, where the guarantee needs no producer of its own."""
    attempts: int
    tasks: int
    write_ms: float
    """The job on the executors."""
    transaction_ms: float
    """Fence, record, decide; 0 where there was no transaction."""
    total_ms: float
    targets: Mapping[str, int]
    """Records per topic."""
    error: str = ""

    @property
    def is_written(self) -> bool:
        """Whether its figures count: a failed batch left nothing, a skipped one was counted."""
        return self.outcome not in ("failed", "skipped")

    @property
    def ended_s(self) -> float:
        """Seconds since 1970."""
        return self.started_s + self.total_ms / 1000


FIELDS = tuple(field.name for field in fields(BatchReport))


class Listener(Protocol):
    """Hears of every batch, in the thread of its query: what it does delays the next batch."""

    def on_batch(self, report: BatchReport) -> None: ...


class Listeners:
    """Tells several listeners of each batch, in order.

    A listener that raises is left out from then on, after one log line with its traceback: a full
    disk under the history may not stop payments, and one traceback a batch would fill the next.
    """

    def __init__(self, listeners: Iterable[Listener] = ()) -> None:
        self._listeners = tuple(listeners)

    def on_batch(self, report: BatchReport) -> None:
        for listener in self._listeners:
            try:
                listener.on_batch(report)
            except Exception:
                # A new tuple, as several queries may share these listeners and be telling them.
                self._listeners = tuple(kept for kept in self._listeners if kept is not listener)
                logger.exception(
                    "%s failed at batch %s of '%s' and is left out from now on; the batch is not "
                    "affected. Remove the cause below, then restart the query to have it back",
                    type(listener).__name__,
                    report.batch,
                    report.pipeline,
                )


class LogListener:
    """One line a batch for people; every field of the report as an attribute of the log record."""

    def on_batch(self, report: BatchReport) -> None:
        level = _level(report)
        if logger.isEnabledFor(level):
            # Not dataclasses.asdict: it copies deeply, which a mapping proxy refuses.
            values = {name: getattr(report, name) for name in FIELDS}
            logger.log(level, "%s", describe(report), extra=values)


def describe(report: BatchReport) -> str:
    """The report as one line, without what goes without saying."""
    parts = [_verdict(report)]
    if report.transaction_ms > 0 and report.outcome == "committed":
        parts.append(f"transaction {_duration(report.transaction_ms)}")
    if report.epoch >= 0:
        parts.append(f"epoch {report.epoch}")
    if report.attempts > 1:
        parts.append(f"{report.attempts} attempts")
    if report.dead_letters:
        parts.append(_count(report.dead_letters, "dead letter"))
    if report.lost:
        parts.append(f"{_count(report.lost, 'record')} lost")
    if report.error:
        # Errors from Spark carry the stack of the JVM; all of it is in the record's attributes.
        parts.append((report.error.strip().splitlines() or [""])[0])
    return f"batch {report.batch} of '{report.pipeline}': " + "; ".join(parts)


def _verdict(report: BatchReport) -> str:
    took = _duration(report.total_ms)
    match report.outcome:
        case "committed":
            size = _size(report.size_bytes)
            return f"{_count(report.records, 'record')} ({size}) committed in {took}"
        case "skipped":
            return "skipped, already written"
        case "failed":
            return f"failed after {took}"
        case other:
            return other


def _level(report: BatchReport) -> int:
    if report.outcome == "failed":
        return logging.ERROR
    if report.attempts > 1 or report.dead_letters or report.lost:
        return logging.WARNING
    return logging.DEBUG if report.outcome == "empty" else logging.INFO


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _size(size_bytes: int) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:,.1f} {unit}"
    return f"{size_bytes} B"


def _duration(took_ms: float) -> str:
    if took_ms >= 10_000:
        return f"{took_ms / 1000:,.1f} s"
    return f"{took_ms:.0f} ms" if took_ms >= 1 else f"{took_ms:.1f} ms"
