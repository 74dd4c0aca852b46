"""The driver's connection: one that answers, patiently; and what the server's errors mean."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import quote, urlencode

import psycopg
from psycopg.conninfo import make_conninfo

from sparkonce import postgresql
from sparkonce.deliver.settings import TableSettings
from sparkonce.deliver.store import StoreError
from sparkonce.postgresql import PATIENCE_S, PAUSE_S, Connection, is_hopeless, message


@contextmanager
def told_as_ours(what: str) -> Iterator[None]:
    """The server's errors as ours, which an attempt is given up for."""
    try:
        yield
    except psycopg.Error as error:
        raise StoreError(f"{what}: {message(error)}") from error


_SERVER: Final = {
    # The other way round: a lock does not outlive whoever held it for long.
    "options": "-c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=4",
}


def conninfo(settings: TableSettings) -> dict[str, Any]:
    user, password = (settings.more.get(name) for name in ("user", "password"))
    return {**_SERVER, **postgresql.conninfo(settings.place, user, password)}


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
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                if self._connection is None or self._connection.closed:
                    self._connection = psycopg.connect(self._info, autocommit=True)
                self._connection.execute("SELECT 1")
                return self._connection
            except psycopg.OperationalError as error:
                self.close()
                if is_hopeless(error) or time.monotonic() > deadline_s:
                    raise StoreError(
                        f"PostgreSQL does not let us in: {message(error)}. Look at the options "
                        "url, user and password"
                    ) from error
                time.sleep(PAUSE_S)  # between two questions to the server

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
