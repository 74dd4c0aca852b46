"""One transaction of several producers: one opens and decides it, two others join and write.

As tasks on executors do, without Spark: each has input partitions of its own, writes to the same
partitions of the output, and what it has sent is not known to who aborts.
"""

from __future__ import annotations

from contextlib import closing

from confluent_kafka import Message

from sparkonce.errors import AbortableError, Unreachable
from sparkonce.produce import TransactionalProducer
from sparkonce.verify.contract import Job
from sparkonce.verify.pipelines import kafka_input, relay
from sparkonce.verify.pipelines.kafka_input import Input

NAME = "joined producers"
POINTS = relay.POINTS
SHARES = True
identity = relay.identity
units = kafka_input.units

_WRITERS = 2


def run(job: Job) -> None:
    settings = relay.client_settings(job)
    with TransactionalProducer({**settings, "transactional.id": job.name}) as owner:
        job.observe("fence")
        relay.begin(job, owner)
        writers = _Writers(job, settings)
        with closing(Input(job)) as source, closing(writers):
            relay.relay(source, lambda batch: _transaction(job, owner, writers, source, batch))


def _transaction(
    job: Job,
    owner: TransactionalProducer,
    writers: _Writers,
    source: Input,
    batch: list[Message],
) -> None:
    half = len(batch) // 2
    while True:
        try:
            owner.begin_transaction()
            job.observe("open")
            writers.join(owner)
            writers.write(batch[:half])
            job.observe("produce:first")
            writers.write(batch[half:])
            job.observe("produce:last")
            owner.send_offsets_to_transaction(source.offsets(), job.name)
            job.observe("offsets")
            job.observe("end")
            relay.commit(owner)
            job.observe("end:answered")
            return
        except (AbortableError, Unreachable):
            writers.close()
            owner.abort_transaction()


class _Writers:
    def __init__(self, job: Job, settings: dict[str, str]) -> None:
        self._job = job
        self._settings = settings
        self._joined: list[TransactionalProducer] = []

    def join(self, owner: TransactionalProducer) -> None:
        """The transaction that is open now, with the connections that there are."""
        identity = owner.identity
        for each in self._joined:
            each.rejoin(identity)
        while len(self._joined) < _WRITERS:
            self._joined.append(TransactionalProducer.join(self._settings, identity))

    def write(self, batch: list[Message]) -> None:
        """All of it is acknowledged behind this."""
        for message in batch:
            partition = message.partition()
            assert partition is not None
            self._joined[partition % _WRITERS].produce(
                self._job.output_topic, message.value(), key=message.key(), partition=partition
            )
        for each in self._joined:
            each.flush()

    def close(self) -> None:
        """Whatever is under way: the transaction is over, or lost."""
        for each in self._joined:
            each.abandon()
        self._joined = []
