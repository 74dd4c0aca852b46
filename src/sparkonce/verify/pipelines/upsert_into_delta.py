"""Kafka to Spark to a Delta table by upserts; the table is read by delta-rs.

Each record has a row of its own, and another by a key that it shares with records of former
batches: that one is always the newest record's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from deltalake import DeltaTable
from pyspark.sql import functions as F  # noqa: N812

from sparkonce.verify.contract import Job, Record
from sparkonce.verify.pipelines import into_delta, into_tables, on_spark

NAME = "upsert into Delta"
POINTS = on_spark.ALL_POINTS
SPARK = True
SHARES = True
ORDERED = False
units = on_spark.units
progress = into_delta.progress

_SHARED: Final = 12
"""Keys, each of records of one partition: fewer than a batch has records, and as it, not odd."""
_NEWEST: Final = "newest "
_NUMBER: Final = re.compile(r"t\d+-(\d{6})")


def run(job: Job) -> None:
    number = F.regexp_extract("value", _NUMBER.pattern, 1).cast("int")
    newest = F.format_string(f"{_NEWEST}%d", number % _SHARED)
    rows = into_tables.rows(job).select(
        F.explode(F.array("value", newest)).alias("id"), number.alias("number"), "value"
    )
    place = {"path": str(into_delta.path(job)), "createTable": "true", "txnAppId": job.name}
    upsert = {"writeMode": "upsert", "keyColumns": "id", "sequenceBy": "number"}
    on_spark.write_to("delta", rows, job, **place, **upsert)


def collect(job: Job) -> list[Record]:
    path = str(into_delta.path(job))
    if not DeltaTable.is_deltatable(path):
        return []
    found = DeltaTable(path).to_pyarrow_table(columns=["id", "value"]).to_pylist()
    rows = [(each["id"], each["value"]) for each in found]
    own = [value for key, value in rows if not key.startswith(_NEWEST)]
    return into_tables.records([*own, *wrong(own, [row for row in rows if row[0] != row[1]])])


def wrong(own: Iterable[str], shared: Iterable[tuple[str, str]]) -> Iterator[str]:
    """What the shared rows are not as they should be, in words that no record has."""
    due = {f"{_NEWEST}{_number(value) % _SHARED}": value for value in sorted(own, key=_number)}
    there: dict[str, str] = {}
    for key, value in shared:
        if key in there:
            yield f"{key}: there twice"
        there[key] = value
    for key in sorted(due | there):
        if there.get(key) != due.get(key):
            yield f"{key}: {there.get(key)}, not {due.get(key)}"


def _number(value: str) -> int:
    """-1 for what is no identity."""
    found = _NUMBER.match(value)
    return int(found[1]) if found else -1
