"""The driver's connection: one that answers, patiently; and what the server's errors mean."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import quote, urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from sparkonce.deliver.settings import TableSettings
from sparkonce.deliver.store import StoreError
from sparkonce.errors import ConfigError

Connection = psycopg.Connection[Any]


@contextmanager
def told_as_ours(what: str) -> Iterator[None]:
    """The server's errors as ours, which an attempt is given up for."""
    try:
        yield
    except psycopg.Error as error:
        raise StoreError(f"{what}: {message(error)}") from error


_PATIENCE_S: Final = 60.0
"""For a server that restarts; a batch that is under way waits for it."""
_PAUSE_S: Final = 0.2
_ALIVE: Final = {
    "connect_timeout": "10",
    # A server that has gone without a word is noticed in half a minute.
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    # And the other way round: a lock does not outlive whoever held it for long.
    "options": "-c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=4",
}
_HOPELESS: Final = ("authentication failed", "does not exist", "no pg_hba.conf entry")
"""What waiting does not mend; libpq gives no code for who was not let in."""


def conninfo(settings: TableSettings) -> dict[str, Any]:
    """What libpq needs, from a URL as PostgreSQL or as Spark's JDBC sink writes it."""
    given = {name: settings.more[name] for name in ("user", "password") if name in settings.more}
    try:
        return {
            **_ALIVE,
            **conninfo_to_dict(settings.place.removeprefix("jdbc:")),
            **given,
        }
    except psycopg.Error as error:
        raise ConfigError(
            f"url is not understood: {message(error)}; it looks like "
            "postgresql://user:password@host:5432/database"
        ) from error


def as_url(info: Mapping[str, Any], application_name: str) -> str:
    """For ADBC, which takes a URL."""
    options = {name: str(value) for name, value in info.items() if value is not None}
    options["application_name"] = application_name
    return f"postgresql:///?{urlencode(options, quote_via=quote)}"


class Driver:
    """The connection of a driver; made anew when it has gone."""

    def __init__(self, info: Mapping[str, Any], application_name: str) -> None:
        self._info = make_conninfo("", **info, application_name=application_name)
        self._connection: Connection | None = None

    def connection(self) -> Connection:
        deadline_s = time.monotonic() + _PATIENCE_S
        while True:
            try:
                if self._connection is None or self._connection.closed:
                    self._connection = psycopg.connect(self._info, autocommit=True)
                self._connection.execute("SELECT 1")
                return self._connection
            except psycopg.OperationalError as error:
                self.close()
                hopeless = any(each in str(error) for each in _HOPELESS)
                if hopeless or time.monotonic() > deadline_s:
                    raise StoreError(
                        f"PostgreSQL does not let us in: {message(error)}. Look at the options "
                        "url, user and password"
                    ) from error
                time.sleep(_PAUSE_S)  # between two questions to the server

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def message(error: psycopg.Error) -> str:
    """The server's own words, in one line."""
    said = error.diag.message_primary or str(error)
    detail = error.diag.message_detail
    return " ".join(f"{said} ({detail})".split()) if detail else " ".join(said.split())
