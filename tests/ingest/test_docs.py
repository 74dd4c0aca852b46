"""docs/ingest.md says what the code has."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from sparkonce.ingest.outbox import _GIVEN
from sparkonce.ingest.position import Form, Mark, Position
from sparkonce.ingest.settings import CORRUPT_RECORD, OPTIONS, TableSettings

PAGE = (Path(__file__).parents[2] / "docs" / "ingest.md").read_text()


def section(title: str) -> str:
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
    assert found, title
    return found[1]


def first_cells(text: str) -> list[tuple[str, str]]:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", text, re.M)
    return [(name, second.strip("`")) for name, second in rows]


def test_every_option_is_listed_with_its_default() -> None:
    told = dict(first_cells(section("Options")))
    assert tuple(told) == OPTIONS
    plain = TableSettings.parse({"url": "sqlite:///x", "dbtable": "t", "keyColumn": "id"})
    assert {
        "updateDelayMs": str(plain.update_delay_ms),
        "numPartitions": str(plain.partitions),
        "fetchsize": str(plain.rows_fetched),
        "queryTimeout": str(plain.query_timeout_s),
        "outbox": str(plain.outbox).lower(),
        "deleteAfterPublishing": str(plain.deletes).lower(),
        "mode": "FAILFAST" if plain.corrupt_record is None else "PERMISSIVE",
        "columnNameOfCorruptRecord": CORRUPT_RECORD,
    }.items() <= told.items()
    # The kind follows from the url; the two for rows that can't be read are one.
    assert len(fields(TableSettings)) == len(OPTIONS)


def test_every_column_of_an_outbox_is_listed() -> None:
    assert {name for name, _ in first_cells(section("Outbox"))} == set(_GIVEN)


def test_every_field_of_an_offset_is_listed() -> None:
    form = Form(("id",), "7")
    paged = form.to_json(Position(Mark((1,), 5, "f"), Mark((2,), 6, "f"), (1,)))
    start = form.to_json(Position(Mark(), is_start=True))
    assert {name for name, _ in first_cells(section("Offsets"))} == {*paged, *start}
    assert set(paged["window"]) == {"xid", "upto", "children", "after"}
