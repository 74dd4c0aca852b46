"""A process to be killed: with its whole group, and with its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from parts import is_running, state_of
from sparkonce.verify.child import Child

# A grandchild shares the group, as Spark's JVM does, and doesn't end with its parent.
FAMILY = """
import subprocess, sys
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(grandchild.pid, flush=True)
grandchild.wait()
"""
ENDS_WITH_PARENT = """
import sys, threading
from sparkonce.verify.child import end_with_parent
end_with_parent()
print("ready", flush=True)
threading.Event().wait()
"""
PARENT = f"""
import os, sys
from sparkonce.verify.child import Child
child = Child([sys.executable, "-c", {ENDS_WITH_PARENT!r}], os.environ)
while "ready" not in child.last_words():
    pass
if sys.argv[1:] == ["pause"]:
    child.pause()
print(child.pid, flush=True)
os.kill(os.getpid(), 9)
"""


def said(child: Child) -> str:
    while not child.last_words():
        assert child.is_running()
    return child.last_words()


def test_a_kill_ends_the_whole_group() -> None:
    with Child([sys.executable, "-c", FAMILY], os.environ) as child:
        grandchild = int(said(child))
        assert is_running(grandchild)
        child.kill()
        # It can't do anything any more; the kernel may still be clearing it away.
        while is_running(grandchild):
            pass
        assert child.exit_code == -signal.SIGKILL


def test_an_end_of_its_own_has_its_code_and_its_last_words() -> None:
    with Child([sys.executable, "-c", "print('bye'); exit(3)"], os.environ) as child:
        assert child.exit_code == 3
        child.kill()
        assert child.last_words() == "bye\n"


def test_what_it_said_of_one_is_told_apart() -> None:
    lines = "print('t1: a'); print('t11: b'); print(\"batch 0 of 't1': c\"); print('d')"
    before_s = time.monotonic()
    with Child([sys.executable, "-c", lines], os.environ) as child:
        assert child.exit_code == 0
        child.kill()
        told = child.said_of("t1")
    assert [line for _, line in told] == ["t1: a", "batch 0 of 't1': c"]
    assert before_s <= told[0][0] <= told[1][0] <= time.monotonic()


def test_a_pause_stops_it_until_it_is_resumed() -> None:
    with Child([sys.executable, "-c", FAMILY], os.environ) as child:
        said(child)
        child.pause()
        while state_of(child.pid) != "T":
            pass
        child.resume()
        while state_of(child.pid) == "T":
            pass
        assert is_running(child.pid)


@pytest.mark.parametrize("how", ["run", "pause"])
def test_it_ends_with_its_parent(how: str) -> None:
    done = subprocess.run([sys.executable, "-c", PARENT, how], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL
    pid = int(done.stdout)
    while is_running(pid):
        pass  # the test's own time-out is the limit
