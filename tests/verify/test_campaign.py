"""Which trials are run: all cells, numbers that go on, rounds of what may share a process."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import count, groupby, islice

import pytest

from sparkonce.errors import ConfigError
from sparkonce.guarantees import Guarantee
from sparkonce.verify.campaign import Campaign, in_rounds
from sparkonce.verify.clusters import (
    FORGETFUL,
    LAST_EPOCHS,
    LAST_EPOCHS_1,
    UNVERIFIED,
    USUAL,
    VERSION_1,
    Cluster,
)
from sparkonce.verify.controls import controls
from sparkonce.verify.families import EXECUTOR, FAMILIES, LATE, families, trials_of
from sparkonce.verify.outcome import Defect, Finding, Outcome, Verdict
from sparkonce.verify.pipelines import built_in, ends_built_in, peers_built_in
from sparkonce.verify.presets import Presets, Wish
from sparkonce.verify.report.book import Book
from sparkonce.verify.schedule import AwaitSnapshot, Broker, Kill, Pause, to_text
from sparkonce.verify.trial import Trial
from sparkonce.verify.workload import Workload

RELAY, _, STATELESS, *_ = built_in()
DELTA = next(each for each in ends_built_in() if not each.writes_kafka)
BOOK = Book(seed=5, started="2026-01-01T00:00:00+00:00", versions={})


def trial(number: int, **fields: object) -> Trial:
    plain = Trial(
        number=number,
        seed=number,
        pipeline=RELAY,
        guarantee=Guarantee.EXACTLY_ONCE,
        family="crash",
        schedule=(Kill(point="open"),),
    )
    return replace(plain, **fields)  # type: ignore[arg-type]


def outcome(number: int, pipeline: str = "producer") -> Outcome:
    return Outcome(
        number=number,
        seed=99,
        pipeline=pipeline,
        guarantee="exactly_once",
        family="crash",
        schedule=("Kill(point='end', nth=2)",),
        verdict=Verdict.KEPT,
        findings=(),
        records=80,
        duration_s=1.0,
    )


def on_clusters(wish: Wish, book: Book = BOOK) -> list[tuple[Cluster, list[Trial]]]:
    return [
        (cluster, [trial for part in rounds for trial in part])
        for cluster, rounds in Campaign(wish, book)._plan()
    ]


def planned(wish: Wish, book: Book = BOOK) -> list[Trial]:
    return [trial for _, trials in on_clusters(wish, book) for trial in trials]


def test_the_quick_preset_has_all_cells_and_the_controls() -> None:
    drawn = planned(Wish(pipelines=tuple(built_in()), seed=5))
    usual = [each for each in drawn if each.cluster is USUAL and each.family in FAMILIES]
    cells = Counter((each.name, each.guarantee, each.family) for each in usual)
    assert cells == {
        (pipeline.name, guarantee, family): trials_of(pipeline, guarantee, family)
        for pipeline in built_in()
        for guarantee in pipeline.guarantees
        for family in families(pipeline, guarantee)
    }
    rest = {each.name for each in drawn if each.family not in FAMILIES}
    assert rest == {each.name for each in controls(3)}
    assert sorted(each.number for each in drawn) == list(range(1, len(drawn) + 1))


def test_a_few_cells_run_on_a_cluster_that_verifies_nothing() -> None:
    (_, usual), (cluster, late) = on_clusters(Wish(pipelines=tuple(built_in()), seed=5))
    assert all(each.cluster is USUAL for each in usual)
    assert cluster is UNVERIFIED
    assert {each.name for each in late if each.family == LATE} == {
        "producer, version 1, unverified",
        "joined producers, version 1, unverified",
        "stateless, version 1, unverified",
    }
    assert not any(each.family == "expiry" for each in [*usual, *late]), "it takes too long"


def test_the_full_preset_begins_with_cells_that_the_book_lacks_and_has_old_clusters() -> None:
    wish = Wish(pipelines=tuple(built_in()), seed=5, minutes=1, controls=False)
    presets = Presets(wish)
    first = presets.first(count(1), ())
    families_on = {
        cluster: {each.family for each in first if each.cluster is cluster}
        for cluster in (FORGETFUL, LAST_EPOCHS, LAST_EPOCHS_1)
    }
    assert families_on == {
        FORGETFUL: {"expiry"},
        LAST_EPOCHS: {"epochs"},
        LAST_EPOCHS_1: {"epochs"},
    }
    seen = tuple(
        replace(outcome(each.number, each.name), family=each.family, guarantee=each.guarantee.value)
        for each in first[3:]
    )
    again = presets.first(count(1_000), seen)
    assert {(each.name, each.family) for each in again} == {
        (each.name, each.family) for each in first[:3]
    }
    later = list(islice(presets.full(count(1)), 2_000))
    clusters = Counter(each.cluster.name for each in later)
    assert clusters.keys() == {"", VERSION_1.name, UNVERIFIED.name}
    roles: dict[str, set[str]] = {name: set() for name in clusters}
    for each in later:
        roles[each.cluster.name] |= {
            element.role for element in each.schedule if isinstance(element, Broker)
        }
    every = {"leader", "coordinator", "controller"}
    assert roles == {"": every, VERSION_1.name: every, UNVERIFIED.name: {"leader"}}
    assert 0.1 < 1 - clusters[""] / len(later) < 0.4
    old = [each for each in later if each.cluster is not USUAL]
    assert {each.guarantee for each in old} == {Guarantee.EXACTLY_ONCE}
    of_all_families = {each.name for each in built_in() if each.families is None}
    assert {each.pipeline.name for each in old} == of_all_families
    runs = [cluster for cluster, _ in groupby(each.cluster.name for each in later)]
    assert len(runs) < len(later) / 50, "a cluster is worth its start"


def test_a_later_run_goes_on_with_other_seeds() -> None:
    wish = Wish(pipelines=(RELAY,), seed=5, minutes=1, runs=30)
    first = planned(wish)
    book = replace(BOOK, outcomes=tuple(outcome(each.number) for each in first))
    second = planned(wish, book)
    assert {each.number for each in first}.isdisjoint(each.number for each in second)
    assert {each.seed for each in first}.isdisjoint(each.seed for each in second)
    assert planned(wish) == first, "the same numbers, the same trials"


def test_only_what_was_asked_for() -> None:
    wish = Wish(pipelines=tuple(built_in()), seed=5, only=("stateless", "exactly", "zombie"))
    assert [(each.name, each.family) for each in planned(wish)] == [("stateless", "zombie")]
    assert len(planned(replace(wish, only=(), runs=3))) == 3


@pytest.mark.parametrize("minutes", [None, 5.0])
def test_words_that_no_trial_has_are_refused_with_those_that_there_are(
    minutes: float | None,
) -> None:
    wish = Wish(pipelines=tuple(built_in()), seed=5, only=("statefull",), minutes=minutes)
    with pytest.raises(ConfigError) as refused:
        Campaign(wish, BOOK).run()
    for word in ("--only statefull", "stateful", "at_most_once", "checkpoint", "control"):
        assert word in str(refused.value)
    # Each is there, but no trial has both.
    apart = replace(wish, only=("joined", "none"))
    with pytest.raises(ConfigError, match="--only joined --only none"):
        Campaign(apart, BOOK).run()


@pytest.mark.parametrize("word", ["expiry", "control", "uncommitted", "shuffled"])
def test_what_is_never_drawn_by_chance_comes_once(word: str) -> None:
    """And not after a search without end for another one."""
    wish = Wish(pipelines=tuple(built_in()), seed=5, only=(word,), minutes=5)
    drawn = planned(wish)
    assert drawn
    assert all(word in (each.name + each.family) for each in drawn)


@pytest.mark.parametrize(
    ("words", "minutes", "is_there"),
    [
        (("executor", "stateful"), None, False),
        (("executor", "stateful"), 1.0, True),
        (("shuffled",), None, False),
        (("shuffled",), 1.0, True),
        (("mixed",), None, False),
        (("mixed",), 1.0, True),
        (("version 1", "topics"), None, False),
        (("version 1", "topics"), 1.0, True),
        (("ids expire",), None, False),
        (("ids expire",), 1.0, True),
        (("last epochs",), None, False),
        (("last epochs",), 1.0, True),
        (("uncommitted",), None, True),
    ],
)
def test_what_only_the_full_preset_has(
    words: tuple[str, ...], minutes: float | None, is_there: bool
) -> None:
    presets = Presets(Wish(pipelines=tuple(built_in()), seed=5, only=words, minutes=minutes))
    if is_there:
        presets.check()
    else:
        with pytest.raises(ConfigError, match="no trial has all of these words"):
            presets.check()


def test_weaker_guarantees_that_have_shown_nothing_get_more_chances() -> None:
    silent = replace(outcome(1), guarantee="none")
    book = replace(BOOK, outcomes=(silent,))
    wish = Wish(pipelines=tuple(built_in()), seed=5, only=("producer", "none"), controls=False)
    cells = [(each.name, each.guarantee, each.family) for each in planned(wish, book)]
    once = [("producer", Guarantee.NONE, family) for family in ("network", "crash")]
    assert cells == once * 3
    seeds = [each.seed for each in planned(wish, book)]
    assert len(set(seeds)) == len(seeds)

    lost, repeated = (Finding(each, 1, (), "after") for each in (Defect.LOST, Defect.REPEATED))
    loud = replace(silent, number=2, findings=(lost, repeated))
    shown = replace(BOOK, outcomes=(silent, loud))
    assert len(planned(wish, shown)) == len(once)
    assert len(planned(replace(wish, runs=1), book)) == 1, "no more than was asked for"


def test_a_trial_of_the_book_again() -> None:
    book = replace(BOOK, outcomes=(outcome(17),))
    wish = Wish(pipelines=tuple(built_in()), seed=5, replay=17)
    (again,) = planned(wish, book)
    assert (again.number, again.seed, again.name) == (18, 99, "producer")
    assert again.schedule == (Kill(point="end", nth=2),)
    assert again.workload == Workload(), "of a book that did not say"
    large = Workload(records=4000, partitions=4)
    old = replace(outcome(17, "producer, version 1"), cluster="version 1", workload=repr(large))
    (again,) = planned(wish, replace(BOOK, outcomes=(old,)))
    assert (again.name, again.cluster, again.workload) == (old.pipeline, VERSION_1, large)
    apart = replace(outcome(17, "stateless"), family=EXECUTOR)
    (again,) = planned(wish, replace(BOOK, outcomes=(apart,)))
    assert again.master and not again.shares
    with pytest.raises(ConfigError, match="no trial 3"):
        planned(Wish(pipelines=(RELAY,), seed=5, replay=3), book)
    elsewhere = replace(BOOK, outcomes=(outcome(17, "my_job"),))
    with pytest.raises(ConfigError, match="'my_job', which is not among those given"):
        planned(Wish(pipelines=(RELAY,), seed=5, replay=17), elsewhere)


class Clock:
    """Of a run in which each round takes a minute."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def ran(wish: Wish, book: Book) -> Book:
    """The book behind a run whose trials all went well."""
    clock = Clock()
    for _, rounds in Campaign(wish, book, clock=clock)._plan():
        for trials in rounds:
            clock.now_s += 60
            for each in trials:
                told = outcome(each.number, each.name)
                told = replace(told, family=each.family, guarantee=each.guarantee.value)
                book = book.add(replace(told, schedule=to_text(each.schedule)))
    return book


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "wish",
    [
        Wish(pipelines=tuple(built_in()), seed=5, only=("at_least_once",), minutes=1),
        Wish(pipelines=tuple(peers_built_in()), seed=5, controls=False, minutes=1),
        Wish(pipelines=(DELTA,), seed=5, controls=False, minutes=1),
    ],
    ids=["one guarantee", "peers", "no Kafka behind it"],
)
def test_time_ends_a_run_that_needs_one_kind_of_cluster(wish: Wish) -> None:
    """No trial ever comes that would need another cluster."""
    first = ran(wish, BOOK)
    assert first.outcomes
    assert 0 < len(ran(wish, first).outcomes) - len(first.outcomes) <= 48


