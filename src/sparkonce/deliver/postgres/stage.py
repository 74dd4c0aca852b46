"""On executors: rows by COPY into the pipeline's staging table, one transaction for a task.

Every row bears a number that is its task's alone, of this attempt: by it the rows that count are
known from those of zombies, of second attempts and of attempts that were given up. The number is
drawn by the driver, not by the server, which after a crash gives its own numbers out again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import adbc_driver_postgresql.dbapi as adbc
import pyarrow as pa

from sparkonce.deliver.columns import TASK
from sparkonce.deliver.postgres.characters import Characters

ATTEMPT_BITS: Final = 40
"""Drawn at random for each attempt."""
_TASK_BITS: Final = 23
"""Of Spark's number of the task, which is different for all of an attempt."""
_AT = "@"


@dataclass(frozen=True, slots=True)
class PostgresStage:
    url: str = field(repr=False)
    schema: str
    table: str
    attempt: int
    encoding: str
    lock_timeout: str

    def __call__(self, task: int, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> str:
        number = (self.attempt << _TASK_BITS) | (task % (1 << _TASK_BITS))
        failures: list[Exception] = []
        rows = self._rows(number, batches, failures)
        reader = pa.RecordBatchReader.from_batches(schema.append(pa.field(TASK, pa.int64())), rows)
        connection = self._begin()
        try:
            with connection.cursor() as cursor:
                cursor.adbc_ingest(self.table, reader, mode="append", db_schema_name=self.schema)
            connection.adbc_connection.set_autocommit(True)  # COMMIT, and no new transaction
        except BaseException:
            _connections.pop(self.url).close()
            if failures:  # ADBC wraps what happened on the way to it in words of its own
                raise failures[0] from None
            raise
        return f"{self.table}{_AT}{number}"

    def _rows(
        self, number: int, batches: Iterator[pa.RecordBatch], failures: list[Exception]
    ) -> Iterator[pa.RecordBatch]:
        if self.url not in _characters:
            _characters[self.url] = Characters(self.encoding, partial(adbc.connect, self.url))
        characters = _characters[self.url]
        try:
            for batch in batches:
                numbers = pa.repeat(pa.scalar(number, pa.int64()), batch.num_rows)
                yield characters.checked(batch).append_column(TASK, numbers)
        except Exception as error:
            failures.append(error)
            raise
        finally:
            characters.close()

    def _begin(self) -> Any:
        """A transaction on a connection that answers."""
        if self.url in _connections:
            try:
                return self._begun(_connections[self.url])
            except adbc.Error:
                _connections.pop(self.url).close()  # ended meanwhile, with the server perhaps
        _connections[self.url] = adbc.connect(self.url, autocommit=True)
        return self._begun(_connections[self.url])

    def _begun(self, connection: Any) -> Any:
        """With settings for this transaction alone: behind a pooler, the next is another's."""
        connection.adbc_connection.set_autocommit(False)
        with connection.cursor() as cursor:
            # Whoever takes over ends those who still write for his predecessor.
            cursor.execute(
                f"SELECT set_config('application_name', '{self.table}', true), "
                f"set_config('lock_timeout', '{self.lock_timeout}', true)"
            )
            cursor.fetchone()
        return connection


def attempt_of(number: int) -> int:
    return number >> _TASK_BITS


def numbers_of(attempt: int) -> tuple[int, int]:
    """The first and the last that tasks of the attempt may have."""
    return attempt << _TASK_BITS, ((attempt + 1) << _TASK_BITS) - 1


def staged_by(places: Sequence[str]) -> tuple[str, list[int]]:
    """The table, and the numbers of the tasks that count."""
    found = [place.rpartition(_AT) for place in places]
    return found[0][0], [int(number) for _, _, number in found]


_connections: dict[str, Any] = {}
"""A Python worker serves many tasks, and to open the first connection takes ADBC longer than to
write a thousand rows: it learns all types of the database."""
_characters: dict[str, Characters] = {}
"""What was learned of a database's encoding serves them as well."""
