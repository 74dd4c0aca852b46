"""The book comes back as it was written, and a file that is no book is refused with reasons."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

import outcomes
from sparkonce.errors import SparkonceError
from sparkonce.verify.outcome import Defect, Finding, Happening, Outcome, Verdict
from sparkonce.verify.report.book import Book, BookError

_texts = st.lists(st.text(max_size=20), max_size=3).map(tuple)
_seconds = st.floats(allow_nan=False, allow_infinity=False)
_findings = st.builds(Finding, st.sampled_from(Defect), st.integers(), _texts, st.text(max_size=9))
_happenings = st.builds(Happening, _seconds, st.text(max_size=9), st.text(max_size=20))
_outcomes = st.builds(
    Outcome,
    number=st.integers(),
    seed=st.integers(),
    pipeline=st.text(),
    guarantee=st.text(),
    family=st.text(),
    schedule=_texts,
    verdict=st.sampled_from(Verdict),
    findings=st.lists(_findings, max_size=3).map(tuple),
    records=st.integers(),
    duration_s=_seconds,
    story=st.lists(_happenings, max_size=3).map(tuple),
    error=st.text(),
    shrunk=st.none() | _texts,
    control=st.booleans(),
    must_show=st.lists(st.sampled_from(Defect), max_size=2).map(tuple),
    fired=st.none() | st.lists(st.booleans(), max_size=3).map(tuple),
    workload=st.text(max_size=20),
    cluster=st.text(max_size=9),
)
_books = st.builds(
    Book,
    seed=st.integers(),
    started=st.text(),
    versions=st.dictionaries(st.text(), st.text(), max_size=3),
    outcomes=st.lists(_outcomes, max_size=4, unique_by=lambda each: each.number).map(tuple),
    elapsed_s=_seconds,
)


@given(_books)
def test_what_is_written_is_read(book: Book) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "book.json"
        book.write(path)
        again = Book.read(path)
    assert again == book
    assert [type(each.verdict) for each in again.outcomes] == [Verdict] * len(book.outcomes)


def test_half_a_character_is_kept(tmp_path: Path) -> None:
    book = outcomes.book(outcomes.outcome(error="no such file: caf\udce9"))
    book.write(tmp_path / "book.json")
    assert Book.read(tmp_path / "book.json") == book


def test_a_trial_more_is_a_line_more(tmp_path: Path) -> None:
    path = tmp_path / "new" / "book.json"
    first = outcomes.book(outcomes.outcome(number=1), outcomes.outcome(number=2))
    first.write(path)
    before = path.read_text().splitlines()
    first.add(outcomes.outcome(number=3, error="two\nlines")).write(path)
    after = path.read_text().splitlines()
    assert len(after) == len(before) + 1
    assert [line.rstrip(",") for line in before] == [
        line.rstrip(",") for line in after if '"number": 3' not in line
    ]
    assert [file.name for file in path.parent.iterdir()] == ["book.json"]
    assert json.loads(path.read_text())["format"] == 2


def test_a_later_run_goes_on_from_the_highest_number(tmp_path: Path) -> None:
    book = outcomes.book()
    assert book.next_number == 1
    # Trials that run side by side end in any order, and a stopped run leaves gaps.
    for number in (1, 5, 3):
        book = book.add(outcomes.outcome(number=number))
    book.write(tmp_path / "book.json")
    again = Book.read(tmp_path / "book.json")
    assert again.next_number == 6
    assert [each.number for each in again.outcomes] == [1, 5, 3]


def test_a_number_is_given_once() -> None:
    book = outcomes.book(outcomes.outcome(number=4))
    with pytest.raises(ValueError, match="trial 4 is there twice"):
        book.add(outcomes.outcome(number=4, seed=1))


def _damaged(text: str) -> dict[str, str]:
    """What may have happened to a book, and what it then holds."""
    line = next(line for line in text.splitlines() if '"number"' in line)
    return {
        "line 9 column": text[: len(text) // 2],
        "Expecting property name": text.replace(' "seed"', "<<<<<<< HEAD\n seed", 1),
        'without the field "format"': '{"name": "package", "version": 1}',
        "JSON of another kind": "[1, 2, 3]",
        "no field 'seed'": text.replace(' "seed": 20261115,\n', ""),
        "unknown field 'colour'": text.replace('"format": 2', '"format": 2, "colour": "red"'),
        "the book.seed is 'x', which is no whole number": text.replace("20261115", '"x"'),
        "the book.outcomes[0].verdict is 'fine', which is no verdict": text.replace("kept", "fine"),
        "the book.outcomes[0].records is 'True'": text.replace(
            '"records": 4000', '"records": true'
        ),
        "trial 1 is there twice": text.replace(line, f"{line},\n{line}"),
        "recursion": "[" * 200_000,
    }


@pytest.mark.parametrize("why", _damaged('"number"'))
def test_a_damaged_book_is_refused_with_a_reason_and_a_way_out(tmp_path: Path, why: str) -> None:
    path = tmp_path / "book.json"
    outcomes.book(outcomes.outcome()).write(path)
    path.write_text(_damaged(path.read_text())[why])
    with pytest.raises(BookError) as refused:
        Book.read(path)
    assert isinstance(refused.value, SparkonceError)
    for part in (str(path), why, "start a new book"):
        assert part in str(refused.value)


def test_a_book_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "book.json"
    path.write_bytes(b"\x80\x04PK\x00")
    with pytest.raises(BookError, match="is not a book"):
        Book.read(path)


def test_a_newer_format_is_refused_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "book.json"
    outcomes.book().write(path)
    path.write_text(path.read_text().replace('"format": 2', '"format": 3'))
    with pytest.raises(BookError, match="format 3, this version of sparkonce knows up to 2"):
        Book.read(path)


def test_a_book_of_the_first_format_is_read(tmp_path: Path) -> None:
    """It said neither what had fired nor how much had gone in."""
    path = tmp_path / "book.json"
    book = outcomes.book(outcomes.outcome())
    book.write(path)
    lines = path.read_text().replace('"format": 2', '"format": 1').splitlines()
    path.write_text("\n".join(line for line in lines if '"firing"' not in line))
    again = Book.read(path)
    assert again == book
    assert again.outcomes[0].fired is None


def test_what_fired_is_noted_and_added_up(tmp_path: Path) -> None:
    path = tmp_path / "book.json"
    first = outcomes.outcome(number=1, fired=(True, False), workload="Workload()")
    book = outcomes.book(first, outcomes.outcome(number=2, fired=(True, True)))
    book.write(path)
    assert Book.read(path) == book
    told = json.loads(path.read_text())
    assert told["firing"] == {"planned": 4, "fired": 3}
    assert told["outcomes"][0]["fired"] == [True, False]


def test_a_book_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(BookError, match=r"can't be read: No such file.*start a new book"):
        Book.read(tmp_path / "none.json")


def test_a_book_that_can_not_be_written_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    (path / "kept").write_text("as it was")
    with pytest.raises(BookError, match="can't be written"):
        outcomes.book().write(path)
    assert (path / "kept").read_text() == "as it was"
    assert [each.name for each in tmp_path.iterdir()] == ["folder"]


def test_elapsed_time_and_versions_come_back(tmp_path: Path) -> None:
    book = replace(outcomes.book(), elapsed_s=12.125)
    book.write(tmp_path / "book.json")
    again = Book.read(tmp_path / "book.json")
    assert (again.elapsed_s, again.versions) == (12.125, book.versions)
