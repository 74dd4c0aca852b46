"""A history put in order for the checker: what is due where, and what the log holds.

Each of the checker's looks at the records needs the same few tables. They are made here, once, in
time linear in the number of records. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sparkonce.verify.history import History, Reading, Seen

Due = tuple[str, str]
"""An identity and the topic where it is due; "": wherever."""
Place = tuple[str, int, int, str]
"""Topic, partition, offset, and the identity that is there."""


@dataclass(frozen=True, slots=True)
class FinalReading:
    """What a reader saw that came to the end, put back into the order of the log.

    A place that it was handed twice is here once: the log repeats and reorders nothing because of
    that. It is the reader that went backwards, and the checker says so.
    """

    reader: str
    logs: Mapping[tuple[str, int], Sequence[Seen]]
    places: Mapping[Place, Due]
    times: Counter[Due]
    """How often each is there."""

    @classmethod
    def of(cls, reading: Reading, topics_of: Mapping[str, Collection[str]]) -> FinalReading:
        seen_at = {place_of(seen): seen for seen in reading.seen}
        logs: dict[tuple[str, int], list[Seen]] = {}
        for seen in seen_at.values():
            logs.setdefault((seen.topic, seen.partition), []).append(seen)
        for log in logs.values():
            log.sort(key=lambda seen: seen.offset)  # one pass over a log that came in order
        places = {
            place: (seen.identity, seen.topic if topics_of.get(seen.identity) else "")
            for place, seen in seen_at.items()
        }
        return cls(reading.reader, logs, places, Counter(places.values()))


@dataclass(frozen=True, slots=True)
class Evidence:
    history: History
    due: Counter[Due]
    acknowledged: Counter[Due]
    """That part of what is due which must not be missing."""
    topics_of: Mapping[str, Collection[str]]
    """Where each identity is due; nothing where it is due wherever."""
    finals: Sequence[FinalReading]

    @classmethod
    def of(cls, history: History) -> Evidence:
        due: Counter[Due] = Counter()
        acknowledged: Counter[Due] = Counter()
        topics_of: dict[str, set[str]] = {}
        for sent in history.sent:
            topics_of.setdefault(sent.identity, set()).update(sent.topics)
            for topic in sent.topics or ("",):
                due[sent.identity, topic] += 1
                acknowledged[sent.identity, topic] += sent.acknowledged
        finals = [FinalReading.of(each, topics_of) for each in history.readings if not each.live]
        if not finals:
            raise ValueError(
                "The history has no reading that came to the end, so nothing in it could be found "
                "lost. Read the output once more when all is over, and add that with live=False."
            )
        return cls(history, due, acknowledged, topics_of, finals)


def place_of(seen: Seen) -> Place:
    return seen.topic, seen.partition, seen.offset, seen.identity
