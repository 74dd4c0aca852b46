"""Connections of drivers, for statements: no answer is waited for without an end, and no error has
a password in it.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import suppress
from typing import Any, Final, Self, TypeVar

import psycopg
from psycopg.conninfo import make_conninfo

from sparkonce.postgresql.silence import QUERY_TIMEOUT_S, NoAnswer, Silence
from sparkonce.redaction import redact, redacted

PATIENCE_S: Final = 60.0
"""For a server that restarts; a batch that is under way waits for it."""
PAUSE_S: Final = 0.2
_HOPELESS: Final = ("authentication failed", "does not exist", "no pg_hba.conf entry")
_CANCEL_S: Final = 5.0

_Answer = TypeVar("_Answer")


class Connection(psycopg.Connection[Any]):
    """One that is closed, with NoAnswer, where the server has gone or takes too long."""

    query_timeout_s: float = QUERY_TIMEOUT_S
    is_committing: bool = False
    _knocks: str = ""

    @classmethod
    def to(cls, info: Mapping[str, Any], query_timeout_s: float) -> Self:
        """Prepared statements would stay behind on a pooler's connection."""
        try:
            made = cls.connect(make_conninfo("", **info), autocommit=True, prepare_threshold=None)
        except psycopg.Error as error:
            redact(error)
            raise
        made.query_timeout_s = query_timeout_s
        # The very same of several hosts.
        place = {"host": made.info.host, "port": made.info.port}
        if made.info.hostaddr and "hostaddr" in info:
            place["hostaddr"] = made.info.hostaddr
        made._knocks = make_conninfo("", **{**info, **place})
        return made

    def wait(self, gen: Generator[Any, Any, _Answer], *given: Any, **more: Any) -> _Answer:
        try:
            return super().wait(self._bounded(gen), *given, **more)
        except NoAnswer:
            if not self.is_committing:
                with suppress(psycopg.Error):  # a server that has gone does nothing more
                    self.cancel_safe(timeout=_CANCEL_S)
            self.close()
            raise
        except psycopg.Error as error:
            redact(error)
            raise

    def _bounded(self, gen: Generator[Any, Any, _Answer]) -> Generator[Any, Any, _Answer]:
        silence = Silence(self._knocks, self.query_timeout_s)
        silence.begin()
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if ready:
                    silence.heard()
                elif self._knocks:
                    silence.check()
                wanted = gen.send(ready)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def connect(info: Mapping[str, Any], query_timeout_s: float = QUERY_TIMEOUT_S) -> Connection:
    return Connection.to(info, query_timeout_s)


def commit(connection: Connection) -> str | None:
    """The server's answer. It isn't told to stop if it takes too long: one that waits for a replica
    would say that it has committed, and wait no more."""
    connection.is_committing = True
    try:
        return connection.execute("COMMIT").statusmessage
    finally:
        connection.is_committing = False


def is_hopeless(error: Exception) -> bool:
    """Whether waiting does not mend it; libpq gives no code for who was not let in."""
    return any(each in str(error) for each in _HOPELESS)


def message(error: psycopg.Error) -> str:
    """The server's own words, in one line."""
    said = error.diag.message_primary or str(error)
    detail = error.diag.message_detail
    told = f"{said} ({detail})" if detail else said
    return redacted(" ".join(told.split()))
