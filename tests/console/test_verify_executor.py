"""Executors as processes of their own, killed: as the full preset has it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from verify_command import verify


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_state_survives_an_executor(tmp_path: Path) -> None:
    """The seed kills one of two when both have computed their part of the first batch."""
    done = verify(
        tmp_path,
        "--minutes", "0.1", "--runs", "1", "--seed", "101",
        "--only", "stateful", "--only", "exactly", "--only", "executor", "--brokers", "1",
        timeout_s=280,
    )  # fmt: skip
    assert done.returncode == 0
    (outcome,) = json.loads((tmp_path / "verification.json").read_text())["outcomes"]
    assert (outcome["pipeline"], outcome["verdict"]) == ("stateful", "kept")
    assert any("KillExecutor" in each["text"] for each in outcome["story"])


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_rows_of_two_computations_are_not_written(tmp_path: Path) -> None:
    """An executor is lost with its part of a shuffle, half-way through the tasks behind it or when
    the records are on their way: the full preset begins with both."""
    done = verify(
        tmp_path,
        "--minutes", "0.1", "--runs", "2", "--seed", "101", "--only", "shuffled", "--brokers", "1",
        timeout_s=280,
    )  # fmt: skip
    assert done.returncode == 0
    outcomes = json.loads((tmp_path / "verification.json").read_text())["outcomes"]
    assert [(each["pipeline"], each["verdict"]) for each in outcomes] == [("shuffled", "kept")] * 2
    killed = [[e["text"] for e in each["story"] if e["kind"] == "kill"] for each in outcomes]
    assert sorted(text.partition("(")[0] for (text,) in killed) == [
        "KillExecutor",
        "KillOtherExecutor",
    ]
