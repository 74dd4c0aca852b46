"""Whom a disturbance hits, and whom it must not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from parts import is_running
from sparkonce.verify.disturb import executor_of, kill_idle, other_executor_of

# Three generations, as Spark's: who is called java, a daemon, and a worker that waits.
WORKER = "import sys, os; print(os.getppid(), os.getpid(), flush=True); sys.stdin.read()"
DAEMON = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WORKER!r}])"
EXECUTOR = f"""
import ctypes, subprocess, sys
PR_SET_NAME = 15
ctypes.CDLL(None).prctl(PR_SET_NAME, b"java")
subprocess.run([sys.executable, "-c", {DAEMON!r}])
"""

BACKEND = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


class Family:
    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", EXECUTOR, BACKEND],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.executor = self._process.pid
        assert self._process.stdout
        self.daemon, self.worker = map(int, self._process.stdout.readline().split())

    def end(self) -> None:
        self._process.communicate()  # closes what the worker waits for


@pytest.fixture
def spark() -> Iterator[Family]:
    family = Family()
    yield family
    family.end()


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    while is_running(pid):
        pass


def test_a_workers_executor_is_the_parent_of_its_daemon(spark: Family) -> None:
    assert executor_of(spark.worker) == spark.executor


@pytest.mark.parametrize("ended", ["daemon", "executor"])
def test_a_worker_that_outlived_it_has_none(spark: Family, ended: str) -> None:
    kill(getattr(spark, ended))
    with pytest.raises(ProcessLookupError, match="has ended"):
        executor_of(spark.worker)


def test_a_worker_that_has_ended_has_none() -> None:
    family = Family()
    family.end()
    with pytest.raises(ProcessLookupError, match="has ended"):
        executor_of(family.worker)


def test_another_executor_is_one_of_the_same_driver(spark: Family) -> None:
    with pytest.raises(ProcessLookupError, match="Beside the executor"):
        other_executor_of(spark.worker)  # this process has other children, which are none
    other = Family()
    try:
        assert other_executor_of(spark.worker) == other.executor
        assert other_executor_of(other.worker) == spark.executor
    finally:
        other.end()


def test_an_idle_worker_is_gone_when_it_is_killed(spark: Family) -> None:
    kill_idle(spark.worker)
    assert not Path(f"/proc/{spark.worker}").exists()
    with pytest.raises(ProcessLookupError):
        kill_idle(spark.worker)
