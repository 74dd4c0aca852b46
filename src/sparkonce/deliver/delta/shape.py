"""What a table is like at one version: whether it takes such rows, and whether as files of ours."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from deltalake import DeltaTable
from pyspark.sql import types as t

from sparkonce.deliver.columns import Columns
from sparkonce.deliver.delta.types import plain
from sparkonce.errors import ConfigError

_GENERATED: Final = "delta.generationExpression"
_INDEXED: Final = 32
_CHECKED: Final = (_GENERATED, "delta.invariants", "delta.identity.start", "CURRENT_DEFAULT")
"""In a column's metadata: whoever writes has something to compute or to check."""
_IN_FOLDERS: Final = (
    t.StringType,
    t.BooleanType,
    t.ByteType,
    t.ShortType,
    t.IntegerType,
    t.LongType,
    t.DateType,
)
"""Types of partitions whose values everybody writes as the same text."""
_HARMLESS: Final = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "deletionVectors",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        # Allowed in the table; whether one is there is seen in its properties and columns.
        "checkConstraints",
        "columnMapping",
        "generatedColumns",
        "invariants",
    }
)
"""Features that ask nothing of somebody who adds whole files."""


@dataclass(frozen=True, slots=True)
class Shape:
    path: str
    fields: Mapping[str, t.StructField]
    properties: Mapping[str, str]
    partitioned_by: tuple[str, ...]
    features: frozenset[str]

    @classmethod
    def of(cls, table: DeltaTable, path: str) -> Shape:
        metadata = table.metadata()
        schema = t.StructType.fromJson(json.loads(table.schema().to_json()))
        return cls(
            path,
            {field.name: field for field in schema.fields},
            metadata.configuration,
            tuple(metadata.partition_columns),
            frozenset(table.protocol().writer_features or ()),
        )

    @property
    def required(self) -> list[str]:
        """Columns that are never null."""
        return [name for name, field in self.fields.items() if not field.nullable]

    def left_out(self, columns: Columns) -> list[str]:
        """Columns that rows have no value for, and that the table does not compute."""
        return [
            name
            for name, field in self.fields.items()
            if name not in columns.names and _GENERATED not in field.metadata
        ]

    def missing(self, columns: Columns) -> list[t.StructField]:
        """Columns that the table has not, in any case of their letters: Delta tells no two apart
        by that."""
        there = {name.lower() for name in self.fields}
        return [field for field in columns.table if field.name.lower() not in there]

    @property
    def indexed(self) -> list[str]:
        """Columns that statistics are kept of."""
        count = int(self.properties.get("delta.dataSkippingNumIndexedCols", _INDEXED))
        return list(self.fields)[: count if count >= 0 else None]

    @property
    def takes_files(self) -> bool:
        """Whether Parquet files with its columns can be added as they are."""
        return not (
            self.features - _HARMLESS
            or any(name.startswith("delta.constraints.") for name in self.properties)
            or self.properties.get("delta.columnMapping.mode", "none") != "none"
            or "delta.dataSkippingStatsColumns" in self.properties
            or any(name in field.metadata for name in _CHECKED for field in _all(self.fields))
            or any(_has_required(field.dataType) for field in self.fields.values())
            or any(
                type(self.fields[name].dataType) not in _IN_FOLDERS for name in self.partitioned_by
            )
        )

    @property
    def takes_rewriting(self) -> bool:
        """Whether files of the table can be replaced by others without telling more of it."""
        return (
            self.takes_files
            and "deletionVectors" not in self.features
            and self.properties.get("delta.enableDeletionVectors") != "true"
            and self.properties.get("delta.enableChangeDataFeed") != "true"
        )

    def staged_by(self, columns: Columns) -> tuple[str, ...]:
        """Columns of which each staged file has one value, so that it can be added as it is."""
        if not self.takes_files:
            return ()
        return tuple(name for name in self.partitioned_by if name in columns.names)

    def check(self, columns: Columns, *, upserts: bool) -> None:
        missing = [name for name in columns.names if name not in self.fields]
        if missing:
            raise ConfigError(
                f"the table {self.path} has no column {', '.join(missing)}; it has "
                f"{', '.join(self.fields)}. Rename or drop the column before writing"
                + (
                    ', or let it be added by .option("mergeSchema", "true")'
                    if self.missing(columns)
                    else ""
                )
            )
        for field in columns.table:
            self._check_type(field)
        needed = [name for name in self.left_out(columns) if name in self.required]
        if needed:
            raise ConfigError(
                f"the table {self.path} has columns that are NOT NULL and that the DataFrame has "
                f"not: {', '.join(needed)}. Add them before writing"
            )
        if upserts and self.properties.get("delta.appendOnly") == "true":
            raise ConfigError(
                f"the table {self.path} has delta.appendOnly=true, and writeMode=upsert changes "
                "rows: use writeMode=append, or unset that property"
            )
        if forgets := self.properties.get("delta.setTransactionRetentionDuration"):
            raise ConfigError(
                f"the table {self.path} forgets pipelines that were idle for {forgets} "
                "(delta.setTransactionRetentionDuration), and their batches would be written "
                "again: unset that property"
            )

    def _check_type(self, field: t.StructField) -> None:
        there = self.fields[field.name].dataType
        try:
            is_same = plain(there) == plain(field.dataType)
        except ConfigError:
            is_same = False
        if not is_same:
            raise ConfigError(
                f"column {field.name!r} is of type {field.dataType.simpleString()}, and of type "
                f"{there.simpleString()} in the table {self.path}: cast it before writing"
            )


def _all(fields: Mapping[str, t.StructField]) -> Iterator[t.StructField]:
    """Those within others too."""
    for field in fields.values():
        yield field
        yield from _within(field.dataType)


def _within(kind: t.DataType) -> Iterator[t.StructField]:
    if isinstance(kind, t.StructType):
        for field in kind.fields:
            yield field
            yield from _within(field.dataType)
    elif isinstance(kind, t.ArrayType):
        yield from _within(kind.elementType)
    elif isinstance(kind, t.MapType):
        yield from _within(kind.keyType)
        yield from _within(kind.valueType)


def _has_required(kind: t.DataType) -> bool:
    """Something in it that is never null."""
    if isinstance(kind, t.StructType):
        return any(not field.nullable or _has_required(field.dataType) for field in kind.fields)
    if isinstance(kind, t.ArrayType):
        return not kind.containsNull or _has_required(kind.elementType)
    if isinstance(kind, t.MapType):
        return not kind.valueContainsNull or any(map(_has_required, (kind.keyType, kind.valueType)))
    return False
