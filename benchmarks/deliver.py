"""Kafka to databases through Spark: sparkonce beside Spark's own JDBC sink and DuckDB's bulk load.

    scripts/bench deliver [--rounds 3] [--warm-up 3] [--rows 1000000] [--batch 100000]
    scripts/bench deliver --memory [--batch 100000]
    scripts/bench deliver --growth [--rounds 3]

One run, one broker, one PostgreSQL, one Spark session, the same rows of 100 B (an id, a key, an
amount, a text) out of the same topic, into a fresh table each turn. Contestants: sparkonce into
PostgreSQL, exactly once and at least once; Spark's own JDBC sink (at least once) as it is, with its
driver's reWriteBatchedInserts, and behind `sparkonce.read_stream`, by which sparkonce's own rows
are read; sparkonce into DuckDB, exactly once. Three lines are no contestants: the same rows read so
and thrown away, or handed to Python and thrown away there, and DuckDB's own load of them from
Parquet, in one statement and without Spark. A turn's speed is that of its median batch, start to
end as Spark itself reports it; rounds before the first are not counted, until the JVM has compiled
what it runs. Afterwards the table is asked for its rows: a wrong number is an error. The order
changes from round to round; what counts are the ratios. Goals are printed, not enforced. "write +
commit" are sparkonce's own steps of a batch: exactly once loads in the second of them, at least
once in the first.

With --memory: the peak of the driver's Python process, one process for each figure, while the same
rows go through in batches and in batches ten times as large.

With --growth: what a batch costs as tables grow, to write into and to read from, and as rows are
bad; `growth` says how.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import growth
from deliveries import (
    AT_LEAST,
    BULK,
    DUCKDB,
    EXACTLY,
    HANDED,
    JDBC,
    JDBC_READ_ALIKE,
    JDBC_REWRITTEN,
    PARTITIONS,
    READ,
    STREAMS,
    TOPIC,
    WARM_UP,
    Turn,
    check,
    fill,
    frame,
    new_turn,
    run_bulk,
    run_stream,
)
from memory import peak_mb
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

import sparkonce
from sparkonce.local import LocalKafka, LocalPostgres
from sparkonce.local.jars import jdbc_jars
from sparkonce.stream.report import BatchReport

LARGER = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm-up", type=int, default=3, help="rounds before the first")
    parser.add_argument("--rows", type=int, default=1_000_000, help="in the topic, of 100 B each")
    parser.add_argument("--batch", type=int, default=100_000, help="rows of a micro-batch")
    parser.add_argument("--memory", action="store_true", help="the driver's peak, no speeds")
    parser.add_argument("--growth", action="store_true", help="costs by table size and bad rows")
    asked = parser.parse_args()
    if asked.growth:
        growth.compare(asked.rounds)
        return
    if not asked.memory and asked.rows <= WARM_UP * asked.batch:
        parser.error(f"the first {WARM_UP} batches are not counted: ask for more rows than theirs")
    count = 2 * LARGER * asked.batch if asked.memory else asked.rows
    os.environ["SPARKONCE_HISTORY"] = ""
    with (
        LocalKafka(heap_mb=1024) as kafka,
        LocalPostgres() as postgres,
        tempfile.TemporaryDirectory(prefix="sparkonce-bench-") as files,
    ):
        kafka.create_topic(TOPIC, PARTITIONS)
        fill(kafka.bootstrap_servers, count, asked.batch, Path(files))
        if asked.memory:
            compare_memory(kafka.bootstrap_servers, postgres, asked.batch, count)
        else:
            compare_speed(kafka.bootstrap_servers, postgres, Path(files), count, asked)
        kafka.delete_topic(TOPIC)


def compare_speed(
    servers: str, postgres: LocalPostgres, files: Path, count: int, asked: argparse.Namespace
) -> None:
    console = Console()
    spark = bench_session()
    speeds: dict[str, list[float]] = {name: [] for name in (*STREAMS, BULK)}
    reports: dict[str, list[BatchReport]] = {}
    turns = 0
    for number in range(-asked.warm_up, asked.rounds):
        at = number % len(speeds)
        order = [*speeds][at:] + [*speeds][:at]
        for contestant in order if number % 2 == 0 else reversed(order):
            turns += 1
            with new_turn(turns, postgres) as turn:
                if contestant == BULK:
                    speed = run_bulk(files, turn, count)
                else:
                    rows = frame(contestant, spark, servers, asked.batch)
                    speed = run_stream(contestant, rows, turn, count)
                check(contestant, turn, count)
            note = "warm-up" if number < 0 else f"round {number + 1}"
            console.print(f"{note}, {contestant}: {speed:,.0f} rows/s", highlight=False)
            if number >= 0:
                speeds[contestant].append(speed)
                reports.setdefault(contestant, []).extend(turn.reports.all[WARM_UP:])
    spark.stop()
    show(console, speeds, reports, f"{count:,} rows of 100 B in batches of {asked.batch:,}")


def bench_session() -> SparkSession:
    settings = {
        "spark.driver.memory": "4g",
        "spark.jars": ",".join(jar.as_uri() for jar in jdbc_jars()),
        "spark.sql.streaming.numRecentProgressUpdates": "100000",
    }
    spark = sparkonce.session("bench", "local[2]", settings)
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def show(
    console: Console,
    speeds: dict[str, list[float]],
    reports: dict[str, list[BatchReport]],
    title: str,
) -> None:
    table = Table(title=title, title_justify="left")
    for column in ("into", "rows/s (lowest to highest)", "write + commit"):
        table.add_column(column, justify="left" if column == "into" else "right")
    for contestant, found in speeds.items():
        told = reports[contestant]
        steps = ([each.write_ms for each in told], [each.transaction_ms for each in told])
        spent = " + ".join(f"{statistics.median(step):,.0f}" for step in steps if step)
        table.add_row(contestant, _spread(found, ",.0f"), f"{spent} ms" if spent else "")
    console.print(table)
    goals = Table(title="round by round", title_justify="left")
    for column in ("", "median (lowest to highest)", "goal"):
        goals.add_column(column, justify="right" if column else "left")
    for what, ours, theirs, form, goal in (
        ("at least once / JDBC", AT_LEAST, JDBC, ".2f", "at least 3"),
        ("at least once / rewriting", AT_LEAST, JDBC_REWRITTEN, ".2f", ""),
        ("at least once / JDBC, read alike", AT_LEAST, JDBC_READ_ALIKE, ".2f", ""),
        ("exactly once / JDBC", EXACTLY, JDBC, ".2f", ""),
        ("read only / JDBC", READ, JDBC, ".2f", "a ceiling"),
        ("handed to Python only / JDBC", HANDED, JDBC, ".2f", "a ceiling"),
        # A batch's time is the inverse of its speed.
        ("time, exactly / at least", AT_LEAST, EXACTLY, ".3f", "at most 1.1"),
        ("DuckDB / its own load", DUCKDB, BULK, ".2f", "told"),
    ):
        ratios = [a / b for a, b in zip(speeds[ours], speeds[theirs], strict=True)]
        goals.add_row(what, _spread(ratios, form), goal)
    goals.add_row("DuckDB, rows/s", _spread(speeds[DUCKDB], ",.0f"), "at least 300,000")
    console.print(goals)


def _spread(values: list[float], form: str) -> str:
    middle, least, most = (format(f(values), form) for f in (statistics.median, min, max))
    return f"{middle} ({least} to {most})"


# -- memory of the driver -----------------------------------------------------------------------


def compare_memory(servers: str, postgres: LocalPostgres, batch: int, count: int) -> None:
    console = Console()
    title = f"peak of the driver's Python process, {count:,} rows of 100 B in all"
    table = Table(title=title, title_justify="left")
    for column in ("into", "rows a batch", "at first", "peak", "if larger"):
        table.add_column(column, justify="left" if column == "into" else "right")
    turns = 0
    for contestant in (EXACTLY, DUCKDB):
        smaller_mb = 0.0
        for per_batch in (batch, LARGER * batch):
            turns += 1
            with new_turn(turns, postgres) as turn:
                told = _in_child(contestant, servers, turn, per_batch)
                check(contestant, turn, count)
            more = f"{told['peak_mb'] - smaller_mb:+.0f} MB" if smaller_mb else ""
            smaller_mb = told["peak_mb"]
            figures = (f"{per_batch:,}", f"{told['idle_mb']:.0f} MB", f"{told['peak_mb']:.0f} MB")
            table.add_row(contestant, *figures, more)
            console.print(f"{contestant}, batches of {per_batch:,}: {figures[2]}", highlight=False)
    console.print(table)
    console.print("DuckDB runs in that process: its peak has the database's own buffers in it.")


def _in_child(contestant: str, servers: str, turn: Turn, per_batch: int) -> dict[str, float]:
    kind = "duckdb" if contestant == DUCKDB else "postgres"
    job = {"kind": kind, "options": turn.options(kind), "servers": servers, "per_batch": per_batch}
    done = subprocess.run(
        [sys.executable, __file__, "--child"],
        input=json.dumps(job),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def child() -> None:
    job = json.loads(sys.stdin.read())
    spark = bench_session()
    rows = frame(EXACTLY, spark, job["servers"], job["per_batch"])
    writer = sparkonce.write_stream(rows).format(job["kind"]).options(**job["options"])
    idle_mb = peak_mb()
    writer.trigger(availableNow=True).start().awaitTermination()
    print(json.dumps({"idle_mb": idle_mb, "peak_mb": peak_mb()}))
    spark.stop()


if __name__ == "__main__":
    if sys.argv[1:] == ["--child"]:
        child()
    else:
        started = time.monotonic()
        main()
        print(f"{time.monotonic() - started:.0f} s; {Path(__file__).name}")
