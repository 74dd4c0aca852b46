"""Topics and producers that go with their test, processes and their state, and how to wait."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewPartitions

from sparkonce import TransactionalProducer
from sparkonce.local import LocalKafka

MESSAGE_BYTES = 2000
"""The limit of the topics whose limit is met."""


@contextmanager
def a_topic(cluster: LocalKafka, **layout: Any) -> Iterator[str]:
    name = f"t-{uuid.uuid4().hex[:8]}"
    cluster.create_topic(name, **({"partitions": 4} | layout))
    yield name
    cluster.delete_topic(name)


def add_partitions(servers: str, topic: str, count: int) -> None:
    """Let a topic have `count` partitions, and wait until they are seen."""
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_partitions([NewPartitions(topic, count)])[topic].result(30)
    wait_until(lambda: len(admin.list_topics().topics[topic].partitions) == count, "they are seen")


@contextmanager
def a_producer(cluster: LocalKafka, **settings: Any) -> Iterator[TransactionalProducer]:
    """Under a transactional id of its own, ready to begin."""
    named = {key.replace("_", "."): value for key, value in settings.items()}
    own = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "transactional.id": f"id-{uuid.uuid4().hex[:8]}",
    }
    with TransactionalProducer(own | named) as producer:
        producer.init_transactions()
        yield producer


def marked_processes(mark: str) -> dict[int, list[str]]:
    """Those that have `mark` (NAME=value) in their environment, with their command lines.

    Whatever a marked process starts inherits it, however far away in the tree of processes.
    """
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            # A process that is dead, and not yet buried, has neither.
            if mark.encode() in (process / "environ").read_bytes().split(b"\0"):
                found[int(process.name)] = (process / "cmdline").read_text().split("\0")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # ended just now, or somebody else's
    return found


def state_of(pid: int) -> str:
    """The kernel's letter for a process; empty when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # the other: gone between opening and reading
        return ""


def is_running(pid: int) -> bool:
    return state_of(pid) not in ("", "X", "Z")  # a zombie has ended, its parent hasn't looked yet


def wait_until(is_so: Callable[[], object], what: str, timeout_s: float = 30.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline_s, f"waited in vain: {what}"
        time.sleep(0.02)  # between two questions


def wait_until_gone(pid: int) -> None:
    """Also by its parent: a zombie is still there."""
    wait_until(lambda: state_of(pid) == "", f"process {pid} is gone")
