"""Kafka to Spark to two topics: each record is due in both, and both or none may have it."""

from __future__ import annotations

from pyspark.sql import functions as F  # noqa: N812

from sparkonce.verify.contract import Job
from sparkonce.verify.pipelines import on_spark

GUARANTEES = on_spark.GUARANTEES
POINTS = on_spark.ALL_POINTS
OUTPUTS = 2
SPARK = True
SHARES = True
BY_KEY = True
units = on_spark.units


def run(job: Job) -> None:
    both = F.explode(F.array(*(F.lit(topic) for topic in job.output_topics)))
    rows = on_spark.read(on_spark.session(job), job).select("key", "value", both.alias("topic"))
    on_spark.write(rows, job)
