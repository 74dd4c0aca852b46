"""Each defect in a history made by hand: found where it is, not found where it isn't."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparkonce.verify.checker import EXAMPLES_MAX, check
from sparkonce.verify.history import History, Markings, Moment, Reading, Running, Seen, Sent
from sparkonce.verify.outcome import Defect, Finding


def sent(*identities: str, lane: str = "", topics: tuple[str, ...] = ()) -> tuple[Sent, ...]:
    return tuple(Sent(identity, lane, topics) for identity in identities)


def log(*identities: str, topic: str = "out", partition: int = 0) -> tuple[Seen, ...]:
    """A partition with these records, from offset 0 on."""
    return tuple(Seen(each, topic, partition, offset) for offset, each in enumerate(identities))


def end(*logs: tuple[Seen, ...], reader: str = "end") -> Reading:
    return Reading(reader, sum(logs, ()))


def live(*logs: tuple[Seen, ...]) -> Reading:
    return replace(end(*logs, reader="live"), live=True)


def found(history: History) -> list[tuple[Defect, int, str]]:
    return [(each.defect, each.count, each.reader) for each in check(history)]


def only(history: History) -> Finding:
    [finding] = check(history)
    return finding


CLEAN = History(
    sent("1", "2", lane="x", topics=("out", "log")) + sent("3", lane="y"),
    (
        live(log("1")),
        end(log("1", "2", "3"), log("1", "2", topic="log"), reader="first"),
        end(log("1", "2", topic="log"), log("1", "2", "3"), reader="second"),
    ),
    (Moment("m", frozenset("12"), frozenset("12")),),
    {"u1": frozenset("12"), "u2": frozenset("3")},
    markings=Markings(transactional=2, plain=0, commits=2, aborts=1),
    transactional=True,
)


def test_a_clean_history_has_no_finding() -> None:
    assert check(CLEAN) == ()


def test_what_was_aborted_in_the_input_is_missed_by_nobody_and_may_not_come_out() -> None:
    history = replace(CLEAN, aborted=frozenset({"4"}))
    assert check(history) == ()
    read = History(sent("1"), (end(log("1", "4", "5")),), aborted=frozenset({"4"}))
    assert found(read) == [(Defect.UNKNOWN, 1, "end"), (Defect.ABORTED, 1, "end")]


def test_a_history_of_nothing_has_no_finding() -> None:
    assert check(History((), (end(),))) == ()


def test_without_a_reading_to_the_end_nothing_is_judged() -> None:
    with pytest.raises(ValueError, match="came to the end"):
        check(History(sent("1"), (live(log("1")),)))


def test_findings_come_in_the_order_of_the_defects_with_few_examples() -> None:
    names = [f"{number:02}" for number in range(20)]
    history = History(sent(*names), (end(log("new", "new")),), left_open=(("out", 0),))
    findings = check(history)
    assert [each.defect for each in findings] == [Defect.LOST, Defect.UNKNOWN, Defect.HANGING]
    assert (findings[0].count, findings[0].examples) == (20, tuple(names[:EXAMPLES_MAX]))


def test_lost_is_what_was_acknowledged_and_is_not_there() -> None:
    history = History((*sent("1", "2"), Sent("3", acknowledged=False)), (end(log("2")),))
    assert only(history) == Finding(Defect.LOST, 1, ("1",), "end")


def test_lost_in_one_of_two_topics() -> None:
    reading = end(log("1", "2", topic="a"), log("2", topic="b"))
    history = History(sent("1", "2", topics=("a", "b")), (reading,))
    assert only(history) == Finding(Defect.LOST, 1, ("1@b",), "end")


def test_lost_though_a_live_reader_saw_it() -> None:
    history = History(sent("1"), (live(log("1")), end()))
    assert found(history) == [(Defect.LOST, 1, "end"), (Defect.DIRTY, 1, "live")]


def test_lost_for_the_one_of_two_readers_that_misses_it() -> None:
    readings = (end(log("1", "2")), end(log("1"), reader="other"))
    assert found(History(sent("1", "2"), readings)) == [(Defect.LOST, 1, "other")]
    unconfirmed = (Sent("1"), Sent("2", acknowledged=False))
    examples = ("2 at out/0@1, as another reader saw",)
    assert only(History(unconfirmed, readings)) == Finding(Defect.LOST, 1, examples, "other")


def test_readers_that_saw_a_record_at_different_offsets_have_each_lost_one() -> None:
    later = (Seen("1", "out", 0, 7),)
    history = History(sent("1"), (end(log("1"), reader="a"), end(later, reader="b")))
    assert found(history) == [(Defect.LOST, 1, "a"), (Defect.LOST, 1, "b")]


def test_repeated_is_counted_each_time_too_many() -> None:
    history = History(sent("1", "2"), (end(log("1", "2", "1"), log("1", partition=1)),))
    assert only(history) == Finding(Defect.REPEATED, 2, ("1", "1"), "end")


def test_repeated_counts_by_topic_where_topics_are_due() -> None:
    twice = end(log("1", "1", topic="a"), log("1", topic="b"))
    assert only(History(sent("1", topics=("a", "b")), (twice,))).examples == ("1@a",)
    once_each = end(log("1", topic="a"), log("1", topic="b"))
    assert only(History(sent("1"), (once_each,))).defect is Defect.REPEATED


def test_what_was_sent_twice_is_due_twice() -> None:
    assert check(History(sent("1", "1"), (end(log("1", "1")),))) == ()
    assert found(History(sent("1", "1"), (end(log("1")),))) == [(Defect.LOST, 1, "end")]


def test_reordered_is_what_follows_a_later_one_of_its_lane() -> None:
    history = History(sent("1", "2", "3", lane="x"), (end(log("2", "3", "1")),))
    assert only(history) == Finding(Defect.REORDERED, 1, ("1 at out/0@2, in lane x",), "end")
    assert found(replace(history, readings=(end(log("3", "1", "2")),)))[0][1] == 2


def test_no_order_is_due_between_lanes_partitions_topics_or_without_a_lane() -> None:
    assert check(History(sent("1", lane="x") + sent("2", lane="y"), (end(log("2", "1")),))) == ()
    assert check(History(sent("1", "2"), (end(log("2", "1")),))) == ()
    both = sent("1", "2", lane="x")
    assert check(History(both, (end(log("2"), log("1", partition=1)),))) == ()
    assert check(History(both, (end(log("2"), log("1", topic="b")),))) == ()


def test_a_repeat_is_not_reordered() -> None:
    history = History(sent("1", "2", "3", lane="x"), (end(log("1", "2", "1", "2", "3")),))
    assert found(history) == [(Defect.REPEATED, 2, "end")]


def test_unknown_never_went_in_or_not_there() -> None:
    strange = History(sent("1"), (end(log("1", "9", "9")),))
    assert only(strange) == Finding(Defect.UNKNOWN, 1, ("9",), "end")
    astray = History(sent("1", topics=("a",)), (end(log("1", topic="a"), log("1", topic="b")),))
    assert only(astray) == Finding(Defect.UNKNOWN, 1, ("1@b",), "end")


def test_dirty_is_seen_live_and_at_that_place_no_more() -> None:
    moved = (Seen("1", "out", 0, 5),)
    history = History(sent("1"), (live(log("1")), end(moved)))
    assert only(history) == Finding(Defect.DIRTY, 1, ("1 at out/0@0",), "live")


def test_torn_at_the_end() -> None:
    some = tuple(Sent(each, acknowledged=False) for each in "123")
    units = {"whole": frozenset("1"), "torn": frozenset("12"), "absent": frozenset("3")}
    history = History(some, (end(log("1")),), units=units)
    assert only(history) == Finding(Defect.TORN, 1, ("torn: 1 of 2",), "end")


def test_torn_between_topics() -> None:
    unconfirmed = (Sent("1", topics=("a", "b"), acknowledged=False),)
    history = History(unconfirmed, (end(log("1", topic="a")),), units={"u": frozenset("1")})
    assert only(history) == Finding(Defect.TORN, 1, ("u: 1 of 2",), "end")


def test_torn_at_a_moment_though_whole_at_the_end() -> None:
    moment = Moment("after the kill", frozenset("1"), frozenset("1"))
    history = History(sent("1", "2"), (end(log("1", "2")),), (moment,), {"u": frozenset("12")})
    assert only(history) == Finding(Defect.TORN, 1, ("u: 1 of 2",), "after the kill")


def test_offsets_say_on_which_side_of_which_moment() -> None:
    fine, apart = frozenset("1"), Moment("second", frozenset("12"), frozenset("13"))
    moments = (Moment("first", fine, fine), apart)
    history = History(sent("1", "2", "3"), (end(log("1", "2", "3")),), moments)
    examples = ("2 done, not visible", "3 visible, not done")
    assert only(history) == Finding(Defect.OFFSETS, 2, examples, "second")
    many = replace(history, moments=(Moment("m", frozenset("abcdefgh"), frozenset()),))
    assert only(many).examples == tuple(f"{each} done, not visible" for each in "abcde")


def counted(*steps: tuple[str, int, int], partition: int = 0) -> tuple[Seen, ...]:
    """Records "0", "1", … (from "5" on in partition 1) with the state of a key before and after."""
    return tuple(
        Seen(str(5 * partition + at), "out", partition, at, Running(*step))
        for at, step in enumerate(steps)
    )


@pytest.mark.parametrize(
    ("logs", "count"),
    [
        ([counted(("k", 0, 2), ("other", 0, 1), ("k", 2, 3), ("other", 1, 5))], 0),
        ([counted(("k", 0, 2), ("k", 2, 1), ("k", 1, 4))], 0),
        ([counted(("k", 1, 2))], 1),  # doesn't start at nothing
        ([counted(("k", 0, 2), ("k", 0, 2), ("k", 2, 3))], 1),  # forgot
        ([counted(("k", 0, 2), ("k", 3, 4), ("k", 5, 6))], 2),
        ([counted(("k", 0, 2)), counted(("other", 0, 1), partition=1)], 0),
        ([counted(("k", 0, 2)), counted(("k", 0, 1), ("k", 1, 2), partition=1)], 1),  # two homes
        ([counted(("k", 0, 2)), counted(("k", 2, 3), partition=1)], 1),
    ],
)
def test_state_goes_on_from_record_to_record(logs: list[tuple[Seen, ...]], count: int) -> None:
    reading = end(*logs)
    history = History(sent(*(seen.identity for seen in reading.seen)), (reading,))
    assert found(history) == [(Defect.STATE, count, "end")] * bool(count)


def test_state_is_judged_in_the_order_of_the_log_not_of_the_reader() -> None:
    first, second = counted(("k", 0, 1), ("k", 1, 2))
    history = History(sent("0", "1", lane="x"), (end((second, first)),))
    assert found(history) == [(Defect.BACKWARDS, 1, "end")]


def keyed(
    key: bytes | None, *identities: str, topic: str = "out", partition: int = 0
) -> tuple[Seen, ...]:
    seen = log(*identities, topic=topic, partition=partition)
    return tuple(replace(each, key=key) for each in seen)


@pytest.mark.parametrize(
    ("logs", "units", "count"),
    [
        ((keyed(b"k", "1"), keyed(b"k", "2", "3", partition=1)), {"u": "123"}, 2),
        ((keyed(b"k", "1", "2"), keyed(b"k", "3", partition=5)), {"u": "12", "v": "3"}, 0),
        ((keyed(b"k", "1"), keyed(b"other", "2", "3", partition=1)), {"u": "123"}, 0),
        ((keyed(b"k", "1"), keyed(b"k", "2", "3", topic="log", partition=1)), {"u": "123"}, 0),
        ((keyed(None, "1"), keyed(None, "2", "3", partition=1)), {"u": "123"}, 0),
        ((keyed(b"k", "1"), keyed(b"k", "2", "3", partition=1)), {"u": "1"}, 0),
    ],
    ids=["split", "another transaction", "another key", "another topic", "no key", "no unit"],
)
def test_split_is_a_key_with_two_partitions_in_one_transaction(
    logs: tuple[tuple[Seen, ...], ...], units: dict[str, str], count: int
) -> None:
    reading = end(*logs)
    history = History(
        sent("1", "2", "3"),
        (reading, replace(reading, reader="live", live=True)),
        units={name: frozenset(unit) for name, unit in units.items()},
    )
    assert found(history) == [(Defect.SPLIT, count, "end")] * bool(count)


def test_split_names_the_key_and_both_places() -> None:
    reading = end(keyed(b"k", "1"), keyed(b"k", "2", partition=4))
    finding = only(History(sent("1", "2"), (reading,), units={"u": frozenset("12")}))
    assert finding.examples == ("k: 2 at out/4@0, and in partition 0",)


@pytest.mark.parametrize("back", [0, 2])
def test_backwards_is_an_offset_at_or_before_one_handed_over(back: int) -> None:
    seen = log("1", "2", "3")
    for readings in ((live((*seen, seen[back])), end(seen)), (end((*seen, seen[back])),)):
        [finding] = check(History(sent("1", "2", "3"), readings))
        assert (finding.defect, finding.count) == (Defect.BACKWARDS, 1)
        assert finding.examples == (f"{back + 1} at out/0@{back} after 2",)


def test_backwards_is_measured_from_the_furthest() -> None:
    one, two, three = log("1", "2", "3")
    history = History(sent("1", "2", "3"), (end((three, one, two)),))
    assert found(history) == [(Defect.BACKWARDS, 2, "end")]


def test_hanging_names_the_partitions() -> None:
    finding = only(replace(CLEAN, left_open=(("out", 1), ("log", 0))))
    assert finding == Finding(Defect.HANGING, 2, ("out/1", "log/0"))


@pytest.mark.parametrize(
    ("markings", "count"),
    [
        (Markings(transactional=1, plain=0, commits=1, aborts=0), 0),
        (Markings(transactional=5, plain=3, commits=2, aborts=0), 3),
        (Markings(transactional=0, plain=0, commits=2, aborts=0), 1),
        (Markings(transactional=5, plain=0, commits=0, aborts=2), 1),
        (None, 0),
    ],
)
def test_unmarked_where_transactions_are_claimed(markings: Markings | None, count: int) -> None:
    history = replace(CLEAN, markings=markings)
    assert found(history) == [(Defect.UNMARKED, count, "")] * bool(count)
    assert check(replace(history, transactional=False)) == ()
    assert check(History((), (end(),), markings=markings, transactional=True)) == ()


def test_interference_is_told_in_the_words_of_the_database() -> None:
    finding = only(replace(CLEAN, interference=("pg_dump failed", "deadlock detected")))
    assert finding == Finding(Defect.INTERFERENCE, 2, ("pg_dump failed", "deadlock detected"))
