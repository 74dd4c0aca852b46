"""A table to Kafka, and through Spark with state into another table: two pipelines, one result.

The state is a running sum of random amounts, as in `stateful`; each row has the sum before and
after it, so whether state and table agree can be seen in the table alone.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from sparkonce.verify.contract import Job, Record
from sparkonce.verify.pipelines import from_table, into_postgres, into_tables, on_spark, stateful

NAME = "end to end"
GUARANTEES = ("exactly_once",)
POINTS = on_spark.ALL_POINTS
SERVICES = ("postgres",)
SPARK = True
SHARES = True
ORDERED = False
provide = from_table.provide
identity = stateful.identity
running = stateful.running


def run(job: Job) -> None:
    """One after the other: the second has all its input when it begins."""
    first = replace(
        job, name=f"{job.name}-in", folder=str(Path(job.folder, "in")), output_topics=()
    )
    rows = from_table.read(job).select("key", "value")
    on_spark.write(rows, first, topic=job.input_topic)
    second = replace(job, folder=str(Path(job.folder, "out")))
    sums = stateful.sums(into_tables.rows(second))
    on_spark.write_to("postgres", sums, second, "update", **into_postgres.options(job))


def collect(job: Job) -> list[Record]:
    """A table has no order; the sums of a key have."""
    found = into_postgres.ask(job, f"SELECT key, value FROM {into_postgres.table(job)}")
    ordered = sorted(found, key=lambda row: (row[0], json.loads(row[1])["after"]))
    return [
        Record("the table", 0, number, key.encode(), value.encode())
        for number, (key, value) in enumerate(ordered)
    ]
