"""No JVM outlives the Python that started it, however that died."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from parts import is_running, state_of, wait_until, wait_until_gone
from sparkonce.local import LocalKafka
from sparkonce.local.jvm import Jvm

_PARENT = """
import sys, time
from sparkonce.local import LocalKafka
kafka = LocalKafka().start()
print(kafka.broker_pid(1), kafka.folder, flush=True)
time.sleep(1000)
"""


def test_killing_the_parent_ends_the_jvm_and_removes_its_folder() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid_text, folder = parent.stdout.readline().split()
        assert is_running(int(pid_text)) and Path(folder).exists()
        parent.kill()
        wait_until_gone(int(pid_text))
    wait_until(lambda: not Path(folder).exists(), f"{folder} is gone")


@pytest.fixture
def sleeper(tmp_path: Path) -> Jvm:
    """A process under a warden; for the warden it matters little that it isn't a JVM."""
    return Jvm(["sleep", "1000"], output=tmp_path / "output.log")


@pytest.mark.skipif(sys.platform != "linux", reason="needs the kernel's parent-death signal")
def test_killing_the_warden_ends_the_jvm(sleeper: Jvm) -> None:
    os.kill(sleeper._warden.pid, signal.SIGKILL)
    wait_until_gone(sleeper.pid)
    sleeper._warden.wait()
    assert not sleeper.is_alive()
    sleeper.kill()  # of something dead: nothing to do, no error


def test_ctrl_c_in_the_terminal_does_not_reach_the_jvm(sleeper: Jvm) -> None:
    assert os.getsid(sleeper.pid) != os.getsid(0)
    sleeper.kill()


def test_a_paused_process_can_be_terminated(sleeper: Jvm) -> None:
    sleeper.pause()
    assert sleeper.is_paused() and sleeper.is_alive()
    assert sleeper.terminate(10.0)
    assert state_of(sleeper.pid) == "" and not sleeper.is_paused()


def test_a_program_that_cannot_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="could not be started"):
        Jvm([str(tmp_path / "nothing")], output=tmp_path / "output.log")


def test_stopping_removes_the_temporary_folder() -> None:
    kafka = LocalKafka().start()
    folder, pid = kafka.folder, kafka.broker_pid(1)
    kafka.stop()
    assert not folder.exists()
    assert not is_running(pid)
    kafka.stop()  # twice is once
