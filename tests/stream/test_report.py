"""Reports of batches: told to listeners, and as log lines."""

from __future__ import annotations

import logging
from types import MappingProxyType
from typing import Any

import pytest

from reports import report
from sparkonce.stream.report import FIELDS, BatchReport, Listeners, LogListener

_LOGGER = "sparkonce.stream"


class Heard:
    """Remembers what it was told; breaks at one batch, if asked to."""

    def __init__(self, breaks_at: str = "") -> None:
        self.batches: list[str] = []
        self._breaks_at = breaks_at

    def on_batch(self, report: BatchReport) -> None:
        self.batches.append(report.batch)
        if report.batch == self._breaks_at:
            raise OSError("no space left")


def test_a_listener_that_raises_is_left_out_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before, broken, after = Heard(), Heard(breaks_at="2"), Heard()
    listeners = Listeners([before, broken, after])
    with caplog.at_level(logging.DEBUG, _LOGGER):
        for batch in ("1", "2", "3", "4"):
            listeners.on_batch(report(batch=batch))
    assert before.batches == after.batches == ["1", "2", "3", "4"]
    assert broken.batches == ["1", "2"]
    (complaint,) = caplog.records
    assert complaint.levelno == logging.ERROR
    assert "Heard failed at batch 2 of 'payments'" in complaint.getMessage()
    assert complaint.exc_info is not None
    assert isinstance(complaint.exc_info[1], OSError)


def test_an_interrupt_in_a_listener_is_not_held_back() -> None:
    class Interrupted:
        def on_batch(self, report: BatchReport) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Listeners([Interrupted()]).on_batch(report())


@pytest.mark.parametrize(
    ("changes", "level", "line"),
    [
        (
            {},
            logging.INFO,
            "batch 12 of 'payments': 10,000 records (9.8 MB) committed in 140 ms; "
            "transaction 4 ms; epoch 7",
        ),
        (
            {"attempts": 3, "dead_letters": 2, "transaction_ms": 0.44, "total_ms": 61_250.0},
            logging.WARNING,
            "batch 12 of 'payments': 10,000 records (9.8 MB) committed in 61.2 s; "
            "transaction 0.4 ms; epoch 7; 3 attempts; 2 dead letters",
        ),
        ({"attempts": 2}, logging.WARNING, "; 2 attempts"),
        ({"dead_letters": 1}, logging.WARNING, "; 1 dead letter"),
        (
            {
                "guarantee": "at_most_once",
                "records": 1,
                "size_bytes": 900,
                "lost": 1200,
                "producer_id": -1,
                "epoch": -1,
                "transaction_ms": 0.0,
            },
            logging.WARNING,
            "batch 12 of 'payments': 1 record (900 B) committed in 140 ms; 1,200 records lost",
        ),
        (
            {"outcome": "failed", "attempts": 3, "error": "fenced by another\n\tat java.lang"},
            logging.ERROR,
            "batch 12 of 'payments': failed after 140 ms; epoch 7; 3 attempts; fenced by another",
        ),
        (
            {"outcome": "skipped", "records": 0},
            logging.INFO,
            "batch 12 of 'payments': skipped, already written; epoch 7",
        ),
        (
            {"outcome": "empty", "records": 0, "epoch": -1},
            logging.DEBUG,
            "batch 12 of 'payments': empty",
        ),
        ({"outcome": "empty", "dead_letters": 5}, logging.WARNING, "; 5 dead letters"),
    ],
)
def test_a_batch_is_one_log_line(
    caplog: pytest.LogCaptureFixture, changes: dict[str, Any], level: int, line: str
) -> None:
    with caplog.at_level(logging.DEBUG, _LOGGER):
        LogListener().on_batch(report(**changes))
    (record,) = caplog.records
    assert (record.name, record.levelno) == (_LOGGER, level)
    said = record.getMessage()
    assert said.endswith(line) if line.startswith(";") else said == line
    assert "\n" not in said


def test_the_log_record_carries_every_field(caplog: pytest.LogCaptureFixture) -> None:
    told = report(targets=MappingProxyType({"a": 1}), error="first line\nsecond line")
    with caplog.at_level(logging.INFO, _LOGGER):
        LogListener().on_batch(told)
    (record,) = caplog.records
    assert {name: getattr(record, name) for name in FIELDS} == {
        name: getattr(told, name) for name in FIELDS
    }
