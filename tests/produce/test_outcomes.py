"""Every batch has an outcome, in time, and nobody who waits for it is told too early or never."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from oracle import read, values
from parts import a_producer, a_topic, wait_until
from sparkonce import Delivery, Producer
from sparkonce.errors import (
    AbortableError,
    BrokerError,
    DeliveryFailed,
    FatalError,
    StateError,
    Unreachable,
)
from sparkonce.local import LocalKafka
from sparkonce.produce import State
from sparkonce.produce.identity import EPOCH_MAX
from sparkonce.verify import FaultProxy, LoseRequest

PATIENCE_S = 30.0
COMPACTED = {"cleanup.policy": "compact"}
"""Brokers refuse what has no key there: a batch that fails for good."""


class LookedAtInBetween(threading.Condition):
    """Whenever the client's loop has told the last outcome, a waiting caller may look at once,
    and the loop goes on only when he has."""

    def __init__(self, loop: threading.Thread) -> None:
        super().__init__()
        self.looked = threading.Event()
        self.looks = False
        self._loop = loop

    def __exit__(self, *reason: Any) -> None:
        super().__exit__(*reason)
        if self.looks and threading.current_thread() is self._loop:
            self.looked.wait(PATIENCE_S)


def test_a_commit_never_goes_through_when_a_record_has_failed(kafka: LocalKafka) -> None:
    """Not even when it looks right between the record's outcome and what follows from it."""
    told: list[BrokerError | None] = []
    with (
        a_topic(kafka, partitions=1, config=COMPACTED) as compacted,
        a_topic(kafka, partitions=1) as plain,
        a_producer(kafka) as producer,
    ):
        sender = producer._sender
        changed = LookedAtInBetween(producer._client._thread)
        sender._changed = changed
        producer.begin_transaction()
        producer.produce(plain, "good", on_delivery=lambda error, _: told.append(error))
        producer.flush()
        landed = sender._landed

        def landed_badly(*args: Any) -> None:
            changed.looks = True  # from here on: this batch is the one that fails
            landed(*args)
            changed.looks = False

        sender._landed = landed_badly  # type: ignore[method-assign]
        try:
            producer.produce(compacted, "no key", on_delivery=lambda error, _: told.append(error))
            with pytest.raises(AbortableError, match="Abort the transaction"):
                producer.commit_transaction()
        finally:
            changed.looked.set()
        assert producer.state is State.MUST_ABORT
        producer.abort_transaction()
        assert values(kafka.bootstrap_servers, plain) == []
    assert [type(error) for error in told[:1]] == [type(None)]


def test_what_delivery_callbacks_write_is_in_the_transaction(
    kafka: LocalKafka, plain_topic: str
) -> None:
    with a_producer(kafka) as producer:

        def once_more(error: BrokerError | None, delivery: Delivery) -> None:
            assert error is None
            producer.produce(plain_topic, "second", on_delivery=and_again)

        def and_again(error: BrokerError | None, delivery: Delivery) -> None:
            producer.produce_arrow(plain_topic, pa.table({"value": ["third"]}))

        with producer.transaction():
            producer.produce(plain_topic, "first", on_delivery=once_more)
        assert sorted(values(kafka.bootstrap_servers, plain_topic)) == [
            b"first",
            b"second",
            b"third",
        ]


def test_what_a_callback_writes_during_the_commit_may_fail_it(kafka: LocalKafka) -> None:
    """It has its outcome, and nobody is left to be told, when the commit looks what is left."""
    told: list[BrokerError | None] = []
    with (
        a_topic(kafka, partitions=1, config=COMPACTED) as compacted,
        a_topic(kafka, partitions=1) as plain,
        a_producer(kafka) as producer,
    ):

        def write_badly(error: BrokerError | None, delivery: Delivery) -> None:
            told.append(error)
            rows = pa.table({"value": ["no key"]})
            producer.produce_arrow(compacted, rows, on_delivery=lambda e, _: told.append(e))
            wait_until(lambda: producer._sender.is_idle, "it is refused")

        producer.begin_transaction()
        producer.produce(plain, "good", on_delivery=write_badly)
        with pytest.raises(AbortableError, match="Abort the transaction"):
            producer.commit_transaction()
        assert producer.state is State.MUST_ABORT
        producer.abort_transaction()
        assert values(kafka.bootstrap_servers, plain) == []
        assert [type(error) for error in told] == [type(None), AbortableError]
        with producer.transaction():
            producer.produce(plain, "good again")
        assert values(kafka.bootstrap_servers, plain) == [b"good again"]


