"""An upsert of ours: files that hold a row of the batch are written anew, in bounded memory.

delta-rs keeps every file without a match in memory until its MERGE ends, and a bound on it
(max_spill_size) fails its join instead of spilling. DuckDB's joins spill; so it says which files
have rows of the batch and what their rows are to be, and one commit takes the new for the old.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import duckdb
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import RemoveAction

from sparkonce.deliver.columns import DELETED, Columns
from sparkonce.deliver.delta.changes import AddFiles
from sparkonce.deliver.delta.files import DataFiles
from sparkonce.deliver.delta.footer import read_folder
from sparkonce.deliver.delta.newest import NEWEST, Newest
from sparkonce.deliver.delta.shape import Shape
from sparkonce.deliver.sql import literal, parquet, quoted

_BATCH_ROWS: Final = 8192
_FILE, _HIT = "_sparkonce_file", "_sparkonce_hit"


@dataclass(frozen=True, slots=True)
class RewriteFiles:
    newest: Newest
    shape: Shape
    root: Path
    name: str
    """Like no other's; files of the table bear it."""
    added: list[AddFiles] = field(default_factory=list)

    def commit(self, table: DeltaTable, properties: CommitProperties) -> None:
        kinds = {each.name: each.type for each in pa.schema(table.schema().to_arrow())}
        folder = self.newest.folder / "rewritten"
        with self.newest.loaded() as connection:
            rewrite = _Rewrite(connection, self.newest.columns, self.shape, self.root)
            removed = rewrite.find_touched(table)
            reader = rewrite.rows(removed)
            schema = pa.schema([(name, kinds[name]) for name in reader.schema.names])
            by = tuple(name for name in self.shape.partitioned_by if name in schema.names)
            with DataFiles(folder, schema, by) as files:
                for batch in reader:
                    files.write(batch.cast(schema))
        actions = [_remove(self.root, path) for path in removed]
        added = AddFiles(self.root, self.name, read_folder(folder), self.shape, actions)
        self.added.append(added)
        try:
            added.commit(table, _alone(properties))
        except CommitFailedError as error:
            raise CommitFailedError(
                f"a concurrent commit may have brought rows that this one should change: {error}"
            ) from error

    def undo(self) -> None:
        for added in self.added:
            added.undo()


@dataclass(frozen=True, slots=True)
class _Rewrite:
    """With the batch in DuckDB, one row for each key."""

    connection: duckdb.DuckDBPyConnection
    columns: Columns
    shape: Shape
    root: Path

    def find_touched(self, table: DeltaTable) -> list[str]:
        """Files that have a row with a key of the batch."""
        self._load_files(table)
        paths = self.connection.sql(f"SELECT {_FILE} FROM files").fetchall()
        if not paths:
            return []
        found = self.connection.execute(
            f"SELECT DISTINCT t.{_FILE} FROM {self._source([path for (path,) in paths])} AS t "
            f"SEMI JOIN {NEWEST} AS n ON {self._same} ORDER BY 1"
        )
        return [path for (path,) in found.fetchall()]

    def rows(self, touched: Sequence[str]) -> pa.RecordBatchReader:
        """Through a table: a join that spills while its rows are streamed comes to a stop for ever
        (seen with DuckDB 1.5.6)."""
        query = self._changed(self._source(touched)) if touched else self._new()
        self.connection.execute(f"CREATE TEMP TABLE rewritten AS {query}")
        return self.connection.sql("SELECT * FROM rewritten").to_arrow_reader(_BATCH_ROWS)

    # -- the table's files -----------------------------------------------------------------------

    def _load_files(self, table: DeltaTable) -> None:
        """Into DuckDB: their paths, and the columns that are in the log and not in them."""
        found = pa.table(table.get_add_actions())
        paths = [str(self.root / unquote(path)) for path in found["path"].to_pylist()]
        values = {name: pa.nulls(len(paths)) for name in self.shape.partitioned_by}
        if values:
            partition = found["partition"].combine_chunks()
            values = {name: partition.field(name) for name in self.shape.partitioned_by}
        of = pa.table({_FILE: pa.array(paths, pa.string()), **values})
        self.connection.register("given", of)
        self.connection.execute("CREATE OR REPLACE TEMP TABLE files AS SELECT * FROM given")
        self.connection.unregister("given")

    def _source(self, paths: Sequence[str]) -> str:
        """Their rows, with the columns of the batch and all others that one of them has."""
        read = parquet(paths).removesuffix(")")
        read += f", filename = {literal(_FILE)}, union_by_name = true)"
        there = {name.lower() for name in self.connection.sql(f"SELECT * FROM {read}").columns}
        chosen = [f"p.{_FILE}"]
        for name in self.shape.fields:
            if name in self.shape.partitioned_by:
                value = f"f.{quoted(name)}"
            elif name.lower() in there:
                value = f"p.{quoted(name)}"
            elif name in self.columns.names:
                value = "NULL"
            else:
                continue
            if (kind := self._kinds().get(name)) is not None:
                value = f"CAST({value} AS {kind})"
            chosen.append(f"{value} AS {quoted(name)}")
        return f"(SELECT {', '.join(chosen)} FROM {read} AS p JOIN files AS f USING ({_FILE}))"

    def _kinds(self) -> Mapping[str, str]:
        """DuckDB's types of the batch."""
        batch = self.connection.sql(f"SELECT * FROM {NEWEST}")
        return {name: str(kind) for name, kind in zip(batch.columns, batch.types, strict=True)}

    # -- their rows ------------------------------------------------------------------------------

    @property
    def _same(self) -> str:
        return " AND ".join(f"t.{quoted(key)} = n.{quoted(key)}" for key in self.columns.keys)

    @property
    def _is_kept(self) -> str:
        return f"n.{DELETED} IS NOT TRUE" if DELETED in self.columns.beside else "true"

    def _changed(self, source: str) -> str:
        """Of the files that are touched, as they are to be, and the new ones."""
        names, keys = self.columns.names, self.columns.keys
        old, new = [], []
        for name in self.connection.sql(f"SELECT * EXCLUDE {_FILE} FROM {source}").columns:
            own = quoted(name)
            if name in names and name not in keys:
                old.append(f"CASE WHEN n.{_HIT} THEN n.{own} ELSE t.{own} END AS {own}")
            else:
                old.append(f"t.{own}")
            new.append(f"n.{own}" if name in names else "NULL")
        return (
            f"SELECT {', '.join(old)} FROM {source} AS t "
            f"LEFT JOIN (SELECT *, true AS {_HIT} FROM {NEWEST}) AS n ON {self._same} "
            f"WHERE {self._is_kept} UNION ALL SELECT {', '.join(new)} FROM {NEWEST} AS n "
            f"ANTI JOIN {source} AS t ON {self._same} WHERE {self._is_kept}"
        )

    def _new(self) -> str:
        chosen = ", ".join(quoted(name) for name in self.columns.names)
        return f"SELECT {chosen} FROM {NEWEST} AS n WHERE {self._is_kept}"


def _remove(root: Path, path: str) -> RemoveAction:
    at = Path(path).relative_to(root).as_posix()
    return RemoveAction(at, True, int(time.time() * 1000), Path(path).stat().st_size)


def _alone(properties: CommitProperties) -> CommitProperties:
    """At the very next version, or not at all: whatever was committed in between may have brought a
    row that this should have changed."""
    return CommitProperties(
        custom_metadata=properties.custom_metadata,
        max_commit_retries=0,
        app_transactions=properties.app_transactions,
    )
