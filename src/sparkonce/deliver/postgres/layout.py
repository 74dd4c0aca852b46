"""What things are called in the database, and the statements that make them. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from string import ascii_lowercase, ascii_uppercase
from typing import Final

from sparkonce.deliver import sql
from sparkonce.deliver.columns import BAD, DELETED, ROW, SEQUENCE, TASK, Columns
from sparkonce.deliver.postgres.stage import staged_by
from sparkonce.deliver.postgres.statements import PostgresMove
from sparkonce.deliver.postgres.types import staged_type_of, type_of
from sparkonce.deliver.settings import TableSettings
from sparkonce.deliver.store import Part

STAGING_SCHEMA: Final = "stagingSchema"
_FOLDED: Final = str.maketrans(ascii_uppercase, ascii_lowercase)


def table_name(text: str) -> tuple[str, ...]:
    """In its parts. PostgreSQL folds A to Z; other letters have no case to it, except in encodings
    of one byte, where that is the locale's affair: there, such a name has to be quoted."""
    return sql.table_name(text, lambda name: name.translate(_FOLDED))


@dataclass(frozen=True, slots=True)
class TableFacts:
    """What the table of this name is like, as the server's catalogue has it."""

    names: dict[str, str] = field(default_factory=dict)
    """Its spelling of the DataFrame's columns."""
    casts: dict[str, str] = field(default_factory=dict)
    """Its types, where text has to become something else."""
    key_casts: dict[str, tuple[str, str]] = field(default_factory=dict)
    """How staged keys become what the table compares: what is to be written around them."""
    nulls_equal: bool = False
    """Whether its unique keys are NULLS NOT DISTINCT."""
    has_row_security: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    settings: TableSettings
    columns: Columns
    schema: str = ""
    """Where names without a schema are."""
    user: str = ""
    """Who writes; each has stages of its own, since only the owner of one may empty it."""
    encoding: str = "UTF8"
    """The database's."""
    facts: TableFacts = TableFacts()

    @property
    def mark(self) -> str:
        """In the names of staging tables and connections; a pipeline's own may be too long."""
        digest = hashlib.sha256(self.settings.group.encode()).hexdigest()[:12]
        return f"sparkonce_{digest}"

    @property
    def table(self) -> str:
        return self._full(self.settings.table)

    @property
    def ledger(self) -> str:
        return self._full(self.settings.ledger_table)

    @property
    def ledger_beside_values(self) -> str:
        """In a statement that values are given to: psycopg takes a % in it for the place of one."""
        return self.ledger.replace("%", "%%")

    @property
    def dead_letters(self) -> str | None:
        name = self.settings.dead_letter_table
        return self._full(name) if name else None

    # -- the stage -----------------------------------------------------------------------------

    @property
    def staging_schema(self) -> str:
        given = self.settings.more.get(STAGING_SCHEMA)
        return table_name(given)[0] if given else self.schema

    def stage_name(self, slot: int) -> str:
        return f"{self.stage_prefix}{slot}"

    @property
    def stage_prefix(self) -> str:
        """Another DataFrame has other columns, and so other tables."""
        digest = hashlib.sha256(f"{self.user} {self._stage_columns}".encode()).hexdigest()[:8]
        return f"{self.mark}_{digest}_"

    def staged(self, name: str) -> str:
        return f"{sql.quoted(self.staging_schema)}.{sql.quoted(name)}"

    def create_stage(self, name: str) -> list[str]:
        told = f"sparkonce stages rows of the pipeline {self.settings.pipeline!r} here"
        return [
            f"CREATE UNLOGGED TABLE {self.staged(name)} ({self._stage_columns})",
            f"COMMENT ON TABLE {self.staged(name)} IS {sql.literal(told)}",
        ]

    @property
    def _stage_columns(self) -> str:
        types = {each.name: staged_type_of(each.dataType) for each in self.columns.table}
        beside = {
            DELETED: "boolean",
            SEQUENCE: types.get(str(self.columns.sequence_by), ""),
            BAD: "text",
            ROW: "text",
        }
        return ", ".join(
            [
                *(f"{sql.quoted(name)} {word}" for name, word in types.items()),
                *(f"{name} {beside[name]}" for name in self.columns.beside),
                f"{TASK} bigint",
            ]
        )

    # -- the table -----------------------------------------------------------------------------

    def create_table(self) -> str:
        types = [type_of(each.dataType) for each in self.columns.table]
        return sql.create_table(self.table, self.columns, types)

    def move(self, parts: Sequence[Part]) -> PostgresMove:
        """Of what the tasks that count have staged; all of an attempt are in one table."""
        name, tasks = staged_by([part.name for part in parts])
        return self.move_from(name, f"{TASK} IN ({', '.join(map(str, tasks))})")

    def move_from(self, name: str, counts: str) -> PostgresMove:
        stage = self.staged(name)
        return PostgresMove(
            self.table,
            self.columns,
            f"(SELECT * FROM {stage} WHERE {counts})",
            self.facts.casts,
            upserts=self.settings.upserts,
            key_casts=self.facts.key_casts,
            nulls_equal=self.facts.nulls_equal,
            names=self.facts.names,
            stage=stage,
            counts=counts,
        )

    def _full(self, text: str) -> str:
        *schema, name = table_name(text)
        return ".".join(sql.quoted(part) for part in (*(schema or [self.schema]), name))
