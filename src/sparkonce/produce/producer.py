"""The public producer: rows and Arrow tables in, acknowledged records in Kafka out.

`Producer` is idempotent by default, or plain where settings ask for it; `TransactionalProducer`
(next door) adds the transaction. Encoding runs in the caller's thread, sending in the client's.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NoReturn, Self

import numpy as np
import pyarrow as pa

from sparkonce.encode import (
    EncodedBatch,
    Encoder,
    Partitioner,
    Rejected,
    check_columns,
    highest_partitions,
    topics_in,
)
from sparkonce.errors import BrokerError, ConfigError, DeadLettered, EncodeError
from sparkonce.options import ProducerOptions
from sparkonce.produce.coordinator import Coordinator
from sparkonce.produce.dead_letters import dead_letters, notes_on
from sparkonce.produce.delivery import DeliveryReports, OnDelivery
from sparkonce.produce.identity import NO_IDENTITY, ProducerIdentity
from sparkonce.produce.lane import Batch, Outcome
from sparkonce.produce.linger import Linger
from sparkonce.produce.rows import (
    Headers,
    PendingRows,
    as_bytes,
    as_headers,
    check_number,
    header_pairs,
)
from sparkonce.produce.sender import Sender
from sparkonce.produce.topics import Topics
from sparkonce.wire import Client

_ROWS_BYTES = 1024 * 1024
_SENDS_WITHIN = 2
_SENDS_MORE_S = 10.0
"""Rows are encoded together, so many bytes at a time."""


class Producer:
    """Writes records to Kafka; a resend after a lost answer is written once.

    Settings are Kafka's own (`bootstrap.servers`, `acks`, `compression.type`, …). Use it as a
    context manager, or `close()` it: closing waits until everything is acknowledged.
    """

    _whole_or_nothing: ClassVar[bool] = False
    """Whether one unfit row spoils what is written with it."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._options = options = ProducerOptions.parse(settings)
        self._check_kind(options)
        self._partitioner = Partitioner(options.batch_size, random.randrange)
        self._encoder = encoder(options, self._partitioner)
        # Dead letters go by rules of their own, wherever the rows may go that were fit.
        self._letter_encoder = encoder(options, Partitioner(options.batch_size, random.randrange))
        self._client = Client(
            options.bootstrap_servers,
            client_id=options.client_id,
            security=options.security,
            request_timeout_ms=options.request_timeout_ms,
            metadata_max_age_ms=options.metadata_max_age_ms,
        )
        self._sender = Sender(self._client, options)
        self._topics = Topics(self._client, options.max_block_ms)
        self._sender.on_too_large = self._topics.ask_again
        self._sender.on_used_up = self._used_up
        self._coordinator = Coordinator(self._client, options)
        self._reports = DeliveryReports()
        self._identity: ProducerIdentity | None = None
        self._rows = PendingRows()
        # Rows leave in the order they came, whoever takes them out: a caller, or the linger.
        self._rows_lock = threading.RLock()
        self._linger = self._start_linger()
        self._closed = False

    def produce(
        self,
        topic: str,
        value: bytes | str | None = None,
        key: bytes | str | None = None,
        partition: int | None = None,
        on_delivery: OnDelivery | None = None,
        timestamp: int | None = None,
        headers: Headers = None,
    ) -> None:
        """Take one record (verbs and order of confluent-kafka); sent with others, soon.

        `timestamp` in milliseconds. A row that can't be written is refused here and now.
        """
        self._need_writable()
        if not isinstance(topic, str):
            raise EncodeError(f"topic is a {type(topic).__name__}: give its name as a str")
        if partition == -1:  # confluent-kafka's "any"
            partition = None
        check_number("partition", partition)
        check_number("timestamp", timestamp)
        key_bytes, value_bytes = as_bytes("key", key), as_bytes("value", value)
        notes = as_headers(headers)
        with self._rows_lock:
            self._need_writable()  # a commit may have ended the writing just now
            if topic not in self._topics.partition_counts or partition is not None:
                self._check_row(topic, partition)
            size = len(key_bytes or b"") + len(value_bytes or b"")
            if size > self._options.max_request_size and not self._options.dead_letter_topic:
                raise EncodeError(
                    f"a record of {size} bytes is over max.request.size="
                    f"{self._options.max_request_size}: raise it (and the topic's "
                    "max.message.bytes), or set dead.letter.topic"
                )
            if self._linger and not len(self._rows):
                self._linger.rows_came()
            self._rows.add(
                topic,
                key_bytes,
                value_bytes,
                partition,
                timestamp,
                notes,
                on_delivery,
            )
            if self._rows.size_bytes >= _ROWS_BYTES:
                self._send_rows()

    def produce_arrow(
        self,
        topic: str | None,
        table: pa.Table | pa.RecordBatch,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """Write a whole table: columns `value`, and as wanted `key`, `headers`, `timestamp`,
        `partition`, `topic` (used where the `topic` argument is None), as Spark names them.

        `on_delivery` is called once per record batch.
        """
        self._need_writable()
        check_columns(table.schema, topic)
        with self._rows_lock:
            self._need_writable()
            self._send_rows()
            outcome = (
                self._reports.per_batch(on_delivery)
                if on_delivery is not None
                else self._reports.unreported
            )
            refused = self._send_table(table, topic, outcome)
            if refused:
                self._refuse(refused, "The other rows were sent")

    def encode_arrow(
        self,
        topic: str | None,
        table: pa.Table | pa.RecordBatch,
        agree: Callable[[Mapping[str, int]], Mapping[str, int]] | None = None,
    ) -> Iterator[list[EncodedBatch]]:
        """What `produce_arrow` would send, dead letters too, for `produce_encoded` elsewhere.

        `agree` is told how many partitions this producer has seen of each topic, and answers with
        how many there are for all who write side by side.
        """
        check_columns(table.schema, topic)
        self._learn_topics(table, topic)
        counts: Mapping[str, int] = self._topics.partition_counts
        if agree is not None:
            counts = agree(self._counts_for(topics_in(table, topic)))
        for batches, rejected in self._encode(self._encoder, table, topic, counts):
            if rejected and self._options.dead_letter_topic is None:
                self._refuse(rejected, "Nothing was sent")
            yield batches
            if rejected:
                yield from self._letters(table, topic, rejected, counts)

    def produce_encoded(
        self, batches: Sequence[EncodedBatch], on_delivery: OnDelivery | None = None
    ) -> None:
        """Write batches that were encoded elsewhere, as they are; partitions were chosen there."""
        self._need_writable()
        self._topics.learn({batch.topic for batch in batches})
        outcome = self._reports.per_batch(on_delivery) if on_delivery else self._reports.unreported
        with self._rows_lock:
            self._need_writable()
            self._enqueue(batches, outcome)

    def partition_count(self, topic: str, *, fresh: bool = False) -> int:
        """As the cluster told it last, `metadata.max.age.ms` ago at most; `fresh` asks now. Raises
        a BrokerError for a topic that isn't there."""
        if fresh:
            self._topics.ask_again(topic)
        self._topics.learn([topic])
        return self._topics.partition_counts[topic]

    def keep_keyless_to(self, share: int, shares: int) -> None:
        """Let rows without a key go only to every `shares`-th partition, from `share` on.

        So that writers side by side have partitions of their own.
        """
        self._partitioner.keep_to(share, shares)

    def choose_partitions(self, chooses: bool) -> None:
        """Whether rows that don't name a partition get one (the default); they are refused
        otherwise, with NotOwned. Dead letters always do."""
        self._partitioner.choose(chooses)

    def produce_dead_letter(
        self,
        topic: str,
        value: bytes | str | None = None,
        key: bytes | str | None = None,
        *,
        reason: str,
        headers: Headers = None,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """Put a record that was meant for `topic` aside: one that your own code could not read.

        It goes to `dead.letter.topic` as those do that can't be written, the reason in its
        headers, in the same transaction as everything else.
        """
        target = self._options.dead_letter_topic
        if target is None:
            raise ConfigError(
                "dead.letter.topic is not set, so there is no place for a record that "
                f"could not be read ({reason}): set it, or let the batch fail"
            )
        self.produce(
            target,
            value,
            key,
            headers=[*notes_on(topic, reason), *header_pairs(headers)],
            on_delivery=on_delivery,
        )

    def poll(self, timeout: float = 0.0) -> int:
        """Call the delivery callbacks that are due; answers how many."""
        return self._reports.serve(timeout)

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until everything taken so far has its outcome; False when time ran out.

        Raises the first failure that no delivery callback was asked to tell.
        """
        self._send_lingering()
        is_done = self._sender.wait_acknowledged(timeout)
        self._reports.serve()
        self._reports.raise_unreported()
        if self._linger:
            self._linger.raise_error()
        return is_done

    def close(self) -> None:
        """Finish what was taken and let go of every connection."""
        if self._closed:
            return
        self._closed = True
        try:
            self.flush()
        finally:
            self._shut()

    def abandon(self) -> None:
        """Let go of every connection at once; what is not acknowledged yet may be written or not.

        For writers into another's transaction, once it is lost anyway.
        """
        self._closed = True
        self._shut()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- what the transactional producer does otherwise ------------------------------------------

    def _check_kind(self, options: ProducerOptions) -> None:
        if options.transactional_id is not None:
            raise ConfigError(
                f"transactional.id={options.transactional_id} is set, but Producer has no "
                "transactions: use TransactionalProducer, or leave transactional.id out"
            )

    def _need_writable(self) -> None:
        if self._closed:
            raise BrokerError("this producer was closed: make a new one")

    def _writer(self) -> ProducerIdentity:
        """Under whose name records are written; asked from the cluster when it is needed."""
        identity = self._identity
        if identity is None:
            idempotent = self._options.enable_idempotence
            self._identity = identity = self._coordinator.init() if idempotent else NO_IDENTITY
        return identity

    def _used_up(self, identity: ProducerIdentity) -> None:
        """Called on the client's loop; whoever writes next asks for a new producer id."""
        now = self._identity
        if now is not None and now.producer_id == identity.producer_id:
            self._identity = None

    def _before_enqueue(self, batches: Sequence[EncodedBatch]) -> None:
        """A step between encoding and sending."""

    def _refuse(self, rejected: Sequence[Rejected], others: str) -> NoReturn:
        first = rejected[0]
        raise EncodeError(
            f"{len(rejected)} rows can't be written; the first is row {first.row}: {first.reason}. "
            f"{others}. Mend these, or set dead.letter.topic"
        )

    # -- on the way to the sender -----------------------------------------------------------------

    def _check_row(self, topic: str, partition: int | None) -> None:
        if self._options.dead_letter_topic:
            return
        self._topics.learn([topic])
        count = self._topics.partition_counts[topic]
        if partition is not None and partition >= count:
            count = self.partition_count(topic, fresh=True)  # it may have been added
        if partition is not None and not 0 <= partition < count:
            raise EncodeError(
                f"partition {partition} of {topic!r} is out of range: it has {count}, 0 to "
                f"{count - 1}; leave the partition out to have it chosen by the key"
            )

    def _send_rows(self) -> None:
        if not len(self._rows):
            return
        rows, self._rows = self._rows, PendingRows()
        reports = rows.reports()
        outcome = (
            self._reports.per_row(reports) if reports is not None else self._reports.unreported
        )
        # Each row was taken by a call of its own: one that is unfit must not cost the others.
        for bad in self._send_table(rows.table(), None, outcome):
            self._reports.refused(bad, reports)

    def _send_table(
        self, table: pa.Table | pa.RecordBatch, topic: str | None, outcome: Outcome
    ) -> list[Rejected]:
        """Encode and send; answers the rows that were neither sent nor buried."""
        refused: list[Rejected] = []
        self._learn_topics(table, topic)
        counts = self._topics.partition_counts
        for batches, rejected in self._encode(self._encoder, table, topic, counts):
            if self._options.dead_letter_topic is None:
                refused += rejected
            if refused and self._whole_or_nothing:
                break
            self._enqueue(batches, outcome)
            if rejected and self._options.dead_letter_topic:
                self._bury(table, topic, rejected, outcome)
        return refused

    def _learn_topics(self, table: pa.Table | pa.RecordBatch, topic: str | None) -> None:
        """Of the topics that the table's rows go to, all that the encoder must know."""
        names = topics_in(table, topic)
        dead_letter_topic = self._options.dead_letter_topic
        if dead_letter_topic is None:
            self._topics.learn(names)
        else:
            self._topics.learn([dead_letter_topic])
            # Rows of a topic that isn't there are rejected by the encoder, and buried.
            for name in names:
                self._topics.is_known(name)
        # Whoever wrote the rows may know of partitions that were added since: a row is not
        # rejected for its partition before the cluster was asked once more.
        known = self._topics.partition_counts
        for name, highest in highest_partitions(table, topic).items():
            if name in known and highest >= known[name]:
                self.partition_count(name, fresh=True)

    def _counts_for(self, names: Sequence[str]) -> dict[str, int]:
        """Of these topics and the dead letters', those that are there."""
        dead_letter_topic = self._options.dead_letter_topic
        wanted = [*names, dead_letter_topic] if dead_letter_topic else names
        known = self._topics.partition_counts
        return {name: known[name] for name in wanted if name in known}

    def _bury(
        self,
        table: pa.Table | pa.RecordBatch,
        topic: str | None,
        rejected: Sequence[Rejected],
        outcome: Outcome,
    ) -> None:
        """Rows that can't be written go to the dead letters, with the reason beside them."""
        rows = np.array([bad.row for bad in rejected])

        def buried(batch: Batch, error: BrokerError | None, offset: int) -> None:
            dead = DeadLettered(f"written to {batch.encoded.topic}; its headers say why")
            outcome(batch, error or dead, offset)

        unheard = outcome == self._reports.unreported
        counts = self._topics.partition_counts
        for batches in self._letters(table, topic, rejected, counts):
            # Reports speak of the rows that were given, not of the letters made of them.
            given = [replace(batch, rows=rows[batch.rows]) for batch in batches]
            self._enqueue(given, outcome if unheard else buried)

    def _letters(
        self,
        table: pa.Table | pa.RecordBatch,
        topic: str | None,
        rejected: Sequence[Rejected],
        counts: Mapping[str, int],
    ) -> Iterator[list[EncodedBatch]]:
        letters = dead_letters(table, topic, rejected, self._options.max_request_size)
        target = self._options.dead_letter_topic
        for batches, again in self._encode(self._letter_encoder, letters, target, counts):
            if again:
                self._refuse(again, f"They are dead letters too large for {again[0].topic} as well")
            yield batches

    def _encode(
        self,
        encoder: Encoder,
        table: pa.Table | pa.RecordBatch,
        topic: str | None,
        counts: Mapping[str, int],
    ) -> Iterator[tuple[list[EncodedBatch], list[Rejected]]]:
        return encoder.encode(
            table,
            topic=topic,
            partition_counts=counts,
            existing_counts=self._topics.partition_counts,
            batch_limits=self._topics.batch_limits,
            now_ms=time.time_ns() // 1_000_000,
        )

    def _enqueue(self, encoded: Sequence[EncodedBatch], outcome: Outcome) -> None:
        if not encoded:
            return
        writer = self._writer()
        self._before_enqueue(encoded)
        deadline_s = time.monotonic() + self._options.delivery_timeout_ms / 1000
        self._sender.enqueue(writer, [Batch(batch, deadline_s, outcome) for batch in encoded])

    def _start_linger(self) -> Linger | None:
        # Rows may wait for metadata first, and for room behind it.
        send_within_s = _SENDS_WITHIN * self._options.max_block_ms / 1000 + _SENDS_MORE_S
        return Linger(self._send_lingering, self._options.linger_ms, send_within_s)

    def _send_lingering(self) -> None:
        with self._rows_lock:
            self._send_rows()

    def _shut(self) -> None:
        try:
            if self._linger:
                self._linger.stop()
        finally:
            self._client.close()


def encoder(options: ProducerOptions, partitioner: Partitioner) -> Encoder:
    """As the settings ask for it."""
    try:
        return Encoder(
            codec=options.compression_type,
            compression_level=options.compression_level,
            partitioner=partitioner,
            batch_bytes_max=options.batch_size,
            record_bytes_max=options.max_request_size,
        )
    except EncodeError as error:
        raise ConfigError(str(error)) from error
