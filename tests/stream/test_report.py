"""Reports of batches: told to listeners, as log lines, as metrics and as progress."""

from __future__ import annotations

import logging
import os
import pty
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.error import URLError

import pytest
from prometheus_client import CollectorRegistry

from sparkonce.errors import SparkonceError
from sparkonce.stream.metrics import MetricsListener, serve
from sparkonce.stream.progress import ProgressListener
from sparkonce.stream.report import FIELDS, BatchReport, Listeners, LogListener

_LOGGER = "sparkonce.stream"


def report(**changes: Any) -> BatchReport:
    """A batch that went well, but for the changes."""
    values: dict[str, Any] = {
        "pipeline": "payments",
        "query_id": "4a1f",
        "batch": "12",
        "guarantee": "exactly_once",
        "outcome": "committed",
        "started_s": 1000.0,
        "records": 10_000,
        "size_bytes": 9_800_000,
        "dead_letters": 0,
        "lost": 0,
        "producer_id": 4000,
        "epoch": 7,
        "attempts": 1,
        "tasks": 4,
        "write_ms": 130.0,
        "transaction_ms": 4.0,
        "total_ms": 140.0,
        "targets": {"enriched": 9_000, "audit": 1_000},
    }
    return BatchReport(**values | changes)


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


def test_metrics_count_what_was_written() -> None:
    registry = CollectorRegistry()
    listener = MetricsListener(registry)
    listener.on_batch(report(attempts=2, dead_letters=3))
    listener.on_batch(report(batch="13", epoch=6, targets={"audit": 5}, started_s=2000.0))
    listener.on_batch(report(batch="14", outcome="skipped", attempts=0, started_s=2500.0))
    listener.on_batch(report(batch="15", outcome="failed", dead_letters=9, started_s=3000.0))
    listener.on_batch(report(batch="1", outcome="empty", pipeline="orders", epoch=90))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"sparkonce_{name}", {"pipeline": "payments"} | labels)

    assert value("records_total", topic="enriched") == 9_000
    assert value("records_total", topic="audit") == 1_005
    assert value("bytes_total") == 2 * 9_800_000
    assert value("dead_letters_total") == 3
    assert value("lost_total") == 0
    assert value("attempts_total") == 4
    assert value("batches_total", outcome="committed") == 2
    assert value("batches_total", outcome="skipped") == 1
    assert value("batches_total", outcome="failed") == 1
    assert value("batches_total", outcome="empty") == 0
    assert value("epoch") == 7
    assert value("last_batch_timestamp_seconds") == pytest.approx(2500.14, abs=0.001)
    assert value("batch_seconds_count") == 2
    assert value("batch_seconds_sum") == pytest.approx(0.28)
    assert value("batch_seconds_bucket", le="0.1") == 0
    assert value("batch_seconds_bucket", le="0.2") == 2
    assert value("transaction_seconds_bucket", le="0.002") == 0
    assert value("transaction_seconds_bucket", le="0.005") == 2
    assert value("transaction_seconds_bucket", le="500.0") == 2
    assert value("transaction_seconds_bucket", le="0.001") == 0


def test_rows_given_up_with_a_failed_batch_are_counted_as_lost() -> None:
    registry = CollectorRegistry()
    MetricsListener(registry).on_batch(report(outcome="failed", lost=40, epoch=-1))
    labels = {"pipeline": "payments"}
    assert registry.get_sample_value("sparkonce_lost_total", labels) == 40
    assert registry.get_sample_value("sparkonce_bytes_total", labels) == 0
    assert registry.get_sample_value("sparkonce_epoch", labels) is None
    assert registry.get_sample_value("sparkonce_transaction_seconds_count", labels) == 0


