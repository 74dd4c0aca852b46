"""Upserts: DuckDB picks the newest row of each key from the staged files, delta-rs merges them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import duckdb
from deltalake import CommitProperties, DeltaTable

from sparkonce.deliver.columns import DELETED, Columns
from sparkonce.deliver.delta.changes import NoRows
from sparkonce.deliver.delta.footer import Footer
from sparkonce.deliver.sql import Move, listed, parquet, quoted
from sparkonce.deliver.store import RowsRefused, StoreError

_BATCH_ROWS = 8192
_MEMORY = "1GB"
"""What is more goes to the disk: the driver does not grow with the batch."""


@dataclass(frozen=True, slots=True)
class MergeRows:
    columns: Columns
    footers: Sequence[Footer]

    def check(self) -> None:
        """RowsRefused where there is not one row for each key."""
        try:
            self._check()
        except duckdb.Error as error:
            raise StoreError(f"what was staged can't be read: {error}") from error

    def _check(self) -> None:
        move = self._move
        with self._duckdb() as connection:
            if (several := move.several()) and (key := connection.execute(several).fetchone()):
                raise RowsRefused(
                    f"there are several rows with the key {key} in one batch, and nothing says "
                    "which is the newest: set sequenceBy, a column that grows"
                )
            nulls = " OR ".join(f"{quoted(key)} IS NULL" for key in self.columns.keys)
            found = connection.execute(f"SELECT 1 FROM {move.good} AS g WHERE {nulls} LIMIT 1")
            if found.fetchone():
                raise RowsRefused(
                    f"there are rows in which one of {', '.join(self.columns.keys)} is null, and "
                    "null equals no key: drop or mend them before writing"
                )

    def commit(self, table: DeltaTable, properties: CommitProperties) -> None:
        before = table.version()
        with self._duckdb() as connection:
            self._merge(connection, table, properties)
        if table.version() == before:
            # No row was touched, and then delta-rs commits nothing.
            NoRows().commit(table, properties)

    def _merge(
        self,
        connection: duckdb.DuckDBPyConnection,
        table: DeltaTable,
        properties: CommitProperties,
    ) -> None:
        names, keys = self.columns.names, self.columns.keys
        deletes = DELETED in self.columns.beside
        chosen = listed([*names, DELETED] if deletes else names)
        rows = connection.sql(f"SELECT {chosen} FROM {self._move.newest} AS n")
        merge = table.merge(
            rows.to_arrow_reader(_BATCH_ROWS),
            " AND ".join(f"t.{quoted(key)} = n.{quoted(key)}" for key in keys),
            source_alias="n",
            target_alias="t",
            commit_properties=properties,
        )
        values = {quoted(name): f"n.{quoted(name)}" for name in names}
        if deletes:
            merge = merge.when_matched_delete(f"n.{DELETED}")
        if changed := {quoted(name): values[quoted(name)] for name in names if name not in keys}:
            merge = merge.when_matched_update(changed)
        kept = f"NOT n.{DELETED}" if deletes else None
        merge.when_not_matched_insert(values, predicate=kept).execute()

    def undo(self) -> None:
        """What delta-rs wrote is under names of its own: VACUUM finds it."""

    @property
    def _move(self) -> Move:
        staged = parquet(str(footer.path) for footer in self.footers)
        return Move("", self.columns, staged, {}, upserts=True)

    @contextmanager
    def _duckdb(self) -> Iterator[duckdb.DuckDBPyConnection]:
        spill = self.footers[0].path.parent / "spill"
        connection = duckdb.connect(config={"memory_limit": _MEMORY, "temp_directory": str(spill)})
        try:
            connection.execute("SET TimeZone = 'UTC'")
            yield connection
        finally:
            connection.close()
