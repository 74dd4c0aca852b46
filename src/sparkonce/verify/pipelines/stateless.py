"""Kafka to Spark to Kafka, without state: key and value go through, another partition each."""

from __future__ import annotations

from sparkonce.verify.contract import Job
from sparkonce.verify.pipelines import on_spark

GUARANTEES = on_spark.GUARANTEES
POINTS = on_spark.ALL_POINTS
SPARK = True
SHARES = True
BY_KEY = True
units = on_spark.units


def run(job: Job) -> None:
    rows = on_spark.read(on_spark.session(job), job).select("key", "value")
    on_spark.write(rows, job, topic=job.output_topic)
