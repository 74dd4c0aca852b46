"""A process that stood still while its successor took over: it is refused, and leaves nothing.

The zombie is a real process, stopped by a signal in the midst of a transaction and woken up when
somebody else has taken its transactional id.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import pyarrow as pa
import pytest

from oracle import hanging, read, settle, values
from sparkonce import TransactionalProducer
from sparkonce.errors import FencedError, OutcomeUnknown, SparkonceError
from sparkonce.local import LocalKafka
from sparkonce.produce import State
from sparkonce.verify import FaultProxy, LoseResponse

PATIENCE_S = 60.0
TABLES_MAX = 50_000


def _zombie(servers: str, name: str, topic: str, path: str, parent: Connection) -> None:
    """Opens a transaction, tells so, and goes on when it is told to (commit) or at once."""
    settings = {"bootstrap.servers": servers, "transactional.id": name}
    with TransactionalProducer(settings) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce_arrow(topic, pa.table({"value": ["zombie"] * 100}))
        producer.flush()
        parent.send("in transaction")
        try:
            if path == "commit":
                parent.recv()
                producer.commit_transaction()
            else:
                for number in range(TABLES_MAX):
                    producer.produce_arrow(topic, pa.table({"value": [f"zombie {number}"]}))
        except SparkonceError as error:
            parent.send((type(error).__name__, str(error), producer.state.name))
        else:
            parent.send(("nothing was refused", "", producer.state.name))


@contextmanager
def in_transaction(
    cluster: LocalKafka, name: str, topic: str, path: str
) -> Iterator[tuple[BaseProcess, Connection]]:
    """A process whose transaction is open."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(
        target=_zombie, args=(cluster.bootstrap_servers, name, topic, path, theirs)
    )
    child.start()
    try:
        assert ours.poll(PATIENCE_S), "the child never opened its transaction"
        assert ours.recv() == "in transaction"
        yield child, ours
    finally:
        child.kill()
        child.join()


def stop(child: BaseProcess) -> None:
    """Stop it, and wait until it stands still."""
    assert child.pid is not None
    os.kill(child.pid, signal.SIGSTOP)
    _, status = os.waitpid(child.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)


@pytest.mark.parametrize("path", ["commit", "produce"])
def test_a_process_that_slept_through_its_successor_is_fenced(
    cluster: LocalKafka, topic: str, open_producer, path: str
) -> None:
    servers, name = cluster.bootstrap_servers, f"id-{uuid.uuid4().hex[:8]}"
    with in_transaction(cluster, name, topic, path) as (child, pipe):
        stop(child)
        successor = open_producer(transactional_id=name)
        settle(servers, topic)
        with successor.transaction():
            successor.produce(topic, "successor")
        assert child.pid is not None
        os.kill(child.pid, signal.SIGCONT)
        if path == "commit":
            pipe.send("go on")
        assert pipe.poll(PATIENCE_S), "the zombie was not told"
        kind, message, state = pipe.recv()
        child.join()
        assert child.exitcode == 0, "closing the zombie raised"
    assert kind == "FencedError", message
    assert "another producer with the same transactional.id" in message
    assert state == "FAILED"
    assert values(servers, topic) == [b"successor"]
    settle(servers, topic)
    with successor.transaction():
        successor.produce(topic, "successor again")
    assert sorted(values(servers, topic)) == [b"successor", b"successor again"]


def test_what_a_killed_process_left_open_is_aborted_by_its_successor_at_once(
    cluster: LocalKafka, topic: str, open_producer
) -> None:
    servers, name = cluster.bootstrap_servers, f"id-{uuid.uuid4().hex[:8]}"
    with in_transaction(cluster, name, topic, "produce") as (child, _):
        child.kill()
        child.join()
        assert child.exitcode == -signal.SIGKILL
    assert b"zombie" in values(servers, topic, "read_uncommitted")
    assert hanging(servers, topic) != [], "nothing was left open: this run proves nothing"
    successor = open_producer(transactional_id=name)
    settle(servers, topic)
    assert values(servers, topic) == []
    with successor.transaction():
        successor.produce(topic, "successor")
    assert values(servers, topic) == [b"successor"]


STEPS = ("commit", "abort", "produce", "arrow", "offsets", "close")


@pytest.mark.parametrize(
    ("decision", "step"),
    [("abort", step) for step in STEPS] + [("commit", "arrow"), ("leave open", "abort")],
)
def test_whatever_the_successor_did_the_zombie_neither_goes_on_nor_fences_it(
    cluster: LocalKafka, topic: str, open_producer, decision: str, step: str
) -> None:
    """An aborted transaction of the successor's must not pass for a time-out of the zombie's."""
    servers = cluster.bootstrap_servers
    zombie = open_producer()
    zombie.begin_transaction()
    zombie.produce(topic, "zombie")
    zombie.flush()
    successor = open_producer()
    successor.begin_transaction()
    successor.produce(topic, "first")
    successor.flush()
    if decision == "commit":
        successor.commit_transaction()
    elif decision == "abort":
        successor.abort_transaction()

    if step == "close":
        zombie.close()
    else:
        with pytest.raises(FencedError, match=r"another producer with the same transactional\.id"):
            _go_on(zombie, topic, step)
        assert zombie.state is State.FAILED

    if decision == "leave open":
        successor.commit_transaction()
    with successor.transaction():
        successor.produce(topic, "second")
    expected = [b"second"] if decision == "abort" else [b"first", b"second"]
    assert sorted(values(servers, topic)) == expected
    settle(servers, topic)


def _go_on(zombie: TransactionalProducer, topic: str, step: str) -> None:
    if step == "commit":
        zombie.commit_transaction()
    elif step == "abort":
        zombie.abort_transaction()
    elif step == "offsets":
        zombie.send_offsets_to_transaction({(topic, 0): 1}, f"group-{topic}")
    elif step == "produce":
        for _ in itertools.repeat(None, TABLES_MAX):
            zombie.produce(topic, b"zombie" * 1000)
    else:
        for _ in itertools.repeat(None, TABLES_MAX):
            zombie.produce_arrow(topic, pa.table({"value": ["zombie"]}))


def test_a_commit_whose_answer_was_lost_is_not_denied_after_a_takeover(
    cluster: LocalKafka, topic: str, open_producer, seed: int
) -> None:
    """The records are there. An error that says otherwise would have them written again."""
    servers = cluster.bootstrap_servers
    lost = LoseResponse("EndTxn", times=1000)
    with FaultProxy(servers, seed=seed) as proxy:
        zombie = open_producer(
            bootstrap_servers=proxy.bootstrap_servers, max_block_ms=1000, request_timeout_ms=500
        )
        zombie.begin_transaction()
        zombie.produce(topic, "decided")
        zombie.flush()
        proxy.add(lost)
        with pytest.raises(OutcomeUnknown, match=r"commit_transaction\(\) again"):
            zombie.commit_transaction()
        proxy.clear()
        assert proxy.fired(lost) >= 1
        open_producer()
        assert [seen.value for seen in read(servers, topic)] == [b"decided"]
        with pytest.raises(FencedError) as fenced:
            zombie.commit_transaction()
        assert "Nothing of the open transaction is visible" not in str(fenced.value)
        zombie.close()
