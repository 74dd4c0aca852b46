"""The horizon: the number below which every transaction has ended, for good.

PostgreSQL numbers transactions in the order in which they first write, and they end in any order.
Below the oldest one that is still open (`pg_snapshot_xmin`) nothing can be added any more; that
holds for savepoints, whose numbers are above their transaction's, for prepared transactions, which
are open, and on replicas.

"For good" takes more. After a crash PostgreSQL hands out again the numbers of transactions whose
end had not reached the disk: those that were rolled back, and with synchronous_commit=off also
those that were committed. A row by the second bearer of such a number would lie below a position
that was noted before the crash, and be lost. So a horizon only counts when the log of everything
that ended below it is on disk.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from sparkonce.ingest.position import PositionError
from sparkonce.ingest.table import SourceError

_PATIENCE_S: Final = 30.0
_NUDGE_AFTER_S: Final = 0.02
_PAUSE_S: Final = 0.01

# The log's end is asked for after the snapshot was taken. Replicas only have what is on disk.
_NOW: Final = """
SELECT pg_snapshot_xmin(s)::text::bigint, pg_snapshot_xmax(s)::text::bigint,
       CASE WHEN pg_is_in_recovery() THEN NULL ELSE pg_current_wal_insert_lsn() END
FROM pg_current_snapshot() AS s
"""
_IS_ON_DISK: Final = "SELECT pg_current_wal_flush_lsn() >= %s::pg_lsn"
# What an idle server would leave in memory for as long as nobody commits. A transaction that has a
# number and no more makes the log writer write, and needs no privilege.
_NUDGE: Final = "SELECT pg_current_xact_id()"


@dataclass(frozen=True, slots=True)
class Horizon:
    """Of one moment."""

    xid: int
    """All transactions below have ended."""
    next_xid: int
    """No row that can be seen is by this transaction or a later one."""


def horizon_now(connection: psycopg.Connection[Any]) -> Horizon:
    """The horizon of this moment, once it is on disk; the connection must commit by itself."""
    row = connection.execute(_NOW).fetchone()
    assert row is not None
    xid, next_xid, log_end = row
    if log_end is not None:
        _wait_for_disk(connection, log_end)
    return Horizon(xid, next_xid)


def _wait_for_disk(connection: psycopg.Connection[Any], log_end: str) -> None:
    began_s = time.monotonic()
    nudged = False
    while not _is_on_disk(connection, log_end):
        waited_s = time.monotonic() - began_s
        if waited_s > _PATIENCE_S:
            raise SourceError(
                f"PostgreSQL has not written its log to disk for {_PATIENCE_S:g} s, so what was "
                "committed may not survive a crash: look at the server's disk and its setting "
                "wal_writer_delay"
            )
        if waited_s > _NUDGE_AFTER_S and not nudged:
            connection.execute(_NUDGE)
            nudged = True
        time.sleep(_PAUSE_S)  # between two questions to the server


def _is_on_disk(connection: psycopg.Connection[Any], log_end: str) -> bool:
    row = connection.execute(_IS_ON_DISK, [log_end]).fetchone()
    return row is not None and bool(row[0])


def refuse_older(now: int, needed: int) -> PositionError:
    return PositionError(
        f"the position is at transaction {needed}, and the server has only come to {now}: it was "
        "restored from a backup, a replica that lagged behind took over, or this is a replica that "
        "lags. Rows would be lost without a word. If it lags, try again later; if not, start anew "
        "with another checkpointLocation"
    )
