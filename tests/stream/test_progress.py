"""Reports of batches as progress: drawn on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import logging
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

import reports
from reports import report
from sparkonce.stream.progress import ProgressListener

_LOGGER = "sparkonce.stream"


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
from reports import report
from sparkonce.stream.progress import ProgressListener
with ProgressListener(total=int(sys.argv[2]) or None) as listener:
    for batch in range(3):
        listener.on_batch(report(batch=str(batch), started_s=1000.0 + batch, total_ms=1000.0))
"""


@pytest.mark.parametrize("total", [0, 40_000])
def test_on_a_terminal_progress_is_drawn_within_80_columns(total: int) -> None:
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80"}
    drawing = subprocess.Popen(
        [sys.executable, "-c", _DRAW, str(Path(reports.__file__).parent), str(total)],
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
