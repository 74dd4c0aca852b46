"""A peer: the same DataFrame through Spark's own Kafka sink, which promises at least once."""

from __future__ import annotations

from sparkonce.verify.contract import Job
from sparkonce.verify.pipelines import on_spark

NAME = "Spark's own sink"
GUARANTEES = ("at_least_once",)
SPARK = True
SHARES = True


def run(job: Job) -> None:
    rows = on_spark.read(on_spark.session(job), job).select("key", "value")
    (
        rows.writeStream.format("kafka")
        .option("kafka.bootstrap.servers", job.bootstrap_servers)
        .option("topic", job.output_topic)
        .option("checkpointLocation", job.folder)
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )
