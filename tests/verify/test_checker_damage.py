"""The checker against random histories: silent on clean ones, exact on those damaged in one way."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import seed as hypothesis_seed
from hypothesis import strategies as st

from sparkonce.verify.checker import check
from sparkonce.verify.history import History, Markings, Moment, Reading, Running, Seen, Sent
from sparkonce.verify.outcome import Defect

Damage = Callable[[History, random.Random], tuple[History, int]]
"""Gives the damaged history, and how often the defect is in it."""


@st.composite
def clean_histories(draw: st.DrawFn) -> History:
    """A run in transactions; some were aborted, some records go to a second topic as well."""
    partitions = draw(st.integers(1, 3))
    sent: list[Sent] = []
    seen: list[Seen] = []
    units: dict[str, frozenset[str]] = {}
    visible: list[frozenset[str]] = [frozenset()]
    ends: Counter[tuple[str, int]] = Counter()
    balances: Counter[str] = Counter()
    record = st.tuples(st.integers(0, 3), st.sampled_from([(), ("out",), ("out", "log")]))
    transaction = st.tuples(st.lists(record, min_size=1, max_size=6), st.booleans())
    for records, is_committed in draw(st.lists(transaction, min_size=1, max_size=6)):
        new = []
        for lane, topics in records:
            new.append(Sent(f"r{len(sent) + len(new)}", f"l{lane}", topics, is_committed))
            for topic in topics or ("out",):
                where = topic, lane % partitions
                step = Running(f"l{lane}", balances[f"l{lane}"], balances[f"l{lane}"] + 3)
                if is_committed:
                    told = step if topic == "out" else None
                    key = f"l{lane}".encode()
                    seen.append(Seen(new[-1].identity, *where, ends[where], told, key))
                    balances[f"l{lane}"] += 3 if told else 0
                ends[where] += 1
        ends.update(dict.fromkeys(ends, 1))  # the marker takes an offset
        sent += new
        units[f"u{len(units)}"] = frozenset(each.identity for each in new)
        visible.append(frozenset(each.identity for each in seen))
    seen_live = seen[: draw(st.integers(0, len(seen)))]
    return History(
        tuple(sent),
        (
            Reading("live", tuple(seen_live), live=True),
            Reading("end", tuple(seen)),
            # Partition by partition, as another client may hand them over.
            Reading("other", tuple(sorted(seen, key=lambda each: (each.topic, each.partition)))),
        ),
        tuple(Moment(f"m{at}", each, each) for at, each in enumerate(visible)),
        units,
        markings=Markings(transactional=len(units), plain=0, commits=len(units), aborts=0),
        transactional=True,
    )


def bare(history: History) -> tuple[History, list[Seen]]:
    """What went in and what came out: the rest would tell the damage under another name too."""
    seen = [replace(each, running=None) for each in history.readings[1].seen]
    assume(seen)
    return History(history.sent, (Reading("end", tuple(seen)),)), seen


def with_end(history: History, seen: Iterable[Seen]) -> History:
    return replace(history, readings=(Reading("end", tuple(seen)),))


def some(rng: random.Random, seen: list[Seen]) -> list[Seen]:
    return rng.sample(seen, rng.randint(1, len(seen)))


def behind(seen: list[Seen], like: Seen, identity: str) -> Seen:
    """A record at the end of the same partition."""
    return replace(like, identity=identity, offset=max(each.offset for each in seen) + 1)


def lose(history: History, rng: random.Random) -> tuple[History, int]:
    history, seen = bare(history)
    gone = some(rng, seen)
    return with_end(history, [each for each in seen if each not in gone]), len(gone)


def lose_for_one_reader(history: History, rng: random.Random) -> tuple[History, int]:
    history, seen = bare(history)
    gone = some(rng, seen)
    unconfirmed = tuple(replace(each, acknowledged=False) for each in history.sent)
    fewer = Reading("fewer", tuple(each for each in seen if each not in gone))
    return replace(history, sent=unconfirmed, readings=(*history.readings, fewer)), len(gone)


def repeat(history: History, rng: random.Random) -> tuple[History, int]:
    history, seen = bare(history)
    again = some(rng, seen)
    for each in again:
        seen.append(behind(seen, each, each.identity))
    return with_end(history, seen), len(again)


def reorder(history: History, rng: random.Random) -> tuple[History, int]:
    """Two neighbours of a lane change places."""
    history, seen = bare(history)
    lane_of = {each.identity: each.lane for each in history.sent}
    lanes: dict[tuple[str, str], list[int]] = {}
    for at, each in enumerate(seen):
        lanes.setdefault((each.topic, lane_of[each.identity]), []).append(at)
    pairs = [pair for lane in lanes.values() for pair in pairwise(lane)]
    assume(pairs)
    one, two = rng.choice(pairs)
    seen[one], seen[two] = (
        replace(seen[one], identity=seen[two].identity),
        replace(seen[two], identity=seen[one].identity),
    )
    return with_end(history, seen), 1


def invent(history: History, rng: random.Random) -> tuple[History, int]:
    history, seen = bare(history)
    new = [f"new{at}" for at, _ in enumerate(some(rng, seen))]
    for name in new:
        seen.append(behind(seen, rng.choice(seen), name))
    return with_end(history, seen), len(new)


def read_what_was_aborted(history: History, rng: random.Random) -> tuple[History, int]:
    history, seen = bare(history)
    aborted = [f"aborted{at}" for at, _ in enumerate(some(rng, seen))]
    read = rng.sample(aborted, rng.randint(1, len(aborted)))
    for name in read:
        seen.append(behind(seen, rng.choice(seen), name))
    return replace(with_end(history, seen), aborted=frozenset(aborted)), len(read)


def show_what_is_aborted(history: History, rng: random.Random) -> tuple[History, int]:
    _, seen = bare(history)
    shown = list(seen)
    aborted = some(rng, seen)
    for each in aborted:
        shown.append(behind(shown, each, each.identity))
    return replace(
        history, readings=(*history.readings, Reading("dirty", tuple(shown), live=True))
    ), len(aborted)


def tear(history: History, rng: random.Random) -> tuple[History, int]:
    """A part of a transaction that nobody acknowledged."""
    units = history.units
    history, seen = bare(history)
    there = {each.identity for each in seen}
    large = [name for name, unit in units.items() if len(unit) > 1 and unit <= there]
    assume(large)
    gone = rng.choice(sorted(units[rng.choice(large)]))
    unconfirmed = tuple(replace(each, acknowledged=False) for each in history.sent)
    history = with_end(history, [each for each in seen if each.identity != gone])
    return replace(history, sent=unconfirmed, units=units), 1


def tear_for_a_moment(history: History, rng: random.Random) -> tuple[History, int]:
    moment = history.moments[-1]
    large = [unit for unit in history.units.values() if len(unit) > 1 and unit <= moment.visible]
    assume(large)
    part = moment.visible - {rng.choice(sorted(rng.choice(large)))}
    return replace(history, moments=(replace(moment, done=part, visible=part),)), 1


def split(history: History, rng: random.Random) -> tuple[History, int]:
    """One of a key's records is where no other one is."""
    units = history.units
    history, seen = bare(history)
    unit_of = {identity: unit for unit, whole in units.items() for identity in whole}
    alike = Counter((unit_of[each.identity], each.topic, each.key) for each in seen)
    several = [each for each in seen if alike[unit_of[each.identity], each.topic, each.key] > 1]
    assume(several)
    moved = rng.choice(several)
    rest = [each for each in seen if each != moved]
    return replace(with_end(history, [*rest, replace(moved, partition=9)]), units=units), 1


