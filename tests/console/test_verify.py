"""`sparkonce verify`: the quick preset, what is refused, what a stopped run leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from verify_command import VERIFY, verify


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_quick_preset_keeps_every_promise_and_its_controls_show(tmp_path: Path) -> None:
    """The same schedules each time; new ones are what `sparkonce verify --minutes` is for."""
    seed = 14
    done = verify(tmp_path, "--seed", str(seed), timeout_s=850)
    assert done.returncode == 0
    assert "Every promise was kept." in done.stdout
    book = json.loads((tmp_path / "verification.json").read_text())
    verdicts = {(each["pipeline"], each["verdict"]) for each in book["outcomes"]}
    assert {verdict for _, verdict in verdicts} == {"kept", "shown"}
    for pipeline in ("producer", "stateless", "stateful", "topics", "batch"):
        assert (pipeline, "kept") in verdicts
    page = (tmp_path / "verification.html").read_text()
    assert "Every promise was kept" in page
    assert f"{seed}" in page
    last = done.stdout.splitlines()[-1]
    assert last.startswith("Trials that kept it under a fault: exactly_once ")
    assert "nothing shown" not in last
    assert book["under_faults_s"] > 0
    assert book["trials_by_build"] == [len(book["outcomes"])]
    assert len(book["versions"]["product"]) == 12


def test_another_seed_than_the_books_is_refused(tmp_path: Path) -> None:
    book = {"format": 1, "seed": 5, "started": "", "versions": {}, "elapsed_s": 0.0, "outcomes": []}
    (tmp_path / "verification.json").write_text(json.dumps(book))
    done = verify(tmp_path, "--seed", "6", timeout_s=100)
    assert done.returncode == 1
    assert "was begun with seed 5, not 6" in done.stderr


def test_a_place_that_can_not_be_written_is_refused_before_the_first_trial(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = verify(tmp_path, "--json", "file/book.json", timeout_s=100)
    assert done.returncode == 1
    assert "file/book.json can't be written" in " ".join(done.stderr.split())
    assert "starting Kafka" not in done.stdout
    done = verify(tmp_path, "--json", "book.html", timeout_s=100)
    assert done.returncode == 1
    assert "is where the page is written" in done.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


# It takes nothing and says that all is done.
LOSES = """
SHARES = True

def run(job):
    pass
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ctrl_c_keeps_what_had_ended_and_the_broken_first(tmp_path: Path, seed: int) -> None:
    """Stopped while it looks for a shorter schedule."""
    (tmp_path / "loses.py").write_text(LOSES)
    command = [*VERIFY, "--pipeline", "loses.py", "--brokers", "1", "--seed", str(seed)]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Who is started in the background by a shell without job control ignores Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if "  broken  " in line:
                os.killpg(process.pid, signal.SIGINT)  # all of the group, as a terminal does
                break
        said.append(process.stdout.read())
    print(*said)
    assert process.returncode == 1
    assert "Stopped." in "".join(said)
    book = json.loads((tmp_path / "verification.json").read_text())
    assert {each["verdict"] for each in book["outcomes"]} == {"broken"}
    assert len(book["outcomes"]) > 1, "all of its round"
    assert any("shrunk" not in each for each in book["outcomes"])
    assert book["elapsed_s"] > 0
    assert "A promise was broken" in (tmp_path / "verification.html").read_text()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_was_not_tried_is_not_called_kept(tmp_path: Path) -> None:
    arguments = ("--only", "producer", "--only", "AT_LEAST", "--seed", "5", "--brokers", "1")
    done = verify(tmp_path, *arguments, timeout_s=280)
    assert "Every promise was kept" not in done.stdout
    last = done.stdout.splitlines()[-1]
    assert "exactly_once: nothing shown" in last
    assert "Every promise was kept" not in (tmp_path / "verification.html").read_text()

    path = tmp_path / "verification.json"
    book = json.loads(path.read_text())
    before = len(book["outcomes"])
    path.write_text(json.dumps(book | {"versions": book["versions"] | {"product": "other"}}))
    done = verify(tmp_path, "--runs", "1", *arguments[:4], "--brokers", "1", timeout_s=280)
    assert f"{before} with product other" in " ".join(done.stdout.split())
    assert json.loads(path.read_text())["trials_by_build"] == [before, 1]
    assert "2 builds wrote in this book" in (tmp_path / "verification.html").read_text()
