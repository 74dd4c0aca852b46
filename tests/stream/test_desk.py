"""The desk over real sockets: one task writes, the second is refused, those who die are told."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace

import pytest

import sparkonce.stream.desk
from sparkonce.errors import SparkonceError
from sparkonce.stream.claim import Place, SecondAttempt, agreed_counts, claim
from sparkonce.stream.desk import Desk

HOST = "127.0.0.1"
DEADLINE_S = 30.0


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk(HOST, HOST)
    yield desk
    desk.close()


def eventually(found: Callable[[], str | None]) -> str:
    deadline_s = time.monotonic() + DEADLINE_S
    while (what := found()) is None:
        assert time.monotonic() < deadline_s
        time.sleep(0.005)
    return what


def say(place: Place, line: bytes) -> bytes:
    """What a stranger gets who says this line and hangs up."""
    with socket.create_connection((place.host, place.port), DEADLINE_S) as stranger:
        stranger.sendall(line)
        stranger.shutdown(socket.SHUT_WR)
        with stranger.makefile("rb") as answer:
            return answer.read()


def test_a_second_claim_for_a_task_is_refused_while_the_first_writes_and_after(desk: Desk) -> None:
    attempt = desk.open()
    with (
        claim(desk.place, attempt, 3, 100),
        pytest.raises(SecondAttempt, match="task 3 was begun by task attempt 100, process"),
        claim(desk.place, attempt, 3, 101),
    ):
        pytest.fail("it must not write")
    with pytest.raises(SecondAttempt), claim(desk.place, attempt, 3, 102):
        pytest.fail("it must not write")
    with claim(desk.place, attempt, 4, 103):
        pass
    assert desk.trouble is None


def test_an_older_attempt_is_refused_and_a_newer_one_begins_anew(desk: Desk) -> None:
    older = desk.open()
    with claim(desk.place, older, 0, 1):
        pass
    newer = desk.open()
    with (
        pytest.raises(SecondAttempt, match=f"attempt {older} is over, the driver is at {newer}"),
        claim(desk.place, older, 1, 2),
    ):
        pytest.fail("it must not write")
    with claim(desk.place, newer, 0, 3):
        pass


def test_who_does_not_know_the_secret_gets_nothing(desk: Desk) -> None:
    attempt = desk.open()
    for secret in ("", "guessed", "geheim\N{LATIN SMALL LETTER U WITH DIAERESIS}"):
        with (
            pytest.raises(SparkonceError, match="closed the line"),
            claim(replace(desk.place, secret=secret), attempt, 0, 1),
        ):
            pytest.fail("it must not write")
    with claim(desk.place, attempt, 0, 1):
        pass
    assert desk.trouble is None


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: driver\r\n\r\n",
        b"\x16\x03\x01\x02\x00\n",
        b"[]\n",
        b'{"secret": "\\ud800"}\n',
        b'{"attempt": 1, "task": 0, "who": "me"}\n',
    ],
)
def test_strangers_get_nothing_and_leave_no_mark(
    desk: Desk, line: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    attempt = desk.open()
    with suppress(ConnectionError):  # hung up on with some of it unread
        assert say(desk.place, line) == b""
    with claim(desk.place, attempt, 0, 1):
        pass
    assert desk.trouble is None
    assert capfd.readouterr().err == ""


def test_a_stranger_who_never_comes_to_an_end_is_hung_up_on(desk: Desk) -> None:
    place = desk.place
    stranger = socket.create_connection((place.host, place.port), DEADLINE_S)
    with stranger, suppress(ConnectionError):
        stranger.sendall(b"x" * 4_000_000)
        assert stranger.recv(1) == b""
    with claim(place, desk.open(), 0, 1):
        pass


def test_what_a_task_raises_is_told(desk: Desk) -> None:
    attempt = desk.open()
    with pytest.raises(ZeroDivisionError), claim(desk.place, attempt, 5, 1):
        raise ZeroDivisionError("of the user's making\nin two lines")
    told = eventually(lambda: desk.trouble)
    assert told.startswith("task 5 (task attempt 1, process ")
    assert told.endswith("ZeroDivisionError: of the user's making\nin two lines")
    desk.open()
    assert desk.trouble is None, "another attempt, another story"


def test_the_first_trouble_is_the_one_to_tell(desk: Desk) -> None:
    attempt = desk.open()
    for task in (1, 2):
        with pytest.raises(OSError, match="disk"), claim(desk.place, attempt, task, 1):
            raise OSError("disk")
        assert eventually(lambda: desk.trouble).startswith("task 1 ")


def test_an_endless_message_is_cut(desk: Desk) -> None:
    attempt = desk.open()
    with pytest.raises(ValueError, match="x"), claim(desk.place, attempt, 0, 1):
        raise ValueError("\N{PARTY POPPER}" * 100_000 + "x")
    assert 1_000 < len(eventually(lambda: desk.trouble)) < 100_000


_HOLD = """
import json, sys
from sparkonce.stream.claim import Place, claim
with claim(Place(**json.loads(sys.argv[1])), int(sys.argv[2]), 6, 1) as line:
    if wants := json.loads(sys.argv[3]):
        line.tell({"want": wants})
        assert "turn" in line.read()
    print("holding", flush=True)
    sys.stdin.read()
"""


def hold(place: Place, attempt: int, wants: list[object] | None = None) -> subprocess.Popen[str]:
    """A process that holds task 6, and a turn if it wants one."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, json.dumps(asdict(place)), str(attempt), json.dumps(wants)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "holding\n"
    return process


