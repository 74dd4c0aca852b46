"""Connections: the driver's, for questions, which outlives a restart of the server; and those of
tasks, for rows as Arrow.

Poolers (PgBouncer) may stand in between. They refuse start-up options but a few, and may lead each
transaction to another session of the server. So what a statement needs is set in its own
transaction, nothing is left in a session, and nothing is prepared there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, TypeVar

import psycopg
from psycopg.conninfo import make_conninfo

from sparkonce import postgresql
from sparkonce.ingest.settings import TableSettings
from sparkonce.ingest.table import SourceError
from sparkonce.postgresql import (
    PATIENCE_S,
    PAUSE_S,
    Connection,
    NoAnswer,
    Silence,
    answered,
    connect,
    is_hopeless,
    message,
)
from sparkonce.redaction import redact

_SETTINGS: Final = (
    "SET LOCAL TimeZone = 'UTC'",
    "SET LOCAL DateStyle = 'ISO'",
    "SET LOCAL IntervalStyle = 'postgres'",
)
"""Values that become text shall be the same whatever the user's settings are."""
_NEEDED: Final = {
    # Arrow's text is UTF-8, and so are the statements. The server converts, or says that it can't.
    "client_encoding": "UTF8",
}
_BYTES_FETCHED: Final = {"adbc.postgresql.batch_size_hint_bytes": str(4 * 2**20)}

_Answer = TypeVar("_Answer")


def conninfo(settings: TableSettings) -> Mapping[str, Any]:
    info = postgresql.conninfo(settings.url, settings.user, settings.password)
    return {"application_name": "sparkonce", **info, **_NEEDED}


class Desk:
    """Answers questions that may be asked again: over a new connection if the old one has gone."""

    def __init__(self, info: Mapping[str, Any], query_timeout_s: float) -> None:
        self._info = info
        self._query_timeout_s = query_timeout_s
        self._connection: Connection | None = None

    def ask(self, question: Callable[[Connection], _Answer]) -> _Answer:
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                return question(self._open())
            except psycopg.OperationalError as error:
                self.close()
                if is_hopeless(error) or time.monotonic() > deadline_s:
                    raise _failed(
                        "PostgreSQL does not answer",
                        error,
                        "Look at the server, and at the options url, user and password",
                    ) from error
                time.sleep(PAUSE_S)  # between two questions to the server
            except psycopg.Error as error:
                self.close()
                raise _failed("PostgreSQL refuses", error) from error

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self.ask(lambda connection: _in_transaction(connection, sql).fetchall())

    def change(self, sql: str) -> None:
        self.ask(lambda connection: _in_transaction(connection, sql))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._info, self._query_timeout_s)
        return self._connection


def _in_transaction(connection: Connection, sql: str) -> psycopg.Cursor[Any]:
    """Statements that are sent together are one transaction, in one round trip."""
    # Bytes: PostgreSQL's own text, in which a percent sign is no parameter.
    cursor = connection.execute("; ".join([*_SETTINGS, sql]).encode())
    while cursor.nextset():
        pass  # to the last one's answer
    return cursor


class Cursor:
    """Of ADBC, which waits without an end by itself. While it waits nobody may close it."""

    def __init__(self, connection: Any, silence: Silence) -> None:
        self._connection = connection
        self._cursor = connection.cursor(adbc_stmt_kwargs=_BYTES_FETCHED)
        self._silence = silence

    def execute(self, sql: str) -> None:
        self._answered(lambda: self._cursor.execute(sql))

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        self.execute(sql)
        return [tuple(row) for row in self._answered(self._cursor.fetchall)]

    def batches(self, sql: str) -> Iterator[Any]:
        self.execute(sql)
        reader = self._answered(self._cursor.fetch_record_batch)
        while (batch := self._answered(lambda: next(reader, None))) is not None:
            yield batch

    def close(self) -> None:
        self._cursor.close()
        self._connection.close()

    def _answered(self, call: Callable[[], _Answer]) -> _Answer:
        return answered(call, replace(self._silence), too_late=self.close)


@contextmanager
def arrow_cursor(info: Mapping[str, Any], query_timeout_s: float) -> Iterator[Cursor]:
    """For rows as Arrow, by COPY; what fails in it is told in our words."""
    # Here, and not with the module: the driver's process has no use for it.
    import adbc_driver_postgresql.dbapi as adbc

    text = make_conninfo("", **info)
    silence = Silence(text, query_timeout_s)
    try:
        cursor = Cursor(
            _patient(lambda: answered(lambda: adbc.connect(text), replace(silence))), silence
        )
        try:
            for setting in _SETTINGS:  # in a transaction
                cursor.execute(setting)
            yield cursor
        except NoAnswer:
            raise
        except BaseException:
            cursor.close()
            raise
        cursor.close()
    except (adbc.Error, NoAnswer, OSError) as error:  # Arrow gives errors of a stream as OSError
        raise _failed("PostgreSQL, while rows were read", error) from error


def _failed(what: str, error: Exception, advice: str = "") -> SourceError:
    """The one place where words of the server, or of a driver, become ours."""
    redact(error)
    said = message(error) if isinstance(error, psycopg.Error) else " ".join(str(error).split())
    if "byte sequence" in said:
        advice = (
            "Text is read as UTF-8. In a database of the encoding SQL_ASCII anything may have been "
            "stored, and the server can't convert it: correct the row, or leave the column out "
            "with .schema(…)"
        )
    return SourceError(f"{what}: {said}. {advice}" if advice else f"{what}: {said}")


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
