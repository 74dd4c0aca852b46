"""On executors: rows by COPY into the pipeline's staging table, one transaction for a task.

Every row bears a number that is its task's alone, of this attempt: by it the rows that count are
known from those of zombies, of second attempts and of attempts that were given up. The number is
drawn by the driver, not by the server, which after a crash gives its own numbers out again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlencode

import adbc_driver_postgresql.dbapi as adbc
import pyarrow as pa
from psycopg.conninfo import make_conninfo

from sparkonce.deliver.columns import TASK
from sparkonce.deliver.postgres.characters import Characters
from sparkonce.deliver.postgres.idle import IdleConnections
from sparkonce.deliver.store import StoreError
from sparkonce.postgresql import NoAnswer, Silence, answered, keep_secrets
from sparkonce.redaction import redact

ATTEMPT_BITS: Final = 40
"""Drawn at random for each attempt."""
_TASK_BITS: Final = 23
"""Of Spark's number of the task, which is different for all of an attempt."""
_AT = "@"


@dataclass(frozen=True, slots=True)
class PostgresStage:
    info: Mapping[str, Any] = field(repr=False)
    """For libpq."""
    schema: str
    table: str
    attempt: int
    encoding: str
    lock_timeout: str
    query_timeout_s: float
    idle_timeout_s: float

    def __call__(self, task: int, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> str:
        keep_secrets(self.info)
        number = (self.attempt << _TASK_BITS) | (task % (1 << _TASK_BITS))
        silence = Silence(make_conninfo("", **self.info), self.query_timeout_s)
        failures: list[Exception] = []
        rows = self._rows(number, batches, silence, failures)
        reader = pa.RecordBatchReader.from_batches(schema.append(pa.field(TASK, pa.int64())), rows)
        try:
            answered(lambda: self._copy(reader), silence)
        except NoAnswer as error:
            raise StoreError(f"rows can't be staged: {error}") from error
        except Exception as error:
            redact(error)
            if failures:  # ADBC wraps what happened on the way to it in words of its own
                redact(failures[0])  # which is behind no error of Python's
                raise failures[0] from None
            raise
        return f"{self.table}{_AT}{number}"

    def _copy(self, reader: pa.RecordBatchReader) -> None:
        connection = self._begin()
        try:
            with connection.cursor() as cursor:
                cursor.adbc_ingest(self.table, reader, mode="append", db_schema_name=self.schema)
            connection.adbc_connection.set_autocommit(True)  # COMMIT, and no new transaction
        except BaseException:
            connection.close()
            raise
        _connections.keep(self._url, connection, self.idle_timeout_s)

    def _rows(
        self,
        number: int,
        batches: Iterator[pa.RecordBatch],
        silence: Silence,
        failures: list[Exception],
    ) -> Iterator[pa.RecordBatch]:
        url = self._url
        if url not in _characters:
            _characters[url] = Characters(self.encoding, lambda: adbc.connect(url))
        characters = _characters[url]
        try:
            for batch in _unhurried(batches, silence):
                numbers = pa.repeat(pa.scalar(number, pa.int64()), batch.num_rows)
                yield characters.checked(batch).append_column(TASK, numbers)
        except Exception as error:
            failures.append(error)
            raise
        finally:
            characters.close()

    def _begin(self) -> Any:
        """A transaction on a connection that answers."""
        connection = _connections.take(self._url)
        if connection is not None:
            try:
                return self._begun(connection)
            except adbc.Error:
                connection.close()  # ended meanwhile, with the server perhaps
        connection = adbc.connect(self._url, autocommit=True)
        try:
            return self._begun(connection)
        except BaseException:
            connection.close()
            raise

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

    @property
    def _url(self) -> str:
        """ADBC takes no other form."""
        options = {name: str(value) for name, value in self.info.items() if value is not None}
        return f"postgresql:///?{urlencode(options, quote_via=quote)}"


def _unhurried(batches: Iterator[pa.RecordBatch], silence: Silence) -> Iterator[pa.RecordBatch]:
    """The server is not to blame for the time that Spark takes."""
    while True:
        silence.pause()
        batch = next(batches, None)
        silence.begin()
        if batch is None:
            return
        yield batch


def attempt_of(number: int) -> int:
    return number >> _TASK_BITS


def numbers_of(attempt: int) -> tuple[int, int]:
    """The first and the last that tasks of the attempt may have."""
    return attempt << _TASK_BITS, ((attempt + 1) << _TASK_BITS) - 1


def staged_by(places: Sequence[str]) -> tuple[str, list[int]]:
    """The table, and the numbers of the tasks that count."""
    found = [place.rpartition(_AT) for place in places]
    return found[0][0], [int(number) for _, _, number in found]


_connections = IdleConnections()
_characters: dict[str, Characters] = {}
"""What was learned of a database's encoding serves all tasks of a Python worker."""
