"""The wait that lets rows gather, and its end."""

from __future__ import annotations

import threading

import pytest

from sparkonce.errors import FatalError
from sparkonce.produce.linger import Linger


def test_rows_that_nobody_takes_are_not_waited_for_without_an_end() -> None:
    asked, takes = threading.Event(), threading.Event()

    def send() -> None:
        asked.set()
        takes.wait()

    linger = Linger(send, 0, send_within_s=0.2)
    linger.rows_came()
    assert asked.wait(30.0)
    try:
        with pytest.raises(FatalError, match=r"not handed over in 0\.2 s"):
            linger.stop()
    finally:
        takes.set()
    linger.stop()
