"""What runs on executors: rows in, acknowledged records in Kafka out, one line of figures back.

Rows are encoded where they are and sent from there: at once, where the rows of a partition are all
in one task; else in turns (`turns`), dead letters always. Nothing is shuffled.

A Python worker serves many tasks; producers are kept in it, connections and all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import IntegerType, LongType, StringType, StructType

from sparkonce.encode import EncodedBatch, NotOwned
from sparkonce.errors import BrokerError, Reaction, reaction
from sparkonce.guarantees import Guarantee
from sparkonce.produce import Delivery, Producer, ProducerIdentity, TransactionalProducer
from sparkonce.stream.claim import Line, Place, SecondAttempt, agreed_counts, claim
from sparkonce.stream.steps import Observer
from sparkonce.stream.turns import Turns

# Not as text, which the JVM would have to parse for every batch.
FIGURES = (
    StructType()
    .add("task", IntegerType())
    .add("topic", StringType())
    .add("partition", IntegerType())
    .add("records", LongType())
    .add("size_bytes", LongType())
    .add("lost", LongType())
)
_GATHER_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Order:
    """All that a task needs to know; goes to the executors with the code."""

    settings: Mapping[str, str]
    guarantee: Guarantee
    identity: ProducerIdentity | None
    """Whose transaction to join; None outside of one."""
    desk: Place
    """Where the driver is asked."""
    needs_claim: bool
    """Whether to ask before writing; not where a second attempt may write."""
    attempt: int
    topic: str | None
    dead_letter_topic: str | None
    partition_counts: Mapping[str, int]
    """Of each topic that the driver knows: the same for all tasks, whatever they have seen."""
    shares: int
    """How many tasks have partitions of their own for rows without a key; 1 for no sharing."""
    lies_by_partition: bool
    """Whether each task has the partitions to itself that its rows name, and must choose none."""
    in_turns: bool
    """Whether several tasks may have rows for the same partition."""
    wait_s: float
    """As long as a transaction may be open."""
    observe: Observer | None

    def takes_turns_at(self, topic: str) -> bool:
        """Whether a partition of it may be another task's as well: those of the dead letters are
        everybody's."""
        return self.in_turns or topic == self.dead_letter_topic


@dataclass(slots=True)
class Figures:
    """What one task wrote, by topic and partition."""

    written: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    lost: int = 0

    def add(self, batch: EncodedBatch) -> None:
        counted = self.written.setdefault((batch.topic, batch.partition), [0, 0])
        counted[0] += batch.count
        counted[1] += batch.size_bytes

    def rows(self, task: int) -> pa.RecordBatch:
        places = list(self.written) or [("", -1)]
        sums = [self.written.get(place, [0, 0]) for place in places]
        columns = {
            "task": pa.array([task] * len(places), pa.int32()),
            "topic": pa.array([topic for topic, _ in places], pa.string()),
            "partition": pa.array([partition for _, partition in places], pa.int32()),
            "records": pa.array([records for records, _ in sums], pa.int64()),
            "size_bytes": pa.array([size for _, size in sums], pa.int64()),
            "lost": pa.array([self.lost] + [0] * (len(places) - 1), pa.int64()),
        }
        return pa.RecordBatch.from_pydict(columns)


