"""`sparkonce.write_stream(df)`: the verbs of `df.writeStream`, and a StreamingQuery back.

Everything is checked in `start`: settings, schema, cluster, ledger and checkpoint. Then Spark runs
the query, and calls the pipeline for each batch.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import Any, Final, Self

from pyspark import InheritableThread
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.streaming.query import StreamingQuery

from sparkonce.errors import ConfigError
from sparkonce.guarantees import Guarantee
from sparkonce.stream import formats
from sparkonce.stream.attempts import Attempts
from sparkonce.stream.checkpoint import CheckpointFolder
from sparkonce.stream.files import ListedFiles
from sparkonce.stream.history import History
from sparkonce.stream.metrics import MetricsListener
from sparkonce.stream.pipeline import Pipeline
from sparkonce.stream.progress import ProgressListener
from sparkonce.stream.renaming import check_replaces, plainly, started_with
from sparkonce.stream.report import Listener, Listeners, LogListener
from sparkonce.stream.runs import RenewedQuery, Run, await_end, is_one_process
from sparkonce.stream.settings import PipelineSettings
from sparkonce.stream.sources import Reading, reading_of
from sparkonce.stream.spark_version import check_version
from sparkonce.stream.state import StateNotes
from sparkonce.stream.state_by_version import StateByVersion
from sparkonce.stream.state_format import SETTING as STATE_FORMAT
from sparkonce.stream.state_format import (
    check_keeps_the_last,
    kept_batches,
    state_format,
    state_of,
)
from sparkonce.stream.steps import Observer, Sink
from sparkonce.stream.takeover import take_over

_log = logging.getLogger("sparkonce.stream")
_CLOSED: Final = "the query has ended, and what it left open could not be aborted"


def write_stream(frame: DataFrame) -> StreamWriter:
    """`df.writeStream` with a promise: each micro-batch is one transaction of the sink.

    The verbs are Spark's, and so are the options; `start()` returns a plain StreamingQuery (with
    state on a cluster, one that outlives a run: `runs`).
    """
    return StreamWriter(frame)


class Options:
    """What both writers have: options by name, in any case, as Spark takes them."""

    def __init__(self) -> None:
        self._format = formats.find("kafka")
        self._options: dict[str, str] = {}
        self._listeners: list[Listener] = []
        self._observe: Observer | None = None

    def format(self, source: str) -> Self:
        self._format = formats.find(source)
        return self

    def option(self, key: str, value: Any) -> Self:
        self._options = {k: v for k, v in self._options.items() if k.lower() != key.lower()}
        if value is not None:
            self._options[key] = str(value).lower() if isinstance(value, bool) else str(value)
        return self

    def options(self, **options: Any) -> Self:
        for key, value in options.items():
            self.option(key, value)
        return self

    def listener(self, listener: Listener) -> Self:
        """Tell this one of every batch too (`on_batch(report)`)."""
        self._listeners.append(listener)
        return self

    def observe(self, observer: Observer) -> Self:
        """Call this at each step, in the driver and on executors; for tests that inject faults."""
        self._observe = observer
        return self

    def _given(self, name: str) -> str | None:
        return next((v for k, v in self._options.items() if k.lower() == name.lower()), None)

    def _all_listeners(self, *more: Listener) -> Listeners:
        return Listeners([LogListener(), MetricsListener(), History(), *more, *self._listeners])


class StreamWriter(Options):
    """Use `sparkonce.write_stream`."""

    def __init__(self, frame: DataFrame) -> None:
        super().__init__()
        check_classic(frame)
        self._frame = frame
        self._mode: str | None = None
        self._name: str | None = None
        self._trigger: dict[str, Any] = {}

    def outputMode(self, mode: str) -> Self:  # noqa: N802
        self._mode = mode
        return self

    def queryName(self, name: str) -> Self:  # noqa: N802
        self._name = name
        return self

    def trigger(self, **trigger: Any) -> Self:
        """As Spark's: processingTime="1 second", availableNow=True, once=True."""
        if "continuous" in trigger or "realTime" in trigger:
            raise ConfigError(
                "continuous and real-time triggers have no batches to make transactions of: use "
                "processingTime, with a short interval if need be"
            )
        self._trigger = trigger
        return self

    def start(self) -> StreamingQuery:
        """Check everything, settle what the last run left, and start the query."""
        frame, spark = self._frame, self._frame.sparkSession
        if not frame.isStreaming:
            raise ConfigError("this DataFrame is not a stream: use sparkonce.write(df) for it")
        self._name = self._name or self._given("queryName")
        target = self._format(self._options, self._name)
        settings = target.settings
        if settings.run_id is not None:
            raise ConfigError(
                "runId is for batch jobs, a stream is told apart by its checkpoint: leave it out, "
                "or use sparkonce.write(df)"
            )
        reading = reading_of(frame)
        check_session(spark)
        check_version(spark.version)
        _warn(reading, settings)
        location = self._location(spark)
        folder = CheckpointFolder(spark, location)
        notes = StateNotes(folder, kept=kept_batches(spark))
        start_settings = plainly(spark, is_local=folder.is_local)
        must_agree = reading.is_stateful and settings.guarantee is Guarantee.EXACTLY_ONCE
        if must_agree:
            check_keeps_the_last(kept_batches(spark))
            with started_with(spark, start_settings):
                check_replaces(spark, location)
        sink = target.open(frame, reading, self._observe)
        try:
            last = take_over(sink, folder, notes, reading, settings)
            if self._observe:
                self._observe("fence")
            shown = ProgressListener() if self._trigger.get("availableNow") else None
            attempts = Attempts(
                sink,
                name=settings.pipeline,
                guarantee=settings.guarantee,
                attempts_max=settings.attempts_max,
                listener=self._all_listeners(*([shown] if shown else [])),
            )
            state = None
            if reading.is_stateful:
                format_version = state_format(spark, folder)
                start_settings = {**start_settings, STATE_FORMAT: str(format_version)}
                if must_agree or format_version >= 2:
                    state = state_of(spark, folder, notes, format_version)
            run = Run(
                spark.sparkContext,
                settings.pipeline,
                folder.files.root,
                is_one_process=is_one_process(spark.sparkContext),
                is_exact=settings.guarantee is Guarantee.EXACTLY_ONCE,
                remembers_versions=isinstance(state, StateByVersion),
            )
            pipeline = Pipeline(
                sink,
                attempts,
                folder,
                ListedFiles(spark, folder),
                name=settings.pipeline,
                named_by=settings.named_by,
                guarantee=settings.guarantee,
                kafka_sources=[source.is_kafka for source in reading.sources],
                last=last,
                run=run,
                state=state,
            )

            def start() -> StreamingQuery:
                pipeline.ready()
                with started_with(spark, start_settings):
                    return self._start(pipeline, location)

            query = start() if run.is_one_process else RenewedQuery(run, start)
        except BaseException:
            sink.close()
            raise
        _close_with(query, sink, shown)
        return query

    def _start(self, pipeline: Pipeline, location: str) -> StreamingQuery:
        writer = self._frame.writeStream.foreachBatch(pipeline)
        writer = writer.option("checkpointLocation", location)
        if self._mode:
            writer = writer.outputMode(self._mode)
        if self._name:
            writer = writer.queryName(self._name)
        if self._trigger:
            writer = writer.trigger(**self._trigger)
        return writer.start()

    def _location(self, spark: SparkSession) -> str:
        if location := self._given("checkpointLocation"):
            return location
        root = spark.conf.get("spark.sql.streaming.checkpointLocation", None)
        if root and self._name:
            return f"{root}/{self._name}"
        raise ConfigError(
            "checkpointLocation is missing: set .option('checkpointLocation', …), a folder that "
            "outlives the query, of its own for each"
        )


