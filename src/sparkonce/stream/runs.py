"""What Spark runs for the batches of a query, and when a run of the query must end.

A batch job is a query of one batch: a new run of it is a new plan of its DataFrame.

Spark calls a run what is between a start and an end of a query; a new one plans anew and remembers
nothing. Three things of an attempt that was given up can reach the next one:

- Its tasks. Where Spark names state by its version alone, one that still runs may write its state
  over that of the next attempt. So a batch is run again only when none is left.
- What executors remember. Where Spark names state by its version alone, one may remember the
  attempt that was given up while another has computed the last. Behind a batch that was computed
  twice the run ends.
- What was shuffled. Of a stage that was half done when an executor died, Spark keeps what is there
  and computes the rest again, from rows that may be others than before: some rows would be there
  twice, or not at all. Then the run ends before the decision. With adaptive execution each shuffle
  is a job of its own, and of a stream's batch they are over before the batch is handed over.

Within one process no executor can be lost, nor remember what another has not seen.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from sparkonce.errors import SparkonceError

_log = logging.getLogger("sparkonce.stream")
_LOOK_EVERY_S: Final = 0.005
_TOLD_WITHIN_S: Final = 10.0
_SETTLED_WITHIN_S: Final = 60.0
_SPENT_MAX: Final = 3
_TAGS: Final = "spark.job.tags"
_OF_A_STREAM: Final = "sql.streaming.queryId"
_GROUP: Final = "spark.jobGroup.id"
_DESCRIPTION: Final = "spark.job.description"


class RunSpent(SparkonceError):
    """This run must not compute another batch; the query goes on in a new one."""


class StillRunning(SparkonceError):
    """Tasks of an attempt that was given up don't end."""


class _Forgotten(SparkonceError):
    """Spark does not tell what became of a part of the attempt."""


def is_one_process(context: SparkContext) -> bool:
    """Whether there is no executor but the driver."""
    master = context.master or ""
    return master.startswith("local") and not master.startswith("local-cluster")


