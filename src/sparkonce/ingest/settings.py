"""What users set on `sparkonce_table`, under the names of Spark's JDBC source where it has them.

One that the database in question could not heed is refused.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from sparkonce.errors import ConfigError
from sparkonce.stream.given import Given


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
    "formerSystemIdentifier",
    "startingOffsets",
    "maxRowsPerBatch",
    "partitionColumn",
    "numPartitions",
    "fetchsize",
    "queryTimeout",
    "outbox",
    "deleteAfterPublishing",
    "mode",
    "columnNameOfCorruptRecord",
)
CORRUPT_RECORD = "_corrupt_record"
"""Spark's own default for the column's name."""
_INSTEAD = {
    "query": "give a table as dbtable and select in Spark: positions are rows of a table",
    "driver": "no Java driver is used: leave it out",
    "path": "say where the database is with the option url, and call load() without arguments",
    "lowerbound": "bounds are taken from each batch: leave it out",
    "upperbound": "bounds are taken from each batch: leave it out",
}
"""Names that users of Spark's other sources may try."""
_POSTGRES_ONLY = (
    "user",
    "password",
    "transactionColumn",
    "keyLag",
    "formerSystemIdentifier",
    "queryTimeout",
)
_ROWS_FETCHED = 10_000
_UPDATE_DELAY_MS = 2_000
_QUERY_TIMEOUT_S = 3_600


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
    former_system: str | None
    """PostgreSQL: the system identifier that the server had before `pg_upgrade`."""
    starts_at: str
    """`earliest`, `latest`, or an offset as JSON."""
    rows_max: int | None
    """In a batch."""
    partition: str
    partitions: int
    rows_fetched: int
    """In one piece; what a task has in memory."""
    query_timeout_s: int
    """PostgreSQL: how long the server may take for a statement."""
    outbox: bool
    deletes: bool
    corrupt_record: str | None
    """The column for the text of rows with values that Spark can't have, which become null there;
    None: such a row fails the batch."""

    @property
    def order(self) -> tuple[str, ...]:
        return (self.key,) if self.update is None else (self.update, self.key)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> TableSettings:
        given = Given.sort_out(options, OPTIONS, instead=_INSTEAD)
        url = given.needed("url", "such as postgresql://host/database or sqlite:///path")
        kind = _kind(url)
        settings = cls(
            kind=kind,
            url=url.removeprefix("jdbc:"),
            user=given.get("user"),
            password=given.get("password"),
            table=given.needed("dbtable", "the table to read"),
            key=given.needed("keyColumn", "a column that tells rows apart and grows"),
            update=given.get("updateColumn"),
            update_delay_ms=given.number("updateDelayMs", default=_UPDATE_DELAY_MS, low=0),
            transaction=given.get("transactionColumn"),
            key_lag=given.number("keyLag", default=None, low=0),
            former_system=given.get("formerSystemIdentifier"),
            starts_at=_start(given),
            rows_max=given.number("maxRowsPerBatch", default=None, low=1),
            partition=given.get("partitionColumn") or given.needed("keyColumn"),
            partitions=given.number("numPartitions", default=1, low=1),
            rows_fetched=given.number("fetchsize", default=_ROWS_FETCHED, low=1),
            query_timeout_s=given.number("queryTimeout", default=_QUERY_TIMEOUT_S, low=1),
            outbox=given.is_true("outbox"),
            deletes=given.is_true("deleteAfterPublishing"),
            corrupt_record=_corrupt_record(given),
        )
        _check(settings, given)
        return settings


def _kind(url: str) -> Kind:
    scheme, colon, _ = url.removeprefix("jdbc:").partition(":")
    if scheme.lower() not in _SCHEMES or "://" not in url:
        # Not the whole, nor what may be anything: there may be a password in it.
        begins = f"begins with {scheme!r}" if colon and scheme.isalnum() else "has no scheme"
        raise ConfigError(
            f"url {begins}: it must be postgresql://user:password@host:5432/database,"
            " sqlite:///path/to/file or duckdb:///path/to/file"
        )
    return _SCHEMES[scheme.lower()]


def _check(settings: TableSettings, given: Given) -> None:
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


def _corrupt_record(given: Given) -> str | None:
    mode = given.one_of("mode", ["failfast", "permissive", "dropmalformed"], "failfast")
    if mode == "dropmalformed":
        raise ConfigError(
            "mode=DROPMALFORMED would lose rows: set mode=PERMISSIVE, which puts their text into "
            f"the column {CORRUPT_RECORD}, and filter by that"
        )
    if mode == "permissive":
        return given.get("columnNameOfCorruptRecord") or CORRUPT_RECORD
    if "columnNameOfCorruptRecord" in given:
        raise ConfigError(
            "columnNameOfCorruptRecord is for mode=PERMISSIVE: set that, or leave it out"
        )
    return None


def _start(given: Given) -> str:
    text = given.get("startingOffsets")
    if text is None or not text.startswith("{"):
        return given.one_of("startingOffsets", ["earliest", "latest"], "earliest")
    try:
        json.loads(text)
    except ValueError as error:
        raise ConfigError(
            f"startingOffsets={text!r} is no JSON: {error}. It is earliest, latest, or an offset "
            "as a checkpoint or the ledger has it"
        ) from error
    return text
