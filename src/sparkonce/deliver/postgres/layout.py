"""What things are called in the database, and the statements that make them. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from sparkonce.deliver import sql
from sparkonce.deliver.columns import BAD, DELETED, ROW, SEQUENCE, Columns
from sparkonce.deliver.postgres.stage import staged_by
from sparkonce.deliver.postgres.types import staged_type_of, type_of
from sparkonce.deliver.settings import TableSettings
from sparkonce.deliver.store import Part


@dataclass(frozen=True, slots=True)
class Layout:
    settings: TableSettings
    columns: Columns
    schema: str
    """Where names without a schema are, and the stage is."""
    casts: dict[str, str] = field(default_factory=dict)
    """The table's types, where text has to become something else."""

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
    def dead_letters(self) -> str | None:
        name = self.settings.dead_letter_table
        return self._full(name) if name else None

    def stage_name(self, epoch: int, attempt: int) -> str:
        return f"{self.mark}_{epoch}_{attempt}"

    def in_schema(self, name: str) -> str:
        return f"{sql.quoted(self.schema)}.{sql.quoted(name)}"

    def create_table(self) -> str:
        types = [type_of(each.dataType) for each in self.columns.table]
        return sql.create_table(self.table, self.columns, types)

    def create_stage(self, name: str, kind: str) -> str:
        types = {each.name: staged_type_of(each.dataType) for each in self.columns.table}
        beside = {
            DELETED: "boolean",
            SEQUENCE: types.get(str(self.columns.sequence_by), ""),
            BAD: "text",
            ROW: "text",
        }
        columns = [
            *(f"{sql.quoted(name)} {word}" for name, word in types.items()),
            *(f"{name} {beside[name]}" for name in self.columns.beside),
        ]
        return f"CREATE {kind} TABLE {name} ({', '.join(columns)})"

    def move(self, parts: Sequence[Part]) -> sql.Move:
        """Of what the tasks that count have staged; all of an attempt are in one table."""
        name, transactions = staged_by([part.name for part in parts])
        counting = ", ".join(f"'{each}'::xid" for each in transactions)
        return self.move_from(f"(SELECT * FROM {self.in_schema(name)} WHERE xmin IN ({counting}))")

    def move_from(self, staged: str) -> sql.Move:
        return sql.Move(self.table, self.columns, staged, self.casts, upserts=self.settings.upserts)

    def _full(self, text: str) -> str:
        *schema, name = sql.table_name(text, str.lower)
        return ".".join(sql.quoted(part) for part in (*(schema or [self.schema]), name))
