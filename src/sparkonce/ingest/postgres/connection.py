"""Connections: the driver's, for questions, which outlives a restart of the server; and those of
tasks, for rows as Arrow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import psycopg
from psycopg.conninfo import make_conninfo

from sparkonce.errors import ConfigError
from sparkonce.ingest.settings import TableSettings
from sparkonce.ingest.table import SourceError

Connection = psycopg.Connection[Any]

_PATIENCE_S: Final = 60.0
"""For a server that restarts."""
_PAUSE_S: Final = 0.2
_ALIVE: Final = {
    "connect_timeout": "10",
    # A server that has gone without a word is noticed in half a minute.
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    "application_name": "sparkonce",
}
_HOPELESS: Final = ("authentication failed", "does not exist", "no pg_hba.conf entry")
"""What waiting does not mend; libpq gives no code for who was not let in."""
_SESSION: Final = ("SET TimeZone = 'UTC'", "SET DateStyle = 'ISO'", "SET IntervalStyle = postgres")
"""Values that become text shall be the same whatever the user's settings are."""
_BYTES_FETCHED: Final = {"adbc.postgresql.batch_size_hint_bytes": str(4 * 2**20)}

_Answer = TypeVar("_Answer")


def conninfo(settings: TableSettings) -> str:
    given = {
        name: value
        for name, value in (("user", settings.user), ("password", settings.password))
        if value is not None
    }
    try:
        theirs = psycopg.conninfo.conninfo_to_dict(settings.url)
        return make_conninfo("", **{**_ALIVE, **theirs, **given})
    except psycopg.Error as error:
        raise ConfigError(
            f"url is not understood: {message(error)}; it looks like "
            "postgresql://user:password@host:5432/database"
        ) from error


class Desk:
    """Answers questions that may be asked again: over a new connection if the old one has gone."""

    def __init__(self, info: str) -> None:
        self._info = info
        self._connection: Connection | None = None

    def ask(self, question: Callable[[Connection], _Answer]) -> _Answer:
        deadline_s = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return question(self._open())
            except psycopg.OperationalError as error:
                self.close()
                hopeless = any(each in str(error) for each in _HOPELESS)
                if hopeless or time.monotonic() > deadline_s:
                    raise SourceError(
                        f"PostgreSQL does not answer: {message(error)}. Look at the server, and at "
                        "the options url, user and password"
                    ) from error
                time.sleep(_PAUSE_S)  # between two questions to the server
            except psycopg.Error as error:
                self.close()
                raise SourceError(f"PostgreSQL refuses: {message(error)}") from error

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        # Bytes: PostgreSQL's own text, in which a percent sign is no parameter.
        return self.ask(lambda connection: connection.execute(sql.encode()).fetchall())

    def change(self, sql: str) -> None:
        self.ask(lambda connection: connection.execute(sql.encode()))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self._info, autocommit=True)
            for setting in _SESSION:
                self._connection.execute(setting.encode())
        return self._connection


@contextmanager
def arrow_cursor(info: str) -> Iterator[Any]:
    """For rows as Arrow, by COPY; what fails in it is told in our words."""
    # Here, and not with the module: the driver's process has no use for it.
    import adbc_driver_postgresql.dbapi as adbc

    try:
        with (
            _patient(lambda: adbc.connect(info, autocommit=True)) as connection,
            connection.cursor(adbc_stmt_kwargs=_BYTES_FETCHED) as cursor,
        ):
            for setting in _SESSION:
                cursor.execute(setting)
            yield cursor
    except (adbc.Error, OSError) as error:  # Arrow gives errors of a stream as OSError
        raise SourceError(
            f"PostgreSQL, while rows were read: {' '.join(str(error).split())}"
        ) from error


def _patient(connect: Callable[[], Any]) -> Any:
    import adbc_driver_postgresql.dbapi as adbc

    deadline_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return connect()
        except adbc.Error as error:
            if any(each in str(error) for each in _HOPELESS) or time.monotonic() > deadline_s:
                raise
            time.sleep(_PAUSE_S)  # between two attempts


def message(error: psycopg.Error) -> str:
    """The server's own words, in one line."""
    said = error.diag.message_primary or str(error)
    detail = error.diag.message_detail
    return " ".join(f"{said} ({detail})".split()) if detail else " ".join(said.split())
