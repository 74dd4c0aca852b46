"""Upserts by delta-rs's MERGE, for tables with something to compute or to check in rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable

from sparkonce.deliver.columns import DELETED
from sparkonce.deliver.delta.changes import NoRows
from sparkonce.deliver.delta.newest import Newest
from sparkonce.deliver.sql import quoted

_BATCH_ROWS: Final = 8192


@dataclass(frozen=True, slots=True)
class MergeRows:
    newest: Newest

    def commit(self, table: DeltaTable, properties: CommitProperties) -> None:
        before = table.version()
        with self.newest.duckdb() as connection:
            rows = connection.sql(f"SELECT * FROM {self.newest.rows}")
            self._merge(rows.to_arrow_reader(_BATCH_ROWS), table, properties)
        if table.version() == before:
            # No row was touched, and then delta-rs commits nothing.
            NoRows().commit(table, properties)

    def _merge(
        self, rows: pa.RecordBatchReader, table: DeltaTable, properties: CommitProperties
    ) -> None:
        names, keys = self.newest.columns.names, self.newest.columns.keys
        merge = table.merge(
            rows,
            " AND ".join(f"t.{quoted(key)} = n.{quoted(key)}" for key in keys),
            source_alias="n",
            target_alias="t",
            commit_properties=properties,
        )
        values = {quoted(name): f"n.{quoted(name)}" for name in names}
        if self.newest.deletes:
            merge = merge.when_matched_delete(f"n.{DELETED}")
        if changed := {quoted(name): values[quoted(name)] for name in names if name not in keys}:
            merge = merge.when_matched_update(changed)
        kept = f"NOT n.{DELETED}" if self.newest.deletes else None
        merge.when_not_matched_insert(values, predicate=kept).execute()

    def undo(self) -> None:
        """What delta-rs wrote is under names of its own: VACUUM finds it."""
