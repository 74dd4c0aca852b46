"""What users set on `sparkonce_table`, under the names of Spark's JDBC source where it has them.

Spark hands options to a Python data source in a map that ignores case. One that is unknown is
refused, and so is one that the database in question could not heed.
"""

from __future__ import annotations

import difflib
import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from sparkonce.errors import ConfigError


class Kind(enum.Enum):
    """Which database, by the scheme of the URL."""

    POSTGRES = "postgresql"
    SQLITE = "sqlite"
    DUCKDB = "duckdb"


_SCHEMES = {"postgres": Kind.POSTGRES, **{kind.value: kind for kind in Kind}}

OPTIONS = (
    "url",
    "user",
    "password",
    "dbtable",
    "keyColumn",
    "updateColumn",
    "updateDelayMs",
    "transactionColumn",
    "keyLag",
    "startingOffsets",
    "maxRowsPerBatch",
    "partitionColumn",
    "numPartitions",
    "fetchsize",
    "outbox",
    "deleteAfterPublishing",
)
_INSTEAD = {
    "query": "give a table as dbtable and select in Spark: positions are rows of a table",
    "driver": "no Java driver is used: leave it out",
    "path": "say where the database is with the option url, and call load() without arguments",
    "lowerbound": "bounds are taken from each batch: leave it out",
    "upperbound": "bounds are taken from each batch: leave it out",
}
"""Names that users of Spark's other sources may try."""
_POSTGRES_ONLY = ("user", "password", "transactionColumn", "keyLag")
_ROWS_FETCHED = 10_000
_UPDATE_DELAY_MS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings:
    """A source's settings, checked as far as that goes without the database."""

    kind: Kind
    url: str = field(repr=False)
    user: str | None
    password: str | None = field(repr=False)
    table: str
    key: str
    update: str | None
    update_delay_ms: int
    """SQLite, DuckDB: how old an update time must be before its row is read."""
    transaction: str | None
    """PostgreSQL: a column that has the number of the transaction that wrote the row."""
    key_lag: int | None
    """PostgreSQL: how far below the greatest key a new row's key may be."""
    starts_at: str
    """`earliest`, `latest`, or an offset as JSON."""
    rows_max: int | None
    """In a batch."""
    partition: str
    partitions: int
    rows_fetched: int
    """In one piece; what a task has in memory."""
    outbox: bool
    deletes: bool

    @property
    def order(self) -> tuple[str, ...]:
        return (self.key,) if self.update is None else (self.update, self.key)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> TableSettings:
        given = _sorted_out(options)
        url = _needed(given, "url", "such as postgresql://host/database or sqlite:///path")
        kind = _kind(url)
        settings = cls(
            kind=kind,
            url=url.removeprefix("jdbc:"),
            user=given.get("user"),
            password=given.get("password"),
            table=_needed(given, "dbtable", "the table to read"),
            key=_needed(given, "keyColumn", "a column that tells rows apart and grows"),
            update=given.get("updateColumn"),
            update_delay_ms=_number(given, "updateDelayMs", 0, _UPDATE_DELAY_MS),
            transaction=given.get("transactionColumn"),
            key_lag=_number(given, "keyLag", 0, None),
            starts_at=_start(given),
            rows_max=_number(given, "maxRowsPerBatch", 1, None),
            partition=given.get("partitionColumn") or given["keyColumn"],
            partitions=_number(given, "numPartitions", 1, 1),
            rows_fetched=_number(given, "fetchsize", 1, _ROWS_FETCHED),
            outbox=_one_of(given, "outbox", ("false", "true")) == "true",
            deletes=_one_of(given, "deleteAfterPublishing", ("false", "true")) == "true",
        )
        _check(settings, given)
        return settings


def _sorted_out(options: Mapping[str, str]) -> dict[str, str]:
    known = {name.lower(): name for name in OPTIONS}
    given: dict[str, str] = {}
    for name, value in options.items():
        if name.lower() in _INSTEAD:
            raise ConfigError(f"option {name!r} is not taken: {_INSTEAD[name.lower()]}")
        if name.lower() not in known:
            near = difflib.get_close_matches(name.lower(), known, n=1)
            hint = f"did you mean {known[near[0]]!r}? " if near else ""
            raise ConfigError(f"unknown option {name!r}: {hint}known are {', '.join(OPTIONS)}")
        if not value:
            raise ConfigError(f"{known[name.lower()]} is empty: give it a value, or leave it out")
        given[known[name.lower()]] = value
    return given


def _needed(given: Mapping[str, str], name: str, what: str) -> str:
    if name not in given:
        raise ConfigError(f"{name} is missing: set .option({name!r}, …), {what}")
    return given[name]


def _kind(url: str) -> Kind:
    scheme = url.removeprefix("jdbc:").partition(":")[0].lower()
    if scheme not in _SCHEMES or "://" not in url:
        # Not the whole: there may be a password in it.
        raise ConfigError(
            f"url begins with {scheme!r}: it must be postgresql://user:password@host:5432/database,"
            " sqlite:///path/to/file or duckdb:///path/to/file"
        )
    return _SCHEMES[scheme]


def _check(settings: TableSettings, given: Mapping[str, str]) -> None:
    if settings.kind is not Kind.POSTGRES:
        for name in _POSTGRES_ONLY:
            if name in given:
                raise ConfigError(f"{name} is for PostgreSQL: leave it out")
    elif "updateDelayMs" in given:
        raise ConfigError(
            "updateDelayMs is for SQLite and DuckDB: leave it out; in PostgreSQL rows are told by "
            "their transactions, so that nothing is lost however late an update time is"
        )
    if "updateDelayMs" in given and settings.update is None:
        raise ConfigError("updateDelayMs is for updateColumn: set that, or leave it out")
    if settings.key_lag is not None:
        for name in ("updateColumn", "transactionColumn"):
            if name in given:
                raise ConfigError(f"keyLag and {name} exclude each other: leave one of them out")
    if settings.deletes and not settings.outbox:
        raise ConfigError("deleteAfterPublishing is for outbox=true: set that, or leave it out")
    if settings.deletes and settings.starts_at == "latest":
        raise ConfigError(
            "deleteAfterPublishing=true would also delete the rows that startingOffsets=latest "
            "leaves out: use startingOffsets=earliest"
        )


def _start(given: Mapping[str, str]) -> str:
    text = given.get("startingOffsets", "earliest")
    if not text.startswith("{"):
        return _one_of(given, "startingOffsets", ("earliest", "latest"))
    try:
        json.loads(text)
    except ValueError as error:
        raise ConfigError(
            f"startingOffsets={text!r} is no JSON: {error}. It is earliest, latest, or an offset "
            "as a checkpoint or the ledger has it"
        ) from error
    return text


_Default = TypeVar("_Default", int, None)


def _number(given: Mapping[str, str], name: str, low: int, default: _Default) -> int | _Default:
    text = given.get(name)
    if text is None:
        return default
    if not text.isdecimal() or int(text) < low:
        raise ConfigError(f"{name}={text!r}: it must be a whole number, {low} or more")
    return int(text)


def _one_of(given: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    value = given.get(name, allowed[0]).lower()
    if value not in allowed:
        raise ConfigError(f"{name}={given[name]!r}: it must be one of {', '.join(allowed)}")
    return value