class WriteTask:
    """Given to Spark's mapInArrow."""

    def __init__(self, order: Order) -> None:
        self._order = order

    def __call__(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        order, figures = self._order, Figures()
        try:
            with _may_write(order) as line:
                producer = Workshop.producer(order)
                try:
                    _write(order, producer, rows, figures, line)
                except BaseException:
                    Workshop.discard(producer)
                    raise
        except SecondAttempt:
            if order.guarantee is not Guarantee.AT_MOST_ONCE:
                raise
            # What the first attempt did not come to write is lost: that is the promise.
            figures.lost += sum(batch.num_rows for batch in rows)
        yield figures.rows(_task())


class Workshop:
    """The producers of this Python worker, by what they were made with."""

    _made: ClassVar[dict[Any, Producer]] = {}

    @classmethod
    def producer(cls, order: Order) -> Producer:
        # A forked worker must not use connections of its parent's.
        owner = order.identity.transactional_id if order.identity else None
        made_with = (os.getpid(), owner, order.guarantee, tuple(sorted(order.settings.items())))
        producer = cls._made.get(made_with)
        if producer is None:
            producer = cls._made[made_with] = (
                TransactionalProducer.join(order.settings, order.identity)
                if order.identity
                else Producer({**order.settings, "guarantee": order.guarantee.value})
            )
        elif isinstance(producer, TransactionalProducer) and order.identity:
            producer.rejoin(order.identity)
        return producer

    @classmethod
    def discard(cls, producer: Producer) -> None:
        """After an error: the next task starts with a new one."""
        cls._made = {key: kept for key, kept in cls._made.items() if kept is not producer}
        producer.abandon()


def gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Spark's batches are small for narrow rows; larger ones make better record batches."""
    held: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
            size_bytes += batch.nbytes
        if size_bytes >= _GATHER_BYTES:
            yield pa.Table.from_batches(held)
            held, size_bytes = [], 0
    if held:
        yield pa.Table.from_batches(held)


class _AgreedCounts:
    """How many partitions topics have for all tasks of an attempt. The driver says it of the topics
    that it knows; of others that rows name, it tells each task what it was told by the first."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._counts = dict(order.partition_counts)

    def __call__(self, seen: Mapping[str, int]) -> Mapping[str, int]:
        fresh = {topic: count for topic, count in seen.items() if topic not in self._counts}
        if fresh:
            self._counts |= agreed_counts(self._order.desk, self._order.attempt, fresh)
        return self._counts


class _InTransaction:
    """How a task writes into the transaction: at once where it has partitions of its own, in turns
    where others may write to the same."""

    def __init__(self, order: Order, producer: TransactionalProducer, line: Line) -> None:
        self._order = order
        self._producer = producer
        self._line = line
        self._turns: Turns | None = None
        self._is_told = False

    def send(self, batches: list[EncodedBatch]) -> None:
        if batches and not self._is_told:
            self._is_told = True
            self._line.tell({"writes": True})
        takes_turns = [self._order.takes_turns_at(batch.topic) for batch in batches]
        in_turns = [batch for batch, takes in zip(batches, takes_turns, strict=True) if takes]
        if len(in_turns) < len(batches):
            at_once = zip(batches, takes_turns, strict=True)
            self._producer.produce_encoded([batch for batch, takes in at_once if not takes])
        if in_turns:
            if self._turns is None:
                self._turns = Turns(self._producer, self._line.tell, self._order.wait_s)
                self._line.listen(self._turns.hear, self._turns.fail)
            self._turns.write(in_turns)

    def finish(self) -> None:
        """Until everything is acknowledged."""
        if self._turns is not None:
            self._turns.finish()
        self._producer.flush()


def _may_write(order: Order) -> AbstractContextManager[Line | None]:
    if not order.needs_claim:
        return nullcontext()
    task_attempt = _context().taskAttemptId()
    return claim(order.desk, order.attempt, _task(), task_attempt, wants_turns=_met_another)


def _met_another(error: BaseException) -> bool:
    """Whether a task came upon a partition that another one writes to."""
    is_out_of_order = (
        isinstance(error, BrokerError) and reaction(error.code) is Reaction.OUT_OF_ORDER
    )
    return is_out_of_order or isinstance(error, NotOwned)


def _write(
    order: Order,
    producer: Producer,
    rows: Iterator[pa.RecordBatch],
    figures: Figures,
    line: Line | None,
) -> None:
    producer.keep_keyless_to(_task() if order.shares > 1 else 0, order.shares)
    producer.choose_partitions(not order.lies_by_partition)
    send, finish = _way(order, producer, figures, line)
    agreed = _AgreedCounts(order)
    for table in gathered(rows):
        for encoded in producer.encode_arrow(order.topic, table, agreed):
            is_first = not figures.written
            send(encoded)
            for batch in encoded:
                figures.add(batch)
            if order.observe and is_first and encoded:
                order.observe("produce:first")
    finish()
    if order.observe and figures.written:
        order.observe("produce:last")


def _way(
    order: Order, producer: Producer, figures: Figures, line: Line | None
) -> tuple[Callable[[list[EncodedBatch]], None], Callable[[], object]]:
    """How to send a batch, and how to know that all are acknowledged."""
    if isinstance(producer, TransactionalProducer):
        assert line is not None, "who writes into a transaction has asked"
        way = _InTransaction(order, producer, line)
        return way.send, way.finish
    if order.guarantee is Guarantee.AT_MOST_ONCE:

        def count_lost(error: BrokerError | None, delivery: Delivery) -> None:
            figures.lost += delivery.count if error else 0

        return lambda batches: producer.produce_encoded(batches, count_lost), producer.flush
    if order.guarantee is Guarantee.NONE:
        return producer.produce_encoded, lambda: None
    return producer.produce_encoded, producer.flush


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "this runs in a Spark task"
    return context


def _task() -> int:
    return _context().partitionId()
