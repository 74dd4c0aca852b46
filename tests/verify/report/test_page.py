"""The page: whole HTML that loads nothing, says the worst first and stays small."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from outcomes import STORY, book, lost, outcome, repeated
from sparkonce.guarantees import Guarantee
from sparkonce.verify.outcome import Defect, Happening, Outcome, Verdict
from sparkonce.verify.report.glossary import DEFECTS, VERDICTS
from sparkonce.verify.report.page import render
from sparkonce.verify.report.timeline import lives

BROKEN = outcome(
    number=2,
    seed=31337,
    family="zombie",
    verdict=Verdict.BROKEN,
    findings=(lost(3, "a Java reader"),),
    shrunk=("Pause(point='write')",),
)
SHOWN = outcome(
    number=3, control=True, must_show=(Defect.LOST,), verdict=Verdict.SHOWN, findings=(lost(9),)
)
MIXED = book(
    outcome(),
    BROKEN,
    SHOWN,
    outcome(number=4, family="crash", verdict=Verdict.FAILED, findings=(lost(9),), error="gone"),
    outcome(number=5, guarantee="at_least_once", findings=(repeated(1200),)),
    outcome(number=6, pipeline="balances", control=True, verdict=Verdict.WEAK, story=()),
)


class _Page(HTMLParser):
    """Complains of tags that don't match; keeps tags, links, ids and text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def all(self, name: str) -> list[str | None]:
        return [value for key, value in self.attributes if key == name]


def _header(page: str) -> str:
    return page[page.index("<header") : page.index("</header>")] + "</header>"


def test_it_is_whole_and_loads_nothing() -> None:
    page = render(MIXED)
    parsed = _Page(page)
    assert page.startswith("<!doctype html>")
    assert not re.search(r"https?:", page)
    assert not re.search(r"url\(|@import", page)
    assert not {"script", "link", "img", "iframe", "object"} & set(parsed.tags)
    assert not parsed.all("src")
    assert "prefers-color-scheme: dark" in page


def test_every_link_has_its_target_and_every_cell_its_section() -> None:
    parsed = _Page(render(MIXED))
    ids = parsed.all("id")
    assert len(ids) == len(set(ids)) == 6
    assert set(parsed.all("href")) == {f"#{name}" for name in ids}


@pytest.mark.parametrize(
    ("trials", "tone", "words"),
    [
        ((outcome(), BROKEN), "broken", ["A promise was broken", "In 1 of 2 trials", "✗ lost 3"]),
        (
            (outcome(), outcome(number=2, guarantee="at_least_once")),
            "unproven",
            ["The controls are too weak", "payments · at_least_once: repeated not shown"],
        ),
        (
            (outcome(), SHOWN),
            "clean",
            [
                "Every promise was kept",
                "In 1 trial in which a fault came to pass",
                "lost 9 and repeated 0",
                "were caught",
            ],
        ),
        ((outcome(),), "clean", ["Every promise was kept", "No control was run"]),
        (
            (outcome(), outcome(number=2, verdict=Verdict.FAILED)),
            "unproven",
            ["Not every trial came to its end", "1 trial could not be run"],
        ),
        (
            (outcome(fired=(False, False)), outcome(number=2, fired=None)),
            "unproven",
            [
                "Nothing was shown",
                "exactly_once: nothing shown",
                "Not counted: 1 trial without any fault, 1 trial of which nobody noted",
            ],
        ),
        (
            (outcome(guarantee="at_least_once", findings=(repeated(1),)),),
            "expected",
            ["No promise was broken, and not", "exactly_once: nothing shown, at_least_once 1."],
        ),
        (
            (outcome(), outcome(number=2, refused=True)),
            "clean",
            ["Every promise was kept", "exactly_once 1.", "1 trial in which the pipeline refused"],
        ),
        ((), "unproven", ["No trial has been run yet"]),
    ],
)
def test_the_headline_says_the_worst(
    trials: tuple[Outcome, ...], tone: str, words: list[str]
) -> None:
    page = render(book(*trials))
    header = _header(page)
    assert f'class="{tone}"' in header
    for said in words:
        assert said in _Page(header).text
    assert f"<title>{words[0]}" in page


