"""The checker: what is wrong with the output of a run, told from its history alone.

It stands between the trial, which collects a `History`, and `promises`, which says whether a
guarantee permits what was found. It knows no guarantee: a repeated record is a finding here even
where it is allowed. Pure; one pass over the records for each defect, reading and moment.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from heapq import nsmallest
from types import MappingProxyType
from typing import Final, TypeVar

from sparkonce.verify.evidence import Due, Evidence, Place, place_of
from sparkonce.verify.history import History, Seen
from sparkonce.verify.outcome import Defect, Finding

EXAMPLES_MAX: Final = 5

_Part = TypeVar("_Part")


def check(history: History) -> tuple[Finding, ...]:
    """All findings, in the order of `Defect`; for each defect, reader by reader."""
    evidence = Evidence.of(history)
    return tuple(finding for defect in Defect for finding in _CHECKS[defect](evidence))


def _lost(evidence: Evidence) -> Iterator[Finding]:
    anywhere = {place: due for final in evidence.finals for place, due in final.places.items()}
    for final in evidence.finals:
        absent = evidence.acknowledged - final.times
        # What another reader saw is in the log, so it is due to this one, acknowledged or not.
        unseen = [
            f"{_at(place)}, as another reader saw"
            for place, due in anywhere.items()
            if place not in final.places and due not in absent
        ]
        yield from _found(Defect.LOST, [*map(_name, absent.elements()), *unseen], final.reader)


def _repeated(evidence: Evidence) -> Iterator[Finding]:
    for final in evidence.finals:
        surplus = (final.times - evidence.due).elements()
        repeated = [_name(due) for due in surplus if due in evidence.due]
        yield from _found(Defect.REPEATED, repeated, final.reader)


def _reordered(evidence: Evidence) -> Iterator[Finding]:
    turns: dict[str, tuple[str, int]] = {}
    for turn, sent in enumerate(evidence.history.sent):
        if sent.lane:
            turns.setdefault(sent.identity, (sent.lane, turn))
    for final in evidence.finals:
        late = [
            f"{_at(place_of(seen))}, in lane {turns[seen.identity][0]}"
            for log in final.logs.values()
            for seen in _late(log, turns)
        ]
        yield from _found(Defect.REORDERED, late, final.reader)


def _late(log: Sequence[Seen], turns: Mapping[str, tuple[str, int]]) -> Iterator[Seen]:
    """Records behind one of their lane that was sent after them.

    Only the first time counts: a batch that is written again repeats its records, and what follows
    is still in order.
    """
    latest: dict[str, int] = {}
    met: set[str] = set()
    for seen in log:
        if seen.identity not in turns or seen.identity in met:
            continue
        met.add(seen.identity)
        lane, turn = turns[seen.identity]
        if turn < latest.get(lane, turn):
            yield seen
        latest[lane] = max(turn, latest.get(lane, turn))


def _unknown(evidence: Evidence) -> Iterator[Finding]:
    """Also what was sent, and is in a topic where it isn't due: nobody sent it there."""
    aborted = evidence.history.aborted
    for final in evidence.finals:
        unknown = [
            _name(due) for due in final.times if due not in evidence.due and due[0] not in aborted
        ]
        yield from _found(Defect.UNKNOWN, unknown, final.reader)


def _dirty(evidence: Evidence) -> Iterator[Finding]:
    # In one final reading is enough: the others have then lost it.
    anywhere: set[Place] = set().union(*(final.places for final in evidence.finals))
    for reading in evidence.history.readings:
        if reading.live:
            places = dict.fromkeys(map(place_of, reading.seen))
            dirty = [_at(place) for place in places if place not in anywhere]
            yield from _found(Defect.DIRTY, dirty, reading.reader)


def _aborted(evidence: Evidence) -> Iterator[Finding]:
    for final in evidence.finals:
        read = [_name(due) for due in final.times if due[0] in evidence.history.aborted]
        yield from _found(Defect.ABORTED, read, final.reader)


def _torn(evidence: Evidence) -> Iterator[Finding]:
    # A record that is due in two topics and is in one of them tears its unit too.
    parts = {
        unit: [
            (identity, topic)
            for identity in identities
            for topic in evidence.topics_of.get(identity) or ("",)
        ]
        for unit, identities in evidence.history.units.items()
    }
    for final in evidence.finals:
        yield from _found(Defect.TORN, _torn_units(parts, final.times), final.reader)
    for moment in evidence.history.moments:
        torn = _torn_units(evidence.history.units, moment.visible)
        yield from _found(Defect.TORN, torn, moment.name)


def _torn_units(parts: Mapping[str, Collection[_Part]], visible: Container[_Part]) -> list[str]:
    there = {unit: sum(part in visible for part in whole) for unit, whole in parts.items()}
    return [
        f"{unit}: {count} of {len(parts[unit])}"
        for unit, count in there.items()
        if 0 < count < len(parts[unit])
    ]


