"""Kafka to Spark to a Delta table, which is read by going through its log."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from sparkonce.verify.contract import Job, Record
from sparkonce.verify.pipelines import into_tables, on_spark

NAME = "into Delta"
GUARANTEES = into_tables.GUARANTEES
POINTS = on_spark.ALL_POINTS
SPARK = True
SHARES = True
ORDERED = False
units = on_spark.units


def run(job: Job) -> None:
    place = {"path": str(_path(job)), "createTable": "true", "txnAppId": job.name}
    on_spark.write_to("delta", into_tables.rows(job), job, **place)


def collect(job: Job) -> list[Record]:
    files: set[str] = set()
    for action in _log(job):
        if "add" in action:
            files.add(action["add"]["path"])
        elif "remove" in action:
            files.discard(action["remove"]["path"])
    tables = [pq.read_table(_path(job) / file, columns=["value"]) for file in sorted(files)]
    return into_tables.records(value for table in tables for value in table["value"].to_pylist())


def progress(job: Job) -> Mapping[int, int]:
    """The last commit's note, which carries the former's on."""
    notes = [action["commitInfo"]["sparkonce"] for action in _log(job) if _has_note(action)]
    return into_tables.offsets(notes[-1].get("sources") if notes else None, job)


def _has_note(action: dict[str, Any]) -> bool:
    return "sparkonce" in action.get("commitInfo", {})


def _log(job: Job) -> Iterator[dict[str, Any]]:
    """All actions in their order; a few dozen commits have no checkpoint yet."""
    for commit in sorted(_path(job).glob("_delta_log/*.json")):
        for line in commit.read_text().splitlines():
            yield json.loads(line)


def _path(job: Job) -> Path:
    return Path(job.place, "output")