def test_listeners_on_one_registry_share_their_counters() -> None:
    registry, other = CollectorRegistry(), CollectorRegistry()
    for pipeline in ("payments", "orders", "payments"):
        MetricsListener(registry).on_batch(report(pipeline=pipeline))
    MetricsListener(other).on_batch(report())
    counted = [
        each.get_sample_value("sparkonce_attempts_total", {"pipeline": "payments"})
        for each in (registry, other)
    ]
    assert counted == [2, 1]


def test_metrics_are_served_until_closed() -> None:
    registry = CollectorRegistry()
    with serve(0, registry=registry) as server:
        MetricsListener(registry).on_batch(report())
        url = f"http://127.0.0.1:{server.port}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            text = answer.read().decode()
        with pytest.raises(SparkonceError, match=f"127.0.0.1:{server.port}.*another port"):
            serve(server.port, registry=registry)
    lines = text.splitlines()
    assert 'sparkonce_records_total{pipeline="payments",topic="enriched"} 9000.0' in lines
    assert 'sparkonce_batches_total{outcome="committed",pipeline="payments"} 1.0' in lines
    server.close()
    with pytest.raises(URLError):
        urllib.request.urlopen(url, timeout=10)


def test_without_a_terminal_progress_is_a_line_every_ten_seconds(
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # colours are asked for; a terminal it is not
    now_s = 0.0
    with (
        caplog.at_level(logging.INFO, _LOGGER),
        ProgressListener(total=40_000, clock=lambda: now_s) as listener,
    ):
        for second in range(1, 25):
            now_s = float(second)
            outcome = "committed" if second % 10 == 0 else "failed"
            listener.on_batch(
                report(outcome=outcome, started_s=1000.0 + second, total_ms=500.0, attempts=2)
            )
            assert len(caplog.records) == second // 10
    listener.stop()
    assert [record.getMessage() for record in caplog.records] == [
        "25% done: 10,000 records, 1,053/s, 1.0 MB/s, 1 batches, 20 attempts",
        "50% done: 20,000 records, 1,026/s, 1.0 MB/s, 2 batches, 40 attempts",
        "50% done: 20,000 records, 851/s, 0.8 MB/s, 2 batches, 48 attempts",
    ]
    assert {record.levelno for record in caplog.records} == {logging.INFO}
    assert capfd.readouterr().err == ""


def test_a_run_without_batches_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, _LOGGER), ProgressListener():
        pass
    assert caplog.records == []


_DRAW = """
import sys
sys.path.insert(0, sys.argv[1])
from test_report import ProgressListener, report
with ProgressListener(total=int(sys.argv[2]) or None) as listener:
    for batch in range(3):
        listener.on_batch(report(batch=str(batch), started_s=1000.0 + batch, total_ms=1000.0))
"""


@pytest.mark.parametrize("total", [0, 40_000])
def test_on_a_terminal_progress_is_drawn_within_80_columns(total: int) -> None:
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80"}
    drawing = subprocess.Popen(
        [sys.executable, "-c", _DRAW, str(Path(__file__).parent), str(total)],
        stderr=theirs,
        stdout=subprocess.PIPE,
        env=environment,
    )
    os.close(theirs)
    drawn = _read_all(ours)
    stdout, _ = drawing.communicate(timeout=60)
    print(drawn)
    assert (drawing.returncode, stdout) == (0, b"")
    assert "\x1b[?25h" in drawn  # the cursor is back
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", drawn)
    last = re.split(r"[\r\n]+", plain.strip())[-1]
    assert "30,000 records, 10,000/s, 9.8 MB/s, 3 batches, 3 attempts" in last
    assert ("75%" in last) == bool(total)
    assert len(last) <= 80


def _read_all(terminal: int) -> str:
    """All that is written to the terminal until its other side is closed."""
    chunks = []
    with os.fdopen(terminal, "rb", buffering=0) as reader:
        while True:
            try:
                chunk = reader.read(4096)
            except OSError:  # how Linux tells that the other side is closed
                break
            if not chunk:
                break
            chunks.append(chunk)
    return b"".join(chunks).decode()
