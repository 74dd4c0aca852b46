"""The last batches of every pipeline of this user, in one SQLite file.

Queries write it as listeners, in as many processes as there are; the dashboard and the command
line read it from others. It is a convenience, no ledger: what was committed stands in Kafka, and
the file may be deleted whenever nothing has it open.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from sparkonce.errors import SparkonceError
from sparkonce.stream.report import FIELDS, BatchReport

_VERSION = 1
_SCHEMA = """
CREATE TABLE batches (
    id INTEGER PRIMARY KEY,
    pipeline TEXT NOT NULL,
    query_id TEXT NOT NULL,
    batch TEXT NOT NULL,
    guarantee TEXT NOT NULL,
    outcome TEXT NOT NULL,
    started_s REAL NOT NULL,
    records INTEGER NOT NULL,
    size_bytes INTEGER NOT NULL,
    dead_letters INTEGER NOT NULL,
    lost INTEGER NOT NULL,
    producer_id INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    tasks INTEGER NOT NULL,
    write_ms REAL NOT NULL,
    transaction_ms REAL NOT NULL,
    total_ms REAL NOT NULL,
    targets TEXT NOT NULL,
    error TEXT NOT NULL
)
"""
_INDEX = "CREATE INDEX batches_by_pipeline ON batches (pipeline, id)"
_COLUMNS = ", ".join(FIELDS)
_INSERT = f"INSERT INTO batches ({_COLUMNS}) VALUES ({', '.join('?' * len(FIELDS))})"
_TRIM = """
DELETE FROM batches WHERE pipeline = :pipeline AND id <= (
    SELECT id FROM batches WHERE pipeline = :pipeline ORDER BY id DESC LIMIT 1 OFFSET :keep
)
"""
_TRIM_EVERY = 100
_ERROR_CHARS = 4_000  # the message is at the front; the stack of a JVM goes on for pages
_BUSY_S = 5.0  # how long a batch may wait for another process that is writing


def history_path() -> Path | None:
    """The user's history; `SPARKONCE_HISTORY` names another, or none at all if it is empty."""
    override = os.environ.get("SPARKONCE_HISTORY")
    if override is not None:
        return _as_path(override)
    xdg_state = os.environ.get("XDG_STATE_HOME")
    state = Path(xdg_state) if xdg_state else Path.home() / ".local" / "state"
    return state / "sparkonce" / "history.sqlite"


class History:
    """Writes batches down and reads them back; safe to share between threads.

    The file is opened at first use: one that can't be opened then costs a query its history
    (`Listeners`), and not its start. With the path "" nothing is kept.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, keep: int = 10_000) -> None:
        self.path = history_path() if path is None else _as_path(path)
        self._keep = keep
        self._inserts: Counter[str] = Counter()
        self._connection: sqlite3.Connection | None = None
        self._lock = threading.Lock()

    def on_batch(self, report: BatchReport) -> None:
        """Write the batch down, unless it was empty."""
        if self.path is None or report.outcome == "empty":
            return
        values = {name: getattr(report, name) for name in FIELDS}
        values["targets"] = json.dumps(dict(report.targets))
        values["error"] = report.error[:_ERROR_CHARS]
        with self._open(self.path) as connection:
            connection.execute(_INSERT, tuple(values.values()))
            # Counted from the first one of this process, as many runs are shorter than that.
            if self._inserts[report.pipeline] % _TRIM_EVERY == 0:
                connection.execute(_TRIM, {"pipeline": report.pipeline, "keep": self._keep})
            self._inserts[report.pipeline] += 1

    def batches(self, pipeline: str | None = None, limit: int = 100) -> list[BatchReport]:
        """The last batches, of one pipeline or of all, the newest first."""
        where = "" if pipeline is None else "WHERE pipeline = :pipeline"
        rows = self._read(
            f"SELECT {_COLUMNS} FROM batches {where} ORDER BY id DESC LIMIT :limit",
            {"pipeline": pipeline, "limit": limit},
        )
        return [_report(row) for row in rows]

    def pipelines(self) -> list[str]:
        """Those with batches in the history, by name."""
        rows = self._read("SELECT DISTINCT pipeline FROM batches ORDER BY pipeline", {})
        return [name for (name,) in rows]

    def close(self) -> None:
        """Let go of the file; the next use opens it again."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, query: str, values: dict[str, Any]) -> list[tuple[Any, ...]]:
        # To read is no reason to make a file.
        if self.path is None or not self.path.exists():
            return []
        with self._open(self.path, write=False) as connection:
            return connection.execute(query, values).fetchall()

    @contextmanager
    def _open(self, path: Path, *, write: bool = True) -> Iterator[sqlite3.Connection]:
        """The connection in a transaction; it stays open, as closing the last one costs a sync."""
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = _connect(path)
                with _transaction(self._connection, "IMMEDIATE" if write else "DEFERRED"):
                    yield self._connection
            except (sqlite3.Error, OSError) as error:
                raise SparkonceError(
                    f"the history of batches in {path} can't be {'written' if write else 'read'}: "
                    f"{error}; look at the file and the space on its disk, delete it, or name "
                    "another one in SPARKONCE_HISTORY (empty for none)"
                ) from error


def _as_path(path: str | os.PathLike[str]) -> Path | None:
    return Path(path).expanduser().absolute() if os.fspath(path) else None


def _report(row: tuple[Any, ...]) -> BatchReport:
    values = dict(zip(FIELDS, row, strict=True))
    values["targets"] = json.loads(values["targets"])
    return BatchReport(**values)


def _connect(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(
        path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
    )
    try:
        _prepare(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables in a new file; refuse a file that a newer sparkonce wrote, untouched."""
    version = _version(connection)
    if version > _VERSION:
        raise SparkonceError(
            f"the history of batches in {path} has version {version}, and this sparkonce knows "
            f"versions up to {_VERSION}: a newer one wrote it; upgrade this one, or name another "
            "file in SPARKONCE_HISTORY (empty for none)"
        )
    _use_wal(connection)
    # In this mode the file is synced now and then, not at each batch, and never corrupted by it.
    connection.execute("PRAGMA synchronous = NORMAL")
    if version < _VERSION:
        with _transaction(connection, "IMMEDIATE"):
            if _version(connection) < _VERSION:  # nobody else made it meanwhile
                connection.execute(_SCHEMA)
                connection.execute(_INDEX)
                connection.execute(f"PRAGMA user_version = {_VERSION}")


def _use_wal(connection: sqlite3.Connection) -> None:
    """Let readers and a writer go on side by side.

    The first switch of a file wants it alone. If another is about to write, SQLite gives up at
    once in spite of its time-out, as it would wait with a read lock in its hand; processes that
    make the file at the same moment meet here.
    """
    deadline = time.monotonic() + _BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            return
        except sqlite3.OperationalError as error:
            is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY  # of any kind
            if not is_busy or time.monotonic() > deadline:
                raise
            time.sleep(0.005)


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


@contextmanager
def _transaction(connection: sqlite3.Connection, kind: str) -> Iterator[None]:
    connection.execute(f"BEGIN {kind}")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
