"""What runs on executors: rows in, acknowledged records in Kafka out, one line of figures back.

Two ways. `Direct`: encode and send in one go, where the rows of a partition are all in one task.
`Exchange`: one stage encodes whole record batches, Spark brings those of a partition together, the
next stage numbers and sends them; so a few large values are shuffled instead of every row.

A Python worker serves many tasks; producers are kept in it, connections and all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar
from zlib import crc32

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from sparkonce.encode import Codec, EncodedBatch
from sparkonce.errors import BrokerError
from sparkonce.guarantees import Guarantee
from sparkonce.produce import Delivery, Producer, ProducerIdentity, TransactionalProducer
from sparkonce.stream.desk import Place, SecondAttempt, claim

Observer = Callable[[str], None]
"""Told where a task or the driver has come to; the verifier lets processes die there."""

FIGURES = "task int, topic string, partition int, records long, size_bytes long, lost long"
ENCODED = (
    "writer int, topic string, partition int, count int, codec int, "
    "base_timestamp_ms long, max_timestamp_ms long, records binary"
)
_GATHER_BYTES = 8 * 1024 * 1024
_ENCODED_SCHEMA = pa.schema(
    [
        ("writer", pa.int32()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("count", pa.int32()),
        ("codec", pa.int32()),
        ("base_timestamp_ms", pa.int64()),
        ("max_timestamp_ms", pa.int64()),
        ("records", pa.binary()),
    ]
)


@dataclass(frozen=True, slots=True)
class Order:
    """All that a task needs to know; goes to the executors with the code."""

    settings: Mapping[str, str]
    guarantee: Guarantee
    identity: ProducerIdentity | None
    """Whose transaction to join; None outside of one."""
    desk: Place | None
    """Where to ask before writing; None where a second attempt may write."""
    attempt: int
    topic: str | None
    shares: int
    """How many tasks have partitions of their own for rows without a key; 1 for no sharing."""
    writers: int
    observe: Observer | None


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


class Direct:
    """Rows of a partition are all in one task: encode and send."""

    def __init__(self, order: Order) -> None:
        self._order = order

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        def batches_for(producer: Producer) -> Iterator[list[EncodedBatch]]:
            share = _task() if self._order.shares > 1 else 0
            producer.keep_keyless_to(share, self._order.shares)
            for table in gathered(batches):
                yield from producer.encode_arrow(self._order.topic, table)

        yield from _written(self._order, batches, batches_for)


class Encode:
    """The first stage of an exchange: batches, and which task is to send them."""

    def __init__(self, order: Order) -> None:
        self._order = order

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        producer = Workshop.producer(self._order)
        producer.keep_keyless_to(0, 1)
        for table in gathered(batches):
            for encoded in producer.encode_arrow(self._order.topic, table):
                yield self._rows(encoded)

    def _rows(self, encoded: list[EncodedBatch]) -> pa.RecordBatch:
        writers = self._order.writers
        columns: list[list[Any]] = [
            [(crc32(batch.topic.encode()) + batch.partition) % writers for batch in encoded],
            [batch.topic for batch in encoded],
            [batch.partition for batch in encoded],
            [batch.count for batch in encoded],
            [int(batch.codec) for batch in encoded],
            [batch.base_timestamp_ms for batch in encoded],
            [batch.max_timestamp_ms for batch in encoded],
        ]
        arrays = [
            pa.array(column, each.type)
            for column, each in zip(columns, list(_ENCODED_SCHEMA)[:-1], strict=True)
        ]
        records = _joined([batch.records for batch in encoded])
        return pa.RecordBatch.from_arrays([*arrays, records], schema=_ENCODED_SCHEMA)


class Send:
    """The second stage of an exchange: number the batches and send them."""

    def __init__(self, order: Order) -> None:
        self._order = order

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        def batches_for(producer: Producer) -> Iterator[list[EncodedBatch]]:
            for rows in batches:
                yield _unpacked(rows)

        yield from _written(self._order, batches, batches_for)


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


def _written(
    order: Order,
    rows: Iterator[pa.RecordBatch],
    batches_for: Callable[[Producer], Iterator[list[EncodedBatch]]],
) -> Iterator[pa.RecordBatch]:
    figures = Figures()
    try:
        with _may_write(order):
            producer = Workshop.producer(order)
            try:
                _write(order, producer, batches_for(producer), figures)
            except BaseException:
                Workshop.discard(producer)
                raise
    except SecondAttempt:
        if order.guarantee is not Guarantee.AT_MOST_ONCE:
            raise
        # What the first attempt did not come to write is lost: that is the promise.
        figures.lost += sum(batch.num_rows for batch in rows)
    yield figures.rows(_task())


def _may_write(order: Order) -> AbstractContextManager[None]:
    if order.desk is None:
        return nullcontext()
    return claim(order.desk, order.attempt, _task(), _context().taskAttemptId())


def _write(
    order: Order, producer: Producer, batches: Iterator[list[EncodedBatch]], figures: Figures
) -> None:
    def count_lost(error: BrokerError | None, delivery: Delivery) -> None:
        figures.lost += delivery.count if error else 0

    # Elsewhere a record that isn't acknowledged fails the task.
    on_delivery = count_lost if order.guarantee is Guarantee.AT_MOST_ONCE else None
    for encoded in batches:
        is_first = not figures.written
        producer.produce_encoded(encoded, on_delivery)
        for batch in encoded:
            figures.add(batch)
        if order.observe and is_first and encoded:
            order.observe("produce:first")
    if order.guarantee is not Guarantee.NONE:
        producer.flush()
    if order.observe and figures.written:
        order.observe("produce:last")


def _joined(values: list[memoryview]) -> pa.Array:
    """A column of bytes, copied once."""
    ends = np.cumsum([0, *map(len, values)], dtype=np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def _unpacked(rows: pa.RecordBatch) -> list[EncodedBatch]:
    columns = [rows.column(name) for name in _ENCODED_SCHEMA.names[1:]]
    return [
        EncodedBatch(
            topic.as_py(),
            partition.as_py(),
            count.as_py(),
            Codec(codec.as_py()),
            base.as_py(),
            largest.as_py(),
            memoryview(records.as_buffer()),
            range(count.as_py()),
        )
        for topic, partition, count, codec, base, largest, records in zip(*columns, strict=True)
    ]


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "this runs in a Spark task"
    return context


def _task() -> int:
    return _context().partitionId()
