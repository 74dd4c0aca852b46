"""A workload whose every record is known, and what must be true of it afterwards.

Values are `partition:number`, numbered without a gap per partition, so loss, repetition and
reordering show. A transaction that may only be aborted is written again with the same values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa

from oracle import Watcher, committed, read
from sparkonce import Producer, TransactionalProducer
from sparkonce.errors import AbortableError, OutcomeUnknown, Unreachable

PARTITIONS = 4


@dataclass
class Outcome:
    """What the writer was told."""

    committed: dict[int, list[int]] = field(default_factory=dict)
    aborted: int = 0
    asked_again: int = 0


def rows(first: int, count: int) -> pa.Table:
    numbers = range(first, first + count)
    return pa.table(
        {
            "partition": pa.array([p for _ in numbers for p in range(PARTITIONS)], pa.int32()),
            "value": [f"{p}:{n}" for n in numbers for p in range(PARTITIONS)],
        }
    )


def write(
    producer: TransactionalProducer,
    topic: str,
    group: str,
    transactions: int,
    count: int = 200,
    disturb: Callable[[int], None] = lambda number: None,
) -> Outcome:
    """`transactions` of `count` values a partition; `disturb` is called in the midst of each."""
    outcome = Outcome({partition: [] for partition in range(PARTITIONS)})
    for number in range(transactions):
        first = number * count
        disturbed = False
        while True:
            try:
                producer.begin_transaction()
                producer.produce_arrow(topic, rows(first, count // 2))
                if not disturbed:
                    disturbed = True
                    disturb(number)
                producer.produce_arrow(topic, rows(first + count // 2, count - count // 2))
                producer.send_offsets_to_transaction({(topic, 0): first + count}, group)
                _commit(producer, outcome)
                break
            except (AbortableError, Unreachable):
                outcome.aborted += 1
                producer.abort_transaction()
        for partition in range(PARTITIONS):
            outcome.committed[partition] += range(first, first + count)
    return outcome


def _commit(producer: TransactionalProducer, outcome: Outcome) -> None:
    for _ in range(20):
        try:
            return producer.commit_transaction()
        except OutcomeUnknown:
            outcome.asked_again += 1
    raise AssertionError("the commit's outcome stayed unknown")


def check_exactly_once(
    servers: str, topic: str, group: str, outcome: Outcome, watcher: Watcher
) -> None:
    """Equal sets, no repeat, order per partition, no open transaction; during and after."""
    after = [(seen.partition, seen.offset, seen.value or b"") for seen in read(servers, topic)]
    for label, seen in (("after", after), ("during", watcher.seen)):
        for partition in range(PARTITIONS):
            lane = [(offset, value) for part, offset, value in seen if part == partition]
            assert [offset for offset, _ in lane] == sorted({offset for offset, _ in lane}), label
            numbers = [int(value.partition(b":")[2]) for _, value in lane]
            expected = outcome.committed[partition]
            if label == "during":
                expected = expected[: len(numbers)]
            assert numbers == expected, (
                f"{label} the faults, partition {partition}: "
                f"lost {sorted(set(expected) - set(numbers))[:5]}, "
                f"unexpected {sorted(set(numbers) - set(expected))[:5]}, "
                f"{len(numbers) - len(set(numbers))} repeated"
            )
    last = max(outcome.committed[0]) + 1
    assert committed(servers, group, topic) == (last, "")


def order_and_repeats(servers: str, topic: str) -> tuple[int, int]:
    """How many values come after a larger one for the first time, and how many come again."""
    reordered = repeated = 0
    for partition in range(PARTITIONS):
        met: set[int] = set()
        largest = -1
        for seen in read(servers, topic, "read_uncommitted"):
            if seen.partition != partition:
                continue
            number = int((seen.value or b"").partition(b":")[2])
            if number in met:
                repeated += 1
            elif number < largest:
                reordered += 1
            met.add(number)
            largest = max(largest, number)
    return reordered, repeated


def write_plain(producer: Producer, topic: str, batches: int, count: int = 100) -> None:
    for number in range(batches):
        producer.produce_arrow(topic, rows(number * count, count))