class Run:
    """What Spark does for the batches of a query, and whether it can be trusted to go on."""

    def __init__(
        self,
        context: SparkContext,
        name: str,
        place: str,
        *,
        is_one_process: bool,
        is_exact: bool = True,
        remembers_versions: bool = False,
    ) -> None:
        """`place`: where the query's checkpoint is, always spelled the same; of a batch job, which
        run it is. `is_exact`: nothing may be repeated or lost. `remembers_versions`: there is
        state, and executors remember it by version alone."""
        self._context = context
        self._name = name
        self._remembers_versions = remembers_versions
        self._is_exact = is_exact
        self.is_one_process = is_one_process
        # Known to all queries with this checkpoint that this process has had.
        self._query_tag = f"sparkonce-{hashlib.sha256(place.encode()).hexdigest()[:16]}"
        self._batch_tag = ""
        self._given_up: set[int] = set()
        self._shuffled: set[int] = set()
        """By the attempts at this batch that were given up: RDDs, by their ids."""
        self._jobs_before = 0
        self.is_spent = False
        self._spent_in_a_row = 0

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Around all that Spark does for a batch."""
        if self.is_spent:
            raise RunSpent(f"{self._name!r} goes on in a new run")
        self._batch_tag = f"sparkonce-{uuid.uuid4()}"
        self._given_up, self._shuffled = set(), set()
        self._jobs_before = self._jobs_ever()
        tags = (self._query_tag, self._batch_tag)
        for tag in tags:
            self._context.addJobTag(tag)
        try:
            yield
        finally:
            for tag in tags:
                self._context.removeJobTag(tag)

    def settle_former(self) -> None:
        """Before a run: wait until no task of a former one is left in this process's cluster."""
        if self._is_exact:
            self._await_tasks(self._query_tag)

    def settle(self, *, has_computed: bool = True) -> None:
        """Between two attempts: wait until no task of the former is left. `has_computed`: the
        former came to where Spark is asked for rows; before that, no job can be missing."""
        if not self._is_exact:
            return
        self._await_tasks(self._batch_tag)
        if self.is_one_process or not has_computed:
            return
        jobs = self._jobs_or_spend()
        if _is_shuffled_twice(jobs) and self._ran_again_or_spend(jobs):
            self._spend(
                "an executor was lost while rows were shuffled twice, and what is left of the "
                "shuffles may be of two computations"
            )
            raise self._spent()
        self._given_up |= {job.jobId() for job in jobs}
        self._jobs_before = self._jobs_ever()

    def check(self) -> None:
        """Before the decision: whether all rows are of one computation."""
        if self.is_one_process or not self._is_exact:
            return
        jobs = self._jobs_or_spend()
        if all(len(job.stageIds()) < 2 for job in jobs):
            return  # a second run of a task that writes is refused by the desk
        if self._ran_again_or_spend(jobs):
            self._spend("Spark computed a part of the batch again while the rest of it was written")
            raise self._spent()

    def judge(self, attempts: int) -> None:
        """Behind a batch that took so many attempts."""
        self._spent_in_a_row = 0
        if self.is_one_process or not self._remembers_versions:
            return
        try:
            is_computed_twice = attempts > 1 or self._ran_again(self._jobs())
        except _Forgotten as forgotten:
            self._spend(str(forgotten))
            return
        if is_computed_twice:
            self._spend(
                "the last batch was computed more than once, and executors may remember the "
                "state of an attempt that was given up"
            )

    def renew(self) -> None:
        self.is_spent = False

    def _spend(self, why: str) -> None:
        self._spent_in_a_row += 1
        if self._spent_in_a_row > _SPENT_MAX:
            raise SparkonceError(
                f"{self._name!r} has ended {_SPENT_MAX} runs in a row without a batch: {why}. Look "
                "into the logs of the executors that were lost; then start the query again"
            )
        self.is_spent = True
        _log.warning("%s: %s: it goes on in a new run", self._name, why)

    def _spent(self) -> RunSpent:
        return RunSpent(f"{self._name!r} goes on in a new run, which computes all of it again")

    def _jobs_or_spend(self) -> list[Any]:
        """Those of the present attempt. Where Spark has forgotten them, only a new run is sure to
        compute all rows anew."""
        try:
            return self._jobs()
        except _Forgotten as forgotten:
            self._spend(str(forgotten))
            raise self._spent() from forgotten

    def _ran_again_or_spend(self, jobs: Iterable[Any]) -> bool:
        try:
            return self._ran_again(jobs)
        except _Forgotten as forgotten:
            self._spend(str(forgotten))
            raise self._spent() from forgotten

    def _ran_again(self, jobs: Iterable[Any]) -> bool:
        """Whether a part of these jobs was computed more than once."""
        stages = self._stages(jobs)
        if any(stage.numFailedTasks() or stage.attemptId() for stage in stages):
            return True
        # A later job of the batch has the stages of former ones again, and finds what they wrote;
        # unless it was lost between the two. That is well where nobody has read it yet.
        written = [stage.rddIds().head() for stage in stages if stage.numCompleteTasks()]
        found_twice = len(set(written)) < len(written) or self._shuffled & set(written)
        self._shuffled.update(written)
        return bool(found_twice) and _is_shuffled_twice(jobs)

    def _await_tasks(self, tag: str) -> None:
        """The scheduler has the truth, as long as a task runs or may be about to."""
        deadline_s = time.monotonic() + _SETTLED_WITHIN_S
        while running := self._running_tasks(tag):
            if time.monotonic() > deadline_s:
                raise StillRunning(
                    f"{running} tasks of an attempt of {self._name!r} that was given up still run "
                    f"after {_SETTLED_WITHIN_S:g} s, and could write their state over that of the "
                    "next. Look for what holds them on their executors; then start the query again"
                )
            time.sleep(_LOOK_EVERY_S)

    def _running_tasks(self, tag: str) -> int:
        context: Any = self._context._jsc.sc()
        # By task, those that executors have and have not told the end of.
        running = context.taskScheduler().taskIdToTaskSetManager().elements()
        count = 0
        while running.hasMoreElements():
            count += tag in _tags(running.nextElement())
        return count

    def _jobs_ever(self) -> int:
        """How many jobs Spark has been given, whoever gave them."""
        context: Any = self._context._jsc.sc()
        return int(context.dagScheduler().numTotalJobs())

    def _jobs(self) -> list[Any]:
        """Those of the present attempt, which have ended; none if it failed before the first."""
        if self._jobs_ever() == self._jobs_before:
            return []
        context: Any = self._context._jsc.sc()
        tracker = context.statusTracker()
        try:
            # What happened is told on another thread: of a job that just ended, nothing may be
            # known yet, not even that there was one.
            context.listenerBus().waitUntilEmpty(int(_TOLD_WITHIN_S * 1000))
        except Py4JJavaError as error:
            raise self._forgotten("the last jobs") from error
        known = set(tracker.getJobIdsForTag(self._batch_tag))
        known = (known | self._handed_over(tracker)) - self._given_up
        if not known or any(
            not tracker.getJobInfo(each).isDefined()
            for each in range(self._jobs_before, max(known))  # whoever gave them
        ):
            raise self._forgotten("the last jobs")
        return [self._ended(tracker, each) for each in known]

    def _handed_over(self, tracker: Any) -> set[int]:
        """Those that Spark ran for a stream's batch before it called for it: they have no tag."""
        context = self._context
        if context.getLocalProperty(_OF_A_STREAM) is None:
            return set()
        store: Any = context._jsc.sc().statusStore()
        # It names the batch.
        told = context.getLocalProperty(_DESCRIPTION)

        def is_of_batch(job: int) -> bool:
            description = store.job(job).description()
            return bool(description.isDefined() and description.get() == told)

        newest_first = sorted(tracker.getJobIdsForGroup(context.getLocalProperty(_GROUP)))[::-1]
        return set(itertools.takewhile(is_of_batch, newest_first))

    def _ended(self, tracker: Any, job: int) -> Any:
        """What is known of a job once its end was told, and with it all that happened before."""
        deadline_s = time.monotonic() + _TOLD_WITHIN_S
        while (told := tracker.getJobInfo(job)).isDefined():
            if told.get().status().toString() != "RUNNING":
                return told.get()
            if time.monotonic() > deadline_s:
                break
            time.sleep(_LOOK_EVERY_S)
        raise self._forgotten(f"job {job}")

    def _stages(self, jobs: Iterable[Any]) -> list[Any]:
        context: Any = self._context._jsc.sc()
        store = context.statusStore()
        stages = {stage for job in jobs for stage in job.stageIds()}
        try:
            return [store.lastStageAttempt(stage) for stage in stages]
        except Py4JJavaError as error:  # java.util.NoSuchElementException
            raise self._forgotten("a stage") from error

    def _forgotten(self, what: str) -> _Forgotten:
        return _Forgotten(
            f"Spark does not say what became of {what} of {self._name!r}, so nobody knows whether "
            "a part of the batch was computed twice. Raise spark.ui.retainedJobs and "
            "spark.ui.retainedStages, and spark.scheduler.listenerbus.eventqueue.capacity if its "
            "log tells of dropped events"
        )