def test_short_runs_cover_what_a_long_one_does() -> None:
    wish = Wish(pipelines=(RELAY,), seed=5, controls=False, minutes=1, only=("exactly_once",))
    book = BOOK
    for _ in range(40):
        book = ran(wish, book)
    drawn = list(islice(Presets(wish).full(count(1)), 4_000))
    is_zombie = {each.number: any(isinstance(e, Pause) for e in each.schedule) for each in drawn}
    numbers = {each.number for each in book.outcomes}
    last = max(numbers)
    assert last > 1_000
    early = {number for number in is_zombie if number < last - 700}
    assert any(is_zombie[number] for number in early)
    assert early <= numbers, "whatever was drawn comes to its turn"


def test_what_is_rare_does_not_wait_until_a_round_of_it_is_full() -> None:
    trials = [trial(1, schedule=(Pause(point="open"),)), *(trial(2 + n) for n in range(1_000))]
    order = [[each.number for each in part] for part in in_rounds(iter(trials))]
    assert order.index([1]) <= 4


def test_only_knows_no_capitals() -> None:
    wish = Wish(pipelines=tuple(built_in()), seed=5, only=("Stateless", "EXACTLY", "zombie"))
    assert [(each.name, each.family) for each in planned(wish)] == [("stateless", "zombie")]


