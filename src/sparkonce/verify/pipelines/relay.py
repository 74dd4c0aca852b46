"""The producer alone: read with confluent-kafka, write with ours, in this process.

The four guarantees are the order of two writes, data and progress; see docs/guarantees.md. Settings
of its own turn parts off, for controls that have to be noticed: `verify.offsets=outside` commits
progress after the transaction, `verify.transactions=off` only claims to write in one,
`verify.isolation=read_uncommitted` reads what was never committed, and with
`verify.guarantee=unchecked` the producer does not refuse settings that break the promise.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from confluent_kafka import Message

from sparkonce.errors import AbortableError, BrokerError, OutcomeUnknown, Unreachable
from sparkonce.produce import Delivery, Producer, TransactionalProducer
from sparkonce.produce.delivery import OnDelivery
from sparkonce.verify.contract import Job, Record
from sparkonce.verify.pipelines import kafka_input
from sparkonce.verify.pipelines.kafka_input import Input

NAME = "producer"
GUARANTEES = ("none", "at_most_once", "at_least_once", "exactly_once")
POINTS = ("fence", "open", "produce:first", "produce:last", "offsets", "end", "end:answered")
SHARES = True

units = kafka_input.units

_DECISIONS_MAX = 20
_OWN = "verify."


def identity(record: Record) -> str:
    return (record.value or b"").decode()


def client_settings(job: Job) -> dict[str, str]:
    """Without those that are this pipeline's own."""
    own = {key: value for key, value in job.settings.items() if not key.startswith(_OWN)}
    return {**own, "bootstrap.servers": job.bootstrap_servers}


def run(job: Job) -> None:
    settings = client_settings(job)
    in_transactions = (
        job.guarantee == "exactly_once" and job.settings.get("verify.transactions") != "off"
    )
    if in_transactions:
        with TransactionalProducer({**settings, "transactional.id": job.name}) as producer:
            job.observe("fence")
            begin(job, producer)
            with closing(Input(job)) as source:
                relay(source, lambda batch: _transaction(job, producer, source, batch))
        return
    orders = {
        "exactly_once": _data_first,  # the control: it only claims to
        "at_least_once": _data_first,
        "at_most_once": _progress_first,
        "none": _nobody_waits,
    }
    order = orders[job.guarantee]
    if job.settings.get("verify.guarantee") != "unchecked":
        settings["guarantee"] = job.guarantee
    with (
        Producer(settings) as plain,
        closing(Input(job)) as source,
    ):
        job.observe("fence")
        relay(source, lambda batch: order(job, plain, source, batch))
        plain.flush()


def begin(job: Job, producer: TransactionalProducer) -> None:
    """Take over, and end what requests that came late have left undecided about the group: other
    clients would wait for that for ever."""
    producer.init_transactions()
    producer.committed_offsets(job.name)


def relay(source: Input, write: Callable[[list[Message]], None]) -> None:
    while batch := source.next_batch():
        write(batch)


def _transaction(
    job: Job, producer: TransactionalProducer, source: Input, batch: list[Message]
) -> None:
    outside = job.settings.get("verify.offsets") == "outside"
    while True:
        try:
            producer.begin_transaction()
            job.observe("open")
            # Callbacks alone are told what fails, and the second half is left to the commit to wait
            # for: the pipeline of joined producers does neither.
            _produce(job, producer, batch, _pass_over)
            job.observe("produce:last")
            if not outside:
                producer.send_offsets_to_transaction(source.offsets(), job.name)
                job.observe("offsets")
            job.observe("end")
            commit(producer)
            job.observe("end:answered")
            break
        except (AbortableError, Unreachable):
            producer.abort_transaction()
    if outside:
        source.commit()


def commit(producer: TransactionalProducer) -> None:
    """Asked again where the answer did not come in time, never guessed."""
    for left in reversed(range(_DECISIONS_MAX)):
        try:
            return producer.commit_transaction()
        except OutcomeUnknown:
            if not left:
                raise


def _data_first(job: Job, producer: Producer, source: Input, batch: list[Message]) -> None:
    _produce(job, producer, batch, None)
    producer.flush()
    job.observe("produce:last")
    job.observe("offsets")
    source.commit()
    job.observe("end:answered")


def _progress_first(job: Job, producer: Producer, source: Input, batch: list[Message]) -> None:
    source.commit()
    job.observe("offsets")
    # Where records may be lost, one that is does not stop the others.
    _produce(job, producer, batch, _pass_over)
    producer.flush()
    job.observe("produce:last")


def _nobody_waits(job: Job, producer: Producer, source: Input, batch: list[Message]) -> None:
    _produce(job, producer, batch, _pass_over)
    job.observe("produce:last")


def _produce(
    job: Job, producer: Producer, batch: list[Message], on_delivery: OnDelivery | None
) -> None:
    half = len(batch) // 2
    for number, message in enumerate(batch):
        producer.produce(
            job.output_topic, message.value(), key=message.key(), on_delivery=on_delivery
        )
        if number == half:
            if job.guarantee != "none":
                producer.flush()  # a part of the batch is in the log
            job.observe("produce:first")


def _pass_over(error: BrokerError | None, delivery: Delivery) -> None:
    """Neither sent again nor a reason to stop."""
