"""How many rows Spark hands to Python at once: by count, where their size is known.

From version 4.1 on Spark measures what it has gathered after every row, to stay below a number of
bytes; that takes longer than gathering them (2 of 4 microseconds for a row of 1 KB). Where the last
batch has told how large rows are, a count serves as well. After a failure the limit is Spark's
again: rows may have become a thousand times larger from one batch to the next.

A megabyte at once: what is larger is gathered in buffers that grow by doubling, and are zeroed and
copied each time (a fifth of the JVM's work with 8 MB).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from pyspark.sql import SparkSession

_ROWS: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_BYTES: Final = "spark.sql.execution.arrow.maxBytesPerBatch"
_NOT_MEASURED: Final = str(2**31 - 1)
_AT_ONCE_BYTES: Final = 1024 * 1024
_ROWS_MIN: Final = 100


class Handover:
    """Of one query; `frame.sparkSession` is then a session of its own."""

    def __init__(self) -> None:
        self._row_bytes: float | None = None
        self._is_careful = False

    def learn(self, records: int, size_bytes: int) -> None:
        """What the last batch was."""
        if records:
            self._row_bytes = size_bytes / records

    def be_careful(self) -> None:
        """Something failed, perhaps for lack of memory."""
        self._is_careful = True

    def settings(self, rows_max: int) -> Mapping[str, str]:
        """For Spark, where no more than `rows_max` may go at once; none to leave it as it is."""
        if self._row_bytes is None or self._is_careful:
            return {}
        fitting = max(_ROWS_MIN, int(_AT_ONCE_BYTES / max(1.0, self._row_bytes)))
        rows = min(rows_max, fitting) if rows_max > 0 else fitting
        return {_ROWS: str(rows), _BYTES: _NOT_MEASURED}

    @contextmanager
    def in_force(self, spark: SparkSession) -> Iterator[None]:
        """While rows are handed over; what the session had is put back."""
        rows_max = int(spark.conf.get(_ROWS) or 0)
        settings = self.settings(rows_max)
        former = {key: spark.conf.get(key, None) for key in settings}
        for key, value in settings.items():
            spark.conf.set(key, value)
        try:
            yield
        finally:
            for key, before in former.items():
                if before is None:
                    spark.conf.unset(key)
                else:
                    spark.conf.set(key, before)