def test_a_cell_whose_trials_failed_or_were_too_few_is_not_done() -> None:
    wish = Wish(pipelines=(RELAY,), seed=5, minutes=1, controls=False)
    cell = Counter({("producer", Guarantee.EXACTLY_ONCE, "crash"): 4})

    def left(*outcomes: Outcome) -> Counter[tuple[str, Guarantee, str]]:
        drawn = Presets(wish).first(count(100), outcomes)
        return Counter(
            (each.name, each.guarantee, each.family)
            for each in drawn
            if each.family == "crash" and each.guarantee is Guarantee.EXACTLY_ONCE
        )

    assert left() == cell
    failed = [replace(outcome(number), verdict=Verdict.FAILED) for number in range(1, 9)]
    assert left(*failed) == cell
    assert left(outcome(1), *failed[1:]).total() == 3
    assert not left(*(outcome(number) for number in range(1, 5)))
    control = controls(3)[0]
    seen = replace(outcome(1, control.title), family=control.family, verdict=Verdict.SHOWN)
    for verdict, again in ((Verdict.SHOWN, 0), (Verdict.FAILED, 1)):
        with_controls = Presets(replace(wish, controls=True))
        drawn = with_controls.first(count(100), [replace(seen, verdict=verdict)])
        assert sum(each.name == control.title for each in drawn) == again


