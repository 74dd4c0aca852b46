"""Which columns of a DataFrame go where: into the table, or beside it to say what becomes of a row.

What is staged on executors is the table's columns, and of these, as far as they are asked for:
`_deleted`, `_sequence` (upserts), `_bad` and `_row` (dead letters: the reason, and the row as
JSON).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import (
    coalesce,
    col,
    lit,
    make_valid_utf8,
    raise_error,
    struct,
    to_json,
    when,
)
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

from sparkonce.deliver import utf8
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
_ADVICE = (
    ", which no table can keep: replace it before writing (make_valid_utf8), or put such rows "
    "aside, by deadLetterTable or, where there is none, by a query of their own (is_valid_utf8)"
)


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
        return self._field(name).dataType

    def _field(self, name: str) -> StructField:
        return next(field for field in self.table if field.name == name)

    def of(self, frame: DataFrame) -> DataFrame:
        """What is staged."""
        values = [self._staged(field).alias(field.name) for field in self.table]
        reason = self._reason()
        # Of such text Spark's JSON has what can be read, and U+FFFD for the rest.
        row = to_json(struct(*(_column(name) for name in self.names)), _JSON)
        beside = {
            DELETED: lambda: coalesce(_column(str(self.deleted_by)), lit(False)),
            SEQUENCE: lambda: self._valid(self._field(str(self.sequence_by))),
            BAD: lambda: reason,
            ROW: lambda: when(reason.isNotNull(), row),
        }
        return frame.select(*values, *(beside[name]().alias(name) for name in self.beside))

    def _staged(self, field: StructField) -> Column:
        valid = self._valid(field)
        is_json = self.nested_as_json and isinstance(field.dataType, NESTED)
        return to_json(valid, _JSON) if is_json else valid

    def _valid(self, field: StructField) -> Column:
        """The value; where it is text that no database takes, null in a row that is put aside."""
        column = _column(field.name)
        if not utf8.has_text(field.dataType):
            return column
        instead = lit(None) if self.sets_aside else raise_error(lit(_not_utf8(field) + _ADVICE))
        return when(utf8.is_invalid(column, field.dataType), instead).otherwise(column)

    def _reason(self) -> Column:
        """Why a row is bad: what the DataFrame itself says goes first."""
        told = make_valid_utf8(_column(self.marked_by)) if self.marked_by else lit(None)
        found = (
            when(utf8.is_invalid(_column(field.name), field.dataType), lit(_not_utf8(field)))
            for field in self.table
            if utf8.has_text(field.dataType)
        )
        return coalesce(told.cast("string"), *found)

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


def _not_utf8(field: StructField) -> str:
    return f"column {field.name!r} has text that is not valid UTF-8"


def _column(name: str) -> Column:
    return col(f"`{name.replace('`', '``')}`")


def _named(schema: StructType, name: str | None) -> str | None:
    """As the DataFrame spells it."""
    return next((each for each in schema.names if name and each.lower() == name.lower()), None)
