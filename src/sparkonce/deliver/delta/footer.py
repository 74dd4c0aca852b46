"""What the footers of staged files tell: how many rows, and Delta's statistics of them.

Readers skip files by these. They must be right, and they had better be there: deltalake's reader
for pyarrow takes a file without bounds, among others that have them, for one without such rows.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from sparkonce.deliver.delta.files import columns_with_nan, partition
from sparkonce.deliver.store import Part, StoreError

_CHARS_MAX: Final = 32
"""Of text, as Delta's own writers do, so that the log stays small."""
_LAST_CHAR: Final = "\U0010ffff"
_MILLISECOND: Final = dt.timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Footer:
    path: Path
    rows: int
    nulls: Mapping[str, int]
    """Of columns that are not nested."""
    bounds: Mapping[str, tuple[str, str]]
    """Smallest and largest, in JSON: nothing of theirs is less, nothing greater."""
    partition: Mapping[str, str | None] = field(default_factory=dict)
    """Columns that are not in the file: each has one value there, in Delta's words."""

    @classmethod
    def read(cls, path: Path) -> Footer:
        metadata = pq.read_metadata(path)
        unordered = columns_with_nan(metadata.metadata)
        nulls: dict[str, int] = {}
        bounds: dict[str, tuple[str, str]] = {}
        for index in range(metadata.num_columns):
            column = metadata.schema.column(index)
            if column.name != column.path:
                continue  # nested
            found = [
                metadata.row_group(group).column(index).statistics
                for group in range(metadata.num_row_groups)
            ]
            if any(each is None or not each.has_null_count for each in found):
                continue
            nulls[column.name] = sum(each.null_count for each in found)
            if column.name not in unordered and (both := _bounds(found)) is not None:
                bounds[column.name] = both
        return cls(path, metadata.num_rows, nulls, bounds, partition(metadata.metadata))

    def has_null(self, name: str) -> bool:
        """Or may have: it does not tell of every column."""
        if name in self.partition:
            return self.partition[name] is None
        return self.nulls.get(name, 1) > 0

    def statistics(self, columns: Sequence[str]) -> str:
        """The JSON of Delta's `add.stats`, with these columns."""
        bounded = [name for name in columns if name in self.bounds]
        low = _object({name: self.bounds[name][0] for name in bounded})
        high = _object({name: self.bounds[name][1] for name in bounded})
        nulls = _object({name: str(self.nulls[name]) for name in columns if name in self.nulls})
        return _object(
            {
                "numRecords": str(self.rows),
                "minValues": low,
                "maxValues": high,
                "nullCount": nulls,
            }
        )


def read_all(parts: Iterable[Part]) -> list[Footer]:
    """StoreError unless every task's files are there with all of its rows."""
    footers: list[Footer] = []
    for part in parts:
        try:
            found = read_folder(Path(part.name))
        except (OSError, ValueError) as error:
            raise StoreError(
                f"what task {part.task} has staged can't be read: {error}. If executors are on "
                "other machines, the table's path must be one that they and the driver share"
            ) from error
        if (there := sum(footer.rows for footer in found)) != part.records:
            raise StoreError(
                f"task {part.task} has staged {part.records} rows and {there} are there"
            )
        footers += found
    return footers


def read_folder(folder: Path) -> list[Footer]:
    return [Footer.read(path) for path in sorted(folder.iterdir())]


def _bounds(found: Iterable[Any]) -> tuple[str, str] | None:
    try:
        pairs = [(each.min, each.max) for each in found if each.has_min_max]
    except (ValueError, OverflowError):
        return None  # a year that Python has not
    if not pairs:
        return None
    low, high = min(pair[0] for pair in pairs), max(pair[1] for pair in pairs)
    match low:
        case bool() | int():
            return json.dumps(low), json.dumps(high)
        case float():
            # JSON has no place for the infinite.
            return None if {low, high} & {float("inf"), float("-inf")} else (repr(low), repr(high))
        case Decimal():
            return f"{low:f}", f"{high:f}"
        case str():
            return _quoted(low[:_CHARS_MAX]), _quoted(_no_less(high))
        case dt.datetime():
            return _quoted(_moment(low)), _quoted(_no_earlier(high))
        case dt.date():
            return _quoted(low.isoformat()), _quoted(high.isoformat())
    return None  # binary, which has none in Delta


def _no_less(text: str) -> str:
    is_short = len(text) <= _CHARS_MAX or text[_CHARS_MAX] == _LAST_CHAR
    return text if is_short else text[:_CHARS_MAX] + _LAST_CHAR


def _no_earlier(value: dt.datetime) -> str:
    """Delta has milliseconds here, cut off. Readers are to add one to the largest, but delta-rs
    does not always."""
    if value.microsecond % 1000 == 0:
        return _moment(value)
    if value.year == dt.MAXYEAR:
        return _moment(value, "microseconds")
    return _moment(value + _MILLISECOND)


def _moment(value: dt.datetime, timespec: str = "milliseconds") -> str:
    text = value.replace(tzinfo=None).isoformat(timespec=timespec)
    return text if value.tzinfo is None else f"{text}Z"


def _object(fields: Mapping[str, str]) -> str:
    """Of values that are JSON already; Python's own has no exact decimals."""
    return "{" + ",".join(f"{_quoted(name)}:{value}" for name, value in fields.items()) + "}"


def _quoted(text: str) -> str:
    """As it is: delta-rs reads the last planes of Unicode wrongly where they are escaped."""
    return json.dumps(text, ensure_ascii=False)
