"""Kafka to Spark to a Delta table, which is read by going through its log.

In its first life something fails behind each commit: the log's checkpoint, which delta-rs writes
then, can't be written. So the commit has happened, its driver is told that it failed, and in the
meantime another one may have taken over.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Field, Schema
from deltalake.schema import PrimitiveType

from sparkonce.verify import contract
from sparkonce.verify.contract import Job, Record
from sparkonce.verify.pipelines import into_tables, on_spark

NAME = "into Delta"
POINTS = contract.POINTS
GUARANTEES = into_tables.GUARANTEES
SPARK = True
SHARES = True
ORDERED = False
units = on_spark.units

_FIELDS: Final = [Field(name, PrimitiveType("string")) for name in ("key", "value")]
_AFTER_EACH: Final = {"delta.checkpointInterval": "1"}


def run(job: Job) -> None:
    in_the_way = path(job) / "_delta_log" / "_last_checkpoint"
    if not DeltaTable.is_deltatable(str(path(job))):
        DeltaTable.create(path(job), Schema(_FIELDS), mode="ignore", configuration=_AFTER_EACH)
        in_the_way.mkdir()
    elif in_the_way.is_dir():
        in_the_way.rmdir()
    _tell_of_commits(job)
    place = {"path": str(path(job)), "txnAppId": job.name}
    on_spark.write_to("delta", into_tables.rows(job), job, **place)


def collect(job: Job) -> list[Record]:
    """Rows of a file that has gone are lost, as to any other reader."""
    files: set[Path] = set()
    for action in _log(job):
        if "add" in action:
            files.add(path(job) / action["add"]["path"])
        elif "remove" in action:
            files.discard(path(job) / action["remove"]["path"])
    tables = [pq.read_table(each, columns=["value"]) for each in sorted(files) if each.exists()]
    return into_tables.records(value for table in tables for value in table["value"].to_pylist())


def progress(job: Job) -> Mapping[int, int]:
    """The last commit's note, which carries the former's on."""
    notes = [action["commitInfo"]["sparkonce"] for action in _log(job) if _has_note(action)]
    return into_tables.offsets(notes[-1].get("sources") if notes else None, job)


def path(job: Job) -> Path:
    return Path(job.place, "output")


def _has_note(action: dict[str, Any]) -> bool:
    return "sparkonce" in action.get("commitInfo", {})


def _log(job: Job) -> Iterator[dict[str, Any]]:
    """All actions in their order; commits stay beside the log's checkpoints."""
    for commit in sorted(path(job).glob("_delta_log/*.json")):
        for line in commit.read_text().splitlines():
            yield json.loads(line)


# -- a point that only delta-rs comes to ------------------------------------------------------

_watched: dict[Path, Callable[[str], None]] = {}
_watching = threading.Lock()


def _tell_of_commits(job: Job) -> None:
    """`committed`: rows are in the table's log, and delta-rs has not returned, or raised, yet."""
    with _watching:
        _watched[path(job)] = job.observe
        if len(_watched) > 1:
            return
    commit = DeltaTable.create_write_transaction

    def told(
        table: DeltaTable, actions: list[Any], *args: Any, commit_properties: CommitProperties
    ) -> None:
        try:
            commit(table, actions, *args, commit_properties=commit_properties)
        finally:
            note = (commit_properties.custom_metadata or {})["sparkonce"]
            folder = _folder(table)
            if actions and folder in _watched and _has_commit(folder, note["commit"]):
                _watched[folder]("committed")

    DeltaTable.create_write_transaction = told  # type: ignore[method-assign, assignment]


def _folder(table: DeltaTable) -> Path:
    return Path(table.table_uri.removeprefix("file://"))


def _has_commit(folder: Path, name: str) -> bool:
    return any(name in each.read_text() for each in folder.glob("_delta_log/*.json"))
