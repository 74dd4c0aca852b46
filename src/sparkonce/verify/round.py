"""Trials side by side: one cluster, one process at a time, killed and started again.

A round walks its trials through their lives. In each life a host runs all jobs; those that have an
element for this life wait at their point until the last has come to its own, then one kill -9 (or
one SIGSTOP) finds each of them where its schedule wants it. What happens to brokers, one at a time,
happens while the pipeline that asked for it stands at its point.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Final

from sparkonce.errors import SparkonceError
from sparkonce.local import LocalKafka, LocalPostgres
from sparkonce.local.spark import spark_home
from sparkonce.verify import readers
from sparkonce.verify.child import Child, short_lived
from sparkonce.verify.contract import Record
from sparkonce.verify.disturb import Brokers, Server, executor_of, stop_for
from sparkonce.verify.gate import START, Arrival, Gate
from sparkonce.verify.host import APPLICATIONS, Assignment, Order
from sparkonce.verify.outcome import Outcome
from sparkonce.verify.schedule import (
    ENDS,
    At,
    AtCommit,
    Broker,
    Database,
    Kill,
    KillAfter,
    KillExecutor,
    KillSent,
    KillWorker,
    LoseUnreplicated,
    MoveLeaders,
    Outlast,
    Pause,
    PauseWorker,
    lives,
)
from sparkonce.verify.trial import Course, Trial
from sparkonce.verify.verdicts import failed, outcomes

_LIVES_MORE: Final = 3
"""A pipeline that failed is started again, as any supervisor would, so often at most."""
_LIFE_TIMEOUT_S: Final = 240.0
_ZOMBIE_TIMEOUT_S: Final = 90.0
_QUIET_S: Final = 90.0
"""Longer than a group waits for a member that was killed."""
_BUSY_MAX: Final = 6
"""Jobs on their way at the same moment; more only hinder each other."""
_TASK_POINTS: Final = ("produce:first", "produce:last")

Heard = Callable[[str], None]


class Round:
    """Runs trials that may share a process; `run` answers an outcome for each."""

    def __init__(
        self,
        kafka: LocalKafka,
        trials: Sequence[Trial],
        folder: Path,
        *,
        postgres: LocalPostgres | None = None,
        heard: Heard = lambda text: None,
    ) -> None:
        self._kafka = kafka
        self._folder = folder
        self._heard = heard
        # Brokers take their time, and one at a time: who waits for them begins first.
        ordered = sorted(trials, key=lambda trial: not _has_broker(trial))
        self._server = Server(postgres) if postgres else None
        self._courses = {
            trial.number: Course(trial, kafka, folder, postgres, self._at_commit)
            for trial in ordered
        }
        self._brokers = Brokers(kafka)
        self._master = next((each.master for each in trials if each.master), "") or (
            f"local[{self._cores()}]"
        )
        self._gate = Gate(self._decide)
        self._began_s = time.monotonic()
        self._watcher: readers.Watcher | None = None
        self._progress: dict[tuple[str, int], tuple[int, float]] = {}

    def run(self) -> list[Outcome]:
        self._began_s = time.monotonic()
        with ExitStack() as stack:
            stack.callback(self._clear_work)
            with ThreadPoolExecutor(_BUSY_MAX) as threads:
                for course in self._all:
                    stack.callback(course.close)
                list(threads.map(Course.open, self._all))
            servers = self._kafka.bootstrap_servers
            watcher = stack.enter_context(readers.Watcher(servers, self._topics))
            self._watcher = watcher
            try:
                with self._gate:
                    failures = self._live()
                for number, error in self._gate.errors.items():
                    failures[number] = "".join(traceback.format_exception(error))
                self._settle()
                self._heard("reading what is there")
                return outcomes(self._kafka, self._courses, watcher.seen, failures, self._lasted_s)
            except Exception as error:  # noqa: BLE001 - told in the outcome, which fails the run
                why = str(error) if isinstance(error, SparkonceError) else traceback.format_exc()
                return [failed(course, why, self._lasted_s) for course in self._all]

    @property
    def _lasted_s(self) -> float:
        return round(time.monotonic() - self._began_s, 1)

    @property
    def _topics(self) -> list[str]:
        return [topic for course in self._all for topic in course.output_topics]

    @property
    def _all(self) -> list[Course]:
        return list(self._courses.values())

    # -- lives -----------------------------------------------------------------------------------

    def _live(self) -> dict[int, str]:
        """All lives; answers why a trial never came to its end, by number."""
        planned = max(lives(course.trial.schedule) for course in self._all)
        failures: dict[int, str] = {}
        zombie: tuple[Child, int] | None = None
        with ExitStack() as stack:
            for life in range(planned + _LIVES_MORE):
                if life >= planned:
                    for course in self._all:
                        course.stop_cutting()
                self._heard(f"life {life + 1}")
                child = stack.enter_context(self._start(life))
                stack.callback(self._listen_to, child)
                settled = partial(self._is_settled, life, child)
                is_settled = self._gate.wait(settled, _LIFE_TIMEOUT_S)
                ended = {n: self._gate.ended(n, life) for n in self._courses}
                if not is_settled:
                    late = [
                        number
                        for number, how in ended.items()
                        if how is None and not self._is_where_it_ends(self._courses[number], life)
                    ]
                    raise SparkonceError(
                        f"trials {late} neither ended nor came to their point within "
                        f"{_LIFE_TIMEOUT_S:g} s of life {life + 1}. Its process said last:\n"
                        + child.tell_where()
                    )
                failures = self._failures(life, ended, child)
                if self._is_paused_in(life):
                    self._tell_all("pause", f"the driver is stopped in life {life + 1}")
                    child.pause()
                    zombie = (child, life)
                else:
                    was_running = child.is_running() and None in ended.values()
                    child.kill()
                    if was_running:
                        self._tell_all("kill", f"kill -9 ends life {life + 1}")
                    self._stand_still(life)
                if life + 1 >= planned and not failures:
                    break
            if zombie is not None:
                self._wake(*zombie)
        return failures

    def _clear_work(self) -> None:
        """What a cluster in one's own process leaves in Spark's folder: its executors' jars."""
        told = self._folder / APPLICATIONS
        names = told.read_text().split() if told.exists() else []
        for work in (spark_home() / "work" / name for name in names):
            if work.exists():
                shutil.rmtree(work)
        told.unlink(missing_ok=True)

    def _listen_to(self, child: Child) -> None:
        for course in self._all:
            course.hear(child.said_of(course.name))

    def _start(self, life: int) -> Child:
        assignments = tuple(
            Assignment(
                program=course.trial.pipeline.program,
                job=course.job(),
                own_pass=self._gate.a_pass(number, life),
            )
            for number, course in self._courses.items()
        )
        self._tell_all("life", f"life {life + 1} begins")
        # Many workers start at once, on few cores: nobody is in a hurry.
        patient = {"spark.python.authenticate.socketTimeout": "120s"}
        order = Order(assignments=assignments, master=self._master, conf=patient)
        return Child(
            [sys.executable, "-m", "sparkonce.verify.host", order.to_text()],
            short_lived(str(self._folder)),
        )

    def _is_settled(self, life: int, child: Child) -> bool:
        if not child.is_running():
            return True
        return all(
            self._gate.ended(number, life) is not None
            or self._is_where_it_ends(course, life)
            or self._is_done(course, life)
            for number, course in self._courses.items()
        )

    def _is_done(self, course: Course, life: int) -> bool:
        """Whether a pipeline without an end of its own has come to what must be the end."""
        if course.trial.pipeline.ends or _ends_in(course.trial, life):
            return False
        own = {course.trial.pipeline.identity(each) for each in self._read_by(course)}
        now_s = time.monotonic()
        if len(own) != self._progress.get((course.name, life), (-1, 0.0))[0]:
            self._progress[course.name, life] = (len(own), now_s)
        quiet_s = now_s - self._progress[course.name, life][1]
        if len(own) < course.trial.records and quiet_s < _QUIET_S:
            return False
        if self._gate.ended(course.trial.number, life) is None:
            self._gate.a_pass(course.trial.number, life).ended()
        return True

    def _read_by(self, course: Course) -> list[Record]:
        seen = self._watcher.seen if self._watcher else []
        return [each for each in seen if each.topic in course.output_topics]

    def _is_where_it_ends(self, course: Course, life: int) -> bool:
        for each in course.trial.schedule:
            if not isinstance(each, ENDS) or each.life != life:
                continue
            if isinstance(each, KillSent) and course.was_sent():
                return True
            if isinstance(each, KillAfter):
                ends = readers.ends(self._kafka.bootstrap_servers, course.output_topics)
                return sum(ends.values()) >= each.records
        return self._gate.is_held(course.trial.number, life)

    def _failures(self, life: int, ended: dict[int, str | None], child: Child) -> dict[int, str]:
        """Why this life was not the last, for each trial that it was not the last for."""
        found: dict[int, str] = {}
        for number, how in ended.items():
            if how:
                self._courses[number].tell("end", f"it failed: {how[:300]}")
                found[number] = how
            elif how is None:
                found[number] = f"life {life + 1} was ended. {child.last_words()[-500:]}"
            else:
                self._courses[number].tell("end", "all input is processed")
        return found

    def _is_paused_in(self, life: int) -> bool:
        return any(
            isinstance(each, Pause) and each.life == life
            for course in self._all
            for each in course.trial.schedule
        )

    def _wake(self, child: Child, life: int) -> None:
        """The zombie goes on, while its successor's work is done."""
        self._tell_all("life", f"the stopped driver of life {life + 1} goes on")
        child.resume()
        self._gate.release(life)
        is_over = self._gate.wait(
            lambda: (
                not child.is_running()
                or all(self._gate.ended(number, life) is not None for number in self._courses)
            ),
            _ZOMBIE_TIMEOUT_S,
        )
        for number, course in self._courses.items():
            how = self._gate.ended(number, life)
            course.tell("end", f"the zombie ended: {how[:300] if how else how}")
        child.kill()
        if not is_over:
            raise SparkonceError(
                f"a driver that was fenced neither ended nor failed within {_ZOMBIE_TIMEOUT_S:g} "
                f"s. It said last:\n{child.last_words()}"
            )

    def _stand_still(self, life: int) -> None:
        """Between two lives: what the log has, and what happens to checkpoints."""
        servers = self._kafka.bootstrap_servers
        self._settle()
        readers.await_decisions(servers, [course.name for course in self._all])
        groups = {course.name: course.input_topic for course in self._all}
        committed = readers.committed(servers, groups)
        visible = readers.read(servers, self._topics) if self._topics else []
        for course in self._all:
            own = course.collect()
            if own is None:
                own = [each for each in visible if each.topic in course.output_topics]
            progress = course.progress()
            told = committed[course.name] if progress is None else progress
            course.add_moment(f"after life {life + 1}", told, own)
            course.disturb_checkpoint(life)

    def _settle(self) -> None:
        """Until all that was disturbed is whole again."""
        self._brokers.settle()
        if self._server:
            self._server.settle()

    # -- at the gate -----------------------------------------------------------------------------

    def _decide(self, arrival: Arrival) -> None:
        course = self._courses[arrival.trial]
        if arrival.point == START:
            self._gate.admit(arrival.trial, arrival.life, _BUSY_MAX)
        if arrival.point == "produce:last":
            self._brokers.lose_unreplicated(course)
        for each in course.trial.schedule:
            if isinstance(each, At) and (each.point, each.nth, each.life) == (
                arrival.point,
                arrival.time,
                arrival.life,
            ):
                self._act(each, arrival, course)

    def _act(self, element: At, arrival: Arrival, course: Course) -> None:
        if isinstance(element, Kill | Pause):
            course.tell("point", f"waits at {arrival.point}, time {arrival.time}")
            self._gate.hold(arrival.trial, arrival.life)
        elif isinstance(element, KillWorker | KillExecutor):
            with suppress(ProcessLookupError):  # Spark was faster
                pid = arrival.pid if isinstance(element, KillWorker) else executor_of(arrival.pid)
                course.tell("kill", f"{element!r}: process {pid}")
                os.kill(pid, signal.SIGKILL)
        elif isinstance(element, PauseWorker):
            course.tell("pause", f"{element!r}: process {arrival.pid}")
            with suppress(ProcessLookupError):
                stop_for(arrival.pid, element.seconds)
        elif isinstance(element, Outlast):
            course.tell("point", f"outlasts its transaction at {arrival.point}")
            with self._gate.resting(arrival.trial, arrival.life):
                self._brokers.outlast(course.name)
        elif isinstance(element, Broker):
            with self._gate.resting(arrival.trial, arrival.life):
                self._brokers.disturb(element, course)
        elif isinstance(element, Database) and self._server:
            course.tell("database", f"{element.action} at {arrival.point}")
            with self._gate.resting(arrival.trial, arrival.life):
                self._server.disturb(element.action)
        elif isinstance(element, LoseUnreplicated):
            self._brokers.stop_replicating(course)
        elif isinstance(element, MoveLeaders):
            self._brokers.move_leaders(element.times, course)

    def _at_commit(self, element: AtCommit, course: Course) -> None:
        course.tell("database", f"COMMIT {element.nth} has no answer: {element.action}")
        if element.action == "kill" and self._server:
            self._server.disturb("kill")

    def _tell_all(self, kind: str, text: str) -> None:
        for course in self._all:
            course.tell(kind, text)

    def _cores(self) -> int:
        """Two, and as many as are taken by tasks that wait at a point."""
        waiting = sum(
            isinstance(each, At) and each.point in _TASK_POINTS
            for course in self._all
            for each in course.trial.schedule
        )
        return 2 + 2 * waiting


def _ends_in(trial: Trial, life: int) -> bool:
    return any(isinstance(each, ENDS) and each.life == life for each in trial.schedule)


def _has_broker(trial: Trial) -> bool:
    return any(isinstance(each, Broker) for each in trial.schedule)
