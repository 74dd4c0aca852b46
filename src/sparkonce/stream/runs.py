"""A query with state: where an attempt that was given up could still be heard of.

Spark names state by its version alone. A task of an attempt that was given up must have ended
before the batch is run again, or it may write its state over that of the next one.

And executors remember the state of a run. Where a batch was computed twice, one of them may
remember the attempt that was given up while another has computed the last; and the next batch takes
what its executor remembers, not what is on disk. A new run remembers nothing. So behind a batch
that was computed twice the run ends, and a new one goes on with the state that is on disk.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from sparkonce.errors import SparkonceError

_log = logging.getLogger("sparkonce.stream")
_LOOK_EVERY_S: Final = 0.005
_TOLD_WITHIN_S: Final = 10.0
_SETTLED_WITHIN_S: Final = 60.0


class RunSpent(SparkonceError):
    """This run must not compute another batch; the query goes on in a new one."""


class Run:
    """What Spark does for the batches of a query, and whether its executors can be trusted to
    remember their state."""

    def __init__(self, context: SparkContext, name: str, *, is_one_process: bool) -> None:
        self._context = context
        self._name = name
        self.is_one_process = is_one_process
        self._tag = ""
        self.is_spent = False

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Around all that Spark does for a batch."""
        if self.is_spent:
            raise RunSpent(f"{self._name!r} goes on in a new run, which reads state from disk")
        self._tag = f"sparkonce-{uuid.uuid4()}"
        self._context.addJobTag(self._tag)
        try:
            yield
        finally:
            self._context.removeJobTag(self._tag)

    def settle(self) -> None:
        """Wait until no task of the batch is running, as far as Spark can tell; between two
        attempts."""
        deadline_s = time.monotonic() + _SETTLED_WITHIN_S
        while running := sum(stage.numActiveTasks() for stage in self._stages() or ()):
            if time.monotonic() > deadline_s:
                raise SparkonceError(
                    f"{running} tasks of an attempt of {self._name!r} that was given up still run "
                    f"after {_SETTLED_WITHIN_S:g} s, and could write their state over that of the "
                    "next. Look for what holds them on their executors; then start the query again"
                )
            time.sleep(_LOOK_EVERY_S)

    def judge(self, attempts: int) -> None:
        """Behind a batch that took so many attempts."""
        if self.is_one_process:
            return  # what it remembers last is what it computed last
        self.is_spent = attempts > 1 or self._ran_again()
        if self.is_spent:
            _log.warning(
                "%s: the last batch was computed more than once, and executors may remember the "
                "state of an attempt that was given up: the query goes on in a new run, which "
                "reads state from disk",
                self._name,
            )

    def renew(self) -> None:
        self.is_spent = False

    def _ran_again(self) -> bool:
        """Whether Spark itself ran a task of the batch again; also if it can't tell any more."""
        stages = self._stages()
        return not stages or any(
            stage.numFailedTasks() or stage.currentAttemptId() for stage in stages
        )

    def _stages(self) -> list[Any] | None:
        """Of all jobs of the batch, which have ended; None if not all is known."""
        context: Any = self._context._jsc.sc()
        tracker = context.statusTracker()
        jobs = [_ended(tracker, job) for job in tracker.getJobIdsForTag(self._tag)]
        if not all(jobs):
            return None
        stages = [tracker.getStageInfo(stage) for job in jobs for stage in job.stageIds()]
        return [each.get() for each in stages] if all(e.isDefined() for e in stages) else None


def _ended(tracker: Any, job: int) -> Any:
    """What is known of a job once its end was told, and with it all that happened before; None if
    it never is: Spark drops what it can't tell in time."""
    deadline_s = time.monotonic() + _TOLD_WITHIN_S
    while (told := tracker.getJobInfo(job)).isDefined() and time.monotonic() < deadline_s:
        if told.get().status().toString() != "RUNNING":
            return told.get()
        time.sleep(_LOOK_EVERY_S)
    return None


def await_end(query: Any) -> None:
    """Of Spark's own query; how it ended, that one tells whoever waits for it."""
    with suppress(PySparkException, Py4JError):
        query.awaitTermination()


class RenewedQuery(StreamingQuery):
    """Spark's handle of a query, whichever run of it is the present one."""

    def __init__(self, run: Run, start: Callable[[], StreamingQuery]) -> None:
        super().__init__(start()._jsq)
        self._run = run
        self._start = start
        self._changing = threading.Lock()
        self._is_stopped = False
        self._over = threading.Event()
        self._failure: Exception | None = None

    def supervise(self) -> None:
        """Wait for the last run to end, and start new ones until then."""
        while True:
            await_end(self._jsq)
            with self._changing:
                if self._is_stopped or not self._run.is_spent or not self._ended_as_spent():
                    break
                self._run.renew()
                try:
                    self._jsq = self._start()._jsq
                except Exception as error:  # noqa: BLE001 - told to whoever waits for the query
                    self._failure = error
                    break
        self._over.set()

    def _ended_as_spent(self) -> bool:
        failure = super().exception()
        return failure is not None and RunSpent.__name__ in str(failure)

    @property
    def isActive(self) -> bool:  # noqa: N802
        return not self._over.is_set()

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802
        if timeout is not None and timeout > 0 and not self._over.wait(timeout):
            return False
        if timeout is None:
            self._over.wait()
        if self._failure is not None:
            raise self._failure
        return super().awaitTermination(timeout)

    def processAllAvailable(self) -> None:  # noqa: N802
        while True:
            run = self._jsq
            try:
                return super().processAllAvailable()
            except StreamingQueryException:
                # The present run has ended; perhaps there is another.
                while self._jsq is run and not self._over.wait(_LOOK_EVERY_S):
                    pass
                if self._jsq is run:
                    raise

    def stop(self) -> None:
        with self._changing:
            self._is_stopped = True
            super().stop()
        self._over.wait()

    def exception(self) -> StreamingQueryException | None:
        return super().exception() if self._over.is_set() else None
