"""`sparkonce verify`: the quick preset, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from verify_command import verify


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


def test_another_seed_than_the_books_is_refused(tmp_path: Path) -> None:
    book = {"format": 1, "seed": 5, "started": "", "versions": {}, "elapsed_s": 0.0, "outcomes": []}
    (tmp_path / "verification.json").write_text(json.dumps(book))
    done = verify(tmp_path, "--seed", "6", timeout_s=100)
    assert done.returncode == 1
    assert "was begun with seed 5, not 6" in done.stderr
