"""An attempt that can't be aborted either: the cause is told first, and a report is sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from sparkonce.errors import AbortableError, FencedError, SparkonceError, Unreachable
from sparkonce.guarantees import Guarantee
from sparkonce.stream.attempts import Attempts, BatchFailed
from sparkonce.stream.ledger import Entry
from sparkonce.stream.runs import RunSpent, StillRunning
from sparkonce.stream.steps import Written
from stream_jobs import Reports

ENTRY = Entry(
    query="q", batch=3, number=1, guarantee="exactly_once", host="h", pid=1, checkpoint="c",
    sources=None,
)  # fmt: skip


class BrokenSink:
    """Its rows can't be written, and its attempts not be aborted."""

    epoch = (7, 3)
    trouble: str | None = None

    def __init__(self, write_error: BaseException, abort_errors: Sequence[Exception]) -> None:
        self._write_error = write_error
        self._abort_errors = list(abort_errors)

    def fence(self) -> None:
        pass

    def write(self, frame: Any) -> Written:
        raise self._write_error

    def abandon(self) -> None:
        if self._abort_errors:
            raise self._abort_errors.pop(0)


class Unsettled:
    """What was computed, and goes on."""

    def __init__(self, error: SparkonceError) -> None:
        self._error = error

    def prepare(self, entry: Entry, *, is_first: bool) -> None:
        assert is_first

    def settle(self, entry: Entry, *, has_computed: bool) -> None:
        assert has_computed
        raise self._error


def run(sink: Any, computed: Any = None) -> tuple[BaseException, Reports]:
    reports = Reports()
    attempts = Attempts(
        sink, name="p", guarantee=Guarantee.EXACTLY_ONCE, attempts_max=3, listener=reports
    )
    with pytest.raises(BaseException) as raised:
        attempts.run(None, ENTRY, [], lambda written: False, computed)  # type: ignore[arg-type]
    return raised.value, reports


@pytest.mark.parametrize("gone", [Unreachable("no broker"), OSError("no broker")])
def test_the_cause_comes_before_the_abort_that_failed(gone: Exception) -> None:
    error, reports = run(BrokenSink(AbortableError("the disk is on fire"), [gone, gone]))
    assert isinstance(error, BatchFailed)
    assert str(error).startswith("the disk is on fire")
    assert "no broker" in str(error)
    (report,) = reports.all
    assert (report.outcome, report.error) == ("failed", "the disk is on fire")


@pytest.mark.parametrize("aborting", [Unreachable("no broker"), RuntimeError("the driver's own")])
def test_an_error_that_is_not_tried_again_is_not_hidden(aborting: Exception) -> None:
    error, reports = run(BrokenSink(KeyboardInterrupt(), [aborting]))
    assert isinstance(error, KeyboardInterrupt)
    assert [report.outcome for report in reports.all] == ["failed"]


def test_whoever_took_over_is_told_rather_than_what_it_led_to() -> None:
    error, reports = run(BrokenSink(SparkonceError("a line broke"), [FencedError("by another")]))
    assert isinstance(error, FencedError)
    assert [report.error for report in reports.all] == ["a line broke"]


@pytest.mark.parametrize("kind", [StillRunning, RunSpent])
def test_why_an_attempt_failed_is_told_where_it_can_not_be_settled(
    kind: type[SparkonceError],
) -> None:
    broken = BrokenSink(AbortableError("the disk is on fire"), [])
    error, reports = run(broken, Unsettled(kind("tasks go on")))
    assert isinstance(error, kind)
    assert str(error) == "tasks go on. The first cause: the disk is on fire"
    assert [report.error for report in reports.all] == ["the disk is on fire"]
