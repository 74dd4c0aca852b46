"""Rows as a database gives them, made into exactly the columns that Spark expects.

A value that Spark can't have (an infinite date, a number of too many digits) never becomes another
one. It fails the batch, or becomes null, with the row's text beside it, as in Spark's JSON and CSV
readers: `mode` says which.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import DataType, StringType, StructField, StructType

from sparkonce.errors import ConfigError
from sparkonce.ingest.arrow import arrow_schema, cast, converted
from sparkonce.ingest.outbox import as_headers, outbox_columns, outbox_schema
from sparkonce.ingest.settings import CORRUPT_RECORD, TableSettings
from sparkonce.ingest.table import Column, SourceError, find

_SHOWN_MAX: Final = 200
"""Characters of a value, in an error."""


class RowFitter:
    """Fits the rows of one table to one schema."""

    def __init__(
        self, settings: TableSettings, schema: StructType, columns: Sequence[Column]
    ) -> None:
        """Refuses what can't be; `columns` are the table's."""
        self._settings = settings
        self._schema = arrow_schema(schema)
        self._fields = _values(schema, settings.corrupt_record)
        if settings.corrupt_record is not None:
            _check_corrupt_record(settings.corrupt_record, schema, columns)
        chosen = _chosen(self._fields, columns, is_outbox=settings.outbox)
        names = {column.name for column in chosen}
        key = [find(columns, "keyColumn", name) for name in settings.order]
        self.columns = [*chosen, *(column for column in key if column.name not in names)]
        """To be read: those that Spark asks for, in its order, and the key, to name a row by."""
        self._key = [[column.name for column in self.columns].index(each.name) for each in key]

    def fit(self, batch: Any) -> Any:
        """As `Table.read` gives it."""
        *columns, unreadable = batch.columns
        flaws: dict[int, dict[int, str]] = defaultdict(dict)
        for row, texts in _rows(unreadable):
            flaws[row] = {index: "" for index, text in enumerate(texts) if text is not None}
        fitted = []
        for index, field in enumerate(self._fields):
            kind = self._schema.field(field.name).type
            array, unfit = self._converted(columns[index], field, kind)
            fitted.append(array)
            for row, error in unfit.items():
                flaws[row].setdefault(index, f" ({error})")
        texts_of = {row: self._texts(batch, row) for row in flaws}
        name = self._settings.corrupt_record
        if name is None:
            for row in sorted(flaws):
                raise self._refused(texts_of[row], flaws[row])
        else:
            records: list[str | None] = [None] * batch.num_rows
            for row, texts in texts_of.items():
                records[row] = self._record(texts)
            place = self._schema.get_field_index(name)
            fitted.insert(place, pa.array(records, self._schema.field(place).type))
        return pa.RecordBatch.from_arrays(fitted, schema=self._schema)

    def _converted(
        self, column: Any, field: StructField, kind: pa.DataType
    ) -> tuple[Any, dict[int, Exception]]:
        is_headers = self._settings.outbox and field.name == "headers"
        convert: Callable[[Any], Any] = partial(as_headers if is_headers else cast, kind=kind)
        try:
            return converted(column, convert, kind)
        except NotImplementedError as error:  # Arrow's own is one
            raise ConfigError(
                f"column {field.name!r} can't be read as {field.dataType.simpleString()}: {error}. "
                "Choose another type with .schema(…)"
            ) from error

    # A row that is not as it should be

    def _texts(self, batch: Any, row: int) -> list[Any]:
        """Its values as JSON has them, by column."""
        unreadable = batch.columns[-1][row].as_py() or [None] * len(self.columns)
        return [
            _jsonable(batch.column(index).slice(row, 1)) if text is None else text
            for index, text in enumerate(unreadable)
        ]

    def _record(self, texts: Sequence[Any]) -> str:
        named = {column.name: text for column, text in zip(self.columns, texts, strict=True)}
        return json.dumps(named, ensure_ascii=False, default=str)

    def _refused(self, texts: Sequence[Any], flaws: Mapping[int, str]) -> SourceError:
        index = min(flaws)
        column = self.columns[index]
        kind = column.kind if index >= len(self._fields) else self._fields[index].dataType
        key = ", ".join(f"{self.columns[at].name}={texts[at]}" for at in self._key)
        return SourceError(
            f"{self._settings.table}, the row with {key}: column {column.name!r} has the value "
            f"{str(texts[index])[:_SHOWN_MAX]!r} ({column.declared}), which does not fit into "
            f"Spark's {_name(kind)}{flaws[index]}. Correct the row; or leave the column out, or "
            "read it as another type (STRING), with .schema(…); or set mode=PERMISSIVE: such "
            f"values become null, and the row's text is put into the column {CORRUPT_RECORD}"
        )


def spark_schema(settings: TableSettings, columns: Sequence[Column]) -> StructType:
    """Where the user gives none."""
    if settings.outbox:
        schema = outbox_schema(columns)
    else:
        schema = StructType([_field(column) for column in columns])
    if settings.corrupt_record is not None:
        schema = StructType([*schema.fields, StructField(settings.corrupt_record, StringType())])
    return schema


def _field(column: Column) -> StructField:
    if column.kind is None:
        raise ConfigError(
            f"column {column.name!r} is of type {column.declared}, for which Spark has none: leave "
            "it out, or choose a type that its values fit into, with .schema('id BIGINT, …')"
        )
    return StructField(column.name, column.kind)


def _values(schema: StructType, corrupt_record: str | None) -> list[StructField]:
    """The fields that are columns of the table."""
    return [field for field in schema.fields if field.name != corrupt_record]


def _chosen(
    fields: Sequence[StructField], columns: Sequence[Column], *, is_outbox: bool
) -> list[Column]:
    """The columns that Spark asks for, in its order; of the type it wants, if the user said so."""
    if is_outbox:
        if StructType(list(fields)) != outbox_schema(columns):
            raise ConfigError("outbox=true gives a schema of its own: leave .schema(…) out")
        return outbox_columns(columns)
    return [_of_type(find(columns, ".schema(…)", field.name), field.dataType) for field in fields]


def _of_type(column: Column, kind: DataType) -> Column:
    if isinstance(kind, StringType) and column.flaw is not None:
        return replace(column, kind=kind, read=column.text, flaw=None)  # text has no limits
    return replace(column, kind=kind)


def _check_corrupt_record(name: str, schema: StructType, columns: Sequence[Column]) -> None:
    if any(column.name.lower() == name.lower() for column in columns):
        raise ConfigError(
            f"the table has a column {name!r} of its own, which mode=PERMISSIVE would put the text "
            "of rows into: choose another name as columnNameOfCorruptRecord"
        )
    if not any(field.name == name and field.dataType == StringType() for field in schema.fields):
        raise ConfigError(
            f"mode=PERMISSIVE makes values null that Spark can't have, and .schema(…) has no "
            f"column for the text of such rows: add {name} STRING to it"
        )
    strict = [field.name for field in schema.fields if not field.nullable]
    if strict:
        raise ConfigError(
            f".schema(…) has {', '.join(strict)} as NOT NULL, and mode=PERMISSIVE may make a value "
            "null: leave NOT NULL out"
        )


def _rows(unreadable: Any) -> list[tuple[int, list[str | None]]]:
    if unreadable.null_count == len(unreadable):
        return []
    return [(row, texts) for row, texts in enumerate(unreadable.to_pylist()) if texts is not None]


def _jsonable(one: Any) -> Any:
    """The one value of an array, which may be none that Python has."""
    kind = one.type
    if pa.types.is_temporal(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return one.cast(pa.string())[0].as_py()
    try:
        value = one[0].as_py()
    except (ArithmeticError, ValueError):  # an infinite date in an array, say
        return " ".join(one.to_string().split())
    return "\\x" + value.hex() if isinstance(value, bytes) else value


def _name(kind: DataType | None) -> str:
    return "types" if kind is None else kind.simpleString()
