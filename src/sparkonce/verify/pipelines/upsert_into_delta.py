"""Kafka to Spark to a Delta table by upserts; the table is read by delta-rs.

Each record has a row of its own, and another by a key that it shares with others of its partition,
also of former batches: that one is always the newest record's, by the order of the log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from deltalake import DeltaTable
from pyspark.sql import functions as F  # noqa: N812

from sparkonce.verify.contract import Job, Record
from sparkonce.verify.identity import short
from sparkonce.verify.pipelines import into_delta, into_tables, on_spark

NAME = "upsert into Delta"
POINTS = on_spark.ALL_POINTS
SPARK = True
SHARES = True
ORDERED = False
units = on_spark.units
progress = into_delta.progress

_SHARED: Final = 8
"""Keys: fewer than a batch has records, and as many as there are partitions at most, or a multiple
of them, so that each is of one partition."""
_NEWEST: Final = "newest "
_NUMBER: Final = re.compile(r"t\d+-(\d{6})")


def run(job: Job) -> None:
    value = F.col("value").cast("string")
    number = F.regexp_extract(value, _NUMBER.pattern, 1).cast("int")
    newest = F.format_string(f"{_NEWEST}%d", number % _SHARED)
    rows = on_spark.read(on_spark.session(job), job).select(
        F.explode(F.array(value, newest)).alias("id"), "offset", value.alias("value")
    )
    place = {"path": str(into_delta.path(job)), "createTable": "true", "txnAppId": job.name}
    upsert = {"writeMode": "upsert", "keyColumns": "id", "sequenceBy": "offset"}
    on_spark.write_to("delta", rows, job, **place, **upsert)


def collect(job: Job) -> list[Record]:
    path = str(into_delta.path(job))
    if not DeltaTable.is_deltatable(path):
        return []
    found = DeltaTable(path).to_pyarrow_table().to_pylist()
    own = [(each["offset"], each["value"]) for each in found if each["id"] == each["value"]]
    shared = [(each["id"], each["value"]) for each in found if each["id"] != each["value"]]
    return into_tables.records([*(value for _, value in own), *wrong(own, shared)])


def wrong(own: Iterable[tuple[int, str]], shared: Iterable[tuple[str, str]]) -> Iterator[str]:
    """What the shared rows are not as they should be, in words that no record has; of rows of their
    own it needs the offset as well."""
    due = {f"{_NEWEST}{_number(value) % _SHARED}": value for _, value in sorted(own)}
    there: dict[str, str] = {}
    for key, value in shared:
        if key in there:
            yield f"{key}: there twice"
        there[key] = value
    for key in sorted(due | there):
        if there.get(key) != due.get(key):
            yield f"{key}: {short(there.get(key, 'nothing'))}, not {short(due.get(key, 'it'))}"


def _number(value: str) -> int:
    """-1 for what is no identity."""
    found = _NUMBER.match(value)
    return int(found[1]) if found else -1
