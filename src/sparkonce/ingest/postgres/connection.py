"""Connections: the driver's, for questions, which outlives a restart of the server; and those of
tasks, for rows as Arrow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import psycopg
from psycopg.conninfo import make_conninfo

from sparkonce import postgresql
from sparkonce.ingest.settings import TableSettings
from sparkonce.ingest.table import SourceError
from sparkonce.postgresql import PATIENCE_S, PAUSE_S, Connection, is_hopeless, message

_SESSION: Final = ("SET TimeZone = 'UTC'", "SET DateStyle = 'ISO'", "SET IntervalStyle = postgres")
"""Values that become text shall be the same whatever the user's settings are."""
_BYTES_FETCHED: Final = {"adbc.postgresql.batch_size_hint_bytes": str(4 * 2**20)}

_Answer = TypeVar("_Answer")


def conninfo(settings: TableSettings) -> str:
    info = postgresql.conninfo(settings.url, settings.user, settings.password)
    return make_conninfo("", **{"application_name": "sparkonce", **info})


class Desk:
    """Answers questions that may be asked again: over a new connection if the old one has gone."""

    def __init__(self, info: str) -> None:
        self._info = info
        self._connection: Connection | None = None

    def ask(self, question: Callable[[Connection], _Answer]) -> _Answer:
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                return question(self._open())
            except psycopg.OperationalError as error:
                self.close()
                if is_hopeless(error) or time.monotonic() > deadline_s:
                    raise SourceError(
                        f"PostgreSQL does not answer: {message(error)}. Look at the server, and at "
                        "the options url, user and password"
                    ) from error
                time.sleep(PAUSE_S)  # between two questions to the server
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


def asked_of(cursor: Any) -> Callable[[str], list[tuple[Any, ...]]]:
    """Questions over the connection of a task."""

    def ask(sql: str) -> list[tuple[Any, ...]]:
        cursor.execute(sql)
        return [tuple(row) for row in cursor.fetchall()]

    return ask


def _patient(connect: Callable[[], Any]) -> Any:
    import adbc_driver_postgresql.dbapi as adbc

    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return connect()
        except adbc.Error as error:
            if is_hopeless(error) or time.monotonic() > deadline_s:
                raise
            time.sleep(PAUSE_S)  # between two attempts
