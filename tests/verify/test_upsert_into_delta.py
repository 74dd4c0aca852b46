"""What the verifier makes of rows that a later record is to have replaced."""

from __future__ import annotations

import pytest

from sparkonce.verify.pipelines.upsert_into_delta import wrong

OLDER, NEWER, OTHER = "t7-000010", "t7-000002~~", "t7-000003"
"""Later is what is later in the log, whatever its number is."""
OWN = [(9, NEWER), (5, OLDER)]


def test_the_newest_record_has_the_row() -> None:
    assert list(wrong([], [])) == []
    assert list(wrong([*OWN, (1, OTHER)], [("newest 2", NEWER), ("newest 3", OTHER)])) == []


@pytest.mark.parametrize(
    ("shared", "said"),
    [
        ([], "newest 2: nothing"),
        ([("newest 2", OLDER)], f"newest 2: {OLDER}"),
        ([("newest 2", NEWER), ("newest 2", NEWER)], "twice"),
        ([("newest 2", NEWER), ("newest 4", NEWER)], "newest 4"),
    ],
    ids=["lost", "older", "twice", "of nobody"],
)
def test_all_else_is_told(shared: list[tuple[str, str]], said: str) -> None:
    (problem,) = wrong(OWN, shared)
    assert said in problem