def test_a_process_that_is_killed_while_it_writes_is_told(desk: Desk) -> None:
    attempt = desk.open()
    with hold(desk.place, attempt) as process:
        assert desk.trouble is None
        process.kill()
        told = eventually(lambda: desk.trouble)
    assert told.startswith("task 6 (task attempt 1, process ")
    assert f"process {process.pid} on" in told
    assert told.endswith("died while it wrote")
    with pytest.raises(SecondAttempt), claim(desk.place, attempt, 6, 2):
        pytest.fail("what it wrote is in the transaction")


def test_the_death_of_an_older_attempt_is_no_trouble_of_this_one(desk: Desk) -> None:
    with hold(desk.place, desk.open()) as process:
        desk.open()
        process.kill()
    eventually(lambda: None if desk.peer_count else "all were heard to their ends")
    assert desk.trouble is None


def test_those_who_wait_are_told_that_another_attempt_has_begun(desk: Desk) -> None:
    with claim(desk.place, desk.open(), 0, 1) as holder, claim(desk.place, 1, 1, 2) as waiting:
        holder.tell({"want": ["t", 0]})
        assert [*(holder.read() or {})] == ["turn", "sequence"]
        waiting.tell({"want": ["t", 0]})
        waiting.tell({"counts": {}})
        assert waiting.read() == {"counts": {}}, "it waits"
        desk.open()
        assert waiting.read() == {"doom": "the attempt is over"}


def test_a_task_that_stands_still_with_a_turn_is_named_to_those_who_wait() -> None:
    desk = Desk(HOST, HOST, turn_s=0.2)
    attempt = desk.open()
    with hold(desk.place, attempt, wants=["t", 0]) as holder:
        holder.send_signal(signal.SIGSTOP)
        try:
            with claim(desk.place, attempt, 1, 2) as waiting:
                waiting.tell({"want": ["t", 0]})
                told = waiting.read()
        finally:
            holder.kill()
    assert told is not None
    assert f"process {holder.pid} on" in told["doom"]
    assert "has held its turn at t-0 for more than 0.2 s" in told["doom"]
    assert desk.trouble == told["doom"]
    desk.close()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is added to the time that a transaction has."""
    monkeypatch.setattr(sparkonce.stream.desk, "OUTLASTED_S", 0.0)


def test_tasks_that_outlast_their_transaction_are_ended(desk: Desk, at_once: None) -> None:
    ended = threading.Event()
    attempt = desk.open()
    with (
        desk.bounded(0.2, ended.set),
        claim(desk.place, attempt, 0, 1) as writing,
        claim(desk.place, attempt, 1, 2),
    ):
        writing.tell({"writes": True})
        assert ended.wait(DEADLINE_S)
        told = str(desk.trouble)
    assert told.startswith("task 0 (task attempt 1, process ")
    assert ", task 1 (task attempt 2, process " in told
    assert "did not come to an end in transaction.timeout.ms=200 behind the attempt's first" in told


def test_tasks_that_have_written_nothing_may_take_their_time(desk: Desk, at_once: None) -> None:
    """Nor is anything ended behind them."""
    ended = threading.Event()
    attempt = desk.open()
    with desk.bounded(0.0, ended.set), claim(desk.place, attempt, 0, 1) as task:
        for _ in range(3):  # the desk has looked in between
            task.tell({"counts": {}})
            assert task.read() == {"counts": {}}
    with claim(desk.place, attempt, 1, 2) as late:
        late.tell({"writes": True})
        late.tell({"counts": {}})
        assert late.read() == {"counts": {}}
    assert (ended.is_set(), desk.trouble) == (False, None)


def test_all_tasks_of_an_attempt_count_the_same_partitions(desk: Desk) -> None:
    attempt = desk.open({"known": 4})
    assert agreed_counts(desk.place, attempt, {"known": 6, "first": 2}) == {"known": 4, "first": 2}
    assert agreed_counts(desk.place, attempt, {"first": 3, "second": 1}) == {
        "first": 2,
        "second": 1,
    }
    many = {f"topic-{number}": number for number in range(2_000)}
    assert agreed_counts(desk.place, attempt, many) == many
    newer = desk.open({"known": 6})
    assert agreed_counts(desk.place, newer, {"known": 4, "first": 3}) == {"known": 6, "first": 3}
    with pytest.raises(SecondAttempt, match="is over"):
        agreed_counts(desk.place, attempt, {"first": 3})


def test_of_many_who_ask_at_once_one_gets_each_task(desk: Desk) -> None:
    tasks, asking = 20, 5
    attempt = desk.open()
    together = threading.Barrier(tasks * asking)
    written: list[int] = []
    refused: list[int] = []

    def ask(number: int) -> None:
        together.wait(DEADLINE_S)
        try:
            with claim(desk.place, attempt, number % tasks, number):
                written.append(number % tasks)
        except SecondAttempt:
            refused.append(number % tasks)

    with ThreadPoolExecutor(tasks * asking) as threads:
        list(threads.map(ask, range(tasks * asking)))
    assert sorted(written) == list(range(tasks))
    assert sorted(refused) == sorted(list(range(tasks)) * (asking - 1))
    assert desk.trouble is None


def test_a_closed_desk_says_where_it_was_sought() -> None:
    desk = Desk(HOST, HOST)
    attempt = desk.open()
    desk.close()
    place = desk.place
    with (
        pytest.raises(SparkonceError, match=f"{HOST}:{place.port}.*driverHost and driverPort"),
        claim(place, attempt, 0, 1),
    ):
        pytest.fail("nobody said it may")
    desk.close()
    again = Desk(HOST, HOST, place.port)
    assert again.place.port == place.port
    again.close()
