"""The ledger gives back what went in, whatever sources a query has."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sparkonce.produce import OffsetAndMetadata
from sparkonce.stream.ledger import (
    Entry,
    LedgerError,
    Offsets,
    group_name,
    groups_needed,
    last_entry,
    source_offsets,
    to_commit,
)

BROKERS_METADATA_BYTES_MAX = 4096
CARRIER = ("target", 0)


def an_entry(**changes: Any) -> Entry:
    values: dict[str, Any] = {
        "query": "9f2d",
        "batch": 12,
        "number": 40,
        "guarantee": "exactly_once",
        "host": "worker-7",
        "pid": 4711,
        "checkpoint": "/data/checkpoints/payments",
        "sources": None,
    }
    return Entry(**values | changes)


_names = st.text("abcdefghij-._0123456789", min_size=1, max_size=12)
_offsets = st.dictionaries(
    _names,
    st.dictionaries(st.integers(0, 300).map(str), st.integers(0, 2**63 - 1), min_size=1),
    max_size=4,
)
_sources = st.lists(_offsets | st.text(max_size=40), max_size=5)
_entries = st.builds(
    Entry,
    query=st.uuids().map(str),
    batch=st.integers(-1, 2**31),
    number=st.integers(0, 2**31),
    guarantee=st.sampled_from(["exactly_once", "at_least_once"]),
    host=st.text(max_size=64),
    pid=st.integers(1, 2**22),
    checkpoint=st.text(max_size=100),
    sources=st.none(),
)


@given(_entries, _sources)
@example(an_entry(), [{"a": {"0": 5, "1": 7}}, {"a": {"0": 2, "1": 9}}])
@example(an_entry(), [{"a": {"0": 1}, "b": {"0": 2}}, {"b": {"0": 3}}, "rate 7", {"b": {"0": 4}}])
@example(an_entry(), [{}])
@example(an_entry(), [])
def test_what_goes_in_comes_out(entry: Entry, sources: list[Offsets | str]) -> None:
    groups = to_commit("p", entry, sources, CARRIER)
    found = last_entry(groups["p"])
    assert found is not None
    assert replace(found, sources=None) == entry
    assert list(groups) == [group_name("p", number) for number in range(groups_needed(found))]
    assert source_offsets(found, list(groups.values())) == sources


@given(_entries, _sources)
def test_only_one_partition_bears_the_entry(entry: Entry, sources: list[Offsets | str]) -> None:
    groups = to_commit("p", entry, sources, CARRIER)
    notes = [at.metadata for group in groups.values() for at in group.values() if at.metadata]
    assert len(notes) == 1
    assert len(notes[0].encode()) < BROKERS_METADATA_BYTES_MAX


def test_a_topic_that_is_read_twice_has_a_group_for_each() -> None:
    groups = to_commit("p", an_entry(), [{"a": {"0": 5}}, {"a": {"0": 2}}], None)
    offsets = {name: {at: each.offset for at, each in g.items()} for name, g in groups.items()}
    assert offsets == {"p": {("a", 0): 5}, "p~2": {("a", 0): 2}}


def test_layout_1_is_read_under_its_own_names() -> None:
    """It said nothing of state, and its second group could be another pipeline's."""
    group = to_commit("p", an_entry(), [{"a": {"0": 5}}, {"a": {"0": 2}}], None)["p"]
    ((where, at),) = group.items()
    fields = json.loads(at.metadata)
    del fields["state"]
    found = last_entry({where: replace(at, metadata=json.dumps(fields | {"sparkonce": 1}))})
    assert found == an_entry(sources=(("a",), ("a",)), layout=1)
    assert [group_name("p", number, found.layout) for number in range(3)] == ["p", "p-2", "p-3"]
    again = to_commit("p", found, [{"a": {"0": 5}}, {"a": {"0": 2}}], None)
    assert [*again] == ["p", "p~2"]
    assert last_entry(again["p"]) == replace(found, layout=2)


def test_where_no_source_is_kafka_the_carrier_bears_the_entry() -> None:
    groups = to_commit("p", an_entry(batch=3), ['{"logOffset":9}'], CARRIER)
    assert list(groups["p"]) == [CARRIER]
    found = last_entry(groups["p"])
    assert found is not None
    assert source_offsets(found, [groups["p"]]) == ['{"logOffset":9}']
    with pytest.raises(LedgerError, match="no topic to keep the ledger at: set the option topic"):
        to_commit("p", an_entry(), ["rate"], None)


def test_topics_too_many_to_name_are_left_out_and_the_offsets_are_kept() -> None:
    source: Offsets = {f"a-rather-long-name-of-a-topic-{n}": {"0": n} for n in range(200)}
    (group,) = to_commit("p", an_entry(), [source], None).values()
    found = last_entry(group)
    assert found == an_entry(sources=None)
    assert source_offsets(found, [group]) is None
    assert {topic: at.offset for (topic, _), at in group.items()} == {
        topic: offsets["0"] for topic, offsets in source.items()
    }
    assert max(len(at.metadata) for at in group.values()) < BROKERS_METADATA_BYTES_MAX


@pytest.mark.parametrize("letter", ["x", "ü", "\N{PARTY POPPER}"])
def test_of_a_location_too_long_to_keep_the_end_is_shown(letter: str) -> None:
    entry = an_entry(checkpoint="/" + letter * 4000 + "/payments")
    (group,) = to_commit("p", entry, [{"a": {"0": 5}}], None).values()
    found = last_entry(group)
    assert found is not None
    assert found.checkpoint.endswith("/payments")
    assert (found.query, found.batch, found.sources) == (entry.query, entry.batch, (("a",),))
    assert max(len(at.metadata) for at in group.values()) < BROKERS_METADATA_BYTES_MAX


def test_the_newest_entry_counts_though_another_partition_bore_the_one_before() -> None:
    before = to_commit("p", an_entry(number=8, batch=90), [{"b": {"0": 5}}], None)["p"]
    after = to_commit("p", an_entry(number=9, batch=3), ["rate"], ("a", 0))["p"]
    for committed in (before | after, after | before):
        found = last_entry(committed)
        assert found is not None
        assert (found.number, found.batch) == (9, 3)


@given(st.text())
@example("")
@example("{}")
@example("[1]")
@example('"sparkonce"')
@example("null")
@example('{"sparkling": 1}')
def test_notes_of_others_are_passed_over(note: str) -> None:
    assert last_entry({("a", 0): OffsetAndMetadata(5, note)}) is None
    own = to_commit("p", an_entry(), [{"b": {"0": 1}}], None)["p"]
    found = last_entry({("a", 0): OffsetAndMetadata(5, note), **own})
    assert found == an_entry(sources=(("b",),))


def test_no_offsets_at_all_are_no_entry() -> None:
    assert last_entry({}) is None


def test_a_newer_layout_is_refused() -> None:
    ((where, at),) = to_commit("p", an_entry(), [{"b": {"0": 1}}], None)["p"].items()
    newer = json.loads(at.metadata) | {"sparkonce": 3, "more": True}
    with pytest.raises(LedgerError, match=r"layout 3, this version knows 2.*or newer"):
        last_entry({where: OffsetAndMetadata(1, json.dumps(newer))})


def test_an_entry_says_who_wrote_it() -> None:
    assert str(an_entry()) == "batch 12 by process 4711 on worker-7, /data/checkpoints/payments"