def test_a_broken_promise_is_linked_from_the_headline() -> None:
    header = _header(render(MIXED))
    assert re.search(r'<a href="#cell-\d+">payments · exactly_once · zombie</a>: ✗ lost 3', header)


def test_figures_seed_and_versions_are_told() -> None:
    timed = replace(MIXED, outcomes=tuple(replace(e, under_faults_s=9.5) for e in MIXED.outcomes))
    text = _Page(render(timed)).text
    for words in (
        "trials 6",
        "under a fault 3",
        "records 24,000",
        "faults that fired 10 of 10 (100 %)",
        "time under faults 57 s",
        "run time 2.3 h",
        "seed 20261115",
    ):
        assert words in text
    assert "sparkonce 0.1.0 · kafka 4.3.0 · spark 4.2.0 · python 3.11.9" in text


def test_builds_that_wrote_in_the_same_book_are_told_apart() -> None:
    one = book(outcome(), outcome(number=2))
    assert "builds wrote" not in _Page(render(one)).text
    two, build = one.written_by({"sparkonce": "0.1.0", "product": "bbbb"})
    text = _Page(render(two.add(outcome(number=3, build=build)))).text
    assert "2 builds wrote in this book" in text
    assert "2 trials: sparkonce 0.1.0 · kafka 4.3.0" in text
    assert "1 trial: sparkonce 0.1.0 · product bbbb" in text


def test_what_a_verdict_would_hide_is_said_in_the_trials() -> None:
    trials = (
        outcome(refused=True, under_faults_s=3.25),
        outcome(number=2, family="crash", fired=(False, False)),
    )
    text = _Page(render(book(*trials))).text
    assert "Trial 1 kept refused to go on · 4,000 records" in text
    assert "It refused The pipeline refused to go on over state" in text
    assert "Under faults 3.2 s" in text
    assert "Trial 2 kept without any fault" in text
    assert "exactly_once · crash 1 without any fault" in text


def test_a_broken_trial_is_told_whole() -> None:
    text = _Page(render(book(BROKEN))).text
    for words in (
        "Seed 31337",
        "LoseResponse('EndTxn', nth=2)",
        "Shortest that breaks it Pause(point='write')",
        "lost 3 as seen by a Java reader: id-17 , id-18 , …",
        "driver 0 killed at record",
    ):
        assert words in text
    assert "Error gone" in _Page(render(MIXED)).text


def test_the_plots_say_zero_and_what_is_not() -> None:
    text = _Page(render(MIXED)).text
    assert "exactly_once of 8,000 records 3 lost 0 repeated" in text
    assert "at_least_once of 4,000 records 0 lost 1,200 repeated" in text
    assert "The scale is logarithmic" in text
    assert "zombie 1 trial broken 1 broken" in text


def test_controls_are_no_part_of_what_guarantees_lost() -> None:
    long = "offsets outside the transaction"  # and told whole
    text = _Page(render(book(outcome(), replace(SHOWN, pipeline=long)))).text
    assert "by guarantee exactly_once of 4,000 records 0 lost 0 repeated Controls: lost" in text
    assert f"{long} (has to show: lost) of 4,000 records 9 lost 0 repeated" in text
    assert "Controls: lost" not in _Page(render(book(outcome()))).text


def test_every_word_is_explained() -> None:
    assert (set(DEFECTS), set(VERDICTS)) == (set(Defect), set(Verdict))
    text = _Page(render(book())).text
    for meaning in (*DEFECTS.values(), *VERDICTS.values()):
        assert meaning in text


