"""`sparkonce verify --ends`: files, tables and databases."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from verify_command import verify


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_both_ends_survive_a_crash(tmp_path: Path) -> None:
    """All of `--ends` is run by hand; this is a sixth of it."""
    done = verify(
        tmp_path,
        "--ends", "--seed", "5", "--only", "exactly_once", "--only", "crash", "--brokers", "1",
        timeout_s=500,
    )  # fmt: skip
    assert done.returncode == 0
    book = json.loads((tmp_path / "verification.json").read_text())
    assert sorted({each["pipeline"] for each in book["outcomes"]}) == [
        "bad rows into DuckDB",
        "bad rows into PostgreSQL",
        "end to end",
        "from DuckDB",
        "from LATIN1",
        "from SQLite",
        "from a table",
        "from files",
        "from partitions",
        "into Delta",
        "into DuckDB",
        "into PostgreSQL",
        "two into PostgreSQL",
        "upsert into Delta",
    ]
    assert {each["verdict"] for each in book["outcomes"]} == {"kept"}
