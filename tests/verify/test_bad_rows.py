"""What the verifier makes of rows that are in the table, and of those that were put aside."""

from __future__ import annotations

import json

import pytest

from sparkonce.verify.pipelines.bad_rows import KEPT_TEXT, READ_TEXT, REFUSED_TEXT, records

GOOD, UNFIT, NEGATIVE, NOT_UTF8 = "t7-000002", "t7-000008", "t7-000009~~~", "t7-000012"


def dead(value: str, text: str) -> str:
    return json.dumps({"id": 1, "version": 2, "amount": 1, "text": text, "value": value})


def values(kept: list[tuple[str, str]], put_aside: list[str]) -> list[str]:
    return [(each.value or b"").decode() for each in records(kept, put_aside)]


def test_what_is_where_it_belongs_is_what_went_in() -> None:
    put_aside = [dead(UNFIT, REFUSED_TEXT), dead(NEGATIVE, KEPT_TEXT), dead(NOT_UTF8, READ_TEXT)]
    assert values([(KEPT_TEXT, GOOD)], put_aside) == [GOOD, UNFIT, NEGATIVE, NOT_UTF8]


@pytest.mark.parametrize(
    ("kept", "put_aside"),
    [
        ([("Ã©", GOOD)], []),
        ([(KEPT_TEXT, f"older {GOOD}")], []),
        ([(KEPT_TEXT, NEGATIVE)], []),
        ([("?", UNFIT)], []),
        ([(READ_TEXT, NOT_UTF8)], []),
        ([], [dead(GOOD, KEPT_TEXT)]),
        ([], [dead(UNFIT, "?")]),
        ([], [dead(f"older {UNFIT}", REFUSED_TEXT)]),
    ],
    ids=[
        "altered",
        "older",
        "refused",
        "replaced",
        "mended",
        "put aside",
        "altered aside",
        "older aside",
    ],
)
def test_all_else_never_went_in(kept: list[tuple[str, str]], put_aside: list[str]) -> None:
    (found,) = values(kept, put_aside)
    assert found not in (GOOD, UNFIT, NEGATIVE, NOT_UTF8)
