"""Rows as Parquet files such as can become the table's own, one for each of its partitions.

Executors stage rows by it, and the driver writes by it what an upsert has changed. What it holds
in memory is bounded, however many rows and partitions there are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_NAN: Final = "sparkonce.nan"
_PARTITION: Final = "sparkonce.partition"
HELD_BYTES_MAX: Final = 32 * 1024 * 1024
"""Of rows in memory, of all partitions together. Each time, they become one row group of each."""
FILE_BYTES_MAX: Final = 256 * 1024 * 1024
"""Of rows in one file, as they are in memory; the file is smaller."""
OPEN_MAX: Final = 64
"""Files that are open at once. A partition whose rows come again later gets another file."""
Values = tuple[str | None, ...]


class DataFiles:
    def __init__(self, folder: Path, schema: pa.Schema, partitioned_by: tuple[str, ...]) -> None:
        self._folder = folder
        self._partitioned_by = partitioned_by
        self._schema = pa.schema([each for each in schema if each.name not in partitioned_by])
        self._held: dict[Values, list[pa.RecordBatch]] = {}
        self._held_bytes = 0
        self._open: dict[Values, _File] = {}
        """The one that was written last is the last."""
        self._count = 0

    def __enter__(self) -> Self:
        self._folder.mkdir()
        return self

    def write(self, batch: pa.RecordBatch) -> None:
        for values, rows in self._split(batch):
            self._held.setdefault(values, []).append(rows)
            self._held_bytes += rows.nbytes
        if self._held_bytes >= HELD_BYTES_MAX:
            self._flush()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if error is None:
            self._flush()
        for file in self._open.values():
            file.close()

    def _split(self, batch: pa.RecordBatch) -> Iterator[tuple[Values, pa.RecordBatch]]:
        if not self._partitioned_by:
            yield (), batch
            return
        keys = [_as_text(batch[name]) for name in self._partitioned_by]
        names = [str(index) for index in range(len(keys))]
        numbered = pa.table([*keys, pa.array(range(batch.num_rows))], [*names, "row"])
        groups = numbered.group_by(names, use_threads=False).aggregate([("row", "list")])
        rest = batch.select(self._schema.names)
        rows = groups["row_list"].combine_chunks()
        found = zip(*(groups[name].to_pylist() for name in names), strict=True)
        for index, values in enumerate(found):
            yield values, rest.take(rows[index].values)

    def _flush(self) -> None:
        for values, batches in self._held.items():
            file = self._open.pop(values, None) or self._create(values)
            file.write(batches)
            if file.size_bytes >= FILE_BYTES_MAX:
                file.close()
            else:
                self._open[values] = file
        self._held.clear()
        self._held_bytes = 0

    def _create(self, values: Values) -> _File:
        while len(self._open) >= OPEN_MAX:
            self._open.pop(next(iter(self._open))).close()
        self._count += 1
        path = self._folder / f"{self._count:06}.parquet"
        # Arrow's schema would keep the session's time zone: to Delta a timestamp has none.
        writer = pq.ParquetWriter(path, self._schema, compression="snappy", store_schema=False)
        return _File(writer, dict(zip(self._partitioned_by, values, strict=True)))


@dataclass(slots=True)
class _File:
    writer: pq.ParquetWriter
    partition: Mapping[str, str | None]
    size_bytes: int = 0
    with_nan: set[str] = field(default_factory=set)

    def write(self, batches: list[pa.RecordBatch]) -> None:
        for batch in batches:
            self.size_bytes += batch.nbytes
            for each in batch.schema:
                if pa.types.is_floating(each.type) and pc.any(pc.is_nan(batch[each.name])).as_py():
                    self.with_nan.add(each.name)
        self.writer.write_table(pa.Table.from_batches(batches))

    def close(self) -> None:
        told = {_NAN: json.dumps(sorted(self.with_nan)), _PARTITION: json.dumps(self.partition)}
        self.writer.add_key_value_metadata(told)
        self.writer.close()


def _as_text(column: pa.Array) -> pa.Array:
    """As Delta has values of partitions; to it an empty text is null."""
    text = pc.cast(column, pa.string())
    return pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text)


def columns_with_nan(metadata: Mapping[bytes, bytes] | None) -> frozenset[str]:
    """Parquet's statistics pass over a NaN, and to Spark it is greater than all others."""
    return frozenset(json.loads((metadata or {}).get(_NAN.encode(), b"[]")))


def partition(metadata: Mapping[bytes, bytes] | None) -> Mapping[str, str | None]:
    """Columns that are not in the file, and their one value."""
    found: dict[str, str | None] = json.loads((metadata or {}).get(_PARTITION.encode(), b"{}"))
    return found