def _split(evidence: Evidence) -> Iterator[Finding]:
    """In each transaction a key has one partition of a topic. In the next it may have another one:
    partitions may have been added."""
    unit_of = {
        identity: unit
        for unit, identities in evidence.history.units.items()
        for identity in identities
    }
    for final in evidence.finals:
        homes: dict[tuple[str, str, bytes], int] = {}
        split = []
        for (topic, partition), log in final.logs.items():
            for seen in log:
                unit = unit_of.get(seen.identity)
                if seen.key is None or unit is None:
                    continue
                home = homes.setdefault((unit, topic, seen.key), partition)
                if partition != home:
                    key = seen.key.decode(errors="replace")
                    split.append(f"{key}: {_at(place_of(seen))}, and in partition {home}")
        yield from _found(Defect.SPLIT, split, final.reader)


def _offsets(evidence: Evidence) -> Iterator[Finding]:
    for moment in evidence.history.moments:
        apart = moment.done ^ moment.visible
        examples = tuple(
            f"{identity} {'done, not visible' if identity in moment.done else 'visible, not done'}"
            for identity in nsmallest(EXAMPLES_MAX, apart)
        )
        if apart:
            yield Finding(Defect.OFFSETS, len(apart), examples, moment.name)


def _state(evidence: Evidence) -> Iterator[Finding]:
    """Each record goes on from where the one before of its key ended, in every topic anew."""
    for final in evidence.finals:
        broken = []
        last: dict[tuple[str, str], tuple[int, int]] = {}
        for (topic, partition), log in final.logs.items():
            for seen in log:
                if (running := seen.running) is None:
                    continue
                home, after = last.get((topic, running.key), (partition, 0))
                last[topic, running.key] = partition, running.after
                if partition != home:  # no order between the two, so nothing to go on from
                    broken.append(f"{running.key}: {_at(place_of(seen))}, and in partition {home}")
                elif running.before != after:
                    broken.append(
                        f"{running.key}: {_at(place_of(seen))} from {running.before}, not {after}"
                    )
        yield from _found(Defect.STATE, broken, final.reader)


def _backwards(evidence: Evidence) -> Iterator[Finding]:
    for reading in evidence.history.readings:
        furthest: dict[tuple[str, int], int] = {}
        back = []
        for seen in reading.seen:
            before = furthest.get((seen.topic, seen.partition), -1)
            if seen.offset <= before:
                back.append(f"{_at(place_of(seen))} after {before}")
            furthest[seen.topic, seen.partition] = max(before, seen.offset)
        yield from _found(Defect.BACKWARDS, back, reading.reader)


def _hanging(evidence: Evidence) -> Iterator[Finding]:
    open_at = [f"{topic}/{partition}" for topic, partition in evidence.history.left_open]
    yield from _found(Defect.HANGING, open_at)


def _unmarked(evidence: Evidence) -> Iterator[Finding]:
    marks = evidence.history.markings
    # Where nothing came out there is nothing to mark; whether that is a loss is said elsewhere.
    if not evidence.history.transactional or marks is None:
        return
    if not any(reading.seen for reading in evidence.history.readings):
        return
    signs = {
        f"batches without the transactional bit: {marks.plain}": marks.plain > 0,
        "no batch with the transactional bit": marks.transactional == 0,
        "no marker of a commit": marks.commits == 0,
    }
    if any(signs.values()):
        examples = tuple(sign for sign, is_there in signs.items() if is_there)
        yield Finding(Defect.UNMARKED, marks.plain or 1, examples)


def _interference(evidence: Evidence) -> Iterator[Finding]:
    yield from interference(evidence.history.interference)


def interference(told: Sequence[str]) -> Iterator[Finding]:
    """Known without the output, and so of a trial too that never came to its end."""
    yield from _found(Defect.INTERFERENCE, told)


_CHECKS: Final[Mapping[Defect, Callable[[Evidence], Iterator[Finding]]]] = MappingProxyType(
    {
        Defect.LOST: _lost,
        Defect.REPEATED: _repeated,
        Defect.REORDERED: _reordered,
        Defect.UNKNOWN: _unknown,
        Defect.DIRTY: _dirty,
        Defect.ABORTED: _aborted,
        Defect.TORN: _torn,
        Defect.SPLIT: _split,
        Defect.OFFSETS: _offsets,
        Defect.STATE: _state,
        Defect.BACKWARDS: _backwards,
        Defect.HANGING: _hanging,
        Defect.UNMARKED: _unmarked,
        Defect.INTERFERENCE: _interference,
    }
)


def _found(defect: Defect, problems: Sequence[str], reader: str = "") -> Iterator[Finding]:
    if problems:
        yield Finding(defect, len(problems), tuple(problems[:EXAMPLES_MAX]), reader)


def _at(place: Place) -> str:
    topic, partition, offset, identity = place
    return f"{identity} at {topic}/{partition}@{offset}"


def _name(due: Due) -> str:
    identity, topic = due
    return f"{identity}@{topic}" if topic else identity
