"""How Spark renames the files of a checkpoint: fast on a local disk, and over what is there.

Each file is written under another name and renamed, two for every batch and one for every partition
of a state store. Spark does it through Hadoop's FileContext, which, without Hadoop's native
library, runs `readlink` four times for each file. Its other way, through Hadoop's FileSystem, does
without. But whether that one replaces a file that is there depends on the file system, and if it
doesn't, Spark goes on without a word: the state of a batch that is run again would stay that of its
first attempt. So it is taken on local disks alone, with Hadoop's own file system for them, which
does; and whatever way a query has, it is tried before state is trusted to it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from sparkonce.errors import ConfigError

SETTING: Final = "spark.sql.streaming.checkpointFileManagerClass"
PLAINLY: Final = {
    SETTING: "org.apache.spark.sql.execution.streaming.checkpointing."
    "FileSystemBasedCheckpointFileManager",
    # Hive, which comes with PySpark, puts a file system of its own in place of Hadoop's, if it is
    # found later on the class path. That one replaces nothing.
    "fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
    # Hive's may be in the cache already.
    "fs.file.impl.disable.cache": "true",
}
_SECOND: Final = "second"
_starting = threading.Lock()


def plainly(spark: SparkSession, *, is_local: bool) -> Mapping[str, str]:
    """What a query is to be started with. The user's own settings win."""
    own = _hadoop_settings(spark)
    if not is_local or any(own.get(key) is not None for key in PLAINLY):
        return {}
    return PLAINLY


@contextmanager
def started_with(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """While a query is started: it takes its session's settings along."""
    with _starting:
        former = {key: spark.conf.get(key, None) for key in settings}
        for key, value in settings.items():
            spark.conf.set(key, value)
        try:
            yield
        finally:
            for key, own in former.items():
                if own is None:
                    spark.conf.unset(key)
                else:
                    spark.conf.set(key, own)


def check_replaces(spark: SparkSession, location: str) -> None:
    """Whether a file that Spark writes a second time is the second: it never looks itself."""
    try:
        way, found = _written_twice(spark, location)
    except Py4JJavaError as error:
        raise ConfigError(
            f"nothing can be written to checkpointLocation {location}: {error.java_exception}"
        ) from error
    if found != _SECOND:
        raise ConfigError(
            f"a file in {location} that Spark writes again stays as it was, with the {way} that "
            "this session has for it. The state of a batch that is run again would be that of an "
            f"attempt whose output nobody sees. Leave {SETTING} and fs.file.impl to Spark, or take "
            "another place for checkpointLocation"
        )


def _written_twice(spark: SparkSession, location: str) -> tuple[str, str]:
    """Spark's way of writing there, and what it left of two texts."""
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path
    checkpointing = jvm.org.apache.spark.sql.execution.streaming.checkpointing
    files = checkpointing.CheckpointFileManager.create(path(location), _hadoop_settings(spark))
    folder = path(location, ".sparkonce-replaces")
    name = path(folder, "file")
    files.mkdirs(folder)
    try:
        for text in ("first", _SECOND):
            stream = files.createAtomic(name, True)
            stream.write(bytearray(text.encode()))
            stream.close()
        stream = files.open(name)
        found = jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        stream.close()
    finally:
        files.delete(folder)
    return files.getClass().getSimpleName(), found


def _hadoop_settings(spark: SparkSession) -> Any:
    """Hadoop's and the session's, as a query would take them along."""
    jvm_session: Any = spark._jsparkSession
    return jvm_session.sessionState().newHadoopConf()
