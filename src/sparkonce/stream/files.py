"""Files as a source: what was listed must still be what was read, when the batch is decided.

Spark lists a file once, with its time of change, in the source's log in the checkpoint, and reads
it later, perhaps again after a crash. A file that is written to meanwhile would be read in part, or
differently the second time, and nobody would know. One that is gone fails in Spark itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from sparkonce.errors import FatalError
from sparkonce.stream.checkpoint import CheckpointFolder, Listed
from sparkonce.stream.ledger import Offsets

_OFFSET = "logOffset"
_FILES = "mapreduce.job.cache.files"
_TIMES = "mapreduce.job.cache.files.timestamps"
_NOT_FOUND = "java.io.FileNotFoundException"


class FileChanged(FatalError):
    """A file that was listed is not what it was; nothing of the batch is visible."""


class ListedFiles:
    """The files of a query's batches, by Spark's own list."""

    def __init__(self, spark: SparkSession, folder: CheckpointFolder) -> None:
        self._spark = spark
        self._folder = folder

    def check(self, batch: int, sources: Sequence[Offsets | str]) -> None:
        listed = list(self._listed(batch, sources))
        if not listed:
            return
        for each, now_ms in zip(listed, self._changed_ms(listed), strict=True):
            if now_ms != each.changed_ms:
                raise FileChanged(
                    f"{each.path} was changed after it was listed (at {each.changed_ms}, now "
                    f"{now_ms}, in milliseconds since 1970): {_ADVICE}"
                )

    def _changed_ms(self, listed: Sequence[Listed]) -> list[int]:
        """When each was last changed, by as many calls of the JVM for one file as for thousands:
        what Hadoop does for the files that a job brings along."""
        jvm: Any = self._spark._jvm
        conf = jvm.org.apache.hadoop.conf.Configuration(self._spark._jsc.hadoopConfiguration())
        # Both are separated by commas. Paths are URLs.
        conf.set(_FILES, ",".join(each.path.replace(",", "%2C") for each in listed))
        manager = jvm.org.apache.hadoop.mapreduce.filecache.ClientDistributedCacheManager
        try:
            manager.determineTimestamps(conf, jvm.java.util.HashMap())
        except Py4JJavaError as error:
            if error.java_exception.getClass().getName() != _NOT_FOUND:
                raise
            said = error.java_exception.getMessage()
            raise FileChanged(f"a file is gone since it was listed ({said}): {_ADVICE}") from error
        return [int(time_ms) for time_ms in conf.get(_TIMES).split(",")]

    def _listed(self, batch: int, sources: Sequence[Offsets | str]) -> Iterator[Listed]:
        ends = {index: _log_offset(each) for index, each in enumerate(sources)}
        if all(end is None for end in ends.values()):
            return  # as most are: nothing is read for them
        before = self._folder.planned(batch - 1).sources if batch else ()
        for index, end in ends.items():
            last = _log_offset(before[index]) if index < len(before) else None
            first = 0 if last is None else last + 1
            for number in range(first, first if end is None else end + 1):
                yield from self._folder.listed_files(index, number)


_ADVICE = (
    "write files under another name and rename them into the folder when they are whole, and leave "
    "them as they are. Put the file back as it was, or start over with another checkpointLocation"
)


def _log_offset(source: Offsets | str) -> int | None:
    """None for sources that are no files."""
    if not isinstance(source, str):
        return None
    try:
        fields = json.loads(source)
    except ValueError:
        return None
    return fields.get(_OFFSET) if isinstance(fields, dict) else None
