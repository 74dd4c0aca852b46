"""What users set on a writer, whatever the sink; checked before anything starts.

Options are Spark's and a few of our own. Names are taken in any case, as Spark does; one that is
unknown is refused, since a mistyped promise is no promise.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypedDict

from sparkonce.errors import ConfigError
from sparkonce.guarantees import Guarantee

OPTIONS = (
    "guarantee",
    "checkpointLocation",
    "queryName",
    "batchAttempts",
    "ledgerLost",
    "lostState",
    "runId",
)
"""What every sink takes."""


class InCommon(TypedDict):
    """The options that every sink takes, checked."""

    guarantee: Guarantee
    attempts_max: int
    ledger_lost: str
    lost_state: str
    run_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings:
    """What every sink's settings have."""

    guarantee: Guarantee
    attempts_max: int
    ledger_lost: str
    lost_state: str
    run_id: str | None
    pipeline: str
    """Its name: the same after a restart, and no other pipeline's."""
    named_by: str
    """The option that gives the name, for messages."""

    @property
    def group(self) -> str:
        """Under what name the ledger is kept; a batch job has one for each of its runs."""
        return self.pipeline if self.run_id is None else f"{self.pipeline}-run-{self.run_id}"


@dataclass(frozen=True, slots=True)
class Given:
    """Options as they were given, by their proper names."""

    own: Mapping[str, str]
    prefixed: Mapping[str, str]
    """Those of somebody else's names, without the prefix that tells them."""

    @classmethod
    def sort_out(
        cls, options: Mapping[str, str], more: Iterable[str], prefix: str | None = None
    ) -> Given:
        known = {name.lower(): name for name in (*OPTIONS, *more)}
        own: dict[str, str] = {}
        prefixed: dict[str, str] = {}
        for name, value in options.items():
            if not value:
                # From a variable that is not set, say: a runId of nothing would be every run's.
                raise ConfigError(f"{name} is empty: give it a value, or leave it out")
            if prefix is not None and name.lower().startswith(prefix):
                prefixed[name[len(prefix) :].lower()] = value
            elif name.lower() in known:
                own[known[name.lower()]] = value
            else:
                raise _unknown(name, known, prefix)
        return cls(own, prefixed)

    def get(self, name: str) -> str | None:
        return self.own.get(name)

    def in_common(self) -> InCommon:
        guarantees = [each.value for each in Guarantee]
        return InCommon(
            guarantee=Guarantee(self.one_of("guarantee", guarantees, "exactly_once")),
            attempts_max=self.number("batchAttempts", default=3, low=1),
            ledger_lost=self.one_of("ledgerLost", ["fail", "replay", "skip"], "fail"),
            lost_state=self.one_of("lostState", ["fail", "empty"], "fail"),
            run_id=self.get("runId"),
        )

    def one_of(self, name: str, allowed: list[str], default: str) -> str:
        value = self.own.get(name, default).lower()
        if value not in allowed:
            raise ConfigError(f"{name}={value!r}: it must be one of {', '.join(allowed)}")
        return value

    def number(self, name: str, *, default: int, low: int, high: int | None = None) -> int:
        text = self.own.get(name, str(default))
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
