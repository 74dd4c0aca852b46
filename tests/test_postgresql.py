"""URLs of PostgreSQL: what is understood, and that no password is ever repeated."""

from __future__ import annotations

import pytest

from sparkonce.errors import ConfigError
from sparkonce.postgresql import conninfo

MALFORMED = {
    "percent": "postgresql://u:canary%zz@h/db",
    "percent at the end": "postgresql://u:canary%@h/db",
    "at": "postgresql://u:x@canary@h/db",
    "at behind a question mark": "postgresql://u:a?b@canary@localhost:1/db",
    "at behind two": "postgresql://u:a?b?c@canary@localhost:1/db?application_name=x",
    "at in a parameter": "postgresql://h?user=u&password=x@canary",
    "at in a parameter, and a port": "postgresql://h:5432?user=u&password=x@canary",
    "at in the host": "postgresql://u:x@canary%40localhost:1/db",
    "at in words": "host=u:canary@h port=1",
    "at in the second host": "host=h,u:canary@h port=1",
    "at in an address": "hostaddr=u:canary@h port=1",
    "slash": "postgresql://u:x/canary@h/db",
    "no host": "postgresql://u:canary",
    "port": "postgresql://u:canary@h:1:canary/db",
    "bracket": "postgresql://u:canary@[::1/db",
    "other database": "mysql://u:canary@h/db",
    "JDBC's": "jdbc:postgresql://h/db?user=u&password=canary&reWriteBatchedInserts=true",
    "unknown parameter": "jdbc:postgresql://h/db?user=u&password=canary&nosuch=1",
    "ampersand": "jdbc:postgresql://h/db?password=x&canary",
    "no scheme": "u:canary@h",
    "words": "host=h password=x canary",
    "words that set": "host=h password=x canary=1",
    "unterminated": "host=h password='canary",
    "port in words": "host=h port=canary",
    "a path in words": "host=h password=canary sslrootcert=file:///etc/ca.pem nosuch=1",
    "a url in words": "password=canary dbname=postgresql://h/db port=x",
    "a scheme in the password": "password=canary://cd port=x",
    "no scheme, and a port": "u:canary@h://db",
}


@pytest.mark.parametrize("url", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_url_is_told_without_repeating_it(url: str) -> None:
    with pytest.raises(ConfigError, match="url") as raised:
        conninfo(url, None, None)
    error: BaseException | None = raised.value
    while error is not None:  # a traceback shows causes too
        assert "canary" not in str(error)
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:p%40%2Fs%25@h:5432/db",
        "postgres://h:5432/db?user=u&password=p%40%2Fs%25",
        "jdbc:postgresql://h:5432/db?user=u&password=p%40%2Fs%25",
        "postgresql://h:5432/db?user=u&password=p@/s%25",
        "host=h port=5432 dbname=db user=u password='p@/s%'",
        "sslrootcert=file:///ca.pem host=h port=5432 dbname=db user=u password='p@/s%'",
    ],
)
def test_urls_that_are_understood(url: str) -> None:
    found = conninfo(url, None, None)
    names = ("user", "password", "host", "port", "dbname")
    assert [found[name] for name in names] == ["u", "p@/s%", "h", "5432", "db"]
    assert conninfo(url, "other", "secret")["password"] == "secret"


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("postgresql://u:a?b@h/db", {"password": "a?b", "host": "h"}),
        ("postgresql://me%40tenant@h/db", {"user": "me@tenant", "host": "h"}),
        ("postgresql://h/db?user=me@tenant", {"user": "me@tenant", "host": "h"}),
        ("host=@socket user=u", {"host": "@socket"}),
    ],
)
def test_what_libpq_takes_and_is_no_mistake(url: str, told: dict[str, str]) -> None:
    assert told.items() <= conninfo(url, None, None).items()
