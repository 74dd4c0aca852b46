"""Pipelines for tests: one description, run in this process or in one that is to be killed.

`python tests/jobs.py <json>` runs jobs side by side in a process of its own. Each goes to its end,
or to the point where it is to be held: so one kill -9 finds many of them at as many points.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.state import GroupState

import sparkonce
from sparkonce.stream.writer import StreamWriter
from sparkonce.verify.child import interpreted_variable
from sparkonce.verify.disturb import executor_of


@dataclass(frozen=True, kw_only=True)
class Job:
    servers: str
    source: str
    target: str
    name: str
    checkpoint: str
    kind: str = "keyless"
    guarantee: str = "exactly_once"
    per_batch: int = 400
    options: dict[str, str] = field(default_factory=dict)
    conf: dict[str, str] = field(default_factory=dict)
    context: dict[str, str] = field(default_factory=dict)
    """Settings of the whole application, as the first of the jobs has them."""
    master: str = ""
    service: str = ""
    """A file that plays an outside service: what it says may change between attempts."""
    hold_at: str = ""
    hold_time: int = 1
    """The how many-th time that the point is reached is the last."""

    def start(
        self, spark: SparkSession, observe: Callable[[str], None] | None = None
    ) -> StreamingQuery:
        frame, mode = self.frame(spark)
        writer = (
            self.writer(frame, mode)
            .option("topic", None if self.kind == "routed" else self.target)
            .option("guarantee", self.guarantee)
            .options(**self.options)
            .trigger(availableNow=True)
        )
        if observe is not None:
            writer.observe(observe)
        return writer.start()

    def writer(self, frame: DataFrame, mode: str) -> StreamWriter:
        """Of any frame, under the job's name."""
        return (
            sparkonce.write_stream(frame)
            .format("kafka")
            .outputMode(mode)
            .option("kafka.bootstrap.servers", self.servers)
            .option("kafka.transactional.id", self.name)
            .option("checkpointLocation", self.checkpoint)
        )

    def run(self, spark: SparkSession, observe: Callable[[str], None] | None = None) -> None:
        own = spark.newSession()
        for key, value in ({"spark.sql.shuffle.partitions": "2"} | self.conf).items():
            own.conf.set(key, value)
        self.start(own, observe).awaitTermination()

    def read(self, spark: SparkSession, topics: str | None = None) -> DataFrame:
        return (
            sparkonce.read_stream(spark)
            .option("kafka.bootstrap.servers", self.servers)
            .option("subscribe", topics or self.source)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", self.per_batch)
            .load()
        )

    def frame(self, spark: SparkSession) -> tuple[DataFrame, str]:
        rows = self.read(spark)
        if self.kind == "keyless":
            return rows.select("value"), "append"
        if self.kind == "keyed":
            digit = F.expr("substr(cast(value as string), -1)")
            return rows.select(digit.alias("key"), "value"), "append"
        if self.kind == "kept":
            return rows.select("key", "value", "partition"), "append"
        if self.kind == "counting":
            return _counted(rows, F.lit(1)), "update"
        if self.kind == "gated":
            return _counted(rows, _asks(self.service)("value")), "update"
        if self.kind == "weighed":
            return _weighed(rows, self.service), "update"
        if self.kind == "windowed":
            return _windowed(rows), "append"
        if self.kind == "joined":
            left, right = rows.select("value"), self.read(spark).select("value")
            return left.join(right, "value").select("value"), "append"
        if self.kind == "processed":
            return _processed(rows), "update"
        if self.kind == "routed":
            digit = F.expr("cast(substr(cast(value as string), -1) as int)")
            topic = F.when(digit < 5, self.target).otherwise(f"{self.target}-2")
            return rows.select("key", "value", topic.alias("topic")), "append"
        raise ValueError(self.kind)

    @property
    def held(self) -> Path:
        """Is there once the job is held."""
        return Path(f"{self.checkpoint}.held")

    @property
    def all_held(self) -> list[int]:
        """The processes to kill, where several tasks have come to the point."""
        beside = Path(self.checkpoint)
        return [int(each.suffix[1:]) for each in beside.parent.glob(f"{beside.name}.held.*")]

    def release(self) -> None:
        """Let it go on."""
        Path(f"{self.checkpoint}.released").touch()

    @property
    def log(self) -> Path:
        """What its process said, if it was the first of them."""
        return Path(f"{self.checkpoint}.log")


@contextmanager
def apart(jobs: Sequence[Job], timeout_s: float = 110) -> Iterator[subprocess.Popen[str]]:
    """The jobs in a process of their own; inside the block, all are at their ends or held."""
    folder = Path(__file__).parent
    log = jobs[0].log
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, __file__, json.dumps([asdict(job) for job in jobs])],
            env=os.environ
            | interpreted_variable()
            | {"PYTHONPATH": f"{folder}:{folder.parent / 'src'}"},
            stdout=output,
            stderr=output,
            text=True,
        )
    try:
        deadline_s = time.monotonic() + timeout_s
        while not all(job.held.exists() for job in jobs if job.hold_at):
            late = time.monotonic() > deadline_s
            assert process.poll() is None and not late, log.read_text()[-5000:]
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait()


