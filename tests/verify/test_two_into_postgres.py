"""What the verifier makes of rows that two pipelines write, and of how far each of them is."""

from __future__ import annotations

import pytest

from sparkonce.verify.pipelines.two_into_postgres import wrong

PER_BATCH = 20
FIRST, SECOND, OTHER = "t7-000020", "t7-000021~~", "t7-000022"
Rows = list[tuple[str, str]]


def shared(value: str, numbers: range = range(1, 51)) -> Rows:
    return [(f"000001-{number:03}", value) for number in numbers]


@pytest.mark.parametrize(
    ("own", "rows"),
    [
        ([], []),
        ([OTHER], []),
        ([FIRST], shared(FIRST)),
        ([FIRST, SECOND, OTHER], shared(SECOND)),
    ],
    ids=["nothing", "none due", "of the one", "of the last"],
)
def test_rows_of_whoever_wrote_them_last(own: list[str], rows: Rows) -> None:
    assert list(wrong(own, rows, PER_BATCH)) == []


@pytest.mark.parametrize(
    ("own", "rows", "said"),
    [
        ([FIRST], [], "0 of 50"),
        ([FIRST], shared(FIRST, range(1, 50)), "49 of 50"),
        ([FIRST, SECOND], shared(FIRST, range(1, 26)) + shared(SECOND, range(26, 51)), "a part"),
        ([FIRST], shared(SECOND), "no row of its own"),
        ([OTHER], shared(OTHER), "no row of its own"),
    ],
    ids=["all lost", "one lost", "torn", "of nobody", "of one that brings none"],
)
def test_all_else_is_told(own: list[str], rows: Rows, said: str) -> None:
    (problem,) = wrong(own, rows, PER_BATCH)
    assert problem.startswith("block 000001: ") and said in problem
