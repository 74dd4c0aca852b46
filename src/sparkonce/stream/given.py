"""Options as users give them to Spark: names in any case, values as text.

One that is unknown is refused, since a mistyped promise is no promise.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from sparkonce.errors import ConfigError

_Default = TypeVar("_Default", int, None)


@dataclass(frozen=True, slots=True)
class Given:
    """By their proper names."""

    own: Mapping[str, str]
    prefixed: Mapping[str, str] = field(default_factory=dict)
    """Those of somebody else's names, without the prefix that tells them."""

    @classmethod
    def sort_out(
        cls,
        options: Mapping[str, str],
        names: Iterable[str],
        *,
        prefix: str | None = None,
        instead: Mapping[str, str] | None = None,
    ) -> Given:
        """`instead` says what to do for names, in lower case, that users may well try."""
        known = {name.lower(): name for name in names}
        own: dict[str, str] = {}
        prefixed: dict[str, str] = {}
        for name, value in options.items():
            lower = name.lower()
            if instead and lower in instead:
                raise ConfigError(f"option {name!r} is not taken: {instead[lower]}")
            if not value:
                # From a variable that is not set, say: a runId of nothing would be every run's.
                raise ConfigError(
                    f"{known.get(lower, name)} is empty: give it a value, or leave it out"
                )
            if prefix is not None and lower.startswith(prefix):
                prefixed[lower.removeprefix(prefix)] = value
            elif lower in known:
                own[known[lower]] = value
            else:
                raise _unknown(name, known, prefix)
        return cls(own, prefixed)

    def __contains__(self, name: str) -> bool:
        return name in self.own

    def get(self, name: str) -> str | None:
        return self.own.get(name)

    def needed(self, name: str, what: str = "") -> str:
        if name not in self.own:
            means = f", {what}" if what else ""
            raise ConfigError(f"{name} is missing: set .option({name!r}, …){means}")
        return self.own[name]

    def one_of(self, name: str, allowed: list[str], default: str) -> str:
        value = self.own.get(name, default)
        if value.lower() not in allowed:
            raise ConfigError(f"{name}={value!r}: it must be one of {', '.join(allowed)}")
        return value.lower()

    def is_true(self, name: str) -> bool:
        return self.one_of(name, ["true", "false"], "false") == "true"

    def number(
        self, name: str, *, default: _Default, low: int, high: int | None = None
    ) -> int | _Default:
        text = self.own.get(name)
        if text is None:
            return default
        if not text.isdecimal() or int(text) < low or (high is not None and int(text) > high):
            allowed = f"{low} or more" if high is None else f"{low} to {high}"
            raise ConfigError(f"{name}={text!r}: it must be a whole number, {allowed}")
        return int(text)


def _unknown(name: str, known: Mapping[str, str], prefix: str | None) -> ConfigError:
    candidates = [*known, prefix + name.lower()] if prefix else [*known]
    near = difflib.get_close_matches(name.lower(), candidates, n=1)
    hint = f"did you mean {known.get(near[0], near[0])!r}? " if near else ""
    also = f", and others with {prefix} before them" if prefix else ""
    return ConfigError(
        f"unknown option {name!r}: {hint}known are {', '.join(sorted(known.values()))}{also}"
    )