def _tags(task_set: Any) -> str:
    properties = task_set.taskSet().properties()
    return str(properties.getProperty(_TAGS)) if properties is not None else ""


def _is_shuffled_twice(jobs: Iterable[Any]) -> bool:
    return any(len(job.stageIds()) > 2 for job in jobs)


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
        """Wait for the last run to end, and start new ones until then. However this ends, it is
        told: there is nobody else to end the waits for the query."""
        try:
            while self._goes_on():
                pass
        except Exception as error:  # noqa: BLE001 - told to whoever waits for the query
            self._failure = error
        finally:
            self._over.set()

    def _goes_on(self) -> bool:
        """Behind the end of a run: whether another one was started."""
        await_end(self._jsq)
        with self._changing:
            if self._is_stopped or not self._run.is_spent or not self._ended_as_spent():
                return False
            self._run.renew()
            self._jsq = self._start()._jsq
            return True

    def _ended_as_spent(self) -> bool:
        failure = super().exception()
        return failure is not None and RunSpent.__name__ in str(failure)

    def _was_stopped_between_runs(self) -> bool:
        """Then the last run has ended as any that makes room for a new one, which is no failure."""
        return self._over.is_set() and self._is_stopped and self._ended_as_spent()

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
        if self._was_stopped_between_runs():
            return None if timeout is None else True
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
                    if self._was_stopped_between_runs():
                        return
                    raise

    def stop(self) -> None:
        with self._changing:
            self._is_stopped = True
            super().stop()
        self._over.wait()

    def exception(self) -> StreamingQueryException | None:
        if not self._over.is_set() or self._was_stopped_between_runs():
            return None
        return super().exception()
