"""What a commit does to the table: nothing, files added as they are, or rows written by delta-rs.

Files of ours need no second writing, so they are the rule for appends. A table that has
constraints or columns to compute is given the rows instead, one batch at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.transaction import AddAction, RemoveAction

from sparkonce.deliver.delta.footer import Footer
from sparkonce.deliver.delta.shape import Shape

_BATCH_ROWS: Final = 8192
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"


class Change(Protocol):
    def commit(self, table: DeltaTable, properties: CommitProperties) -> None:
        """From the table's version as it is loaded; fails if that does not allow it."""

    def undo(self) -> None:
        """Remove what a commit that did not happen has left."""


@dataclass(frozen=True, slots=True)
class NoRows:
    def commit(self, table: DeltaTable, properties: CommitProperties) -> None:
        table.create_write_transaction([], "append", table.schema(), commit_properties=properties)

    def undo(self) -> None:
        """There is nothing."""


@dataclass(frozen=True, slots=True)
class AddFiles:
    root: Path
    name: str
    """Like no other's; files of the table bear it."""
    footers: Sequence[Footer]
    shape: Shape
    removed: Sequence[RemoveAction] = ()
    """Files that these take the place of."""
    moved: list[Path] = field(default_factory=list)

    def commit(self, table: DeltaTable, properties: CommitProperties) -> None:
        actions = [self._move(number, footer) for number, footer in enumerate(self.footers)]
        table.create_write_transaction(
            [*self.removed, *actions],
            "append",
            table.schema(),
            list(self.shape.partitioned_by),
            commit_properties=properties,
        )

    def _move(self, number: int, footer: Footer) -> AddAction:
        """Out of the stage, which is cleared; VACUUM finds those of a driver that dies here."""
        partition = {name: footer.partition.get(name) for name in self.shape.partitioned_by}
        folder = self.root.joinpath(*(_folder(*each) for each in partition.items()))
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"part-{number:05}-{self.name}-c000.snappy.parquet"
        footer.path.rename(path)
        self.moved.append(path)
        status = path.stat()
        return AddAction(
            path=path.relative_to(self.root).as_posix(),
            size=status.st_size,
            partition_values=partition,
            modification_time=int(status.st_mtime * 1000),
            data_change=True,
            stats=footer.statistics(self.shape.indexed),
        )

    def undo(self) -> None:
        for path in self.moved:
            path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class AppendRows:
    footers: Sequence[Footer]
    left_out: Sequence[str]
    """Columns of the table that are null in these rows."""

    def commit(self, table: DeltaTable, properties: CommitProperties) -> None:
        there = pa.schema(table.schema().to_arrow())
        nulls = [there.field(name) for name in self.left_out]
        schema = pq.read_schema(self.footers[0].path)
        for each in nulls:
            schema = schema.append(each)
        reader = pa.RecordBatchReader.from_batches(schema, self._batches(schema, nulls))
        write_deltalake(table, reader, mode="append", commit_properties=properties)

    def _batches(self, schema: pa.Schema, nulls: Sequence[pa.Field]) -> Iterator[pa.RecordBatch]:
        for footer in self.footers:
            with pq.ParquetFile(footer.path) as file:
                for batch in file.iter_batches(_BATCH_ROWS):
                    empty = [pa.nulls(batch.num_rows, each.type) for each in nulls]
                    yield pa.RecordBatch.from_arrays([*batch.columns, *empty], schema=schema)

    def undo(self) -> None:
        """What delta-rs wrote is under names of its own: VACUUM finds it."""


def _folder(name: str, value: str | None) -> str:
    """Of a partition, as Delta's own writers name it. Most readers go by the log alone."""
    return f"{quote(name, safe='')}={_NULL if value is None else quote(value, safe='')}"
