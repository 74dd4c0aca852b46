"""A trial: known records through a network that is being cut, and what another client finds.

Below `demo`, which shows it. The writer goes through a FaultProxy, the reader around it.

The reader is kafka-python's KafkaConsumer. It has nothing in common with our producer but the
schemas of Kafka's messages, it is installed with this package, and it reads to a known offset.
Kafka's own console consumer is further from us still, but it only stops after a silence, and a
silence proves nothing.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa
from kafka import KafkaConsumer, TopicPartition

from sparkonce.console.tally import PARTITIONS, Tally, tally
from sparkonce.errors import AbortableError, SparkonceError
from sparkonce.local import LocalKafka
from sparkonce.produce import Producer, TransactionalProducer
from sparkonce.verify import CutMidFrame, Fault, FaultProxy, LoseResponse

TRANSACTIONS = 125
SOURCE = "demo-source"
GROUP = "demo-group"
_ABORT_EVERY = 10
_VALUE_BYTES = 100
_NUMBER_BYTES = 12
_READ_TIMEOUT_S = 60.0
# Small, so that several requests are under way when a connection is cut.
_BATCHES = {"batch.size": 8 * 1024, "max.request.size": 16 * 1024}


@dataclass(slots=True)
class Written:
    """How far a writer has come."""

    records: int = 0
    committed: int = 0
    aborted: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """All there is to say about a trial."""

    tally: Tally
    written: Written
    fired: dict[Fault, int]
    progress: int
    """The source offset that was committed with the records."""

    @property
    def cuts(self) -> int:
        """Each of the faults here ends in a cut connection."""
        return sum(self.fired.values())

    @property
    def never_fired(self) -> list[Fault]:
        return [fault for fault, times in self.fired.items() if not times]


Step = Callable[[Written, int], None]
"""Called after each transaction: how far the writer is, how often it was cut so far."""


def draw_cuts(seed: int, apis: Sequence[str]) -> tuple[Fault, ...]:
    """Three kinds of cut for each of these requests, again and again, at a rhythm of its own."""
    faults: list[Fault] = []
    for api in apis:
        rng = random.Random(f"{seed}/{api}")
        # None of these is a multiple of another, so none always comes together with another.
        first, second, third = rng.sample(range(11, 21), 3)
        nth = rng.randint(1, 7)
        faults += [
            CutMidFrame(api, direction="request", nth=nth, every=first, times=None),
            CutMidFrame(api, direction="response", nth=nth + 1, every=second, times=None),
            LoseResponse(api, nth=nth + 2, every=third, times=None),
        ]
    return tuple(faults)


def try_transactions(kafka: LocalKafka, records: int, seed: int, step: Step) -> Outcome:
    """Exactly once: transactions, some of them aborted on purpose, source offsets inside."""
    kafka.create_topic(SOURCE)
    faults = draw_cuts(seed, ("Produce", "EndTxn", "TxnOffsetCommit"))
    return _try(kafka, "demo-exactly-once", faults, _write_transactions, records, seed, step)


def try_without_idempotence(kafka: LocalKafka, records: int, seed: int, step: Step) -> Outcome:
    """The control: the same records, the same cuts of Produce, sent again until acknowledged."""
    faults = draw_cuts(seed, ("Produce",))
    return _try(kafka, "demo-at-least-once", faults, _write_plain, records, seed, step)


def _try(
    kafka: LocalKafka,
    topic: str,
    faults: tuple[Fault, ...],
    write: Callable[[str, str, int, Callable[[Written], None]], Written],
    records: int,
    seed: int,
    step: Step,
) -> Outcome:
    kafka.create_topic(topic, partitions=PARTITIONS)
    with FaultProxy(kafka.bootstrap_servers, faults=faults, seed=seed) as proxy:

        def count() -> dict[Fault, int]:
            return {fault: proxy.fired(fault) for fault in faults}

        written = write(
            proxy.bootstrap_servers,
            topic,
            records,
            lambda so_far: step(so_far, sum(count().values())),
        )
        fired = count()
    seen, progress = read_back(kafka.bootstrap_servers, topic)
    return Outcome(tally(records, seen), written, fired, progress)


def _write_transactions(
    servers: str, topic: str, records: int, step: Callable[[Written], None]
) -> Written:
    done = Written()
    settings = {"bootstrap.servers": servers, "transactional.id": topic, **_BATCHES}
    with TransactionalProducer(settings) as producer:
        producer.init_transactions()
        for number, numbers in enumerate(_parts(records)):
            if number % _ABORT_EVERY == 0:
                # The same records: should any of them become visible, they are duplicates.
                producer.begin_transaction()
                producer.produce_arrow(topic, _table(numbers))
                producer.flush()
                producer.abort_transaction()
                done.aborted += 1
            _commit(producer, topic, numbers, done)
            step(done)
    return done


def _commit(producer: TransactionalProducer, topic: str, numbers: range, done: Written) -> None:
    while True:
        try:
            with producer.transaction():
                producer.produce_arrow(topic, _table(numbers))
                producer.send_offsets_to_transaction({(SOURCE, 0): numbers.stop}, GROUP)
        except AbortableError:
            done.aborted += 1  # it is aborted already: write the same again
            continue
        done.committed += 1
        done.records += len(numbers)
        return


def _write_plain(
    servers: str, topic: str, records: int, step: Callable[[Written], None]
) -> Written:
    done = Written()
    settings = {"bootstrap.servers": servers, "enable.idempotence": False, **_BATCHES}
    with Producer(settings) as producer:
        for numbers in _parts(records):
            producer.produce_arrow(topic, _table(numbers))
            producer.flush()
            done.records += len(numbers)
            step(done)
    return done


def _parts(records: int) -> Iterator[range]:
    """About TRANSACTIONS parts of the numbers, whatever their count."""
    size = max(1, records // TRANSACTIONS)
    for first in range(0, records, size):
        yield range(first, min(records, first + size))


def _table(numbers: range) -> pa.Table:
    filler = "." * (_VALUE_BYTES - _NUMBER_BYTES)
    return pa.table(
        {
            "partition": pa.array([number % PARTITIONS for number in numbers], pa.int32()),
            "value": [f"{number:0{_NUMBER_BYTES}d}{filler}" for number in numbers],
        }
    )


def read_back(servers: str, topic: str) -> tuple[list[tuple[int, int]], int]:
    """Every visible record as (partition, number), and the group's offset in the source."""
    partitions = [TopicPartition(topic, index) for index in range(PARTITIONS)]
    # The ends as they are, not as far as they are stable: with a transaction left open the
    # reader below would never get there, and says so.
    with closing(KafkaConsumer(bootstrap_servers=servers)) as plain:
        ends = plain.end_offsets(partitions)
    reader = KafkaConsumer(
        bootstrap_servers=servers,
        group_id=GROUP,
        isolation_level="read_committed",
        enable_auto_commit=False,
    )
    with closing(reader):
        reader.assign(partitions)
        reader.seek_to_beginning()
        seen: list[tuple[int, int]] = []
        deadline_s = time.monotonic() + _READ_TIMEOUT_S
        while any(reader.position(part) < ends[part] for part in partitions):
            if time.monotonic() > deadline_s:
                raise SparkonceError(
                    f"{topic} could not be read to its end within {_READ_TIMEOUT_S:g} s: a "
                    "transaction was left open in it, or this machine is very busy"
                )
            for part, batch in reader.poll(timeout_ms=500).items():
                seen += [(part.partition, int(each.value[:_NUMBER_BYTES])) for each in batch]
        return seen, reader.committed(TopicPartition(SOURCE, 0)) or 0
