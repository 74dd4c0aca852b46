"""What `deliver` runs: rows in a topic, tables to fill from it, and all who do that.

Contestants are functions from a DataFrame and a turn to a query that has begun; all read the same
rows. `run_stream` runs one to its end and takes its speed, `check` counts what came.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from contest import Reports, handing_over, reader
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import sparkonce
from sparkonce import Producer
from sparkonce.local import LocalPostgres

TOPIC, PARTITIONS = "source", 8
WARM_UP = 2
KEYS, TEXT_BYTES = 10_000, 72
# 8 B of key; 10 B of id, 10 B of amount and the text are the value.
PARSED = (
    "cast(substring(value, 1, 10) as bigint) as id",
    "key",
    "cast(substring(value, 11, 10) as decimal(12, 2)) as amount",
    "substring(value, 21) as text",
)
COLUMNS = "(id bigint, key text, amount numeric(12, 2), text text)"
TALLY = "SELECT count(*), coalesce(sum(id), 0) FROM"

EXACTLY = "PostgreSQL, exactly once"
AT_LEAST = "PostgreSQL, at least once"
JDBC = "PostgreSQL, Spark's JDBC"
JDBC_REWRITTEN = "PostgreSQL, rewriting JDBC"
JDBC_READ_ALIKE = "PostgreSQL, JDBC, our reader"
DUCKDB = "DuckDB, exactly once"
BULK = "(DuckDB's own load)"
READ = "(read only)"
HANDED = "(handed to Python only)"


@dataclass(frozen=True, slots=True)
class Turn:
    """One table to fill, and whatever is made beside it."""

    number: int
    folder: Path
    postgres: LocalPostgres
    reports: Reports = field(default_factory=Reports)

    @property
    def name(self) -> str:
        return f"target_{self.number}"

    @property
    def file(self) -> str:
        return str(self.folder / "target.duckdb")

    def options(self, kind: str) -> dict[str, str]:
        where = {"url": self.postgres.url} if kind == "postgres" else {"path": self.file}
        checkpoint = str(self.folder / "checkpoint")
        named = {"dbtable": self.name, "pipeline": self.name}
        return {**where, **named, "checkpointLocation": checkpoint}


Contestant = Callable[[DataFrame, Turn], StreamingQuery]


@contextmanager
def new_turn(number: int, postgres: LocalPostgres) -> Iterator[Turn]:
    """Tables of all kinds, empty; the server has nothing of earlier turns left to write."""
    with tempfile.TemporaryDirectory(prefix="sparkonce-bench-") as folder:
        turn = Turn(number, Path(folder), postgres)
        with duckdb.connect(turn.file) as file:
            file.execute(f"CREATE TABLE {turn.name} {COLUMNS}")
        with psycopg.connect(postgres.url, autocommit=True) as server:
            server.execute(f"CREATE TABLE {turn.name} {COLUMNS}")
            server.execute("CHECKPOINT")
            yield turn
            server.execute(f"DROP TABLE {turn.name}")


def fill(servers: str, count: int, per_file: int, folder: Path) -> None:
    """Into the topic, evenly over its partitions, and into Parquet as sparkonce stages it."""
    with Producer({"bootstrap.servers": servers}) as producer:
        for first in range(0, count, per_file):
            ids = range(first, min(first + per_file, count))
            noise = os.urandom(len(ids) * TEXT_BYTES // 2).hex()
            texts = [noise[at : at + TEXT_BYTES] for at in range(0, len(noise), TEXT_BYTES)]
            keys = [f"k{number * 7919 % KEYS:07}" for number in ids]
            amounts = [f"{number * 104_729 % 10**9 / 100:010.2f}" for number in ids]
            values = [f"{a:010}{b}{c}" for a, b, c in zip(ids, amounts, texts, strict=True)]
            partitions = pa.array([number % PARTITIONS for number in ids], pa.int32())
            letters = {"key": keys, "value": values, "partition": partitions}
            producer.produce_arrow(TOPIC, pa.table(letters))
            rows = {
                "id": pa.array(ids, pa.int64()),
                "key": keys,
                "amount": pa.array(amounts).cast(pa.decimal128(12, 2)),
                "text": texts,
            }
            path = folder / f"{first:012}.parquet"
            pq.write_table(pa.table(rows), path, compression="lz4", use_dictionary=False)


def frame(contestant: str, spark: SparkSession, servers: str, per_batch: int) -> DataFrame:
    return (
        reader(spark, as_spark_comes=contestant in (JDBC, JDBC_REWRITTEN))
        .option("kafka.bootstrap.servers", servers)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", per_batch)
        .load()
        .selectExpr("cast(key as string) as key", "cast(value as string) as value")
        .selectExpr(*PARSED)
    )


def by_sparkonce(kind: str, guarantee: str) -> Contestant:
    def start(rows: DataFrame, turn: Turn) -> StreamingQuery:
        writer = sparkonce.write_stream(rows).format(kind).options(**turn.options(kind))
        writer = writer.option("guarantee", guarantee).listener(turn.reports)
        return writer.trigger(availableNow=True).start()

    return start


def by_batch(write: Callable[[DataFrame, Turn], None]) -> Contestant:
    def start(rows: DataFrame, turn: Turn) -> StreamingQuery:
        return (
            rows.writeStream.foreachBatch(lambda batch, _: write(batch, turn))
            .option("checkpointLocation", str(turn.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    return start


def by_jdbc(more: str) -> Contestant:
    def write(batch: DataFrame, turn: Turn) -> None:
        (
            batch.write.format("jdbc")
            .option("url", turn.postgres.jdbc_url + more)
            .option("driver", "org.postgresql.Driver")
            .option("dbtable", turn.name)
            .mode("append")
            .save()
        )

    return by_batch(write)


hand_over = handing_over(row_bytes=100)

STREAMS = {
    EXACTLY: by_sparkonce("postgres", "exactly_once"),
    AT_LEAST: by_sparkonce("postgres", "at_least_once"),
    JDBC: by_jdbc(""),
    JDBC_REWRITTEN: by_jdbc("&reWriteBatchedInserts=true"),
    JDBC_READ_ALIKE: by_jdbc(""),
    DUCKDB: by_sparkonce("duckdb", "exactly_once"),
    READ: by_batch(lambda batch, _: batch.write.format("noop").mode("overwrite").save()),
    HANDED: by_batch(lambda batch, _: hand_over(batch)),
}


def run_stream(contestant: str, rows: DataFrame, turn: Turn, count: int) -> float:
    query = STREAMS[contestant](rows, turn)
    query.awaitTermination()
    for thread in threading.enumerate():
        if thread.name == "sparkonce-close":  # it lets go of connections, and of the folder
            thread.join()
    batches = [each for each in query.recentProgress if each["numInputRows"]]
    if sum(each["numInputRows"] for each in batches) != count:
        raise SystemExit(f"{contestant}: Spark did not read each row once, or tells too little")
    return statistics.median(
        each["numInputRows"] / each["durationMs"]["triggerExecution"] * 1000
        for each in batches[WARM_UP:]
    )


def run_bulk(files: Path, turn: Turn, count: int) -> float:
    started_s = time.perf_counter()
    with duckdb.connect(turn.file) as file:
        source = f"read_parquet('{files}/*.parquet')"
        file.execute(f"INSERT INTO {turn.name} SELECT id, key, amount, text FROM {source}")
    return count / (time.perf_counter() - started_s)


def check(contestant: str, turn: Turn, count: int) -> None:
    with psycopg.connect(turn.postgres.url) as server:
        in_postgres = server.execute(f"{TALLY} {turn.name}").fetchone()
    with duckdb.connect(turn.file) as file:
        in_duckdb = file.execute(f"{TALLY} {turn.name}").fetchone()
    whole, none = (count, count * (count - 1) // 2), (0, 0)
    expected = tuple(whole if each in contestant else none for each in ("PostgreSQL", "DuckDB"))
    if (in_postgres, in_duckdb) != expected:
        raise SystemExit(
            f"{contestant}: rows and sum of ids are {in_postgres} in PostgreSQL and {in_duckdb} in "
            f"DuckDB, and should be {expected[0]} and {expected[1]}: a defect, not a figure"
        )
