"""Statements that bring staged rows into a table, in the SQL that PostgreSQL and DuckDB share."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from sparkonce.deliver.columns import BAD, DELETED, RANK, ROW, SEQUENCE, Columns
from sparkonce.deliver.row import COLUMNS as LEDGER

_PARTS = re.compile(r'"(?:[^"]|"")+"|[^."]+')


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def listed(names: Sequence[str]) -> str:
    return ", ".join(quoted(name) for name in names)


def parquet(paths: Iterable[str]) -> str:
    """What can stand behind FROM; names of folders are not columns, whatever they look like."""
    return f"read_parquet([{', '.join(literal(path) for path in paths)}], hive_partitioning=false)"


def table_name(text: str, fold: Callable[[str], str] = str) -> tuple[str, ...]:
    """`schema.table` in its parts; those without quotes are folded as the database does."""
    return tuple(
        part[1:-1].replace('""', '"') if part.startswith('"') else fold(part.strip())
        for part in _PARTS.findall(text)
    )


def create_ledger(table: str) -> str:
    keys = {"pipeline": " PRIMARY KEY", "epoch": " NOT NULL"}
    columns = ", ".join(f"{name} {kind}{keys.get(name, '')}" for name, kind in LEDGER)
    return f"CREATE TABLE IF NOT EXISTS {table} ({columns})"


def add_to_ledger(table: str) -> str:
    """What a ledger lacks that was made before entries named the state of their batch."""
    name, kind = LEDGER[-1]
    return f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {name} {kind}"


def create_dead_letters(table: str) -> str:
    return (
        f"CREATE TABLE IF NOT EXISTS {table} (pipeline text, reason text, "
        f'"row" text, written_at timestamp with time zone DEFAULT current_timestamp)'
    )


def create_table(table: str, columns: Columns, types: Sequence[str]) -> str:
    parts = [f"{quoted(name)} {kind}" for name, kind in zip(columns.names, types, strict=True)]
    if columns.keys:
        parts.append(f"PRIMARY KEY ({listed(columns.keys)})")
    return f"CREATE TABLE IF NOT EXISTS {table} ({', '.join(parts)})"


@dataclass(frozen=True, slots=True)
class Move:
    """From the stage into the table."""

    table: str
    columns: Columns
    staged: str
    """What can stand behind FROM: the rows of the tasks that count."""
    casts: dict[str, str]
    """How a column becomes the table's type, where that has to be said."""
    upserts: bool
    ready: str | None = None
    """In place of the newest: what is left when refused rows were put aside."""
    key_casts: dict[str, tuple[str, str]] = field(default_factory=dict)
    """How a key becomes what the table compares, where two of one value may differ as staged: what
    is to be written before and behind it."""
    nulls_equal: bool = False
    """Whether null is a key like others to the table (NULLS NOT DISTINCT)."""
    names: dict[str, str] = field(default_factory=dict)
    """The table's own, where it spells a column in another way than the DataFrame."""

    @property
    def good(self) -> str:
        """Staged rows that nobody has marked as bad."""
        if BAD not in self.columns.beside:
            return self.staged
        return f"(SELECT * FROM {self.staged} AS s WHERE {BAD} IS NULL)"

    @property
    def newest(self) -> str:
        """One row for each key."""
        return self.newest_of(self.good) if self.ready is None else self.ready

    def newest_of(self, rows: str) -> str:
        """Null equals no key, as in the table, so rows with a null key are all there."""
        if not self.upserts or SEQUENCE not in self.columns.beside:
            return rows
        others = "" if self.nulls_equal else f" OR {self.has_null}"
        return (
            f"(SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY {self.keys()} "
            f"ORDER BY {SEQUENCE} DESC NULLS LAST) AS {RANK} FROM {rows} AS g) AS r "
            f"WHERE {RANK} = 1{others})"
        )

    def several(self) -> str | None:
        """Keys that come more than once with nothing to say which row is the newest."""
        if not self.upserts or SEQUENCE in self.columns.beside:
            return None
        whole = "" if self.nulls_equal else f"WHERE NOT ({self.has_null}) "
        return (
            f"SELECT {self.keys()} FROM {self.ready or self.good} AS g {whole}"
            f"GROUP BY {self.keys()} HAVING count(*) > 1 LIMIT 1"
        )

    def keys(self) -> str:
        """As the table compares them."""
        return ", ".join(self.key(name, quoted(name)) for name in self.columns.keys)

    def key(self, name: str, column: str) -> str:
        before, behind = self.key_casts.get(name, ("", ""))
        return f"{before}{column}{behind}"

    @property
    def has_null(self) -> str:
        """In one of the keys."""
        return " OR ".join(f"{quoted(name)} IS NULL" for name in self.columns.keys)

    def delete(self) -> str | None:
        if DELETED not in self.columns.beside:
            return None
        same = " AND ".join(
            f"t.{self.theirs(key)} = {self.key(key, f'n.{quoted(key)}')}"
            for key in self.columns.keys
        )
        return (
            f"DELETE FROM {self.table} AS t USING {self.newest} AS n WHERE n.{DELETED} AND {same}"
        )

    def insert(self) -> str:
        values = ", ".join(self.value(name, f"n.{quoted(name)}") for name in self.columns.names)
        kept = f" WHERE NOT n.{DELETED}" if DELETED in self.columns.beside else ""
        return f"{self.into} SELECT {values} FROM {self.newest} AS n{kept}{self.on_conflict}"

    @property
    def into(self) -> str:
        return f"INSERT INTO {self.table} ({', '.join(map(self.theirs, self.columns.names))})"

    @property
    def on_conflict(self) -> str:
        if not self.upserts:
            return ""
        others = [name for name in self.columns.names if name not in self.columns.keys]
        changes = ", ".join(f"{name} = excluded.{name}" for name in map(self.theirs, others))
        action = f"UPDATE SET {changes}" if changes else "NOTHING"
        return f" ON CONFLICT ({', '.join(map(self.theirs, self.columns.keys))}) DO {action}"

    def theirs(self, name: str) -> str:
        return quoted(self.names.get(name, name))

    def value(self, name: str, column: str) -> str:
        cast = self.casts.get(name)
        return f"CAST({column} AS {cast})" if cast else column

    def dead_letters(self, table: str, pipeline: str) -> str | None:
        if BAD not in self.columns.beside:
            return None
        return (
            f'INSERT INTO {table} (pipeline, reason, "row") SELECT {literal(pipeline)}, {BAD}, '
            f"{ROW} FROM {self.staged} AS s WHERE {BAD} IS NOT NULL"
        )
