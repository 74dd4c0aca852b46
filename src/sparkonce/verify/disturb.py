"""What happens to brokers and executors on purpose, one broker at a time.

A broker that was killed is started again in the background, while the pipelines go on; the next
disturbance waits until the cluster is whole. So two replicas of three are always in sync.
"""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import psycopg

from sparkonce.errors import SparkonceError
from sparkonce.local import LocalKafka, LocalPostgres
from sparkonce.verify import readers
from sparkonce.verify.dumps import Dumps
from sparkonce.verify.schedule import Broker, LoseUnreplicated, MoveLeaders
from sparkonce.verify.trial import Course

_MISSED_TIMEOUT_S: Final = 20.0
_OUTLASTED_TIMEOUT_S: Final = 60.0
_GONE_TIMEOUT_S: Final = 30.0
_MENDED_TIMEOUT_S: Final = 600.0
_DEADLOCK: Final = re.compile(
    r"deadlock detected\n(?:.*(?:DETAIL|HINT|CONTEXT|STATEMENT):.*\n|\t.*\n)*"
)
"""With the lines that belong to it: these begin with a word of their own, or a tab."""
_DEADLOCK_CHARS: Final = 1_000
_OWN_TABLE: Final = re.compile(r"verify_t(\d+)")
"""All tables of a trial have its name in theirs."""
_EXECUTOR: Final = b"org.apache.spark.executor.CoarseGrainedExecutorBackend"


