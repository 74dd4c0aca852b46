"""In which format Spark keeps the state of a query, and so how an attempt names its own.

Format 2 names state by ids; Spark has it for the RocksDB provider. A checkpoint keeps the format
that it was begun with: Spark can't go from one to the other. So the checkpoint decides; for a new
one, the session's provider does.
"""

from __future__ import annotations

import logging
from typing import Final

from pyspark.sql import SparkSession

from sparkonce.errors import ConfigError
from sparkonce.stream.checkpoint import CheckpointFolder
from sparkonce.stream.state import AttemptState, StateNotes
from sparkonce.stream.state_by_id import StateById
from sparkonce.stream.state_by_version import StateByVersion

_log = logging.getLogger("sparkonce.stream")
SETTING: Final = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
_KEPT: Final = "spark.sql.streaming.minBatchesToRetain"
_PROVIDERS: Final = "org.apache.spark.sql.execution.streaming.state"
_ROCKSDB: Final = "RocksDBStateStoreProvider"
_HDFS: Final = "HDFSBackedStateStoreProvider"


def state_format(spark: SparkSession, folder: CheckpointFolder) -> int:
    checkpoint = folder.read()
    if checkpoint.committed is not None:
        return 2 if folder.state_ids(checkpoint.committed) is not None else 1
    if (chosen := spark.conf.get(SETTING, None)) is not None:
        return int(chosen)
    return 2 if _provider(spark, folder).endswith(_ROCKSDB) else 1


def state_of(
    spark: SparkSession, folder: CheckpointFolder, notes: StateNotes, format_version: int
) -> AttemptState:
    if format_version >= 2:
        return StateById(spark, folder, notes)
    provider = _provider(spark, folder)
    if not provider.endswith((_ROCKSDB, _HDFS)):
        raise ConfigError(
            f"{_PROVIDER}={provider} keeps state in a way that is not known here, so nobody could "
            "tell the state of an attempt whose output is visible from that of another. Use "
            f"Spark's RocksDBStateStoreProvider; or, if yours supports it, {SETTING}=2 with a new "
            "checkpointLocation"
        )
    _log.warning(
        "%s keeps state in files that are named by version alone (state store checkpoint format "
        "1). A driver that is fenced while it computes a batch, or an executor that is cut off, "
        "can go on and write over the state that belongs to the visible output; if that comes "
        "before the batch is decided, it is not noticed, and the next start reads it. It can't "
        "happen with an empty checkpointLocation, %s=%s and %s=2: docs/spark.md, State named by "
        "version",
        folder.location, _PROVIDER, f"{_PROVIDERS}.{_ROCKSDB}", SETTING,
    )  # fmt: skip
    return StateByVersion(folder, notes, kept=kept_batches(spark))


def kept_batches(spark: SparkSession) -> int:
    """For so many, Spark keeps what it takes to go back to them."""
    return int(str(spark.conf.get(_KEPT)))


def check_keeps_the_last(kept: int) -> None:
    """Spark clears away by the newest snapshot that is there, be it of a batch that is not decided
    yet and may be run again from the one before."""
    if kept < 2:
        raise ConfigError(
            f"{_KEPT}=1 lets Spark remove the state before the batch that runs, which is needed if "
            "that batch is run again. Set it to 2 or more (Spark's default is 100)"
        )


def _provider(spark: SparkSession, folder: CheckpointFolder) -> str:
    """The checkpoint's own, if it has begun."""
    planned = folder.read().planned
    conf = folder.planned(planned).conf if planned is not None else {}
    return conf.get(_PROVIDER) or str(spark.conf.get(_PROVIDER))
