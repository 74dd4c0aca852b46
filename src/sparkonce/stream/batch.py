"""`sparkonce.write(df)`: a DataFrame written as one transaction, once for each run id.

The run id is kept in a consumer group of its own inside the same transaction; a second run under
the same id finds it there and writes nothing.

Rows that Spark computed twice in part are never decided (`runs`): the DataFrame is planned anew,
and all of it is computed again.
"""

from __future__ import annotations

import logging
import os
import socket
from typing import Any, Final

from pyspark.sql import DataFrame

from sparkonce.errors import ConfigError
from sparkonce.guarantees import Guarantee
from sparkonce.stream.attempts import Attempts, BatchFailed
from sparkonce.stream.ledger import Entry, LedgerError, run_query
from sparkonce.stream.progress import ProgressListener
from sparkonce.stream.runs import Run, RunSpent, is_one_process
from sparkonce.stream.settings import PipelineSettings
from sparkonce.stream.writer import Options, check_classic, check_session

_log = logging.getLogger("sparkonce.stream")
_KEPT: Final = ("ExternalRDD", "InMemoryRelation", "LogicalRDD")
"""Leaves of a plan that Spark computed, or shuffled, outside of it."""


def write(frame: DataFrame) -> BatchWriter:
    """`df.write` with a promise: all rows become visible at once, and once for each `runId`."""
    return BatchWriter(frame)


class BatchWriter(Options):
    """Use `sparkonce.write`."""

    def __init__(self, frame: DataFrame) -> None:
        super().__init__()
        check_classic(frame)
        self._frame = frame

    def save(self) -> None:
        """Write all rows, visible at once; nothing, if the run id was written before."""
        frame = self._frame
        if frame.isStreaming:
            raise ConfigError("this DataFrame is a stream: use sparkonce.write_stream(df) for it")
        target = self._format(self._options, None)
        settings = target.settings
        if settings.run_id is None:
            raise ConfigError(
                "runId is missing: name this run, and use the same name when it is run again "
                "(the day it is for, say); what was written under that name is not written twice"
            )
        check_session(frame.sparkSession)
        context = frame.sparkSession.sparkContext
        run = Run(
            context,
            settings.pipeline,
            f"run {settings.group}",
            is_one_process=is_one_process(context),
            is_exact=settings.guarantee is Guarantee.EXACTLY_ONCE,
        )
        sink = target.open(frame, None, self._observe)
        with ProgressListener() as shown:
            attempts = Attempts(
                sink,
                name=settings.pipeline,
                guarantee=settings.guarantee,
                attempts_max=settings.attempts_max,
                listener=self._all_listeners(shown),
                run_id=settings.run_id,
            )
            try:
                entry = _entry(settings)
                if (before := sink.take_over()) is not None:
                    _check_own(before, settings)
                    _log.info("run %s was written before: %s", settings.run_id, before)
                    attempts.skipped(entry)
                    return
                run.settle_former()
                _run(attempts, frame, entry, run)
            finally:
                sink.close()


class _Rows:
    """What Spark computes for a batch job: rows alone, no state."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def seal(self, entry: Entry) -> Entry:
        self._run.check()
        return entry

    def settle(self, entry: Entry, *, has_computed: bool) -> None:
        self._run.settle(has_computed=has_computed)

    def prepare(self, entry: Entry, *, is_first: bool) -> None:
        """There is no state to remove."""


def _run(attempts: Attempts, frame: DataFrame, entry: Entry, run: Run) -> None:
    """Until rows of one computation are written; a `Run` bounds how often they may not be."""
    while True:
        try:
            with run.batch():
                attempts.run(frame, entry, [], lambda written: not written.targets, _Rows(run))
            return
        except RunSpent as spent:
            if kept := _kept(frame):
                raise BatchFailed(
                    f"{spent.__cause__ or spent}. Nothing was written. A new plan would not "
                    f"compute all of it again, as the DataFrame is made of what Spark keeps "
                    f"({', '.join(kept)}): make it anew, without a cache or an RDD, and save it "
                    "again under the same runId"
                ) from spent
            run.renew()


def _kept(frame: DataFrame) -> list[str]:
    """The parts of the DataFrame that a new plan does not compute anew."""
    plan: Any = frame._jdf.queryExecution().optimizedPlan()
    leaves = plan.collectLeaves()
    names = {leaves.apply(index).nodeName() for index in range(leaves.size())}
    return sorted(name for name in names if any(kind in name for kind in _KEPT))


def _check_own(entry: Entry, settings: PipelineSettings) -> None:
    if entry.query != run_query(str(settings.run_id)):
        raise LedgerError(
            f"the ledger of run {settings.run_id!r}, {settings.group!r}, has {entry} of "
            f"{entry.query}: not this run wrote it, so nobody knows whether the run was written. "
            f"Look at the target; then use another runId, or another {settings.named_by}"
        )


def _entry(settings: PipelineSettings) -> Entry:
    return Entry(
        query=run_query(str(settings.run_id)),
        batch=0,
        number=0,
        guarantee=settings.guarantee.value,
        host=socket.gethostname(),
        pid=os.getpid(),
        checkpoint="a batch job",
        sources=None,
    )