class Brokers:
    """May be asked from any thread. Notes an element with its trial once it has come to pass."""

    def __init__(self, kafka: LocalKafka, *, missed_timeout_s: float = _MISSED_TIMEOUT_S) -> None:
        self._kafka = kafka
        self._missed_timeout_s = missed_timeout_s
        self._one_at_a_time = threading.Lock()
        self._menders: list[threading.Thread] = []
        self._errors: list[Exception] = []
        self._unreplicated: dict[int, tuple[LoseUnreplicated, int, list[int]]] = {}

    def disturb(self, element: Broker, course: Course) -> None:
        """Returns when it is done; mending goes on behind."""
        self._await_others()
        with self._released_on_error():
            self._kafka.wait_until_healthy()
            broker = self._who(element, course)
            course.tell("broker", f"{element.action} of broker {broker}, the {element.role}")
            if element.action == "kill":
                self._kafka.kill_broker(broker)
            elif element.action == "restart":
                self._kafka.stop_broker(broker)
            else:
                self._kafka.pause_broker(broker)
            if element.action != "pause":
                course.note(element)
            self._mend(lambda: self._bring_back(element, broker, course))

    def stop_replicating(self, element: LoseUnreplicated, course: Course) -> None:
        """Followers stand still, so what the leader acknowledges by itself is nowhere else."""
        self._await_others()
        with self._released_on_error():
            leader = self._kafka.leader_of(course.output_topics[0], 0)
            others = [each for each in self._kafka.broker_ids if each != leader]
            course.tell("broker", f"brokers {others}, the followers, are stopped")
            # From here on `settle` knows whom to wake, should the last record never come.
            self._unreplicated[course.trial.number] = (element, leader, others)
            for each in others:
                self._kafka.pause_broker(each)

    def lose_unreplicated(self, course: Course) -> None:
        """At the last record: the leader dies, the followers go on without its records."""
        stopped = self._unreplicated.pop(course.trial.number, None)
        if stopped is None:
            return
        element, leader, others = stopped
        with self._released_on_error():
            course.tell("broker", f"broker {leader}, the leader, is killed; {others} go on")
            self._kafka.kill_broker(leader)
            for each in others:
                self._kafka.resume_broker(each)
            topic = course.output_topics[0]

            def bring_back() -> None:
                # Not before another one leads: the old one would come back with its records.
                if self._until(lambda: self._kafka.leader_of(topic, 0) not in (leader, -1)):
                    course.note(element)
                self._kafka.start_broker(leader)

            self._mend(bring_back)

    def move_leaders(self, element: MoveLeaders, course: Course) -> None:
        """In the background, one move after the other."""
        self._await_others()
        with self._released_on_error():
            rng = random.Random(course.trial.seed)
            topic = course.output_topics[0]

            def move() -> None:
                for _ in range(element.times):
                    partition = rng.randrange(course.trial.workload.partitions)
                    former = self._kafka.leader_of(topic, partition)
                    to = rng.choice([each for each in self._kafka.broker_ids if each != former])
                    course.tell("broker", f"partition {partition} goes from {former} to {to}")
                    self._kafka.move_leader(topic, partition, to)
                course.note(element)

            self._mend(move)

    def outlast(self, transactional_id: str) -> bool:
        """Until the coordinator has given the transaction up; False where none is open."""
        servers = self._kafka.bootstrap_servers
        deadline_s = time.monotonic() + _OUTLASTED_TIMEOUT_S
        if readers.transaction_state(servers, transactional_id) != "Ongoing":
            return False
        while readers.transaction_state(servers, transactional_id) == "Ongoing":
            if time.monotonic() > deadline_s:
                raise SparkonceError(
                    f"the transaction of {transactional_id} was not timed out within "
                    f"{_OUTLASTED_TIMEOUT_S:g} s: is transaction.timeout.ms heeded?"
                )
            time.sleep(0.1)  # between two questions to the coordinator
        return True

    def outlast_expiry(self, transactional_id: str) -> None:
        """Until the coordinator has forgotten who that was."""
        servers = self._kafka.bootstrap_servers
        deadline_s = time.monotonic() + _OUTLASTED_TIMEOUT_S
        while readers.transaction_state(servers, transactional_id):
            if time.monotonic() > deadline_s:
                raise SparkonceError(
                    f"{transactional_id} did not expire within {_OUTLASTED_TIMEOUT_S:g} s: is its "
                    "transaction still open, or transactional.id.expiration.ms of the cluster long?"
                )
            time.sleep(0.2)  # between two questions to the coordinator

    def settle(self) -> None:
        """Until all is mended; raises what went wrong."""
        for _, _, stopped in self._unreplicated.values():
            for each in stopped:
                self._kafka.resume_broker(each)
            self._one_at_a_time.release()
        self._unreplicated.clear()
        deadline_s = time.monotonic() + _MENDED_TIMEOUT_S
        for mender in self._menders:
            mender.join(max(0.0, deadline_s - time.monotonic()))
            if mender.is_alive():
                raise _not_mended()
        self._menders.clear()
        if self._errors:
            raise SparkonceError(f"a broker could not be brought back: {self._errors[0]}")
        self._kafka.wait_until_healthy()

    def _who(self, element: Broker, course: Course) -> int:
        if element.role == "controller":
            return self._kafka.controller()
        if element.role == "coordinator":
            return self._kafka.coordinator_of(course.name)
        return self._kafka.leader_of(course.output_topics[0], 0)

    def _bring_back(self, element: Broker, broker: int, course: Course) -> None:
        if element.action == "pause":
            try:
                # Long enough to be missed: until somebody else has the role that it had.
                if self._until(lambda: self._who(element, course) not in (broker, -1)):
                    course.note(element)
                else:
                    course.tell("broker", f"broker {broker} was not missed as {element.role}")
            finally:
                self._kafka.resume_broker(broker)
        else:
            self._kafka.start_broker(broker)
        self._kafka.wait_until_healthy()
        course.tell("broker", f"broker {broker} is back")

    def _await_others(self) -> None:
        """One disturbance at a time: until the last one is mended."""
        if not self._one_at_a_time.acquire(timeout=_MENDED_TIMEOUT_S):
            raise _not_mended()

    def _mend(self, action: Callable[[], None]) -> None:
        def run() -> None:
            try:
                action()
            except Exception as error:  # noqa: BLE001 - raised in settle
                self._errors.append(error)
            finally:
                self._one_at_a_time.release()

        mender = threading.Thread(target=run, name="sparkonce-mender", daemon=True)
        self._menders.append(mender)
        mender.start()

    @contextmanager
    def _released_on_error(self) -> Iterator[None]:
        """For who holds the lock, and gives it to a mender in the end."""
        try:
            yield
        except BaseException:
            self._one_at_a_time.release()
            raise

    def _until(self, condition: Callable[[], bool]) -> bool:
        """Whether it came to be, in the time that the cluster is given for it."""
        deadline_s = time.monotonic() + self._missed_timeout_s
        while not (has_come := condition()) and time.monotonic() < deadline_s:
            time.sleep(0.1)  # between two questions to the cluster
        return has_come


