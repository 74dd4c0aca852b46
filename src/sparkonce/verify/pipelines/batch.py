"""A batch job: all of the input as one DataFrame, written once under its run id."""

from __future__ import annotations

import sparkonce
from sparkonce.verify.contract import Job
from sparkonce.verify.pipelines import on_spark

GUARANTEES = on_spark.GUARANTEES
POINTS = tuple(point for point in on_spark.ALL_POINTS if point not in ("fence", "spark-commit"))
BATCHED = False
SPARK = True
SHARES = True


def run(job: Job) -> None:
    rows = (
        on_spark.session(job)
        .read.format("kafka")
        .option("kafka.bootstrap.servers", job.bootstrap_servers)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", job.input_topic)
        .load()
        .select("key", "value")
    )
    (
        sparkonce.write(rows)
        .format("kafka")
        .option("kafka.bootstrap.servers", job.bootstrap_servers)
        .option("kafka.transactional.id", job.name)
        .option("topic", job.output_topic)
        .option("guarantee", job.guarantee)
        .option("runId", "verify")
        .options(**{f"kafka.{key}": value for key, value in job.settings.items()})
        .observe(job.observe)
        .save()
    )