def run_ahead(history: History, rng: random.Random) -> tuple[History, int]:
    moment = rng.choice(history.moments)
    more = {f"more{at}" for at in range(rng.randint(1, 9))}
    side = rng.choice(["done", "visible"])
    apart = replace(moment, **{side: getattr(moment, side) | more})
    return replace(history, moments=(*history.moments, apart)), len(more)


def forget(history: History, rng: random.Random) -> tuple[History, int]:
    seen = list(history.readings[1].seen)
    stateful = [(at, each.running) for at, each in enumerate(seen) if each.running]
    assume(stateful)
    at, running = rng.choice(stateful)
    wrong = replace(running, before=running.before + rng.randint(1, 9))
    seen[at] = replace(seen[at], running=wrong)
    return with_end(history, seen), 1


def rewind(history: History, rng: random.Random) -> tuple[History, int]:
    seen = history.readings[1].seen
    assume(seen)
    again = some(rng, list(seen))
    reading = replace(rng.choice(history.readings), seen=(*seen, *again))
    return replace(history, readings=(*history.readings, reading)), len(again)


def leave_open(history: History, rng: random.Random) -> tuple[History, int]:
    count = rng.randint(1, 9)
    return replace(history, left_open=tuple(("out", at) for at in range(count))), count


def write_plainly(history: History, rng: random.Random) -> tuple[History, int]:
    assume(history.readings[1].seen)
    count = rng.randint(1, 9)
    return replace(history, markings=Markings(rng.randint(0, 9), count, 1, 0)), count


def interfere(history: History, rng: random.Random) -> tuple[History, int]:
    count = rng.randint(1, 9)
    return replace(history, interference=("a dump failed",) * count), count


DAMAGES: list[tuple[Damage, Defect]] = [
    (lose, Defect.LOST),
    (lose_for_one_reader, Defect.LOST),
    (repeat, Defect.REPEATED),
    (reorder, Defect.REORDERED),
    (invent, Defect.UNKNOWN),
    (show_what_is_aborted, Defect.DIRTY),
    (read_what_was_aborted, Defect.ABORTED),
    (tear, Defect.TORN),
    (tear_for_a_moment, Defect.TORN),
    (split, Defect.SPLIT),
    (run_ahead, Defect.OFFSETS),
    (forget, Defect.STATE),
    (rewind, Defect.BACKWARDS),
    (leave_open, Defect.HANGING),
    (write_plainly, Defect.UNMARKED),
    (interfere, Defect.INTERFERENCE),
]


def test_there_is_a_damage_for_every_defect() -> None:
    assert {defect for _, defect in DAMAGES} == set(Defect)


def test_a_clean_history_has_no_finding(seed: int) -> None:
    @hypothesis_seed(seed)
    @settings(max_examples=100, deadline=None, database=None)
    @given(clean_histories())
    def is_clean(history: History) -> None:
        assert check(history) == ()

    is_clean()


@pytest.mark.parametrize(("damage", "defect"), DAMAGES)
def test_a_damage_is_the_only_finding_and_counted(
    damage: Damage, defect: Defect, seed: int
) -> None:
    @hypothesis_seed(seed)
    @settings(max_examples=30, deadline=None, database=None)
    @given(clean_histories(), st.integers(0, 2**32))
    def is_found(history: History, luck: int) -> None:
        damaged, count = damage(history, random.Random(luck))
        assert [(each.defect, each.count) for each in check(damaged)] == [(defect, count)]

    is_found()
