"""The history file: written by many at once, read by others, bounded, versioned."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sparkonce.errors import SparkonceError
from sparkonce.stream.history import History, history_path
from sparkonce.stream.report import FIELDS, BatchReport


def report(pipeline: str = "payments", batch: int = 12, **changes: Any) -> BatchReport:
    values: dict[str, Any] = {
        "pipeline": pipeline,
        "query_id": "4a1f",
        "batch": str(batch),
        "guarantee": "exactly_once",
        "outcome": "committed",
        "started_s": 1000.25,
        "records": 2**40,
        "size_bytes": 2**50,
        "dead_letters": 1,
        "lost": 2,
        "producer_id": 2**62,
        "epoch": 7,
        "attempts": 3,
        "tasks": 4,
        "write_ms": 130.5,
        "transaction_ms": 4.25,
        "total_ms": 140.75,
        "targets": {"enriched": 9_000, "audit": 1_000},
        "error": "",
    }
    return BatchReport(**values | changes)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "history.sqlite"


def test_it_gives_back_what_it_was_told_the_newest_first(path: Path) -> None:
    with History(path) as history:
        told = [
            report(batch=1),
            report("orders", 1, outcome="failed", error="fenced\nby another"),
            report(batch=2, outcome="skipped", targets={}),
        ]
        for each in told:
            history.on_batch(each)
        assert history.batches() == told[::-1]
        assert history.batches(limit=1) == [told[2]]
        assert history.batches("payments") == [told[2], told[0]]
        assert history.batches("orders") == [told[1]]
        assert history.batches("nobody's") == []
        assert history.pipelines() == ["orders", "payments"]


def test_empty_batches_and_the_tail_of_long_errors_are_left_out(path: Path) -> None:
    with History(path) as history:
        history.on_batch(report(batch=1, outcome="empty"))
        assert history.batches() == []
        history.on_batch(report(batch=2, outcome="failed", error="why" + "\n\tat java" * 10_000))
        (kept,) = history.batches()
    assert kept.error.startswith("why\n\tat java")
    assert len(kept.error) == 4_000


_OTHER = """
import sys
from sparkonce.stream.history import History
with History(sys.argv[1]) as history:
    print(*(f"{each.pipeline} {each.batch} {each.records}" for each in history.batches()), sep=",")