def check_classic(frame: DataFrame) -> None:
    if not isinstance(frame, ClassicDataFrame):
        raise ConfigError(
            "this DataFrame is of Spark Connect. sparkonce runs its transactions in the driver, "
            "and with Connect the driver is on the server: use a classic session, for example "
            "sparkonce.session(name)"
        )


def check_session(spark: SparkSession) -> None:
    if spark.conf.get("spark.speculation", "false") == "true":
        raise ConfigError(
            "spark.speculation=true runs tasks twice at the same time, and what two of them write "
            "in one transaction can't be told apart: set it to false for this application"
        )


def _warn(reading: Reading, settings: PipelineSettings) -> None:
    for source in reading.sources:
        if source.reads_uncommitted and not settings.guarantee.may_repeat:
            _log.warning(
                "%s reads %s with kafka.isolation.level=read_uncommitted, Kafka's default: records "
                "of aborted transactions are read too. Set it to read_committed, or use "
                "sparkonce.read_stream(spark)",
                settings.pipeline,
                source.options.get("subscribe") or "its topics",
            )


def _close_with(query: StreamingQuery, sink: Sink, shown: ProgressListener | None) -> None:
    """Let go of connections when the query ends, however it does."""

    def watch() -> None:
        if isinstance(query, RenewedQuery):
            query.supervise()
        else:
            await_end(query._jsq)

    def close() -> None:
        try:
            sink.close()
        except Exception as error:  # noqa: BLE001 - how the query ended is told already
            _log.warning("%s, which the next start does: %s", _CLOSED, error)

    def wait() -> None:
        with ExitStack() as at_end:  # in reverse, whatever fails
            at_end.callback(close)
            if shown:
                at_end.callback(shown.stop)
            at_end.callback(watch)
            if shown:
                shown.start()

    # It starts new runs, which have the properties (such as the pool) of the thread they came from.
    InheritableThread(wait, name="sparkonce-close", daemon=True).start()
