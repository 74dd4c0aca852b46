"""On executors: text that the database can't keep, found before it is sent.

The character zero has no place in PostgreSQL's text, and a database in another encoding than UTF-8
has not all characters, or gives another one back for some. Which ones, the server is asked, once
for each. Such rows are bad: they go to the dead letters with what Python makes of them, JSON in
ASCII, which every database keeps.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from sparkonce.deliver.columns import BAD, DELETED, ROW, SEQUENCE
from sparkonce.errors import EncodeError

_NUL: Final = "\0"
_KEEPS_ALL: Final = ("UTF8", "SQL_ASCII")
"""SQL_ASCII means bytes of no known encoding: they are kept as they come, which is as UTF-8."""
_UNKEPT: Final = "sparkonce.unkept"


class Characters:
    """`connect` opens a connection of ADBC's; those of tasks are in the middle of a COPY."""

    def __init__(self, encoding: str, connect: Callable[[], Any]) -> None:
        self._encoding = encoding
        self._connect = connect
        self._connection: Any = None
        self._kept: set[str] = set()
        self._unkept = {_NUL}

    def checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The same rows, those with such text marked as bad; EncodeError where they can't be."""
        found = None
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if _is_text(column.type) and (bad := self._bad(column)) is not None:
                if name in (BAD, ROW):
                    batch = self._escaped(batch, name)
                else:
                    found = bad if found is None else pc.or_(found, bad)
        if found is None:
            return batch
        rows = batch.filter(found).to_pylist()
        if BAD not in batch.schema.names:
            raise EncodeError(
                f"{self._told(rows[0])}: replace it before writing, or set deadLetterTable to put "
                "such rows aside"
            )
        return _marked(batch, found, [row[BAD] or self._told(row) for row in rows])

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # -- which characters ----------------------------------------------------------------------

    def _bad(self, column: pa.Array) -> pa.Array | None:
        """Which rows have one that is not kept; None where all are."""
        if self._encoding not in _KEEPS_ALL:
            self._learn(column)
        # The one that is looked for everywhere, in the cheaper way.
        if len(self._unkept) == 1:
            found = pc.match_substring(column, _NUL)
        else:
            found = pc.match_substring_regex(column, f"[{_escaped(self._unkept)}]")
        found = pc.fill_null(found, fill_value=False)
        return found if pc.any(found).as_py() else None

    def _learn(self, column: pa.Array) -> None:
        known = f"[^\\x00-\\x7f{_escaped(self._kept | self._unkept)}]"
        odd = pc.match_substring_regex(column, known)
        texts = column.filter(pc.fill_null(odd, fill_value=False)).to_pylist()
        new = {each for text in texts for each in text if not each.isascii()}
        new -= self._kept | self._unkept
        if new:
            unkept = self._ask(new)
            self._unkept |= unkept
            self._kept |= new - unkept

    def _ask(self, characters: Iterable[str]) -> set[str]:
        """The server itself, whose tables may differ from Python's."""
        if self._connection is None:
            self._connection = self._connect()
        coded = ",".join(each.encode().hex() for each in characters)
        with self._connection.cursor() as cursor:
            cursor.execute(f"""DO $sparkonce$
DECLARE
  one text;
  coded bytea;
  unkept text := '';
BEGIN
  FOREACH one IN ARRAY '{{{coded}}}'::text[] LOOP
    BEGIN
      coded := convert(decode(one, 'hex'), 'UTF8', '{self._encoding}');
      IF convert(coded, '{self._encoding}', 'UTF8') <> decode(one, 'hex') THEN
        unkept := unkept || ' ' || one;
      END IF;
    EXCEPTION WHEN untranslatable_character OR character_not_in_repertoire THEN
      unkept := unkept || ' ' || one;
    END;
  END LOOP;
  PERFORM set_config('{_UNKEPT}', unkept, true);
END $sparkonce$""")
            cursor.execute(f"SELECT current_setting('{_UNKEPT}')")
            (told,) = cursor.fetchone()
        self._connection.rollback()
        return {bytes.fromhex(each).decode() for each in str(told).split()}

    # -- what becomes of them ------------------------------------------------------------------

    def _told(self, row: Mapping[str, Any]) -> str:
        name, which = next(
            (name, each)
            for name, text in row.items()
            if isinstance(text, str) and name not in (BAD, ROW)
            for each in text
            if each in self._unkept
        )
        if which == _NUL:
            return f"column {name!r} has text with the character zero, which PostgreSQL can't keep"
        return (
            f"column {name!r} has text with the character U+{ord(which):04X}, which a database "
            f"in {self._encoding} can't keep"
        )

    def _escaped(self, batch: pa.RecordBatch, name: str) -> pa.RecordBatch:
        """In reasons and in rows as JSON, in which such characters may be written with others."""
        index = batch.schema.get_field_index(name)
        texts = [self._in_ascii(text) for text in batch.column(index).to_pylist()]
        return batch.set_column(
            index, batch.schema.field(index), pa.array(texts, batch.column(index).type)
        )

    def _in_ascii(self, text: str | None) -> str | None:
        if text is None or self._unkept.isdisjoint(text):
            return text
        return "".join(json.dumps(each)[1:-1] if each in self._unkept else each for each in text)


def _escaped(characters: Iterable[str]) -> str:
    """For a class of a regular expression."""
    return "".join(f"\\x{{{ord(each):x}}}" for each in characters)


def _marked(batch: pa.RecordBatch, bad: pa.Array, reasons: list[str]) -> pa.RecordBatch:
    columns = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name == BAD:
            columns.append(pc.replace_with_mask(column, bad, pa.array(reasons, column.type)))
        elif name == ROW:
            # Rows that were marked before have theirs.
            texts = [row[ROW] or _as_json(row) for row in batch.filter(bad).to_pylist()]
            columns.append(pc.replace_with_mask(column, bad, pa.array(texts, column.type)))
        elif _is_text(column.type):
            columns.append(pc.if_else(bad, pa.scalar(None, column.type), column))
        else:
            columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _as_json(row: dict[str, Any]) -> str:
    beside = (BAD, ROW, DELETED, SEQUENCE)
    return json.dumps({name: row[name] for name in row if name not in beside}, default=_value)


def _value(value: object) -> str:
    # As Spark's JSON has them.
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