def _counted(rows: DataFrame, amount: object) -> DataFrame:
    """A running sum for each key: what is written is what the state is."""
    sums = rows.groupBy(F.col("key")).agg(F.sum(amount).alias("sum"))  # type: ignore[arg-type]
    return sums.select("key", F.col("sum").cast("string").alias("value"))


def _weighed(rows: DataFrame, service: str) -> DataFrame:
    """As `_counted`, but the service is asked behind the shuffle: a second attempt in the same
    process finds what was shuffled, and would not ask before it again."""

    def add(
        key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState
    ) -> Iterator[pd.DataFrame]:
        count = sum(len(frame) for frame in frames)
        total = (state.get[0] if state.exists else 0) + count * int(Path(service).read_text())
        state.update((total,))
        yield pd.DataFrame({"key": [key[0]], "value": [str(total)]})

    keyed = rows.select(F.col("key").cast("string").alias("key"))
    return keyed.groupBy("key").applyInPandasWithState(
        add, "key string, value string", "sum long", "update", "NoTimeout"
    )


def _windowed(rows: DataFrame) -> DataFrame:
    """The value is a time in seconds; windows of a hundred, told once they are complete."""
    timed = rows.select(F.timestamp_seconds(F.col("value").cast("string").cast("int")).alias("at"))
    counts = timed.withWatermark("at", "50 seconds").groupBy(F.window("at", "100 seconds")).count()
    start = F.unix_seconds("window.start").cast("string")
    return counts.select(start.alias("key"), F.col("count").cast("string").alias("value"))


class _Sums(StatefulProcessor):
    """Arbitrary state: how many values a key has had."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._sum = handle.getValueState("sum", "sum long")

    def handleInputRows(  # noqa: N802
        self, key: tuple[Any, ...], rows: Iterator[Row], timer_values: Any
    ) -> Iterator[Row]:
        before = self._sum.get()
        total = (before[0] if before else 0) + sum(1 for _ in rows)
        self._sum.update((total,))
        yield Row(key=key[0], value=str(total))

    def close(self) -> None:
        pass


def _processed(rows: DataFrame) -> DataFrame:
    by_key = rows.select(F.col("key").cast("string").alias("key"), "value").groupBy("key")
    return by_key.transformWithState(_Sums(), "key string, value string", "Update", "none")


def _asks(service: str) -> Callable[..., object]:
    """An outside service: it answers whatever stands in its file at that moment."""

    def answer(value):  # type: ignore[no-untyped-def]  # hints would choose the kind of UDF
        return int(Path(service).read_text())

    return F.udf(answer, "int")


class HoldAt:
    """Stops the job the n-th time that a point is reached, until it is released or killed.

    Points on executors are in other processes: there it is the first one after that many
    transactions were opened.
    """

    def __init__(self, job: Job) -> None:
        self._point, self._time = job.hold_at, job.hold_time
        self._driver = os.getpid()
        self._held = job.held
        self._armed = Path(f"{job.checkpoint}.armed")
        self._released = Path(f"{job.checkpoint}.released")
        self._seen = 0

    def __call__(self, point: str) -> None:
        if os.getpid() != self._driver:
            if point == self._point and self._armed.exists():
                self._hold(executor_of(os.getpid()))
            return
        counted = "open" if self._point.startswith("produce") else self._point
        if point == counted:
            self._seen += 1
            if self._seen == self._time:
                if counted == self._point:
                    self._hold(self._driver)
                self._armed.touch()

    def _hold(self, victim: int) -> None:
        Path(f"{self._held}.{victim}").touch()
        draft = self._held.with_suffix(f".{os.getpid()}")
        draft.write_text(str(victim))
        draft.rename(self._held)
        while Path(f"/proc/{self._driver}").exists():
            if self._released.exists():
                return
            time.sleep(0.1)
        os._exit(1)


def main() -> None:
    jobs = [Job(**fields) for fields in json.loads(sys.argv[1])]
    # A job that is held on executors keeps its tasks for itself; the others share two.
    held = sum(job.hold_at.startswith("produce") for job in jobs)
    master = jobs[0].master or f"local[{2 + 4 * held}]"
    spark = sparkonce.session("jobs", master, jobs[0].context)
    with ThreadPoolExecutor(len(jobs)) as threads:
        list(threads.map(lambda job: job.run(spark, HoldAt(job) if job.hold_at else None), jobs))
    spark.stop()


if __name__ == "__main__":
    main()
