"""Small steps on DataFrames around the writer: reading committed, rows marked bad, duplicates."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import (
    DataType,
    StringType,
    StructField,
    StructType,
    _parse_datatype_string,
)

from sparkonce.errors import ConfigError

# After each poll Spark asks for both ends of the partition, on the consumer's one connection. What
# else was fetched is forgotten by that: so a poll takes all of a fetch, and a fetch is large. The
# question waits behind the next fetch, which a broker keeps for half a second if there is nothing
# yet to answer it with: so it keeps it for a moment only. The system sizes the socket's buffer.
_QUICK: Final = {
    "kafka.max.poll.records": 50_000,
    "kafka.max.partition.fetch.bytes": 4 * 1024 * 1024,
    "kafka.fetch.max.wait.ms": 5,
    "kafka.receive.buffer.bytes": -1,
}


def read_stream(spark: SparkSession) -> DataStreamReader:
    """`spark.readStream.format("kafka")` that leaves out what aborted transactions wrote.

    It reads in larger pieces than Spark does by itself, and does not wait for more at the end of
    a partition; each of its options can be set again.
    """
    committed = {"kafka.isolation.level": "read_committed"}
    return spark.readStream.format("kafka").options(**committed, **_QUICK)


def source(topic: str = "topic", partition: str = "partition", offset: str = "offset") -> Column:
    """Where a row of a Kafka source came from; selected along, it is told to dead letters."""
    return F.struct(
        F.col(topic).alias("topic"),
        F.col(partition).alias("partition"),
        F.col(offset).alias("offset"),
    ).alias("source")


def guarded(function: Callable[..., Any], returns: DataType | str) -> Callable[..., Column]:
    """A Python function for columns whose exceptions mark a row instead of failing the batch.

    Gives a struct of `result` and `error` (null where all is well):

        parse = sparkonce.guarded(parse_payment, "string")
        rows = (payments.withColumn("parsed", parse("value"))
                .select("key", col("parsed.result").alias("value"),
                        col("parsed.error").alias("dead_letter")))
    """
    result = _parse_datatype_string(returns) if isinstance(returns, str) else returns

    @wraps(function)
    def run(*values: Any) -> tuple[Any, str | None]:
        try:
            return function(*values), None
        except Exception as error:  # noqa: BLE001  # whatever the user's code raises marks its row
            return None, f"{type(error).__name__}: {error}"

    pair = StructType([StructField("result", result), StructField("error", StringType())])
    return F.udf(run, pair)


def deduplicate(frame: DataFrame, keys: list[str], horizon: str, event_time: str) -> DataFrame:
    """Keep one row of each key, in a stream the first, for streams that others write at least once.

    A repeat is recognised for at least as long as `horizon` (an interval, "10 minutes") of
    `event_time`; the memory for keys older than that is given back. In a batch, all are seen.
    """
    if not keys:
        raise ConfigError("deduplicate needs the columns that say what a record is: keys=[…]")
    if not frame.isStreaming:
        return frame.dropDuplicates(keys)
    return frame.withWatermark(event_time, horizon).dropDuplicatesWithinWatermark(keys)
