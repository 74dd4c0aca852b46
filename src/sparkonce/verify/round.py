"""Trials side by side: one cluster, one process at a time, killed and started again.

A round walks its trials through their lives. In each life a host runs all jobs; those that have an
element for this life wait at their point until the last has come to its own, then one kill -9 (or
one SIGSTOP) finds each of them where its schedule wants it. What happens to brokers, one at a time,
happens while the pipeline that asked for it stands at its point.
"""

from __future__ import annotations

import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from sparkonce.errors import SparkonceError
from sparkonce.local import LocalKafka, LocalPostgres
from sparkonce.local.spark import spark_home
from sparkonce.verify import readers
from sparkonce.verify.child import Child, short_lived
from sparkonce.verify.contract import Record
from sparkonce.verify.epochs import plant
from sparkonce.verify.host import APPLICATIONS, Assignment, Order
from sparkonce.verify.nemesis import BUSY_MAX, Nemesis
from sparkonce.verify.outcome import Outcome, Verdict
from sparkonce.verify.schedule import (
    ENDS,
    At,
    Broker,
    KillAfter,
    KillSent,
    Pause,
    lives,
)
from sparkonce.verify.trial import Course, Trial
from sparkonce.verify.verdicts import failed, outcomes

_LIVES_MORE: Final = 3
"""A pipeline that failed is started again, as any supervisor would, so often at most."""
_STUCK_S: Final = 180.0
"""A life in which nobody comes to a point or to an end for so long goes no further."""
_LIFE_TIMEOUT_S: Final = 1_200.0
_ZOMBIE_TIMEOUT_S: Final = 90.0
_QUIET_S: Final = 90.0
"""Longer than a group waits for a member that was killed."""
_TASK_POINTS: Final = ("produce:first", "produce:last")
# Many workers start at once, on few cores: nobody is in a hurry.
_PATIENT: Final = {"spark.python.authenticate.socketTimeout": "120s"}
# With executors of their own, so that each has its part of the first batch.
_ALL_THERE: Final = {"spark.cores.max": "2", "spark.scheduler.minRegisteredResourcesRatio": "1"}
_MAINTAINED: Final = {"spark.sql.streaming.stateStore.maintenanceInterval": "200ms"}
"""Every minute by default: later than the end of most lives."""
_REFUSAL: Final = "LedgerError"

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
        self._nemesis = Nemesis(kafka, postgres)
        self._courses = {
            trial.number: Course(trial, kafka, folder, postgres, self._nemesis.at_commit)
            for trial in ordered
        }
        self._nemesis.courses = self._courses
        self._master = next((each.master for each in trials if each.master), "") or (
            f"local[{self._cores()}]"
        )
        self._gate = self._nemesis.gate
        self._began_s = time.monotonic()
        self._watcher: readers.Watcher | None = None
        self._zombies: list[tuple[Child, int]] = []
        self._later = sys.maxsize
        """The life from which on there is more input."""
        self._progress: dict[tuple[str, int], tuple[int, float]] = {}
        self._unclosed: dict[int, str] = {}
        """By trial: what went wrong when it was closed."""

    def run(self) -> list[Outcome]:
        self._began_s = time.monotonic()
        with ExitStack() as stack:
            stack.callback(self._clear_work)
            try:
                found = self._outcomes(stack)
            except Exception as error:  # noqa: BLE001 - told in the outcome, which fails the run
                found = [failed(course, _told(error), self._lasted_s) for course in self._all]
        return [self._closed(outcome) for outcome in found]

    def _outcomes(self, stack: ExitStack) -> list[Outcome]:
        epochs = {each.name: each.trial.cluster.epoch for each in self._all}
        if any(epochs.values()):
            self._heard("planting epochs")
            plant(self._kafka, epochs)
        with ThreadPoolExecutor(BUSY_MAX) as threads:
            for course in self._all:
                stack.callback(self._closing, course.close, [course.trial.number])
            list(threads.map(Course.open, self._all))
        watcher = readers.Watcher(self._kafka.bootstrap_servers, _topics(self._all))
        watcher.__enter__()
        self._watcher = watcher
        stack.callback(self._closing, lambda: watcher.__exit__(None, None, None), self._courses)
        with self._gate:
            failures = self._live()
        for number, error in self._gate.errors.items():
            failures[number] = "".join(traceback.format_exception(error))
        self._nemesis.settle()
        for number, said in self._nemesis.deadlocks():
            if number in self._courses:
                self._courses[number].interfere(said)
        self._heard("reading what is there")
        return outcomes(self._kafka, self._courses, watcher.seen, failures, self._lasted_s)

    def _closing(self, close: Callable[[], None], numbers: Iterable[int]) -> None:
        """What goes wrong in it is told in the outcomes of these trials, and ends no others."""
        try:
            close()
        except Exception as error:  # noqa: BLE001 - see above
            for number in numbers:
                self._unclosed.setdefault(number, _told(error))

    def _closed(self, outcome: Outcome) -> Outcome:
        """With what only the end of the round tells of it."""
        if why := self._unclosed.get(outcome.number):
            # What was found stands, whatever happened behind it: a broken promise is never hidden.
            is_broken = outcome.verdict is Verdict.BROKEN
            verdict = Verdict.BROKEN if is_broken else Verdict.FAILED
            outcome = replace(outcome, verdict=verdict, error=outcome.error or why)
        lived_s = self._gate.lived.of(outcome.number) if outcome.is_under_faults else 0.0
        return replace(
            outcome,
            under_faults_s=round(lived_s, 3),
            refused=self._courses[outcome.number].has_refused,
        )

    @property
    def _lasted_s(self) -> float:
        return round(time.monotonic() - self._began_s, 1)

    @property
    def _all(self) -> list[Course]:
        return list(self._courses.values())

    # -- lives -----------------------------------------------------------------------------------

    def _live(self) -> dict[int, str]:
        """All lives; answers why a trial never came to its end, by number."""
        planned = max(lives(course.trial.schedule) for course in self._all)
        with ExitStack() as stack:
            failures = self._lives(stack, 0, planned, self._courses)
            for child, life in self._zombies:
                failures |= self._wake(child, life)
                self._stand_still("after the zombie", self._courses)
            with_more = {
                number: course
                for number, course in self._courses.items()
                if course.trial.more and number not in failures
            }
            if with_more:
                for course in with_more.values():
                    course.stop_cutting()
                    course.fill_more()
                self._later = planned + _LIVES_MORE
                failures |= self._lives(stack, self._later, 1, with_more)
        return failures

    def _lives(
        self, stack: ExitStack, first: int, planned: int, courses: Mapping[int, Course]
    ) -> dict[int, str]:
        """So many lives, and a few more where one failed; why a trial never came to its end."""
        failures: dict[int, str] = {}
        stuck: dict[int, str] = {}
        for life in range(first, first + planned + _LIVES_MORE):
            if life >= first + planned:
                for course in courses.values():
                    course.stop_cutting()
            self._heard(f"life {life + 1}")
            child = stack.enter_context(self._start(life, courses))
            stack.callback(self._listen_to, child)
            stuck |= self._await_settled(life, child, courses)
            ended = {number: self._gate.ended(number, life) for number in courses}
            failures = self._failures(life, ended, child)
            if self._is_paused_in(life):
                self._tell(courses, "pause", f"the driver is stopped in life {life + 1}")
                child.pause()
                self._gate.lived.end(life)
                self._zombies.append((child, life))
            else:
                was_running = child.is_running() and None in ended.values()
                child.kill()
                self._gate.lived.end(life)
                if was_running:
                    self._tell(courses, "kill", f"kill -9 ends life {life + 1}")
                self._stand_still(f"after life {life + 1}", courses)
                for course in courses.values():
                    course.disturb_checkpoint(life)
            courses = {
                number: course
                for number, course in courses.items()
                if number not in stuck
                and (number in failures or life + 1 < lives(course.trial.schedule))
            }
            if not courses:
                break
        return failures | stuck

    def _await_settled(
        self, life: int, child: Child, courses: Mapping[int, Course]
    ) -> dict[int, str]:
        """Until each has ended, or has come to where this life is to end for it; answers what is
        to be said of those that never will."""
        settled = partial(self._is_settled, life, child, courses)
        if self._gate.wait(settled, _LIFE_TIMEOUT_S, _STUCK_S):
            return {}
        said = child.tell_where()
        return {
            number: f"it neither ended nor came to its point in life {life + 1}, and nobody told "
            f"of anything for {_STUCK_S:g} s. Its process said last:\n{said}"
            for number, course in courses.items()
            if not self._is_settled(life, child, {number: course})
        }

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

    def _start(self, life: int, courses: Mapping[int, Course]) -> Child:
        assignments = tuple(
            Assignment(
                program=course.trial.pipeline.program,
                job=course.job(),
                own_pass=self._gate.a_pass(number, life),
            )
            for number, course in courses.items()
        )
        self._tell(courses, "life", f"life {life + 1} begins")
        is_maintained = any(course.trial.is_maintained(life) for course in courses.values())
        conf = {**_PATIENT, **_ALL_THERE, **(_MAINTAINED if is_maintained else {})}
        order = Order(assignments=assignments, master=self._master, conf=conf)
        return Child(
            [sys.executable, "-m", "sparkonce.verify.host", order.to_text()],
            short_lived(str(self._folder)),
        )

    def _is_settled(self, life: int, child: Child, courses: Mapping[int, Course]) -> bool:
        if not child.is_running():
            return True
        return all(
            self._gate.ended(number, life) is not None
            or self._is_where_it_ends(course, life)
            or self._is_done(course, life)
            for number, course in courses.items()
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
        if len(own) < course.due and quiet_s < _QUIET_S:
            return False
        if self._gate.ended(course.trial.number, life) is None:
            self._gate.a_pass(course.trial.number, life).ended()
        return True

    def _read_by(self, course: Course) -> list[Record]:
        seen = self._watcher.seen if self._watcher else []
        return [each for each in seen if each.topic in course.output_topics]

    def _is_where_it_ends(self, course: Course, life: int) -> bool:
        if not self._has_come_to_its_end(course, life):
            return False
        self._gate.lived.stop(course.trial.number, life)  # it waits for the others, and its death
        return True

    def _has_come_to_its_end(self, course: Course, life: int) -> bool:
        for each in course.trial.schedule:
            if not isinstance(each, ENDS) or each.life != life:
                continue
            if isinstance(each, KillSent) and course.was_sent():
                return True
            if isinstance(each, KillAfter):
                ends = readers.ends(self._kafka.bootstrap_servers, course.output_topics)
                if sum(ends.values()) < each.records:
                    return False
                course.note(each)
                return True
        return self._gate.is_held(course.trial.number, life)

    def _failures(self, life: int, ended: dict[int, str | None], child: Child) -> dict[int, str]:
        """Why this life was not the last, for each trial that it was not the last for."""
        found: dict[int, str] = {}
        for number, how in ended.items():
            course = self._courses[number]
            may_refuse = course.may_refuse if life >= self._later else course.must_refuse(life)
            if how and may_refuse and _REFUSAL in how:
                course.refuse(how)
            elif how:
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

    def _wake(self, child: Child, life: int) -> dict[int, str]:
        """The zombie goes on, while its successor's work is done; those that don't find an end."""
        for course in self._all:
            if any(
                isinstance(each, Pause) and each.until_expired for each in course.trial.schedule
            ):
                self._heard("waiting for ids to expire")
                self._nemesis.brokers.outlast_expiry(course.name)
                course.tell("pause", f"{course.name} has expired in the cluster")
        self._tell(self._courses, "life", f"the stopped driver of life {life + 1} goes on")
        child.resume()
        self._nemesis.await_snapshots(life)
        self._gate.release(life)
        self._gate.wait(
            lambda: (
                not child.is_running()
                or all(self._gate.ended(number, life) is not None for number in self._courses)
            ),
            _ZOMBIE_TIMEOUT_S,
        )
        endless: dict[int, str] = {}
        for number, course in self._courses.items():
            how = self._gate.ended(number, life)
            course.tell("end", f"the zombie ended: {how[:300] if how else how}")
            if how is None and child.is_running():
                endless[number] = (
                    "a driver that was fenced neither ended nor failed within "
                    f"{_ZOMBIE_TIMEOUT_S:g} s. It said last:\n{child.last_words()}"
                )
        child.kill()
        self._gate.lived.end(life)
        return endless

    def _stand_still(self, when: str, courses: Mapping[int, Course]) -> None:
        """Between two lives: what the log has, and how far each says that it is."""
        servers = self._kafka.bootstrap_servers
        self._nemesis.settle()
        readers.await_decisions(servers, [course.name for course in courses.values()])
        groups = {course.name: course.input_topic for course in courses.values()}
        committed = readers.committed(servers, groups)
        topics = _topics(courses.values())
        visible = readers.read(servers, topics) if topics else []
        for course in courses.values():
            own = course.collect()
            if own is None:
                own = [each for each in visible if each.topic in course.output_topics]
            progress = course.progress()
            told = committed[course.name] if progress is None else progress
            course.add_moment(when, told, own)

    def _tell(self, courses: Mapping[int, Course], kind: str, text: str) -> None:
        for course in courses.values():
            course.tell(kind, text)

    def _cores(self) -> int:
        """Two, and as many as are taken by tasks that wait at a point."""
        waiting = sum(
            isinstance(each, At) and each.point in _TASK_POINTS
            for course in self._all
            for each in course.trial.schedule
        )
        return 2 + 2 * waiting


def _told(error: Exception) -> str:
    if isinstance(error, SparkonceError) and error.__cause__ is None:
        return str(error)
    return "".join(traceback.format_exception(error))


def _ends_in(trial: Trial, life: int) -> bool:
    return any(isinstance(each, ENDS) and each.life == life for each in trial.schedule)


def _topics(courses: Iterable[Course]) -> list[str]:
    return [topic for course in courses for topic in course.output_topics]


def _has_broker(trial: Trial) -> bool:
    return any(isinstance(each, Broker) for each in trial.schedule)
