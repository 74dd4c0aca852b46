"""Files to Spark to Kafka: Spark's own source, which keeps its list of files in the checkpoint."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from sparkonce.verify.contract import Job, Row
from sparkonce.verify.pipelines import on_spark

NAME = "from files"
GUARANTEES = on_spark.GUARANTEES
POINTS = on_spark.ALL_POINTS
SPARK = True
SHARES = True
ORDERED = False

_FILES = 4


def provide(job: Job, rows: Sequence[Row]) -> None:
    """Some files, each written whole before it has its name."""
    folder = _folder(job)
    folder.mkdir()
    for number in range(_FILES):
        lines = [
            json.dumps({"key": row.key, "value": row.identity}) for row in rows[number::_FILES]
        ]
        draft = folder.parent / f"{number}.draft"
        draft.write_text("\n".join(lines))
        draft.rename(folder / f"{number}.json")


def run(job: Job) -> None:
    rows = (
        on_spark.session(job)
        .readStream.schema("key string, value string")
        .option("maxFilesPerTrigger", _FILES // 2)
        .json(str(_folder(job)))
    )
    on_spark.write(rows, job, topic=job.output_topic)


def _folder(job: Job) -> Path:
    return Path(job.place, "input")
