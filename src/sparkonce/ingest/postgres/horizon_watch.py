"""Notices a horizon that stands still, and says which transaction is open.

A transaction that was forgotten, in a session or prepared, holds up all rows by later ones: nothing
fails, and nothing comes. What has been open for a while is told in the log, at intervals that grow.
Replication slots hold up VACUUM and not the horizon.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final

from sparkonce.ingest.postgres.children import Ask
from sparkonce.ingest.postgres.horizon import Horizon

_log = logging.getLogger("sparkonce.ingest")

_FIRST_WARNING_S: Final = 60.0
_PAUSE_MAX_S: Final = 3600.0

# Numbers there have 32 bits. What is not for this user's eyes is null, and left out.
_OPEN: Final = """
SELECT 'pid ' || pid || ' (' || concat_ws(', ', 'user ' || usename,
           'application ' || quote_literal(nullif(application_name, '')), state) || ')',
       extract(epoch FROM clock_timestamp() - xact_start)::bigint,
       'end it there, or with SELECT pg_terminate_backend(' || pid || ')'
FROM pg_stat_activity WHERE backend_xid::text::bigint = {xid} % 4294967296
UNION ALL
SELECT 'the prepared transaction ' || quote_literal(gid) || ' of user ' || owner,
       extract(epoch FROM clock_timestamp() - prepared)::bigint,
       'COMMIT PREPARED or ROLLBACK PREPARED ' || quote_literal(gid)
           || ', in the database ' || quote_ident(database)
FROM pg_prepared_xacts WHERE transaction::text::bigint = {xid} % 4294967296
"""
_UNSEEN: Final = "a transaction of another server"
_HOW_TO_SEE: Final = (
    "look on the primary: SELECT * FROM pg_stat_activity WHERE backend_xid IS NOT NULL; "
    "SELECT * FROM pg_prepared_xacts"
)


class HorizonWatch:
    """Of one table, for one reader."""

    def __init__(self, table: str, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._table = table
        self._clock_s = clock_s
        self._xid = -1
        self._since_s = 0.0
        self._warns_at_s = 0.0
        self._next_xid = 0
        self._held_by: str | None = None

    def note(self, horizon: Horizon, ask: Ask) -> None:
        """A horizon that was just asked for."""
        now_s = self._clock_s()
        is_held = horizon.next_xid > horizon.xid
        self._next_xid = horizon.next_xid
        if not is_held or horizon.xid != self._xid:
            self._xid, self._since_s, self._held_by = horizon.xid, now_s, None
            self._warns_at_s = now_s + _FIRST_WARNING_S
        elif now_s >= self._warns_at_s:
            self._warns_at_s = now_s + min(max(now_s - self._since_s, 1.0), _PAUSE_MAX_S)
            self._warn(now_s - self._since_s, ask)

    @property
    def report(self) -> dict[str, Any]:
        """What a query's progress shows of it."""
        held_s = int(self._clock_s() - self._since_s) if self._next_xid > self._xid else 0
        shown: dict[str, Any] = {"xid": self._xid, "nextXid": self._next_xid, "heldSeconds": held_s}
        return shown if self._held_by is None else shown | {"heldBy": self._held_by}

    def _warn(self, stood_s: float, ask: Ask) -> None:
        found = ask(_OPEN.format(xid=self._xid))
        who, age_s, advice = found[0] if found else (_UNSEEN, None, _HOW_TO_SEE)
        self._held_by = who
        age = "" if age_s is None else f", open for {age_s} s"
        _log.warning(
            "%s: for %.0f s nothing could be read that was written since transaction %d, because "
            "it has not ended: %s%s. To go on, %s",
            self._table,
            stood_s,
            self._xid,
            who,
            age,
            advice,
        )
