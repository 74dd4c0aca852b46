"""The input of a trial, on a real cluster: all of it there, and what was aborted not to be seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from parts import a_topic
from sparkonce.local import LocalKafka
from sparkonce.verify import readers
from sparkonce.verify.filling import Filling
from sparkonce.verify.workload import Workload


@pytest.fixture
def topic(kafka: LocalKafka) -> Iterator[str]:
    with a_topic(kafka, partitions=4) as name:
        yield name


def values(kafka: LocalKafka, topic: str, isolation: str) -> list[str]:
    seen = readers.read(kafka.bootstrap_servers, [topic], isolation)
    return sorted((each.value or b"").decode() for each in seen)


def test_what_was_aborted_is_in_the_log_and_committed_readers_do_not_see_it(
    kafka: LocalKafka, topic: str
) -> None:
    workload = Workload(records=60, partitions=4, aborted=9)
    filling = Filling(kafka.bootstrap_servers, topic, 7, workload)
    landed = filling.first()
    sent = sorted(each.value for each in landed)
    assert sent == [f"t7-{number:06}" for number in range(60)]
    assert values(kafka, topic, "read_committed") == sent
    assert len(filling.aborted) == 9
    assert values(kafka, topic, "read_uncommitted") == sorted([*sent, *filling.aborted])
    assert readers.left_open(kafka.bootstrap_servers, [topic]) == []
    places = {(each.partition, each.offset): each.value for each in landed}
    seen = readers.read(kafka.bootstrap_servers, [topic])
    assert places == {(e.partition, e.offset): (e.value or b"").decode() for e in seen}


def test_all_partitions_have_as_much_and_a_later_portion_goes_on(
    kafka: LocalKafka, topic: str
) -> None:
    filling = Filling(kafka.bootstrap_servers, topic, 7, Workload(records=80, partitions=4))
    first = filling.first()
    assert set(Counter(each.partition for each in first).values()) == {20}
    keys = {each.key: each.partition for each in first}
    assert all(keys[each.key] == each.partition for each in first), "one place for each key"
    assert not filling.aborted
    more = filling.more(20)
    assert sorted(each.value for each in more) == [f"t7-{n:06}" for n in range(80, 100)]
    assert len(values(kafka, topic, "read_committed")) == 100


def test_keys_that_are_spread_are_in_every_partition_and_every_batch(
    kafka: LocalKafka, topic: str
) -> None:
    workload = Workload(records=80, partitions=2, spread=True)
    landed = Filling(kafka.bootstrap_servers, topic, 7, workload).first()
    assert Counter(each.partition for each in landed) == {0: 40, 1: 40}
    share = workload.per_batch // workload.partitions
    for first in range(0, 40, share):
        batch = [each for each in landed if first <= each.offset < first + share]
        places = {(each.key, each.partition) for each in batch}
        assert len(places) == workload.keys * workload.partitions
