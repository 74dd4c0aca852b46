"""The one place that keeps passwords out of what is told: messages, causes, logs.

Passwords are remembered as settings are read, and taken out of every message of ours as it is made
(`SparkonceError`), and of errors by drivers of databases before they are passed on or become the
cause of one of ours. What looks like a password in a URL or a connection string is taken out even
if nobody could read it as one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, quote_plus

_HIDDEN: Final = "***"
_SHORT: Final = 6
"""Shorter ones are parts of ordinary words, and count as whole words only."""
_EXAMPLE: Final = "password"
# `password` is what our own examples have there. Digits are a port, unless there is an @ behind
# them: then a user is before them, and a password may begin with them and have a slash in it.
_IN_URLS: Final = re.compile(
    r"(:/+[^\s:/?#]*):(?!password@|\d+(?:[/?,](?!\S*@)|\s|$))(?:\S*@|[^\s@/]+)"
)
_IN_SETTINGS: Final = re.compile(
    r"""(?i)(password\s*=\s*)(?!\*\*\*)('(?:[^'\\]|\\.)*'?|[^\s&'",;]+)"""
)
_NAMES: Final = re.compile(r"(?i)secret|password|token|access[._]?key")
"""As Spark's `spark.redaction.regex`, of settings that are handed through."""
_known: set[str] = set()


def keep_secret(value: str | None, public: set[str] | frozenset[str] = frozenset()) -> None:
    """Unless it is one of the `public` ones as well, a user who is his own password for example."""
    if value and value not in {_EXAMPLE, *public}:
        in_conninfo = value.replace("\\", "\\\\").replace("'", "\\'")
        _known.update({value, in_conninfo, quote(value, safe=""), quote_plus(value), quote(value)})


def keep_secrets_of(settings: Mapping[str, object]) -> None:
    """Of those that are handed through to somebody else."""
    for name, value in settings.items():
        if _NAMES.search(name):
            keep_secret(str(value))


def redacted(text: str) -> str:
    for secret in sorted(_known, key=len, reverse=True):
        if len(secret) < _SHORT:
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", _HIDDEN, text)
        else:
            text = text.replace(secret, _HIDDEN)
    text = _IN_URLS.sub(rf"\1:{_HIDDEN}@", text)
    return _IN_SETTINGS.sub(rf"\1{_HIDDEN}", text)


def redact(error: BaseException) -> None:
    """In an error of somebody else's, and in those behind it, which tracebacks show as well."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.args = tuple(redacted(each) if isinstance(each, str) else each for each in one.args)
        left += [one.__cause__, one.__context__]
