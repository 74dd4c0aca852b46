"""How a PostgreSQL is reached, whether it is read or written: URLs, patience, and its own words."""

from __future__ import annotations

from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

from sparkonce.errors import ConfigError

Connection = psycopg.Connection[Any]

PATIENCE_S: Final = 60.0
"""For a server that restarts; a batch that is under way waits for it."""
PAUSE_S: Final = 0.2
_ALIVE: Final = {
    "connect_timeout": "10",
    # A server that has gone without a word is noticed in half a minute.
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
}
_HOPELESS: Final = ("authentication failed", "does not exist", "no pg_hba.conf entry")


def conninfo(url: str, user: str | None, password: str | None) -> dict[str, Any]:
    """What libpq needs, from a URL as PostgreSQL or as Spark's JDBC writes it."""
    given = {
        name: value for name, value in (("user", user), ("password", password)) if value is not None
    }
    try:
        return {**_ALIVE, **conninfo_to_dict(url.removeprefix("jdbc:")), **given}
    except psycopg.Error as error:
        raise ConfigError(
            f"url is not understood: {message(error)}; it looks like "
            "postgresql://user:password@host:5432/database"
        ) from error


def is_hopeless(error: Exception) -> bool:
    """Whether waiting does not mend it; libpq gives no code for who was not let in."""
    return any(each in str(error) for each in _HOPELESS)


def message(error: psycopg.Error) -> str:
    """The server's own words, in one line."""
    said = error.diag.message_primary or str(error)
    detail = error.diag.message_detail
    return " ".join(f"{said} ({detail})".split()) if detail else " ".join(said.split())
