"""Which columns of a DataFrame go where: into the table, or beside it to say what becomes of a row.

What is staged on executors is the table's columns, and of these, as far as they are asked for:
`_deleted`, `_sequence` (upserts), `_bad` and `_row` (dead letters: the reason, and the row as
JSON).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import coalesce, col, lit, struct, to_json, when
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from sparkonce.deliver.settings import TableSettings
from sparkonce.errors import ConfigError

DELETED, SEQUENCE, BAD, ROW = "_deleted", "_sequence", "_bad", "_row"
RANK = "_rank"
"""Which of the rows of a key is the newest, while they are moved."""
TASK = "_task"
"""By which task a row was staged, where those of several are in one place."""
_RESERVED = (DELETED, SEQUENCE, BAD, ROW, RANK, TASK)
_RESERVED_PREFIX = "_sparkonce_"
_DEAD_LETTER = "dead_letter"

NESTED = (ArrayType, MapType, StructType, VariantType)
_JSON = {"ignoreNullFields": "false"}


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of one sink."""

    table: tuple[StructField, ...]
    keys: tuple[str, ...]
    nested_as_json: bool
    deleted_by: str | None
    sequence_by: str | None
    sets_aside: bool
    """Whether bad rows have a place to go to."""
    marked_by: str | None
    """The column in which the DataFrame itself says which rows are bad."""

    @property
    def names(self) -> list[str]:
        return [field.name for field in self.table]

    @property
    def beside(self) -> list[str]:
        """What is staged beside the table's columns, in this order."""
        asked = {
            DELETED: self.deleted_by is not None,
            SEQUENCE: self.sequence_by is not None,
            BAD: self.sets_aside,
            ROW: self.sets_aside,
        }
        return [name for name, is_asked in asked.items() if is_asked]

    def type_of(self, name: str) -> DataType:
        return next(field.dataType for field in self.table if field.name == name)

    def of(self, frame: DataFrame) -> DataFrame:
        """What is staged."""
        values = [_value(field, nested_as_json=self.nested_as_json) for field in self.table]
        reason = _column(self.marked_by) if self.marked_by else lit(None).cast("string")
        row = to_json(struct(*(_column(name) for name in self.names)), _JSON)
        beside = {
            DELETED: lambda: coalesce(_column(str(self.deleted_by)), lit(False)),
            SEQUENCE: lambda: _column(str(self.sequence_by)),
            BAD: lambda: reason,
            ROW: lambda: when(reason.isNotNull(), row),
        }
        return frame.select(*values, *(beside[name]().alias(name) for name in self.beside))

    @classmethod
    def plan(
        cls,
        schema: StructType,
        settings: TableSettings,
        *,
        type_of: Callable[[DataType], str],
        nested_as_json: bool,
    ) -> Columns:
        """`type_of` is the database's word for a type, and refuses what it has none for."""
        _check_names(schema.names, settings)
        deleted_by = _named(schema, settings.delete_column)
        sets_aside = settings.dead_letter_table is not None
        marked_by = _named(schema, _DEAD_LETTER) if sets_aside else None
        if deleted_by and not isinstance(schema[deleted_by].dataType, BooleanType):
            raise ConfigError(
                f"deleteColumn {deleted_by!r} is of type "
                f"{schema[deleted_by].dataType.simpleString()}; it must be boolean, true in rows "
                "that are to be deleted"
            )
        if marked_by and not isinstance(schema[marked_by].dataType, StringType):
            raise ConfigError(f"column {marked_by!r} must be a string: the reason, or null")
        aside = {deleted_by, marked_by}
        table = tuple(field for field in schema.fields if field.name not in aside)
        for field in table:
            _check_type(field, type_of)
        return cls(
            table=table,
            keys=tuple(str(_named(schema, key)) for key in settings.keys),
            nested_as_json=nested_as_json,
            deleted_by=deleted_by,
            sequence_by=_named(schema, settings.sequence_by),
            sets_aside=sets_aside,
            marked_by=marked_by,
        )


def _check_names(names: Sequence[str], settings: TableSettings) -> None:
    lower = [name.lower() for name in names]
    for name in names:
        if lower.count(name.lower()) > 1:
            raise ConfigError(f"there are several columns {name!r}: drop or rename all but one")
        if name.lower() in _RESERVED or name.lower().startswith(_RESERVED_PREFIX):
            raise ConfigError(f"column {name!r} has a name that sparkonce needs: rename it")
    asked = {
        "keyColumns": settings.keys,
        "deleteColumn": (settings.delete_column,),
        "sequenceBy": (settings.sequence_by,),
    }
    for option, wanted in asked.items():
        for each in wanted:
            if each is not None and each.lower() not in lower:
                raise ConfigError(
                    f"{option} names {each!r}, which is no column of the DataFrame: it has "
                    f"{', '.join(names)}"
                )


def _check_type(field: StructField, type_of: Callable[[DataType], str]) -> None:
    try:
        type_of(field.dataType)
    except ConfigError as error:
        raise ConfigError(f"column {field.name!r}: {error}") from error


def _value(field: StructField, *, nested_as_json: bool) -> Column:
    column = _column(field.name)
    if nested_as_json and isinstance(field.dataType, NESTED):
        return to_json(column, _JSON).alias(field.name)
    return column


def _column(name: str) -> Column:
    return col(f"`{name.replace('`', '``')}`")


def _named(schema: StructType, name: str | None) -> str | None:
    """As the DataFrame spells it."""
    return next((each for each in schema.names if name and each.lower() == name.lower()), None)
