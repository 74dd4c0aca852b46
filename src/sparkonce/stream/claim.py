"""A task's side of the line to the driver: the right to write, held for as long as it writes."""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from sparkonce.errors import AbortableError, SparkonceError
from sparkonce.stream.lines import decoded, encoded, keep_alive

_TIMEOUT_S: Final = 60.0
_GREETINGS_MAX: Final = 5
_PAUSE_S: Final = 0.1
_TROUBLE_CHARS_MAX: Final = 20_000
_TOPICS_AT_ONCE: Final = 500
_RECEIVE_BYTES: Final = 64 * 1024

Hear = Callable[[dict[str, Any]], None]
Fail = Callable[[BaseException], None]


class SecondAttempt(SparkonceError):
    """This task was run before in the same transaction: it must not write."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where to ask, and the secret that shows one belongs to this pipeline."""

    host: str
    port: int
    secret: str


class Line:
    """A task's line to the desk while it may write."""

    def __init__(self, line: socket.socket) -> None:
        self._socket = line
        self._inbox = bytearray()
        self._lock = threading.Lock()
        self._listener: threading.Thread | None = None

    def tell(self, what: dict[str, Any]) -> None:
        with self._lock:
            self._socket.sendall(encoded(what))

    def read(self) -> dict[str, Any] | None:
        """What the desk says next; None at the end of the line."""
        while (end := self._inbox.find(b"\n")) < 0:
            data = self._socket.recv(_RECEIVE_BYTES)
            if not data:
                return None
            self._inbox += data
        line = bytes(self._inbox[:end])
        del self._inbox[: end + 1]
        return decoded(line)

    def stay(self) -> None:
        """From here on it may be silent, for as long as the driver shows signs of life."""
        self._socket.settimeout(None)

    def close(self) -> None:
        self._socket.close()

    def listen(self, hear: Hear, fail: Fail) -> None:
        """Hand on what the desk says, on a thread of its own, until the line ends. Whatever ends
        that is told, so that nobody waits for what will not be heard."""

        def run() -> None:
            try:
                while (said := self.read()) is not None:
                    hear(said)
                raise AbortableError("the driver closed the line while turns were waited for")
            except BaseException as error:  # noqa: BLE001 - told to the one who waits
                fail(error)

        self._listener = threading.Thread(target=run, name="sparkonce-turns", daemon=True)
        self._listener.start()

    def end(self, trouble: str | None, *, must_take_turns: bool = False) -> None:
        """Say how it ended; the desk hangs up, and with that whoever listens is done."""
        self.tell({"trouble": trouble, "must_take_turns": must_take_turns})
        if self._listener is None:
            return
        self._listener.join(_TIMEOUT_S)
        if self._listener.is_alive():
            self._socket.shutdown(socket.SHUT_RDWR)
            raise AbortableError(
                f"the driver was told that all is written and did not answer in {_TIMEOUT_S:g} s: "
                "it hangs, or can't be reached any more; look into its log"
            )


@contextmanager
def claim(
    place: Place,
    attempt: int,
    task: int,
    task_attempt: int,
    *,
    wants_turns: Callable[[BaseException], bool] = lambda error: False,
) -> Iterator[Line]:
    """Hold the right to write for as long as the block runs. Raises SecondAttempt.

    `wants_turns` tells the errors after which the next attempt has to be written in turns.
    """
    who = f"task attempt {task_attempt}, process {os.getpid()} on {socket.gethostname()}"
    line = _greeted(place, {"attempt": attempt, "task": task, "who": who})
    line.stay()
    try:
        yield line
    except BaseException as error:
        trouble = f"task {task} ({who}): {type(error).__name__}: {error}"[:_TROUBLE_CHARS_MAX]
        # A line that is broken tells the same, and this error is the one to raise.
        with suppress(OSError, SparkonceError):
            line.end(trouble, must_take_turns=wants_turns(error))
        raise
    else:
        try:
            line.end(None)
        except OSError as error:
            raise AbortableError(
                f"the driver could not be told that task {task} has written all ({error}): it "
                "takes the task for dead"
            ) from error
    finally:
        line.close()


def agreed_counts(place: Place, attempt: int, counts: Mapping[str, int]) -> dict[str, int]:
    """How many partitions topics have for all tasks of the attempt; `counts` is what this one has
    seen, and stands where nobody was before it."""
    line = _greeted(place, {"attempt": attempt})
    try:
        agreed: dict[str, int] = {}
        names = sorted(counts)
        for at in range(0, len(names), _TOPICS_AT_ONCE):
            some = {name: counts[name] for name in names[at : at + _TOPICS_AT_ONCE]}
            line.tell({"counts": some})
            answer = line.read()
            if answer is None:
                raise AbortableError("the driver closed the line while it was asked of topics")
            agreed |= answer["counts"]
        return agreed
    except OSError as error:
        raise AbortableError(f"the driver could not be asked of topics: {error}") from error
    finally:
        line.close()


def _greeted(place: Place, greeting: Mapping[str, Any]) -> Line:
    """A line on which the driver has said that one may go on."""
    for _ in range(_GREETINGS_MAX):
        line = _opened(place)
        try:
            answer = _answer(line, {"secret": place.secret, **greeting})
        except BaseException:
            line.close()
            raise
        if answer is not None and not answer["refusal"]:
            return line
        line.close()
        if answer is not None:
            raise SecondAttempt(f"it must not write a second time: {answer['refusal']}")
        # It may have been crowded out by strangers.
        time.sleep(random.uniform(0, _PAUSE_S))
    raise SparkonceError("the driver closed the line: it has stopped, or isn't this one's")


def _answer(line: Line, what: dict[str, Any]) -> dict[str, Any] | None:
    """None where the line was closed instead."""
    try:
        line.tell(what)
        return line.read()
    except TimeoutError:
        raise SparkonceError(
            f"the driver did not answer in {_TIMEOUT_S:g} s: it hangs; look into its log"
        ) from None
    except OSError:
        return None


def _opened(place: Place) -> Line:
    try:
        line = socket.create_connection((place.host, place.port), _TIMEOUT_S)
    except OSError as error:
        raise SparkonceError(
            f"the driver can't be reached at {place.host}:{place.port} ({error}): executors ask "
            "there before they write; open that way, or name a host and port that is open with "
            "the options driverHost and driverPort"
        ) from error
    keep_alive(line)
    return Line(line)