def test_rounds_are_of_one_kind() -> None:
    mine = replace(RELAY, shares=False)
    trials = [
        trial(1),
        trial(2, pipeline=STATELESS),
        trial(3, schedule=(Pause(point="open"),)),
        trial(4),
        trial(5, pipeline=mine),
        trial(6, shares=False),
    ]
    rounds = [[each.number for each in part] for part in in_rounds(trials)]
    assert sorted(rounds) == [[1, 4], [2], [3], [5], [6]]


def test_state_is_maintained_only_where_it_was_asked_for() -> None:
    """Maintenance runs for all of a process: it would mend by chance what others left there."""
    always = Workload(maintained=True)
    awaited = (AwaitSnapshot(point="end", nth=3), Kill(point="end", nth=3))
    later = (*awaited, AwaitSnapshot(point="end", life=1))
    trials = [
        trial(1),
        trial(2, workload=always),
        trial(3, schedule=awaited),
        trial(4),
        trial(5, workload=always),
        trial(6, schedule=awaited),
        trial(7, schedule=later),
    ]
    rounds = [[each.number for each in part] for part in in_rounds(trials)]
    assert sorted(rounds) == [[1, 4], [2, 5], [3, 6], [7]]
    maintained = [[each.is_maintained(life) for life in (0, 1)] for each in trials[:3]]
    assert maintained == [[False, False], [True, True], [True, False]]


def test_rounds_are_not_too_large() -> None:
    sizes = [len(part) for part in in_rounds(trial(number) for number in range(100))]
    assert sum(sizes) == 100
    assert max(sizes) <= 48
