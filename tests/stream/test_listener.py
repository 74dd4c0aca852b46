"""The driver's port for its tasks: strangers are cheap and few, those who are gone are noticed."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress

import pytest
from pyspark.sql import SparkSession

from oracle import values
from parts import wait_until
from sparkonce.local.ports import free_ports
from sparkonce.stream import listener
from sparkonce.stream.claim import Place, claim
from sparkonce.stream.desk import Desk
from sparkonce.stream.report import BatchReport
from stream_jobs import EXPECTED, MakeJob, Reports

HOST = "127.0.0.1"
DEADLINE_S = 30.0
MANY = 300


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk(HOST, HOST)
    yield desk
    desk.close()


@contextmanager
def strangers(port: int, count: int = MANY) -> Iterator[list[socket.socket]]:
    """Connections that say nothing."""
    with ExitStack() as open_ones:
        yield [
            open_ones.enter_context(socket.create_connection((HOST, port), DEADLINE_S))
            for _ in range(count)
        ]


def test_strangers_take_no_threads_and_bounded_room(desk: Desk) -> None:
    threads = threading.active_count()
    with strangers(desk.place.port, MANY) as silent:
        attempt = desk.open()
        with claim(desk.place, attempt, 0, 1):
            # Others in this process may begin one of their own meanwhile.
            assert threading.active_count() < threads + MANY // 10
            # Those before it in the queue were accepted before it: they are all known by now.
            assert desk.peer_count <= listener.STRANGERS_MAX + 1
            gone = [each for each in silent if was_hung_up_on(each)]
            assert len(gone) >= MANY - listener.STRANGERS_MAX
            assert silent[0] in gone and silent[-1] not in gone, "the oldest make room"
    assert desk.trouble is None


def was_hung_up_on(line: socket.socket) -> bool:
    line.settimeout(0.0)
    try:
        return line.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_hundreds_of_tasks_write_at_once_among_strangers(desk: Desk) -> None:
    """Each asks, holds its line until all others have theirs, and ends."""
    attempt, tasks = desk.open(), 200
    threads = threading.active_count()
    together = threading.Barrier(tasks)
    served: list[int] = []

    def work(task: int) -> None:
        with claim(desk.place, attempt, task, task):
            if together.wait(DEADLINE_S) == 0:
                served.append(threading.active_count() - threads - tasks)
            together.wait(DEADLINE_S)

    with strangers(desk.place.port, tasks // 2), ThreadPoolExecutor(tasks) as pool:
        list(pool.map(work, range(tasks)))
    # Others in this process may begin or end some of their own meanwhile.
    assert len(served) == 1 and served[0] < tasks // 10, "no thread for a task either"
    assert desk.trouble is None


def test_a_stranger_has_bounded_time(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "SECRET_WITHIN_S", 0.2)
    with strangers(desk.place.port, 1) as (silent,), claim(desk.place, desk.open(), 0, 1) as task:
        silent.settimeout(DEADLINE_S)
        assert silent.recv(1) == b""
        task.tell({"counts": {"t": 3}})
        assert task.read() == {"counts": {"t": 3}}, "a task may take its time"


def test_a_stranger_has_a_bounded_line(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "SECRET_WITHIN_S", 10 * DEADLINE_S)
    line = b'{"secret": "' + b"x" * listener.FIRST_LINE_BYTES_MAX + b'"}\n'
    for said in (line, line[: listener.FIRST_LINE_BYTES_MAX + 1]):
        with strangers(desk.place.port, 1) as (stranger,), suppress(ConnectionError):
            stranger.sendall(said)
            stranger.settimeout(DEADLINE_S)
            assert stranger.recv(1) == b"", "hung up on, whatever else it has to say"
    with claim(desk.place, desk.open(), 0, 1) as task:
        task.tell({"counts": {"t" * 2 * listener.FIRST_LINE_BYTES_MAX: 3}})
        assert task.read() is not None, "a task may say more"


_FEW_DESCRIPTORS = """
import json, resource, sys
from dataclasses import asdict
from sparkonce.stream import listener
from sparkonce.stream.desk import Desk

listener.SECRET_WITHIN_S = 1e9
desk = Desk("127.0.0.1", "127.0.0.1")
attempt = desk.open()
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
print(json.dumps([asdict(desk.place), attempt]), flush=True)
sys.stdin.read()
print(json.dumps(desk.trouble))
"""


def test_where_no_descriptor_is_left_strangers_give_theirs_back() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _FEW_DESCRIPTORS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as driver:
        assert driver.stdin and driver.stdout
        told, attempt = json.loads(driver.stdout.readline())
        place = Place(**told)
        with strangers(place.port, 100) as silent:
            wait_until(lambda: was_hung_up_on(silent[0]), "the first ones are hung up on")
            with claim(place, attempt, 0, 1):
                pass
        driver.stdin.close()
        assert driver.stdout.read() == "null\n", "no task is missing"


def test_batches_go_through_among_hundreds_of_silent_strangers(
    spark: SparkSession, new_job: MakeJob
) -> None:
    job, port = new_job(kind="keyed"), free_ports(1)[0]

    class Crowd(Reports):
        """Comes behind the first batch."""

        def on_batch(self, report: BatchReport) -> None:
            if not self.all:
                crowds.enter_context(strangers(port, MANY))
            super().on_batch(report)

    frame, mode = job.frame(spark)
    crowd = Crowd()
    writer = job.writer(frame, mode).trigger(availableNow=True).listener(crowd)
    with ExitStack() as crowds:
        writer.options(topic=job.target, driverPort=port).start().awaitTermination()
    assert [report.attempts for report in crowd.all] == [1, 1, 1]
    assert sorted(values(job.servers, job.target)) == EXPECTED


# -- a peer that is gone without a word ----------------------------------------------------------

_ALONE = """
import subprocess, sys, threading, time
from sparkonce.stream import lines
from sparkonce.stream.claim import claim
from sparkonce.stream.desk import Desk

def ip(*words):
    subprocess.run(["ip", *words], check=True)

ip("link", "set", "lo", "up")
lines.keep_alive.__defaults__ = (2,)
desk = Desk("127.0.0.1", "127.0.0.1")
heard = threading.Event()
attempt = desk.open()
try:
    with claim(desk.place, attempt, 7, 1) as line:
        line.listen(lambda said: None, lambda error: (print("task:", error), heard.set()))
        ip("link", "set", "lo", "down")
        assert heard.wait(60), "the task waits for a driver that is gone"
        deadline = time.monotonic() + 60
        while desk.peer_count:
            assert time.monotonic() < deadline, "the driver waits for a task that is gone"
            time.sleep(0.01)
        print("driver:", desk.trouble)
except Exception as error:
    print("end:", error)
"""


def may_have_networks() -> bool:
    told = subprocess.run(["unshare", "-rn", "true"], capture_output=True, check=False)
    return told.returncode == 0


@pytest.mark.skipif(not may_have_networks(), reason="this system gives no network of one's own")
def test_both_sides_notice_that_the_other_is_gone_without_a_word() -> None:
    """In a network of its own, of which everything is lost from one moment on."""
    told = subprocess.run(
        ["unshare", "-rn", sys.executable, "-c", _ALONE],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "task: [Errno 110] Connection timed out" in told.stdout, told
    assert "driver: task 7 (task attempt 1" in told.stdout, told
    assert "died while it wrote" in told.stdout
    assert "end: the driver could not be told that task 7 has written all" in told.stdout
