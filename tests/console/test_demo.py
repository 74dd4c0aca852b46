"""`sparkonce demo` as people run it: the whole of it once, and ended by Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from parts import marked_processes

_DEMO = [sys.executable, "-c", "from sparkonce.console.app import main; main()", "demo"]
RECORDS = 2000


class Marked:
    """A demo in a folder for temporary files of its own, whose processes can be told from others'.

    All that it starts inherits the mark, however far away from it in the tree of processes.
    """

    def __init__(self, folder: Path) -> None:
        self._mark = f"SPARKONCE_TEST_MARK={uuid.uuid4()}"
        name, value = self._mark.split("=")
        self.folder = folder
        self.env = os.environ | {name: value, "TMPDIR": str(folder)}

    def processes(self) -> list[str]:
        """The command lines of those that run now."""
        return [" ".join(command) for command in marked_processes(self._mark).values()]

    def wait_until_gone(self, timeout_s: float = 20) -> None:
        # Spark's Python workers end by themselves when their JVM has, a moment later.
        deadline_s = time.monotonic() + timeout_s
        while left := self.processes():
            assert time.monotonic() < deadline_s, left
            time.sleep(0.05)


@pytest.fixture
def marked(tmp_path: Path) -> Marked:
    return Marked(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_it_shows_exactly_once_beside_repeats(seed: int, marked: Marked) -> None:
    said = subprocess.run(
        [*_DEMO, "--headless", "--records", str(RECORDS), "--seed", str(seed)],
        capture_output=True,
        text=True,
        timeout=380,
        env=marked.env,
    )
    print(said.stdout, said.stderr)
    assert said.returncode == 0
    marked.wait_until_gone()
    assert list(marked.folder.iterdir()) == [], "nothing is left lying about"
    assert f"--seed {seed}" in said.stdout
    assert "Exactly once: sparkonce lost 0, repeated 0, reordered 0" in said.stdout
    ours, theirs = _columns(said.stdout)
    for column in ours, theirs:
        assert column["payments in"] == RECORDS
        assert column["payments in the last balances"] == RECORDS
        assert column["driver killed (-9)"] == 2
        assert column["driver started"] >= 3
        assert column["balances read"] == column["balances due"] + column["repeated"]
        assert (column["lost"], column["reordered"], column["wrong"]) == (0, 0, 0)
    assert ours["repeated"] == 0
    assert theirs["repeated"] > 0
    for moment in ("transaction was committed, Spark's own commit was not", "was still open"):
        assert len(re.findall(f"sparkonce, driver .: killed.* {moment}", said.stdout)) == 1
    assert "\x1b" not in said.stdout
    assert "Traceback" not in said.stderr


def _columns(output: str) -> tuple[dict[str, int], dict[str, int]]:
    """The table's two columns of numbers, by the name of the row."""
    rows = re.findall(r"^([a-z][-a-z0-9() ]+?) {2,}([\d,]+) +([\d,]+) *$", output, re.M)
    ours = {name: int(left.replace(",", "")) for name, left, _ in rows}
    theirs = {name: int(right.replace(",", "")) for name, _, right in rows}
    return ours, theirs


@pytest.mark.slow
def test_ctrl_c_stops_it_and_leaves_nothing(marked: Marked) -> None:
    with subprocess.Popen(
        [*_DEMO, "--headless"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=marked.env,
        # Who is started in the background by a shell without job control ignores Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as program:
        _wait_for_spark(program, marked)
        program.send_signal(signal.SIGINT)
        said, errors = program.communicate(timeout=60)
    assert program.returncode == 130
    assert "Stopped." in said
    assert "Traceback" not in errors
    marked.wait_until_gone()
    assert list(marked.folder.iterdir()) == []


@pytest.mark.slow
def test_a_demo_that_is_killed_takes_its_drivers_with_it(marked: Marked) -> None:
    with subprocess.Popen(
        [*_DEMO, "--headless"], stdout=subprocess.DEVNULL, env=marked.env
    ) as program:
        _wait_for_spark(program, marked)
        program.kill()
    marked.wait_until_gone()


def _wait_for_spark(program: subprocess.Popen[str] | subprocess.Popen[bytes], demo: Marked) -> None:
    deadline_s = time.monotonic() + 100
    while not any("org.apache.spark.deploy.SparkSubmit" in each for each in demo.processes()):
        assert program.poll() is None and time.monotonic() < deadline_s
        time.sleep(0.05)
