"""How Spark renames the files of a checkpoint: on a local disk, without other processes.

Each file is written under another name and renamed, two for every batch and one for every partition
of a state store. Spark does it through Hadoop's FileContext, which, without Hadoop's native
library, runs `readlink` four times for each file. Its other way, through Hadoop's FileSystem, does
without. Elsewhere than on a local disk that other way replaces no file that is there, and the state
of a batch that is run again would stay that of its first attempt: there it is left to Spark.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyspark.sql import SparkSession

SETTING: Final = "spark.sql.streaming.checkpointFileManagerClass"
_PLAINLY: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
_starting = threading.Lock()


@contextmanager
def renaming_plainly(spark: SparkSession, *, is_local: bool) -> Iterator[None]:
    """While a query is started: it takes its session's settings along. The user's own win."""
    with _starting:
        if not is_local or spark.conf.get(SETTING, None) is not None:
            yield
            return
        spark.conf.set(SETTING, _PLAINLY)
        try:
            yield
        finally:
            spark.conf.unset(SETTING)
