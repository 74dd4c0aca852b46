"""What the driver takes while a batch gets into a table of Delta: `scripts/bench delta_memory`.

Without Spark: another process stages the rows, as executors do, in four tasks; this one loads and
commits them, in a process of its own for each line. Its peak is printed beside what it took before.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, Field, Schema
from growth import SCHEMA, UPSERT
from memory import peak_mb
from rich.console import Console
from rich.table import Table

from sparkonce.deliver.columns import Columns
from sparkonce.deliver.delta import target
from sparkonce.deliver.delta.stage import DeltaStage
from sparkonce.deliver.store import Part

TASKS = 4
WAYS = ("append", "append, 20 partitions", "append, a constraint", "upsert", "upsert, a constraint")


def rows(first: int, count: int) -> Iterator[pa.RecordBatch]:
    for begin in range(first, first + count, 10_000):
        ids = range(begin, min(begin + 10_000, first + count))
        yield pa.RecordBatch.from_pydict(
            {
                "id": pa.array(ids, pa.int64()),
                "key": [f"k{each % 20}" for each in ids],
                "text": [f"{each * 2654435761 % 2**32:072d}" for each in ids],
            }
        )


def stage(folder: str, partitioned_by: list[str], first: int, count: int) -> None:
    parts = []
    for task in range(TASKS):
        some = count // TASKS
        schema = next(rows(0, 1)).schema
        batches = rows(first + task * some, some)
        name = DeltaStage(folder, tuple(partitioned_by))(task, schema, batches)
        parts.append([task, name, some, 1])
    print(json.dumps(parts))


def drive(way: str, table: int, batch: int, first: int) -> None:
    with tempfile.TemporaryDirectory(prefix="sparkonce-") as folder:
        path = Path(folder, "table")
        by = ["key"] if "partitions" in way else None
        fields = [Field("id", "long"), Field("key", "string"), Field("text", "string")]
        DeltaTable.create(path, Schema(fields), partition_by=by)
        if "constraint" in way:
            DeltaTable(path).alter.add_constraint({"some": "id >= 0"})
        for begin in range(0, table, 500_000):
            other = (
                "import sys, pyarrow as pa, deltalake; sys.path.insert(0, sys.argv[1]); "
                "from delta_memory import rows; deltalake.write_deltalake(sys.argv[2], "
                "pa.Table.from_batches(rows(int(sys.argv[3]), int(sys.argv[4]))), mode='append')"
            )
            here, some = str(Path(__file__).parent), str(min(500_000, table - begin))
            asked = [sys.executable, "-c", other, here, str(path), str(begin), some]
            subprocess.run(asked, check=True)
        options = {"path": str(path), "txnAppId": "p"} | (UPSERT if "upsert" in way else {})
        made = target(options, None)
        columns = Columns.plan(SCHEMA, made.settings, type_of=made.type_of, nested_as_json=False)
        store = made.open_store(made.settings, columns)
        store.prepare()
        epoch = store.take_over().epoch
        staged = store.stage(epoch, 1)
        assert isinstance(staged, DeltaStage)
        given = [staged.folder, list(staged.partitioned_by), first, batch]
        asked = [sys.executable, __file__, "--stage", json.dumps(given)]
        told = json.loads(subprocess.run(asked, check=True, capture_output=True).stdout)
        before_mb, began_s = peak_mb(), time.perf_counter()
        transaction = store.begin(epoch)
        transaction.load([Part(*each) for each in told])
        transaction.commit()
        print(json.dumps([before_mb, peak_mb(), time.perf_counter() - began_s]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--small-batch", type=int, default=10_000)
    parser.add_argument("--drive", help=argparse.SUPPRESS)
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.stage:
        return stage(*json.loads(asked.stage))
    if asked.drive:
        return drive(*json.loads(asked.drive))
    large, small = asked.rows, asked.small_batch
    table = Table("", "rows there", "batch", "before", "peak", "seconds", title="MB of the driver")
    cases = [(way, 0, large, 0) for way in WAYS[:3]]
    for way in WAYS[3:]:
        cases += [(way, large, small, 0), (way, 2 * large, small, 0)]
        cases += [(way, large, large, large // 2)]
    for case in cases:
        command = [sys.executable, __file__, "--drive", json.dumps(case)]
        told = subprocess.run(command, check=True, capture_output=True).stdout
        before, peak, took_s = json.loads(told.splitlines()[-1])
        sizes = [f"{each:,}" for each in case[1:3]]
        table.add_row(case[0], *sizes, f"{before:.0f}", f"{peak:.0f}", f"{took_s:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
