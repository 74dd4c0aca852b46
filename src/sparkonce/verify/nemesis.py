"""What happens while a pipeline stands at one of its points, as its schedule has it.

The gate tells of each arrival, and the pipeline waits until `decide` returns: then what was to
happen there has happened. A round has one, for all its trials.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Final

from sparkonce.errors import SparkonceError
from sparkonce.local import LocalKafka, LocalPostgres
from sparkonce.verify.checkpoints import has_snapshots
from sparkonce.verify.disturb import (
    Brokers,
    Server,
    executor_of,
    kill_idle,
    other_executor_of,
    stop_for,
)
from sparkonce.verify.families import ON_EXECUTORS
from sparkonce.verify.gate import START, Arrival, Gate
from sparkonce.verify.schedule import (
    AddPartitions,
    Arm,
    At,
    AtCommit,
    AwaitAnother,
    AwaitSnapshot,
    Broker,
    Database,
    Kill,
    KillExecutor,
    KillIdleWorkers,
    KillOtherExecutor,
    KillWorker,
    LoseUnreplicated,
    MoveLeaders,
    Outlast,
    Pause,
    PauseWorker,
)
from sparkonce.verify.trial import Course

BUSY_MAX: Final = 6
"""Jobs on their way at the same moment; more only hinder each other."""
_SNAPSHOT_TIMEOUT_S: Final = 30.0
_ANOTHER_TIMEOUT_S: Final = 60.0
_OnExecutor = KillWorker | KillExecutor | KillOtherExecutor | PauseWorker


class Nemesis:
    def __init__(self, kafka: LocalKafka, postgres: LocalPostgres | None) -> None:
        self.courses: Mapping[int, Course] = {}
        """By trial; known before the first of them begins."""
        self._kafka = kafka
        self.brokers = Brokers(kafka)
        self._server = Server(postgres) if postgres else None
        self.gate = Gate(self.decide)
        self._wrote: dict[tuple[int, int], list[int]] = {}
        """By trial and life: the processes that have written, in their order, each time anew."""

    def settle(self) -> None:
        """Until all that was disturbed is whole again."""
        self.brokers.settle()
        if self._server:
            self._server.settle()

    def deadlocks(self) -> list[tuple[int, str]]:
        """In the database so far, each with the trial whose tables it is about."""
        return self._server.deadlocks() if self._server else []

    def decide(self, arrival: Arrival) -> None:
        course = self.courses[arrival.trial]
        if arrival.point == START:
            self.gate.admit(arrival.trial, arrival.life, BUSY_MAX)
        if arrival.point == "produce:last":
            self.brokers.lose_unreplicated(course)
        if arrival.point in ON_EXECUTORS:
            self._wrote.setdefault((arrival.trial, arrival.life), []).append(arrival.pid)
        for each in course.trial.schedule:
            if isinstance(each, At) and _is_due(each, arrival, course):
                self._act(each, arrival, course)

    def await_snapshots(self, life: int) -> None:
        """Of the zombies of this life that write one when they wake."""
        for number, course in self.courses.items():
            for each in course.trial.schedule:
                if isinstance(each, Pause) and each.life == life and each.until_snapshot:
                    try:
                        _await_snapshot(course)
                    except SparkonceError as error:
                        self.gate.fail(number, error)
                    course.tell("pause", f"the zombie of {course.name} has written a snapshot")

    def at_commit(self, element: AtCommit, course: Course) -> None:
        course.tell("database", f"COMMIT {element.nth} has no answer: {element.action}")
        course.note(element)
        if element.action == "kill" and self._server:
            self._server.disturb("kill")

    def _act(self, element: At, arrival: Arrival, course: Course) -> None:
        if isinstance(element, Arm):
            course.arm(element)
        elif isinstance(element, AwaitAnother):
            self._await_another(element, arrival, course)
        elif isinstance(element, KillIdleWorkers):
            self._kill_idle_workers(element, arrival, course)
        elif isinstance(element, _OnExecutor):
            with suppress(ProcessLookupError):  # Spark was faster
                self._hit_worker(element, arrival, course)
                course.note(element)
        else:
            self._hit_driver(element, arrival, course)

    def _hit_worker(self, element: _OnExecutor, arrival: Arrival, course: Course) -> None:
        pid = arrival.pid
        if isinstance(element, KillExecutor):
            pid = executor_of(arrival.pid)
        elif isinstance(element, KillOtherExecutor):
            pid = other_executor_of(arrival.pid)
        if isinstance(element, PauseWorker):
            course.tell("pause", f"{element!r}: process {pid}")
            stop_for(pid, element.seconds)
        else:
            course.tell("kill", f"{element!r}: process {pid}")
            os.kill(pid, signal.SIGKILL)

    def _await_another(self, element: AwaitAnother, arrival: Arrival, course: Course) -> None:
        trial, life, point, number = arrival.trial, arrival.life, arrival.point, arrival.time + 1
        if not self.gate.await_arrival(trial, life, point, number, _ANOTHER_TIMEOUT_S):
            raise SparkonceError(
                f"{course.name} waited at {point} for another task, and none came there within "
                f"{_ANOTHER_TIMEOUT_S:g} s: are there two with rows, and cores for both?"
            )
        course.note(element)

    def _kill_idle_workers(
        self, element: KillIdleWorkers, arrival: Arrival, course: Course
    ) -> None:
        wrote = self._wrote.get((arrival.trial, arrival.life), [])
        for pid in {*wrote} - {*wrote[-1:]}:
            with suppress(ProcessLookupError):  # Spark has ended it
                kill_idle(pid)
                course.tell("kill", f"{element!r}: process {pid}")
                course.note(element)

    def _hit_driver(self, element: At, arrival: Arrival, course: Course) -> None:
        if isinstance(element, Kill | Pause):
            # Before it is done: who is to be killed there never comes back.
            course.note(element)
            course.tell("point", f"waits at {arrival.point}, time {arrival.time}")
            self.gate.hold(arrival.trial, arrival.life)
        elif isinstance(element, LoseUnreplicated):
            self.brokers.stop_replicating(element, course)
        elif isinstance(element, MoveLeaders):
            self.brokers.move_leaders(element, course)
        elif isinstance(element, AddPartitions):
            for topic in course.output_topics:
                self._kafka.add_partitions(topic, element.to)
            course.tell("broker", f"{', '.join(course.output_topics)}: {element.to} partitions")
            course.note(element)
        else:
            with self.gate.resting(arrival.trial, arrival.life):
                self._keep_waiting(element, course)

    def _keep_waiting(self, element: At, course: Course) -> None:
        """What takes its time, and costs nothing meanwhile. Noted where it has come to pass."""
        if isinstance(element, Outlast):
            course.tell("point", f"outlasts its transaction at {element.point}")
            if self.brokers.outlast(course.name):
                course.note(element)
            else:
                course.tell("point", f"no transaction of {course.name} was open")
        elif isinstance(element, AwaitSnapshot):
            _await_snapshot(course)
            course.note(element)
            course.tell("point", f"Spark has written a snapshot of its state at {element.point}")
        elif isinstance(element, Broker):
            self.brokers.disturb(element, course)
        elif isinstance(element, Database) and self._server:
            course.tell("database", f"{element.action} at {element.point}")
            self._hit_database(self._server, element, course)

    def _hit_database(self, server: Server, element: Database, course: Course) -> None:
        if element.action == "dump":
            fails = partial(self.gate.fail, course.trial.number)
            server.dumps.begin(lambda: course.note(element), course.interfere, fails)
        elif element.action == "hold_log":
            server.hold_log()
            course.note(element)
        else:
            server.disturb(element.action)
            course.note(element)


def _is_due(element: At, arrival: Arrival, course: Course) -> bool:
    if (element.point, element.nth) != (arrival.point, arrival.time):
        return False
    if isinstance(element, Arm):
        # Where a life ended before it came so far, the next one takes it over.
        return not course.has_happened(element) and arrival.life >= element.life
    return element.life == arrival.life


def _await_snapshot(course: Course) -> None:
    deadline_s = time.monotonic() + _SNAPSHOT_TIMEOUT_S
    while not has_snapshots(course.checkpoint):
        if time.monotonic() > deadline_s:
            raise SparkonceError(
                f"Spark wrote no snapshot of the open batch of {course.name} within "
                f"{_SNAPSHOT_TIMEOUT_S:g} s: does its maintenance run, with the interval that this "
                "life was given?"
            )
        time.sleep(0.05)  # between two looks into the folder