"""


def test_another_process_reads_while_this_one_writes(path: Path) -> None:
    def seen() -> str:
        return subprocess.run(
            [sys.executable, "-c", _OTHER, str(path)],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout.strip()

    with History(path) as history:
        assert seen() == ""
        assert not path.exists(), "reading made a file"
        history.on_batch(report(batch=1, records=5))
        assert seen() == "payments 1 5"
        history.on_batch(report(batch=2, records=6))
        assert seen() == "payments 2 6,payments 1 5"


_WRITER = """
import json, sys
from sparkonce.stream.history import History
from sparkonce.stream.report import BatchReport
values = json.loads(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
history = History(sys.argv[1])
for batch in range(50):
    history.on_batch(BatchReport(**values | {"pipeline": sys.argv[3], "batch": str(batch)}))
"""


def test_processes_that_make_the_file_at_the_same_moment_lose_nothing(path: Path) -> None:
    sample = report()
    values = json.dumps({name: getattr(sample, name) for name in FIELDS})
    names = ["a", "b", "c", "d"]
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(path), values, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in names
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=60)
    assert [writer.returncode for writer in writers] == [0, 0, 0, 0]
    with History(path) as history:
        assert history.pipelines() == names
        for name in names:
            assert [each.batch for each in history.batches(name)] == [
                str(batch) for batch in reversed(range(50))
            ]


def test_a_new_file_that_another_is_about_to_write_is_waited_for(path: Path) -> None:
    path.parent.mkdir()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with History(path) as history, ThreadPoolExecutor(1) as thread:
        written = thread.submit(history.on_batch, report())
        with pytest.raises(TimeoutError):
            written.result(timeout=0.5)
        other.execute("COMMIT")
        other.close()
        written.result(timeout=30)
        assert history.batches() == [report()]


@pytest.mark.parametrize("shared", [True, False])
def test_threads_write_and_read_at_once(path: Path, shared: bool) -> None:
    one = History(path)

    def run(name: str) -> list[str]:
        history = one if shared else History(path)
        for batch in range(100):
            history.on_batch(report(name, batch))
            assert history.batches(name, limit=1)[0].batch == str(batch)
        found = [each.batch for each in history.batches(name)]
        history.close()  # of a shared one: the others open it again
        return found

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(run, ["a", "b", "c", "d"]))
    assert found == [[str(batch) for batch in reversed(range(100))]] * 4


def test_it_keeps_the_last_batches_of_each_pipeline(path: Path) -> None:
    with History(path, keep=150) as history:
        history.on_batch(report("quiet", 0))
        for batch in range(1001):
            history.on_batch(report("busy", batch))
            if batch % 100 == 0:
                assert len(history.batches("busy", limit=5000)) == min(batch + 1, 150)
        # Alternating with another pipeline must not let either escape the bound.
        for batch in range(400):
            history.on_batch(report("odd", batch))
            history.on_batch(report("even", batch))
        sizes = {name: len(history.batches(name, limit=5000)) for name in history.pipelines()}
        newest = history.batches("busy", limit=1)[0].batch
    assert newest == "1000"
    assert sizes["quiet"] == 1
    assert sizes["busy"] == 150
    assert 150 <= sizes["odd"] < 250
    assert 150 <= sizes["even"] < 250


def test_short_runs_keep_the_bound_too(path: Path) -> None:
    for run in range(30):
        with History(path, keep=10) as history:
            history.on_batch(report(batch=run))
            assert len(history.batches()) == min(run + 1, 10)


def test_a_file_of_a_newer_version_is_refused_and_left_as_it_is(path: Path) -> None:
    with History(path) as history:
        history.on_batch(report())
    _alter(path, lambda file: file.execute("PRAGMA user_version = 2"))
    before = path.read_bytes()
    uses: list[Callable[[History], object]] = [
        lambda history: history.batches(),
        lambda history: history.pipelines(),
        lambda history: history.on_batch(report(batch=13)),
    ]
    for use in uses:
        with History(path) as history, pytest.raises(SparkonceError, match=r"version 2.*upgrade"):
            use(history)
    assert path.read_bytes() == before


def test_a_file_that_is_no_history_is_named_in_the_error(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_text("notes on something else, long enough to be no header\n" * 100)
    for use in (lambda: History(path).batches(), lambda: History(path).on_batch(report())):
        with pytest.raises(SparkonceError, match=r"history\.sqlite can't be .*not a database"):
            use()


def test_after_a_failed_write_it_goes_on(path: Path) -> None:
    with History(path) as history:
        history.on_batch(report(batch=1))
        refuse = "CREATE TRIGGER full BEFORE INSERT ON batches BEGIN SELECT RAISE(ABORT, 'x'); END"
        _alter(path, lambda file: file.execute(refuse))
        with pytest.raises(SparkonceError, match="can't be written"):
            history.on_batch(report(batch=2))
        _alter(path, lambda file: file.execute("DROP TRIGGER full"))
        history.on_batch(report(batch=3))
        assert [each.batch for each in history.batches()] == ["3", "1"]


def test_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SPARKONCE_HISTORY", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert history_path() == tmp_path / ".local" / "state" / "sparkonce" / "history.sqlite"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert History().path == tmp_path / "xdg" / "sparkonce" / "history.sqlite"
    monkeypatch.setenv("SPARKONCE_HISTORY", "~/mine.sqlite")
    assert History().path == tmp_path / "mine.sqlite"
    assert History(tmp_path / "given").path == tmp_path / "given"


def test_it_can_be_turned_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SPARKONCE_HISTORY", "")
    for history in (History(), History("")):
        history.on_batch(report())
        assert history.batches() == history.pipelines() == []
    assert list(tmp_path.iterdir()) == []


def _alter(path: Path, change: Callable[[sqlite3.Connection], object]) -> None:
    file = sqlite3.connect(path)
    try:
        change(file)
        file.commit()
    finally:
        file.close()
