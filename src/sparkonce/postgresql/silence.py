"""How long a server is waited for that says nothing.

Keepalives notice a machine that has gone, and not a server that was stopped on one that lives, or a
pooler that waits for such a one. So who hears nothing for a while knocks elsewhere: a server that
takes no new connection either has gone. One that does is at work, and has time up to queryTimeout.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import psycopg

QUERY_TIMEOUT: Final = "queryTimeout"
QUERY_TIMEOUT_S: Final = 3600
_KNOCK_AFTER_S = 20.0
_KNOCK_S = 10
"""For an answer to it."""
_LOOK_S: Final = 0.1

_Answer = TypeVar("_Answer")


class NoAnswer(psycopg.OperationalError):
    """Whether the statement has happened is not known."""


@dataclass(slots=True)
class Silence:
    """Of a server, while an answer of it is waited for."""

    info: str = field(repr=False)
    """To knock with."""
    limit_s: float
    _waited_s: float = 0.0
    """Up to the last pause."""
    _since_s: float | None = None
    _heard_s: float = 0.0

    def begin(self) -> None:
        """From now on it is the server that has to do something."""
        self._since_s = self._heard_s = time.monotonic()

    def pause(self) -> None:
        """It has answered; what comes next is up to us."""
        since_s, self._since_s = self._since_s, None
        if since_s is not None:
            self._waited_s += time.monotonic() - since_s

    def heard(self) -> None:
        self._heard_s = time.monotonic()

    def check(self) -> None:
        """NoAnswer if it has lasted too long."""
        since_s, now_s = self._since_s, time.monotonic()
        if since_s is None:
            return
        if self._waited_s + now_s - since_s > self.limit_s:
            raise NoAnswer(
                f"the server has not finished within {self.limit_s:g} s: look into "
                f"pg_stat_activity for what it does, or set a longer {QUERY_TIMEOUT}"
            )
        if now_s - self._heard_s > _KNOCK_AFTER_S:
            if not _takes_clients(self.info):
                raise NoAnswer(
                    f"the server has said nothing for {now_s - self._heard_s:.0f} s, and does not "
                    "take a new connection either: look whether it is stopped or cut off"
                )
            self.heard()


def answered(
    call: Callable[[], _Answer], silence: Silence, too_late: Callable[[], None] | None = None
) -> _Answer:
    """For clients that wait in C without an end, as ADBC does: the call runs in a thread, which is
    left behind with its connection where the server has gone. Should it come back, `too_late` is
    there to close it; nobody may before."""
    answers: list[_Answer] = []
    failures: list[BaseException] = []
    over = threading.Lock()
    done = threading.Event()
    is_left = False

    def run() -> None:
        try:
            answers.append(call())
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            failures.append(error)
        with over:
            done.set()
        if is_left and too_late is not None:
            too_late()

    silence.begin()
    threading.Thread(target=run, name="sparkonce-answered", daemon=True).start()
    while not done.wait(_LOOK_S):
        try:
            silence.check()
        except NoAnswer:
            with over:
                is_left = not done.is_set()
            if is_left:
                raise
    silence.pause()
    if failures:
        raise failures[0]
    return answers[0]


def _takes_clients(info: str) -> bool:
    """Or refuses them in words, which only one that lives can do. A port that is closed was told to
    the connection that waits, too."""
    given: dict[str, Any] = {"connect_timeout": _KNOCK_S}
    try:
        psycopg.connect(info, **given).close()
    except psycopg.errors.ConnectionTimeout:
        return False
    except psycopg.OperationalError:
        return True
    return True
