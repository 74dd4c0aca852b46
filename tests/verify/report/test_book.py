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
_seconds = st.floats(-1e12, 1e12)  # they are added up
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
    build=st.integers(),
    under_faults_s=_seconds,
    refused=st.booleans(),
)
_books = st.builds(
    Book,
    seed=st.integers(),
    started=st.text(),
    versions=st.dictionaries(st.text(), st.text(), max_size=3),
    outcomes=st.lists(_outcomes, max_size=4, unique_by=lambda each: each.number).map(tuple),
    elapsed_s=_seconds,
    other_versions=st.lists(st.dictionaries(st.text(), st.text(), max_size=2), max_size=2).map(
        tuple
    ),
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
    # What stands above the outcomes are sums of them.
    assert [line.rstrip(",") for line in before if '"number"' in line] == [
        line.rstrip(",") for line in after if '"number": 3' not in line and '"number"' in line
    ]
    assert [file.name for file in path.parent.iterdir()] == ["book.json"]
    assert json.loads(path.read_text())["format"] == 3


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
        "line 12 column": text[: len(text) // 2],
        "Expecting property name": text.replace(' "seed"', "<<<<<<< HEAD\n seed", 1),
        'without the field "format"': '{"name": "package", "version": 1}',
        "JSON of another kind": "[1, 2, 3]",
        "no field 'seed'": text.replace(' "seed": 20261115,\n', ""),
        "unknown field 'colour'": text.replace('"format": 3', '"format": 3, "colour": "red"'),
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
    path.write_text(path.read_text().replace('"format": 3', '"format": 4'))
    with pytest.raises(BookError, match="format 4, this version of sparkonce knows up to 3"):
        Book.read(path)


@pytest.mark.parametrize("older", [1, 2])
def test_a_book_of_an_older_format_is_read_and_gone_on_with(tmp_path: Path, older: int) -> None:
    """The first said neither what had fired nor how much had gone in, the second not by which
    build."""
    path = tmp_path / "book.json"
    fired = None if older == 1 else (True, False)
    book = outcomes.book(outcomes.outcome(fired=fired))
    book.write(path)
    told = json.loads(path.read_text())
    for name in ("shown", "under_faults_s", "trials_by_build", *(["firing"] * (older == 1))):
        del told[name]
    path.write_text(json.dumps(told | {"format": older}))
    again = Book.read(path)
    assert again == book
    again.add(outcomes.outcome(number=2, build=1)).write(path)
    assert [each.build for each in Book.read(path).outcomes] == [0, 1]


def test_the_books_that_were_kept_are_read() -> None:
    kept = Path(__file__).parents[3] / "docs" / "verification"
    for path in kept.glob("*.json"):
        assert Book.read(path).outcomes


def test_gaps_are_what_no_trial_has_below_the_highest_number() -> None:
    assert outcomes.book().gaps == []
    drawn = [outcomes.outcome(number=number) for number in (2, 6, 3)]
    assert outcomes.book(*drawn).gaps == [1, 4, 5]


def test_an_outcome_is_put_in_place_of_that_of_its_number() -> None:
    book = outcomes.book(*(outcomes.outcome(number=number) for number in (1, 5, 3)))
    again = book.put(outcomes.outcome(number=5, shrunk=("Kill(point='end')",)))
    assert [(each.number, each.shrunk) for each in again.outcomes] == [
        (1, None),
        (5, ("Kill(point='end')",)),
        (3, None),
    ]


def test_builds_are_told_apart_with_the_number_of_their_trials(tmp_path: Path) -> None:
    first = {"sparkonce": "0.1.0", "product": "aaaa"}
    second = {"sparkonce": "0.1.0", "product": "bbbb"}
    book = replace(outcomes.book(outcomes.outcome(number=1)), versions=first)
    assert book.written_by(first) == (book, 0)
    book, build = book.written_by(second)
    assert build == 1
    assert book.builds == [(first, 1), (second, 0)], "it has still to run a trial"
    book = book.add(outcomes.outcome(number=2, build=build))
    book = book.add(outcomes.outcome(number=3, build=build))
    book.write(tmp_path / "book.json")
    again = Book.read(tmp_path / "book.json")
    assert again.builds == [(first, 1), (second, 2)]
    assert again.written_by(second) == (book, 1), "whoever comes back is known"
    assert json.loads((tmp_path / "book.json").read_text())["trials_by_build"] == [1, 2]


def test_a_place_that_can_not_be_written_is_known_before(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for bad in (tmp_path / "file" / "book.json", tmp_path):
        with pytest.raises(BookError, match="can't be written"):
            Book.check_writable(bad)
    there = tmp_path / "book.json"
    outcomes.book().write(there)
    before = there.read_bytes()
    Book.check_writable(there)
    assert there.read_bytes() == before
    assert {each.name for each in tmp_path.iterdir()} == {"file", "book.json"}


def test_what_fired_is_noted_and_added_up(tmp_path: Path) -> None:
    path = tmp_path / "book.json"
    first = outcomes.outcome(number=1, fired=(True, False), workload="Workload()")
    book = outcomes.book(first, outcomes.outcome(number=2, fired=(True, True)))
    book.write(path)
    assert Book.read(path) == book
    told = json.loads(path.read_text())
    assert told["firing"] == {"planned": 4, "fired": 3}
    assert told["shown"] == {"exactly_once": 2}
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
