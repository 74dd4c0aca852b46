"""How a PostgreSQL is reached, whether it is read or written.

A URL may have a password in it, and libpq's words about a URL that it can't parse quote it. So URLs
are checked here, and nothing of them is repeated.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

from sparkonce.errors import ConfigError
from sparkonce.redaction import keep_secret

_ALIVE: Final = {
    "connect_timeout": "10",
    # A server that has gone without a word is noticed in half a minute.
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    # Keepalives are not sent while something that was sent is not acknowledged.
    "tcp_user_timeout": "30000",
}
_LOOKS_LIKE: Final = "url looks like postgresql://user:password@host:5432/database"
_OPTIONS: Final = "give them by the options user and password"
_SCHEMES: Final = ("postgresql://", "postgres://")
_SCHEME: Final = re.compile("[A-Za-z][A-Za-z0-9+.-]*")
_STRAY_PERCENT: Final = re.compile("%(?![0-9A-Fa-f]{2})")
_PORTS: Final = re.compile(r"[0-9]*(,[0-9]*)*")
_SECRETS: Final = ("password", "sslpassword")
_JDBC_ONLY: Final = (
    "ApplicationName",
    "binaryTransfer",
    "currentSchema",
    "defaultRowFetchSize",
    "loginTimeout",
    "prepareThreshold",
    "reWriteBatchedInserts",
    "socketTimeout",
    "ssl",
    "sslfactory",
    "stringtype",
    "tcpKeepAlive",
)
"""Parameters that people have in a URL of Spark's JDBC sink, and that libpq does not take."""


def conninfo(url: str, user: str | None, password: str | None) -> dict[str, Any]:
    """What libpq needs, from a URL as PostgreSQL or as Spark's JDBC writes it."""
    given = {
        name: value for name, value in (("user", user), ("password", password)) if value is not None
    }
    plain = url.removeprefix("jdbc:")
    if why := _misread(plain):
        raise ConfigError(f"url is not understood: {why}")
    found = _parsed(plain)
    if found is None:
        raise ConfigError(
            f"url is not understood (it is not shown, as there may be a password in it): "
            f"{_LOOKS_LIKE}; percent-encode what is special in the user and the password, or "
            f"{_OPTIONS}"
        )
    if not _PORTS.fullmatch(str(found.get("port") or "")):
        raise ConfigError(
            f"url is not understood: what stands in the place of the port is no number. "
            f"{_LOOKS_LIKE}"
        )
    hosts = ",".join(str(found.get(name) or "") for name in ("host", "hostaddr"))
    # At its beginning it says that a socket has no file.
    if any("@" in host[1:] for host in hosts.split(",")):
        raise ConfigError(
            f"url is not understood: there is an @ in the place of the host. {_LOOKS_LIKE}"
        )
    info = {**_ALIVE, **found, **given}
    keep_secrets(info)
    return info


def keep_secrets(info: Mapping[str, Any]) -> None:
    """Nobody says them from now on. A user may be his own password: that is no secret."""
    public = {str(value) for name, value in info.items() if name not in _SECRETS}
    for secret in (*(info.get(name) for name in _SECRETS), os.environ.get("PGPASSWORD")):
        keep_secret(None if secret is None else str(secret), public)


def _misread(url: str) -> str | None:
    """Why libpq would fail, or take a piece of the password for something else."""
    scheme, separator, rest = url.partition("://")
    if not separator or not _SCHEME.fullmatch(scheme):
        return None  # host=… user=…, where :// may stand in a password or a path
    if f"{scheme}://" not in _SCHEMES:
        return f"it begins with {scheme!r}, which is no PostgreSQL. {_LOOKS_LIKE}"
    # As libpq does it: all before the first @ is the user's, unless a slash comes before.
    login, at, behind = rest.partition("@")
    if not at or "/" in login:
        login, behind = "", rest
    place, _, query = behind.partition("?")
    if "@" in place or "=" in login.partition("?")[2]:
        return (
            "there is an @ that is not the one before the host. In the user and the password "
            f"write %40 for @, %2F for /, %3F for ? and %25 for %, or {_OPTIONS}"
        )
    if _STRAY_PERCENT.search(rest):
        return (
            "there is a percent sign without two hexadecimal digits after it. Write %25 for %, "
            f"or {_OPTIONS}"
        )
    names = {each.partition("=")[0].lower() for each in query.split("&")}
    foreign = [each for each in _JDBC_ONLY if each.lower() in names]
    if foreign:
        return f"{', '.join(foreign)} is for JDBC alone: leave it out"
    return None


def _parsed(url: str) -> dict[str, Any] | None:
    """None instead of libpq's error, which would be shown as the cause of ours."""
    try:
        return dict(conninfo_to_dict(url))
    except psycopg.Error:
        return None
