"""The driver's connections: ones that answer, patiently; and what the server's errors mean.

Settings are made for a transaction, never for a connection and never as it is opened: behind a
pooler (PgBouncer) the next transaction may be on another connection, and it refuses most options
that a client opens one with.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

import psycopg

from sparkonce import postgresql
from sparkonce.deliver.settings import TableSettings
from sparkonce.deliver.store import StoreError
from sparkonce.errors import ConfigError
from sparkonce.postgresql import (
    PATIENCE_S,
    PAUSE_S,
    QUERY_TIMEOUT,
    QUERY_TIMEOUT_S,
    Connection,
    commit,
    connect,
    is_hopeless,
    message,
)

LOCK_TIMEOUT: Final = "lockTimeout"
_LOCK_TIMEOUT: Final = "60s"
IDLE_TIMEOUT: Final = "idleTimeout"
_IDLE_TIMEOUT: Final = "60s"
_DURATION: Final = re.compile("([0-9]{1,9})(ms|s|min|h)")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}
# The server notices as well that a client has gone, and does not keep its locks for long.
_SERVER: Final = {
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "4",
}
_COMMITS: Final = {
    # A server that waits for more than its own disk is left as it is.
    True: "CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' "
    "ELSE current_setting('synchronous_commit') END",
    False: "'off'",
}


def lock_timeout(settings: TableSettings) -> str:
    text = settings.more.get(LOCK_TIMEOUT, _LOCK_TIMEOUT)
    if not _seconds(LOCK_TIMEOUT, text):
        raise _no_duration(LOCK_TIMEOUT, text)
    return text


def idle_timeout_s(settings: TableSettings) -> float:
    return _seconds(IDLE_TIMEOUT, settings.more.get(IDLE_TIMEOUT, _IDLE_TIMEOUT))


def _seconds(option: str, text: str) -> float:
    found = _DURATION.fullmatch(text)
    if found is None:
        raise _no_duration(option, text)
    return int(found[1]) * _SECONDS[found[2]]


def _no_duration(option: str, text: str) -> ConfigError:
    return ConfigError(
        f"{option}={text!r}: it must be a whole number with ms, s, min or h behind it"
    )


def query_timeout_s(settings: TableSettings) -> int:
    text = settings.more.get(QUERY_TIMEOUT, str(QUERY_TIMEOUT_S))
    if not re.fullmatch("[1-9][0-9]{0,8}", text):
        raise ConfigError(f"{QUERY_TIMEOUT}={text!r}: it must be a whole number of seconds")
    return int(text)


def conninfo(settings: TableSettings) -> dict[str, Any]:
    user, password = (settings.more.get(name) for name in ("user", "password"))
    # Whatever the database's encoding is, the server converts.
    return {**postgresql.conninfo(settings.place, user, password), "client_encoding": "UTF8"}


def begin(connection: Connection, timeout: str, *, waits: bool = True) -> None:
    """A transaction that waits for nobody without an end, and, if it `waits` for the disk, is
    still there after a crash of the server. Another level of isolation would not see what was
    committed while it waited for the ledger's row."""
    connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
    settings = {"lock_timeout": timeout, **_SERVER}
    values = ", ".join(f"set_config('{name}', '{value}', true)" for name, value in settings.items())
    connection.execute(
        f"SELECT {values}, set_config('synchronous_commit', {_COMMITS[waits]}, true)"
    )


@contextmanager
def transaction(connection: Connection, timeout: str) -> Iterator[None]:
    begin(connection, timeout)
    try:
        yield
    except BaseException:
        with suppress(psycopg.Error):  # a connection that has gone takes its transaction with it
            connection.execute("ROLLBACK")
        raise
    commit(connection)


@contextmanager
def told_as_ours(what: str) -> Iterator[None]:
    """The server's errors as ours, which an attempt is given up for."""
    try:
        yield
    except psycopg.Error as error:
        raise StoreError(f"{what}: {explained(error)}") from error


def explained(error: psycopg.Error) -> str:
    """The server's own words, and what to do where they don't say it."""
    if isinstance(error, psycopg.errors.LockNotAvailable):
        return (
            f"{message(error)}. Somebody else holds a lock for longer than {LOCK_TIMEOUT} allows, "
            "by ALTER TABLE, VACUUM FULL or a transaction that was not ended, for example: look "
            "into pg_locks and pg_stat_activity, or set a longer one"
        )
    if isinstance(error, psycopg.errors.DeadlockDetected | psycopg.errors.SerializationFailure):
        return (
            f"{message(error)}. Somebody else writes the same rows in another order: the attempt "
            "is given up, so that he can go on. If it comes often, write them by one pipeline, or "
            "with writeMode=upsert, which has an order"
        )
    return message(error)


class Driver:
    """The connection of a driver; made anew when it has gone."""

    def __init__(
        self, info: Mapping[str, Any], application_name: str, query_timeout_s: float
    ) -> None:
        # A name in the URL is not for us: who takes over tells our connections by ours.
        self._info = {**info, "application_name": application_name}
        self._query_timeout_s = query_timeout_s
        self._connection: Connection | None = None

    def connection(self) -> Connection:
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                if self._connection is None or self._connection.closed:
                    self._connection = connect(self._info, self._query_timeout_s)
                self._connection.execute("SELECT 1")
                return self._connection
            except psycopg.OperationalError as error:
                self.close()
                if is_hopeless(error) or time.monotonic() > deadline_s:
                    raise StoreError(
                        f"PostgreSQL does not let us in: {message(error)}. Look at the server, and "
                        "at the options url, user and password"
                    ) from error
                time.sleep(PAUSE_S)  # between two questions to the server

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
