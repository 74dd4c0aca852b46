"""The job whose classes are archived: a little of everything that pipelines are made of.

Run by `spark-submit` with a folder for its files; what comes out is thrown away.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, count, struct, to_json, window


def _pass_on(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _collect(batch: DataFrame, _: int) -> None:
    batch.mapInArrow(_pass_on, batch.schema).collect()


def main(folder: str) -> None:
    spark = SparkSession.builder.appName("rehearsal").getOrCreate()
    numbers = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", 10)
        .option("numPartitions", 2)
        .load()
    )
    counted = (
        numbers.withWatermark("timestamp", "1 minute")
        .groupBy(window("timestamp", "1 minute"), (col("value") % 3).alias("key"))
        .agg(count("*").alias("count"), to_json(struct(count("value"))).alias("json"))
    )
    query = (
        counted.writeStream.outputMode("update")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .foreachBatch(_collect)
        .trigger(once=True)
        .start()
    )
    query.awaitTermination()
    rows = spark.range(10).withColumn("key", col("id") % 3)
    rows.write.parquet(f"{folder}/rows")
    again = spark.read.parquet(f"{folder}/rows")
    again.join(rows, "id").repartition(2, "id").sortWithinPartitions("id").collect()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
