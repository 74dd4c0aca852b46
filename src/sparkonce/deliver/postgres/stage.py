"""On executors: rows by COPY into the attempt's unlogged table, one transaction for a task.

By its number, which the server keeps with every row (`xmin`), the rows of a task are known from
those of others: they need no column of their own for that.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import adbc_driver_postgresql.dbapi as adbc
import pyarrow as pa
import pyarrow.compute as pc

from sparkonce.deliver.columns import BAD, ROW
from sparkonce.errors import EncodeError

_NUL = "\0"
_AT = "@"


@dataclass(frozen=True, slots=True)
class PostgresStage:
    url: str = field(repr=False)
    schema: str
    table: str

    def __call__(self, task: int, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> str:
        failures: list[Exception] = []
        reader = pa.RecordBatchReader.from_batches(schema, _rows(batches, failures))
        connection = _connection(self.url, self.table)
        try:
            with connection.cursor() as cursor:
                cursor.adbc_ingest(self.table, reader, mode="append", db_schema_name=self.schema)
                cursor.execute("SELECT pg_current_xact_id()::xid::text")
                (transaction,) = cursor.fetchone()
            connection.commit()
        except BaseException:
            _connections.pop(self.url).close()
            if failures:  # ADBC wraps what happened on the way to it in words of its own
                raise failures[0] from None
            raise
        return f"{self.table}{_AT}{transaction}"


def staged_by(places: Sequence[str]) -> tuple[str, list[str]]:
    """The attempt's table, and the transactions that wrote what counts of it."""
    found = [place.rpartition(_AT) for place in places]
    return found[0][0], [transaction for _, _, transaction in found]


def _rows(batches: Iterator[pa.RecordBatch], failures: list[Exception]) -> Iterator[pa.RecordBatch]:
    try:
        for batch in batches:
            yield _without_nul(batch)
    except Exception as error:
        failures.append(error)
        raise


_connections: dict[str, Any] = {}
"""A Python worker serves many tasks, and to open the first connection takes ADBC longer than to
write a thousand rows: it learns all types of the database."""


def _connection(url: str, name: str) -> Any:
    """One that answers, under the name of the attempt: whoever takes over ends those of others."""
    if url in _connections:
        try:
            return _named(_connections[url], name)
        except adbc.Error:
            _connections.pop(url).close()  # ended meanwhile: by a take-over, or with the server
    _connections[url] = adbc.connect(url)
    return _named(_connections[url], name)


def _named(connection: Any, name: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(f"SET application_name = '{name}'")
    connection.commit()
    return connection


def _without_nul(batch: pa.RecordBatch) -> pa.RecordBatch:
    """PostgreSQL's text has no place for the character zero: such rows are bad."""
    found = None
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if not _is_text(column.type) or name in (BAD, ROW):
            continue
        has_nul = pc.fill_null(pc.match_substring(column, _NUL), fill_value=False)
        if pc.any(has_nul).as_py():
            if BAD not in batch.schema.names:
                raise EncodeError(
                    f"column {name!r} has text with the character zero in it, which PostgreSQL "
                    "can't keep: replace it, or set deadLetterTable to put such rows aside"
                )
            found = has_nul if found is None else pc.or_(found, has_nul)
    return batch if found is None else _marked(batch, found)


def _marked(batch: pa.RecordBatch, bad: pa.Array) -> pa.RecordBatch:
    columns = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name == BAD:
            reason = "text with the character zero, which PostgreSQL can't keep"
            columns.append(pc.if_else(bad, pa.scalar(reason, column.type), column))
        elif name == ROW:
            # As JSON, in which that character is written with others.
            texts = pa.array([_as_json(row) for row in batch.filter(bad).to_pylist()], column.type)
            columns.append(pc.replace_with_mask(column, bad, texts))
        elif _is_text(column.type):
            columns.append(pc.if_else(bad, pa.scalar(None, column.type), column))
        else:
            columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _as_json(row: dict[str, Any]) -> str:
    return json.dumps({name: row[name] for name in row if name not in (BAD, ROW)}, default=str)