def test_what_another_thread_writes_when_the_commit_has_begun_is_refused(
    kafka: LocalKafka, plain_topic: str
) -> None:
    """And not kept for the next transaction: the last look and the end of writing are one step."""
    refused: list[BaseException] = []
    with a_producer(kafka) as producer:

        def write() -> None:
            try:
                producer.produce(plain_topic, "late")
            except StateError as error:
                refused.append(error)

        producer.begin_transaction()
        producer.produce(plain_topic, "in time")
        other = threading.Thread(target=write)
        with producer._rows_lock:  # the other one has looked at the state, and waits to be let in
            checked = threading.Event()
            need_writable = producer._need_writable

            def looked() -> None:
                need_writable()
                checked.set()

            producer._need_writable = looked  # type: ignore[method-assign]
            other.start()
            assert checked.wait(PATIENCE_S)
            producer.commit_transaction()
        other.join(PATIENCE_S)
        assert len(refused) == 1
        with producer.transaction():
            pass  # nothing was kept for it
        assert values(kafka.bootstrap_servers, plain_topic) == [b"in time"]


@contextmanager
def _stuck(kafka: LocalKafka, topic: str) -> Iterator[tuple[Producer, FaultProxy]]:
    """A producer whose records never arrive."""
    with FaultProxy(kafka.bootstrap_servers) as proxy:
        producer = Producer({"bootstrap.servers": proxy.bootstrap_servers})
        producer.produce(topic, "arrives")
        producer.flush()
        lost = LoseRequest("Produce", silent=True, times=None)
        proxy.add(lost)
        producer.produce(topic, "stays")
        producer._send_lingering()
        proxy.wait_fired(lost, PATIENCE_S)
        yield producer, proxy
        producer.abandon()


@pytest.mark.parametrize("end", ["closed", "broken"])
def test_who_waits_is_told_when_the_client_ends(
    kafka: LocalKafka, plain_topic: str, end: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[BaseException] = []

    def wait() -> None:
        try:
            producer.flush()
        except BrokerError as error:
            told.append(error)

    def explode() -> None:
        raise ZeroDivisionError("in the loop")

    with _stuck(kafka, plain_topic) as (producer, _):
        waiting = threading.Thread(target=wait)
        waiting.start()
        if end == "closed":
            producer._client.close()
        else:
            threading.excepthook, hook = lambda args: None, threading.excepthook
            producer._client.post(explode)
        waiting.join(PATIENCE_S)
        assert not waiting.is_alive(), "it waits for ever"
        if end == "broken":
            producer._client._thread.join(PATIENCE_S)  # its error is told behind the outcomes
            threading.excepthook = hook
        (error,) = told
        assert type(error) is (Unreachable if end == "closed" else FatalError)
        assert ("the client was closed" if end == "closed" else "in the loop") in str(error)


def test_a_flush_waits_for_what_was_taken_before_it_and_no_longer(
    kafka: LocalKafka, plain_topic: str
) -> None:
    """Others may go on writing all the time."""
    with Producer({"bootstrap.servers": kafka.bootstrap_servers}) as producer:
        is_over = threading.Event()
        rows = pa.table({"value": ["x" * 1000] * 100})

        def go_on() -> None:
            while not is_over.is_set():
                producer.produce_arrow(plain_topic, rows)

        other = threading.Thread(target=go_on)
        other.start()
        try:
            producer.produce_arrow(plain_topic, pa.table({"value": ["mine"]}))
            assert producer.flush(PATIENCE_S)
        finally:
            is_over.set()
            other.join(PATIENCE_S)
        assert b"mine" in values(kafka.bootstrap_servers, plain_topic)


def test_a_host_that_can_have_no_address_is_named(kafka: LocalKafka) -> None:
    """Python's own error for it is none of the operating system's."""
    settings = {"bootstrap.servers": "a..b:9092", "max.block.ms": 500}
    with Producer(settings) as producer, pytest.raises(Unreachable, match=r"a\.\.b:9092.*label"):
        producer.produce("topic", "value")


def test_a_producer_whose_epochs_are_used_up_takes_a_new_id(kafka: LocalKafka) -> None:
    """An epoch for each batch that fails for good; the last one leads to another producer id."""
    told: list[type] = []
    with (
        a_topic(kafka, partitions=1, config=COMPACTED) as compacted,
        Producer({"bootstrap.servers": kafka.bootstrap_servers}) as producer,
    ):
        producer.produce(compacted, "first", key="key")
        producer.flush()
        former = producer._writer()
        producer._identity = None
        producer._sender._lanes.clear()
        last = replace(producer._writer(), epoch=EPOCH_MAX)
        producer._identity = last

        def report(error: BrokerError | None, delivery: Delivery) -> None:
            told.append(type(error))

        for number in range(3):
            producer.produce(compacted, "no key", on_delivery=report)
            producer.flush()
            producer.produce(compacted, f"{number}", key=f"key {number}", on_delivery=report)
            producer.flush()
        # What is told of the one behind the failure depends on when it came; none is lost unsaid.
        assert producer._writer().producer_id not in (former.producer_id, last.producer_id)
        written = {seen.value for seen in read(kafka.bootstrap_servers, compacted)}
    failed = [number for number in range(3) if told[2 * number + 1] is DeliveryFailed]
    assert written == {b"first"} | {b"%d" % n for n in range(3) if n not in failed}
    assert failed == [0]
