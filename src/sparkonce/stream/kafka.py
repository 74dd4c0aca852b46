"""Kafka as a sink: one transaction for a batch, across all executors, source offsets inside.

fence: begin a transaction, under an epoch of its own. write: the executors join it. record: source
offsets and batch id, as offsets of the pipeline's group. decide: EndTxn. Under the weaker
guarantees records are written outside, and the transaction holds the ledger alone.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from sparkonce.errors import AbortableError, OutcomeUnknown, OwnershipUncertain
from sparkonce.guarantees import Guarantee
from sparkonce.options import ProducerOptions
from sparkonce.produce import State, TransactionalProducer
from sparkonce.produce.identity import NO_IDENTITY, Partition
from sparkonce.produce.states import ABORTABLE
from sparkonce.produce.topics import UnknownTopic
from sparkonce.stream.autocommit import AutoCommit
from sparkonce.stream.desk import Desk
from sparkonce.stream.handover import Handover
from sparkonce.stream.kafka_owner import KafkaOwner
from sparkonce.stream.kafka_settings import KafkaSettings, check_schema
from sparkonce.stream.layout import Apart, InTurns, Layout, Overlap, check_apart, layout_of
from sparkonce.stream.ledger import (
    Entry,
    Offsets,
    group_name,
    groups_needed,
    last_entry,
    run_query,
    source_offsets,
    to_commit,
)
from sparkonce.stream.sources import Reading
from sparkonce.stream.steps import LayoutRefuted, Observer, Written
from sparkonce.stream.task import FIGURES, Order, WriteTask

_DECISIONS_MAX = 5
_SMALL_TASK_RECORDS = 2_000
_log = logging.getLogger("sparkonce.stream")


@dataclass(frozen=True, slots=True)
class KafkaTarget:
    """Kafka as a place to write to, before anything is touched."""

    settings: KafkaSettings

    @classmethod
    def parse(cls, options: Mapping[str, str], query_name: str | None) -> KafkaTarget:
        return cls(KafkaSettings.parse(options, query_name))

    def open(
        self, frame: DataFrame, reading: Reading | None, observe: Observer | None
    ) -> KafkaSink:
        return KafkaSink(
            frame.sparkSession,
            self.settings,
            check_schema(frame.schema, self.settings.topic),
            keeps_partition=reading is not None and reading.keeps_partition,
            first_sources=reading.first_partitions if reading is not None else (),
            observe=observe,
        )


class KafkaSink:
    def __init__(
        self,
        spark: SparkSession,
        settings: KafkaSettings,
        columns: Sequence[str],
        *,
        keeps_partition: bool = False,
        first_sources: Sequence[Partition] = (),
        observe: Observer | None = None,
    ) -> None:
        self._settings = settings
        self._columns = list(columns)
        self._keeps_partition = keeps_partition
        self._observe = observe
        self._cores = spark.sparkContext.defaultParallelism
        self._in_transaction = settings.guarantee is Guarantee.EXACTLY_ONCE
        self._may_lie_right = True
        self._carrier: Partition | None = (settings.topic, 0) if settings.topic else None
        self._identity = NO_IDENTITY
        self._last_records: int | None = None
        self._topics = {each for each in (settings.topic, settings.dead_letter_topic) if each}
        self._counts_are_doubtful = False
        targets = [(each, 0) for each in (settings.topic, settings.dead_letter_topic) if each]
        self._first_places = [*sorted(first_sources)[:1], *targets]
        self._handover = Handover()
        self._owner = KafkaOwner(settings)
        self._recording: Entry | None = None
        self._auto_commit = (
            AutoCommit(self._owner) if settings.guarantee is Guarantee.NONE else None
        )
        self._desk = _desk(spark, settings)

    # -- before the query starts --------------------------------------------------------------

    def take_over(self) -> Entry | None:
        for topic in self._topics:
            self._producer.partition_count(topic)
        self._producer.init_transactions()
        entry = self.holder()
        self._owner.note(entry)
        return entry or self._former_entry()

    def sources_at(self, entry: Entry) -> list[Offsets | str] | None:
        groups = [
            self._producer.committed_offsets(group_name(self._settings.group, number, entry.layout))
            for number in range(groups_needed(entry))
        ]
        return source_offsets(entry, groups)

    def sign(self, entry: Entry, sources: Sequence[Offsets | str] | None) -> None:
        if sources is None:
            return  # too many to keep: the first batch signs
        carrier = self._signed_at()
        if carrier is None and all(isinstance(each, str) for each in sources):
            _log.warning(
                "%s: its ledger has no place before the first rows are written, as there is no "
                "option topic, no deadLetterTopic and no Kafka source with topics by name. Should "
                "the driver die in the first batch, the next start asks for ledgerLost",
                self._settings.pipeline,
            )
            return
        self._carrier = self._carrier or carrier
        with self._producer.transaction():
            for group, offsets in to_commit(self._settings.group, entry, sources, carrier).items():
                self._producer.send_offsets_to_transaction(offsets, group)
        self._owner.note(entry)

    def _signed_at(self) -> Partition | None:
        """Where an entry without offsets of Kafka's goes: to the last one's place; of a new
        pipeline, to where the first batch will put its own, if that can be told."""
        if held := self._producer.committed_offsets(self._settings.group):
            return min(held)
        for place in self._first_places:
            try:
                self._producer.partition_count(place[0])
            except UnknownTopic:
                continue
            return place
        return None

    def _former_entry(self) -> Entry | None:
        """What this run of a batch job has left under its former name."""
        former, run_id = self._settings.former_group, self._settings.run_id
        if former is None or run_id is None:
            return None
        entry = last_entry(self._producer.committed_offsets(former))
        return entry if entry is not None and entry.query == run_query(run_id) else None

    def holder(self) -> Entry | None:
        return self._owner.holder()

    # -- the steps ----------------------------------------------------------------------------

    @property
    def epoch(self) -> tuple[int, int]:
        return self._identity.producer_id, self._identity.epoch

    @property
    def trouble(self) -> str | None:
        return self._desk.trouble

    def check_owner(self) -> None:
        self._owner.check()

    def fence(self) -> None:
        self._owner.begin()
        self._identity = self._producer.identity
        self._tell("open")

    def write(self, frame: DataFrame) -> Written:
        layout = self._layout(frame)
        order = self._order(layout, self._partition_counts())
        if frame.columns != self._columns:
            frame = frame.select(*self._columns)
        # Neighbours are joined where fewer tasks will do; that moves nothing.
        tasks = frame.coalesce(layout.tasks) if layout.tasks else frame
        written = tasks.mapInArrow(WriteTask(order), FIGURES)
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("%s, as %s", layout, written._jdf.queryExecution().executedPlan().toString())
        try:
            with self._handover.in_force(frame.sparkSession), self._bounded(frame.sparkSession):
                rows = written.collect()
            if isinstance(layout, Apart) and self._in_transaction:
                check_apart(
                    (row.task, row.topic, row.partition)
                    for row in rows
                    if row.records and not order.takes_turns_at(row.topic)
                )
        except (Overlap, PySparkException, AbortableError) as error:
            self._handover.be_careful()
            self._counts_are_doubtful = True
            self._refute(layout, error)
            raise
        finally:
            self._topics |= self._desk.counts.keys()
        return self._sum(rows)

    def record(self, entry: Entry, sources: Sequence[Offsets | str]) -> None:
        groups = to_commit(self._settings.group, entry, sources, self._carrier)
        if self._auto_commit:
            self._auto_commit.note(groups, entry)
            return
        try:
            for group, offsets in groups.items():
                self._producer.send_offsets_to_transaction(offsets, group)
        except OwnershipUncertain as error:
            # Forgotten in mid-batch: nothing of it is visible, and the next attempt's fence settles
            # whether there may be one.
            raise AbortableError(str(error), error.code) from error
        self._recording = entry
        self._tell("offsets")

    def decide(self) -> None:
        self._tell("end")
        for left in reversed(range(_DECISIONS_MAX)):
            try:
                self._producer.commit_transaction()
                break
            except OutcomeUnknown:
                # Asked again, never guessed; the next start settles what stays unknown.
                if not left:
                    raise
        self._owner.note(self._recording)
        self._tell("end:answered")

    def abandon(self) -> None:
        # Without a promise nothing is open here: the clock's own transactions are not ours.
        if self._auto_commit is None and self._producer.state in ABORTABLE:
            with self._forgiving():
                self._producer.abort_transaction()

    def leave_empty(self) -> None:
        if self._producer.state is State.IN_TRANSACTION and self._auto_commit is None:
            with self._forgiving():
                self._producer.commit_transaction()  # of nothing: the cluster has no part in it

    def close(self) -> None:
        self._desk.close()
        if self._auto_commit:
            self._auto_commit.close()
        self._producer.close()

    # -- on the way ---------------------------------------------------------------------------

    @property
    def _producer(self) -> TransactionalProducer:
        return self._owner.producer

    @contextmanager
    def _forgiving(self) -> Iterator[None]:
        """To end an attempt of which the cluster has forgotten whose it was: it is ended."""
        try:
            yield
        except OwnershipUncertain as error:
            _log.info("%s: the attempt is over: %s", self._settings.pipeline, error)

    @contextmanager
    def _bounded(self, spark: SparkSession) -> Iterator[None]:
        """Around the tasks that write into a transaction: they are cancelled once it is over."""
        if not self._in_transaction:
            yield
            return
        context, tag = spark.sparkContext, f"sparkonce-write-{uuid.uuid4()}"
        is_over = threading.Event()

        def end() -> None:
            is_over.set()
            # On a thread of its own, as Spark may hang too, and other tasks are to be heard.
            threading.Thread(target=context.cancelJobsWithTag, args=(tag,), daemon=True).start()

        context.addJobTag(tag)
        try:
            with self._desk.bounded(self._producer.transaction_timeout_ms / 1000, end):
                yield
        except (PySparkException, Py4JJavaError) as error:
            if is_over.is_set():
                # Cancelled by us, not by whoever stops the query.
                raise AbortableError(str(self._desk.trouble)) from error
            raise
        finally:
            context.removeJobTag(tag)

    def _layout(self, frame: DataFrame) -> Layout:
        if not self._in_transaction:
            return Apart(0, 1)  # producers of their own: anybody may write anywhere
        if not self._may_lie_right:
            return InTurns(0)
        topic = self._settings.topic
        return layout_of(
            frame,
            self._columns,
            keeps_partition=self._keeps_partition,
            partition_count=self._producer.partition_count(topic) if topic else None,
            enough=self._enough_tasks(),
        )

    def _refute(self, layout: Layout, error: Exception) -> None:
        """Take turns from now on, if the attempt failed because two tasks met in a partition."""
        met = isinstance(error, Overlap) or (self._desk.trouble and self._desk.must_take_turns)
        if not met or not self._may_lie_right:
            return
        self._may_lie_right = False
        # A start knows nothing of it yet and assumes it again: were the attempt counted, a batch
        # with a single attempt would fail at each start.
        if self._in_transaction and isinstance(layout, Apart):
            raise LayoutRefuted(str(error)) from error

    def _enough_tasks(self) -> int | None:
        """While batches are small, as the last one was, a task costs more than its records.

        But reading costs something for each partition, however little it has: one task for a core.
        """
        if self._last_records is None or self._last_records > _SMALL_TASK_RECORDS * self._cores:
            return None
        return self._cores

    def _partition_counts(self) -> dict[str, int]:
        """As metadata has them; asked for anew behind an attempt that failed."""
        fresh, self._counts_are_doubtful = self._counts_are_doubtful, False
        return {
            topic: self._producer.partition_count(topic, fresh=fresh)
            for topic in sorted(self._topics)
        }

    def _order(self, layout: Layout, partition_counts: Mapping[str, int]) -> Order:
        guarantee = self._settings.guarantee
        may_write_twice = guarantee in (Guarantee.NONE, Guarantee.AT_LEAST_ONCE)
        return Order(
            settings=self._settings.writers,
            guarantee=guarantee,
            identity=self._identity if self._in_transaction else None,
            desk=self._desk.place,
            needs_claim=not may_write_twice,
            attempt=self._desk.open(partition_counts),
            topic=self._settings.topic,
            dead_letter_topic=self._settings.dead_letter_topic,
            partition_counts=partition_counts,
            shares=layout.shares if isinstance(layout, Apart) else 1,
            lies_by_partition=(
                self._in_transaction and isinstance(layout, Apart) and layout.lies_by_partition
            ),
            in_turns=isinstance(layout, InTurns),
            wait_s=self._producer.transaction_timeout_ms / 1000,
            observe=self._observe,
        )

    def _sum(self, rows: Sequence[Row]) -> Written:
        targets: Counter[str] = Counter()
        for row in rows:
            if row.records:
                targets[row.topic] += row.records
        dead_letters = targets[self._settings.dead_letter_topic or ""]
        self._last_records = targets.total()
        self._handover.learn(targets.total(), sum(row.size_bytes for row in rows))
        if self._carrier is None and targets:
            self._carrier = (min(targets), 0)
        return Written(
            records=targets.total() - dead_letters,
            size_bytes=sum(row.size_bytes for row in rows),
            dead_letters=dead_letters,
            lost=sum(row.lost for row in rows),
            tasks=len({row.task for row in rows}),
            targets=dict(targets),
        )

    def _tell(self, point: str) -> None:
        if self._observe:
            self._observe(point)


def _desk(spark: SparkSession, settings: KafkaSettings) -> Desk:
    conf = spark.sparkContext.getConf()
    host = settings.driver_host or conf.get("spark.driver.host") or "127.0.0.1"
    bind = conf.get("spark.driver.bindAddress") or host
    producer = ProducerOptions.parse(settings.owner)
    turn_s = (producer.max_block_ms + producer.delivery_timeout_ms) / 1000
    return Desk(host, bind, settings.driver_port, turn_s=turn_s)