def test_hostile_text_stays_text() -> None:
    evil = "</code></title></style><script>alert('1')</script>\"'&\udce9\x00"
    hostile = replace(
        BROKEN,
        pipeline=evil,
        family=evil,
        schedule=(evil,),
        findings=(replace(lost(1, evil), examples=(evil,)),),
        error=evil,
        shrunk=(evil,),
        story=(*STORY, Happening(1.0, evil, evil), Happening(float("inf"), "fault", evil)),
    )
    trials = [replace(hostile, number=n, verdict=v) for n, v in enumerate(Verdict)]
    page = render(replace(book(*trials, *(outcome(number=9 + n) for n in range(9))), started=evil))
    clean = _Page(page)
    assert "script" not in clean.tags
    assert "<script" not in page
    assert not [name for name, _ in clean.attributes if name.startswith("on")]
    page.encode("utf-8")


def _many(seed: int, verdicts: list[Verdict], trials: int) -> list[Outcome]:
    rng = random.Random(seed)
    story = tuple(
        Happening(n / 10, rng.choice(["fault", "broker", "life", "kill"]), "EndTxn <lost> " * 5)
        for n in range(300)
    )
    return [
        outcome(
            number=number,
            seed=rng.getrandbits(63),
            pipeline=f"pipeline-{rng.randrange(6)}",
            guarantee=rng.choice([guarantee.value for guarantee in Guarantee]),
            family=rng.choice(["network", "crash", "brokers", "zombie", "timeout", "mixed"]),
            schedule=("DelayRequest('Produce', nth=7, seconds=0.4, until='EndTxn')",) * 80,
            verdict=rng.choice(verdicts),
            findings=(lost(rng.randrange(1, 9), "a reader"), repeated(3)),
            story=story,
            error="Traceback " * 900,
        )
        for number in range(1, trials + 1)
    ]


@pytest.mark.parametrize("verdicts", [[Verdict.KEPT], list(Verdict), [Verdict.BROKEN]])
def test_it_stays_small(seed: int, verdicts: list[Verdict]) -> None:
    trials = _many(seed, verdicts, 3000)
    page = render(book(*trials))
    assert len(page.encode()) < 3_000_000
    text = _Page(page).text
    # Each of them is there, if only in a line.
    told = {int(n) for n in re.findall(r"(?:Trial |#)(\d+)", text)}
    assert told == {trial.number for trial in trials}


def test_of_those_that_went_well_a_cell_tells_three() -> None:
    page = render(book(*(outcome(number=n, seed=n * 7) for n in range(1, 11))))
    assert page.count('class="trial"') == 3
    assert "7 more trials, in a line each" in page
    assert "#10 seed 70 kept" in page


def test_lives_end_where_something_ends_them() -> None:
    told = (
        *STORY[:4],
        Happening(3.0, "pause", "driver 1 paused"),
        Happening(3.5, "life", "driver 2 started"),
        Happening(3.6, "life", "driver 3 started"),
        Happening(9.0, "end", "all is out"),
        Happening(9.5, "life", "driver 4 started"),
    )
    spans = [(life.start_s, life.end_s, life.ended_by) for life in lives(told, until_s=10.0)]
    assert spans == [
        (0.4, 2.0, "kill"),
        (2.5, 3.0, "pause"),
        (3.5, 9.0, "end"),
        (3.6, 9.0, "end"),
        (9.5, 10.0, ""),
    ]


def test_the_timeline_has_bars_marks_and_seconds() -> None:
    page = render(book(BROKEN))
    drawn = page[page.index('<svg class="timeline"') :]
    drawn = drawn[: drawn.index("</svg>")]
    assert drawn.count('class="life"') == 2
    assert drawn.count('class="ends kill"') == 1
    assert drawn.count('class="mark fault"') == drawn.count('class="mark broker"') == 1
    assert ">0 s<" in drawn
    assert ">7 s<" in drawn
    assert "driver 0 started, then killed" in drawn


def test_what_had_no_chance_is_said_and_counted() -> None:
    trial = outcome(fired=(True, False), workload="Workload(records=160)")
    words = _Page(render(book(trial, outcome(number=2, fired=(True, True))))).text
    assert "3 of 4 (75 %)" in words
    assert "Kill(point='record') # had no chance" in words
    assert "nth=2) # had no chance" not in words
    assert "Workload(records=160)" in words
    old = outcome(fired=None)
    assert "had no chance" not in _Page(render(book(old))).text, "it was not noted then"
