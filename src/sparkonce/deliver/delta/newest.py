"""The newest row of each key of a batch, picked by DuckDB from the staged files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import duckdb

from sparkonce.deliver.columns import DELETED, Columns
from sparkonce.deliver.delta.footer import Footer
from sparkonce.deliver.sql import Move, listed, parquet, quoted
from sparkonce.deliver.store import RowsRefused, StoreError

NEWEST: Final = "newest"
_MEMORY: Final = "256MB"
"""What is more goes to the disk: the driver does not grow with the batch, nor with the table."""


@dataclass(frozen=True, slots=True)
class Newest:
    columns: Columns
    footers: Sequence[Footer]

    @property
    def folder(self) -> Path:
        """Of the attempt's stage."""
        return self.footers[0].path.parent.parent

    @property
    def rows(self) -> str:
        """What can stand behind FROM."""
        chosen = listed([*self.columns.names, *([DELETED] if self.deletes else [])])
        return f"(SELECT {chosen} FROM {self._move.newest} AS n)"

    @property
    def deletes(self) -> bool:
        return DELETED in self.columns.beside

    def check(self, required: Sequence[str]) -> None:
        """RowsRefused where there is not one row for each key, or a null that can't be."""
        try:
            self._check(required)
        except duckdb.Error as error:
            raise StoreError(f"what was staged can't be read: {error}") from error

    def _check(self, required: Sequence[str]) -> None:
        move = self._move
        with self.duckdb() as connection:
            if (several := move.several()) and (key := connection.execute(several).fetchone()):
                raise RowsRefused(
                    f"there are several rows with the key {key} in one batch, and nothing says "
                    "which is the newest: set sequenceBy, a column that grows"
                )
            found = connection.execute(f"SELECT 1 FROM {move.good} AS g WHERE {move.has_null}")
            if found.fetchone():
                raise RowsRefused(
                    f"there are rows in which one of {', '.join(self.columns.keys)} is null, and "
                    "null equals no key: drop or mend them before writing"
                )
            kept = f"n.{DELETED} IS NOT TRUE" if self.deletes else "true"
            for name in required:
                null = f"SELECT 1 FROM {self.rows} AS n WHERE n.{quoted(name)} IS NULL AND {kept}"
                if name in self.columns.names and connection.execute(null).fetchone():
                    raise RowsRefused(
                        f"column {name!r} of the table is NOT NULL, and it is null in rows of this "
                        "batch: mend them before writing, or filter them out"
                    )

    @contextmanager
    def loaded(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """As a table, `newest`."""
        with self.duckdb() as connection:
            connection.execute(f"CREATE TEMP TABLE {NEWEST} AS SELECT * FROM {self.rows}")
            yield connection

    @contextmanager
    def duckdb(self) -> Iterator[duckdb.DuckDBPyConnection]:
        spill = self.folder / "spill"
        connection = duckdb.connect(config={"memory_limit": _MEMORY, "temp_directory": str(spill)})
        try:
            connection.execute("SET TimeZone = 'UTC'")
            connection.execute("SET preserve_insertion_order = false")
            yield connection
        finally:
            connection.close()

    @property
    def _move(self) -> Move:
        staged = parquet(str(footer.path) for footer in self.footers)
        return Move("", self.columns, staged, {}, upserts=True)
