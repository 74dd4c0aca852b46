"""The database's file: opened for each transaction and closed again, so that others can read it.

A file of DuckDB is one process's at a time; whoever has it for a moment is waited for. Within one
process it would take several transactions at once, and then one that changes a row which another
has changed meanwhile may be committed without effect and without an error (seen with 1.4.5, 1.5.6
and 2.0.0; docs/deliver.md tells when). So here too there is one at a time.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import duckdb

from sparkonce.deliver.store import StoreError
from sparkonce.redaction import redact

_PATIENCE_S: Final = 60.0
_PAUSE_S: Final = 0.05
_MEMORY, _MEMORY_MAX = "memory_limit", "512MB"
"""Unless something else is asked for: DuckDB takes most of the machine's otherwise, and it runs in
the driver. Larger batches go by way of the disk."""
_taken: defaultdict[Path, threading.Lock] = defaultdict(threading.Lock)


class Opened:
    """A connection that nobody else has beside it."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, taken: threading.Lock) -> None:
        self._connection = connection
        self._taken: threading.Lock | None = taken

    def execute(self, statement: str, values: object = None) -> duckdb.DuckDBPyConnection:
        try:
            return self._connection.execute(statement, values)
        except duckdb.Error as error:
            redact(error)
            raise

    def close(self) -> None:
        self._connection.close()
        if self._taken is not None:
            self._taken.release()
            self._taken = None

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class File:
    path: str
    settings: Mapping[str, str]
    """DuckDB's own, `memory_limit` for example."""

    def open(self) -> Opened:
        deadline_s = time.monotonic() + _PATIENCE_S
        taken = _taken[Path(self.path).resolve()]
        if not taken.acquire(timeout=_PATIENCE_S):
            raise StoreError(f"{self.path} has been another query's for {_PATIENCE_S:g} s")
        try:
            return Opened(self._connect(deadline_s), taken)
        except BaseException:
            taken.release()
            raise

    def _connect(self, deadline_s: float) -> duckdb.DuckDBPyConnection:
        while True:
            try:
                connection = duckdb.connect(self.path, config=dict(self.settings))
                if _MEMORY not in self.settings:
                    connection.execute(f"SET {_MEMORY} = '{_MEMORY_MAX}'")
                return connection
            except duckdb.Error as error:
                redact(error)
                is_held = isinstance(error, duckdb.IOException) and "lock" in str(error)
                if not is_held or time.monotonic() > deadline_s:
                    why = "It is one process's at a time: let others open it for a moment only"
                    raise StoreError(
                        f"{self.path} can't be opened: {error}. "
                        + (why if is_held else "Look at the option path")
                    ) from error
                time.sleep(_PAUSE_S)  # between two questions to the file system

    @property
    def beside(self) -> Path:
        """Where attempts are staged, if nothing else is said."""
        return Path(f"{self.path}.staging")