def _not_mended() -> SparkonceError:
    return SparkonceError(
        f"the cluster was not whole again {_MENDED_TIMEOUT_S:g} s behind what was done to it: look "
        "into the brokers' logs"
    )


class Server:
    """The database server; whoever waits for it finds it again. May be asked from any thread."""

    def __init__(self, postgres: LocalPostgres) -> None:
        self._postgres = postgres
        self._one_at_a_time = threading.Lock()
        self._ended = 0
        self._log = postgres.folder / "postgres.log"
        self._log_begin = self._log.stat().st_size
        self.dumps = Dumps(postgres, self.ended)

    def disturb(self, action: str) -> None:
        with self._one_at_a_time:
            self._ended += 1
            if action == "kill":
                self._postgres.kill()
                self._postgres.start()
            else:
                self._postgres.restart()
            self._postgres.wait_until_ready()

    def hold_log(self) -> None:
        """Its log writer is stopped (SIGSTOP): from now on only commits that wait for the disk get
        there, until the server is killed."""
        with self._one_at_a_time, psycopg.connect(self._postgres.url) as connection:
            writer = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'"
            for (pid,) in connection.execute(writer):
                os.kill(pid, signal.SIGSTOP)

    def ended(self) -> int:
        """How often it was ended so far; waits until that is over."""
        with self._one_at_a_time:
            return self._ended

    def deadlocks(self) -> list[tuple[int, str]]:
        """Since this object was made, each with the trial whose tables it is about.

        From the server's log: its statistics begin anew behind a crash."""
        with self._log.open("rb") as log:
            log.seek(self._log_begin)
            said = log.read().decode(errors="replace")
        return [
            (int(trial[1]), found[0][:_DEADLOCK_CHARS])
            for found in _DEADLOCK.finditer(said)
            if (trial := _OWN_TABLE.search(found[0]))
        ]

    def settle(self) -> None:
        """Until it is back, and nothing goes on beside the pipelines."""
        self.dumps.settle()
        with self._one_at_a_time:
            self._postgres.wait_until_ready()


def stop_for(pid: int, seconds: float) -> None:
    """SIGSTOP now; SIGCONT later, while whoever asked goes on."""

    def wake() -> None:
        with suppress(ProcessLookupError):  # it was killed meanwhile
            os.kill(pid, signal.SIGCONT)

    os.kill(pid, signal.SIGSTOP)
    threading.Timer(seconds, wake).start()


def kill_idle(worker_pid: int) -> None:
    """kill -9 of a Python worker without a task; until it is gone, so that Spark gives it none.

    ProcessLookupError when it had ended.
    """
    os.kill(worker_pid, signal.SIGKILL)
    deadline_s = time.monotonic() + _GONE_TIMEOUT_S
    while Path(f"/proc/{worker_pid}").exists():
        if time.monotonic() > deadline_s:
            raise SparkonceError(
                f"the Python worker {worker_pid} was killed, and its daemon had not taken note of "
                f"it within {_GONE_TIMEOUT_S:g} s: is the daemon stopped?"
            )
        time.sleep(0.01)  # between two looks


def executor_of(worker_pid: int) -> int:
    """The JVM that a Python worker belongs to: parent of the daemon that forked it.

    ProcessLookupError when it has ended, or the worker.
    """
    try:
        executor = _parent(_parent(worker_pid))
        # A worker that outlived it was given to a stranger, which must not be killed.
        if Path(f"/proc/{executor}/comm").read_text() == "java\n":
            return executor
    except FileNotFoundError:
        pass
    raise ProcessLookupError(f"The executor of worker {worker_pid} has ended.")


def other_executor_of(worker_pid: int) -> int:
    """Another JVM of the same driver than the one that this Python worker belongs to, of Spark's
    `local-cluster`. ProcessLookupError when there is none."""
    own = executor_of(worker_pid)
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            if pid == own or _parent(pid) != _parent(own):
                continue
            if _EXECUTOR in (entry / "cmdline").read_bytes().split(b"\0"):
                return pid
    raise ProcessLookupError(f"Beside the executor {own} there is none.")


def _parent(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])
