"""LocalKafka: a real Kafka cluster as child processes of this Python.

The public face of the local room. It lays out folders and ports, formats what is new, starts the
brokers and waits until the cluster itself says that it is whole; then it offers the verbs that
tests and the verifier need: stop, kill, pause, move leaders.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from sparkonce.errors import LocalError
from sparkonce.local.broker import Broker
from sparkonce.local.cluster import Cluster, wait_until
from sparkonce.local.ports import free_ports
from sparkonce.local.properties import Layout, Node
from sparkonce.local.runtime import Runtime
from sparkonce.local.storage import prepare

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 20.0


class LocalKafka:
    """A cluster of one or more brokers on 127.0.0.1, numbered from 1.

    Without `data_dir` everything lives in a temporary folder that goes with the cluster; with it,
    data is kept, and a later start finds it again. `port` is the first broker's; the others
    follow. `properties` go into every broker's `server.properties`, over the defaults;
    `java_options` to its JVM.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        data_dir: str | Path | None = None,
        transaction_version: int = 2,
        port: int | None = None,
        properties: Mapping[str, str] | None = None,
        heap_mb: int = 512,
        java_options: Sequence[str] = (),
    ) -> None:
        if brokers < 1:
            raise LocalError(f"A cluster needs at least one broker; {brokers} were asked for.")
        self._count = brokers
        self._data_dir = Path(data_dir).absolute() if data_dir is not None else None
        self.transaction_version = transaction_version
        self._port = port
        self._properties = dict(properties or {})
        self._heap_mb = heap_mb
        self._java_options = tuple(java_options)
        self._brokers: dict[int, Broker] = {}
        self._runtime: Runtime | None = None
        self._folder: Path | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # Life of the whole cluster

    def start(self) -> Self:
        """Start all brokers and wait until the cluster is whole."""
        if self._brokers:
            raise LocalError("This cluster is already running; stop() it before a new start().")
        runtime = Runtime.find()
        layout = Layout(self._place_nodes(), self._heap_mb, self._properties, self._java_options)
        self._folder = self._data_dir or Path(tempfile.mkdtemp(prefix="sparkonce-kafka-"))
        scratch = None if self._data_dir is not None else self._folder
        self._brokers = {
            node.node_id: Broker(
                node, layout, self._folder / f"broker-{node.node_id}", runtime, scratch
            )
            for node in layout.nodes
        }
        self._runtime = runtime
        try:
            prepare(self._folder, self._all_brokers(), runtime.jar_folder, self.transaction_version)
            for broker in self._all_brokers():
                broker.start()
            self.wait_until_healthy(_START_TIMEOUT_S)
        except BaseException:
            self._end(clean=False)
            raise
        return self

    def stop(self) -> None:
        """Stop all brokers, cleanly if their data is kept; remove a temporary folder."""
        self._end(clean=self._data_dir is not None)

    @property
    def bootstrap_servers(self) -> str:
        """What clients are given: all brokers' addresses, comma-separated."""
        return ",".join(broker.address for broker in self._all_brokers())

    @property
    def broker_ids(self) -> list[int]:
        """The brokers' numbers, from 1; running or not."""
        return [broker.node.node_id for broker in self._all_brokers()]

    @property
    def folder(self) -> Path:
        """Where data and logs lie: `broker-N/broker.log` is broker N's log."""
        if self._folder is None:
            raise LocalError("This cluster hasn't been started, so it has no folder yet.")
        return self._folder

    def wait_until_healthy(self, timeout_s: float = 60.0) -> None:
        """Wait until all brokers run, know each other, and every replica is in sync."""
        reason: list[str | None] = [None]

        def is_healthy() -> bool:
            self.raise_if_broker_died()
            reason[0] = self._cluster().unhealthy_because()
            return reason[0] is None

        try:
            wait_until(is_healthy, "the cluster to be healthy", timeout_s)
        except LocalError as error:
            raise LocalError(f"{error} Reason: {reason[0]}." if reason[0] else str(error)) from None

    def raise_if_broker_died(self) -> None:
        """LocalError, with the end of its log, if a broker isn't running any more."""
        for broker in self._all_brokers():
            broker.raise_if_dead()

    # One broker

    def broker_pid(self, broker: int) -> int:
        """The process id of a running broker's JVM."""
        pid = self._broker(broker).pid
        if pid is None:
            raise LocalError(f"Broker {broker} isn't running, so it has no process id.")
        return pid

    def is_broker_alive(self, broker: int) -> bool:
        """Whether its process exists; a paused one does."""
        return self._broker(broker).is_alive()

    def stop_broker(self, broker: int) -> None:
        """Shut one broker down cleanly: it hands over its leaderships first."""
        self._broker(broker).stop(_STOP_TIMEOUT_S)

    def kill_broker(self, broker: int) -> None:
        """SIGKILL one broker; returns when the process is gone."""
        self._broker(broker).kill()

    def pause_broker(self, broker: int) -> None:
        """Freeze one broker (SIGSTOP): connections stay open, nothing is answered."""
        self._broker(broker).pause()

    def resume_broker(self, broker: int) -> None:
        """Let a paused broker go on."""
        self._broker(broker).resume()

    def start_broker(self, broker: int) -> None:
        """Start a stopped or killed broker, on its own port and data; wait until it takes part."""
        chosen = self._broker(broker)
        chosen.start()

        def takes_part() -> bool:
            chosen.raise_if_dead()
            return self._cluster().is_known(broker)

        wait_until(takes_part, f"broker {broker} to join the cluster", _START_TIMEOUT_S)

    def restart_broker(self, broker: int) -> None:
        """Stop one broker cleanly and start it again."""
        self.stop_broker(broker)
        self.start_broker(broker)

    # The cluster's own state

    def leader_of(self, topic: str, partition: int) -> int:
        """The number of the broker that leads a partition, as the cluster sees it now; -1: none."""
        return self._cluster().leader_of(topic, partition)

    def move_leader(self, topic: str, partition: int, to_broker: int) -> None:
        """Make a broker the leader of a partition (and a replica, if it isn't one)."""
        self._broker(to_broker)
        self._cluster().move_leader(topic, partition, to_broker)

    def coordinator_of(self, transactional_id: str) -> int:
        """The number of the broker that coordinates a transactional id."""
        return self._cluster().coordinator_of(transactional_id)

    def controller(self) -> int:
        """The number of the broker that is the active controller."""
        return self._cluster().controller()

    def finalized_features(self) -> dict[str, int]:
        """Features in force, with their levels, such as `transaction.version`."""
        return self._cluster().finalized_features()

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication: int | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic, with three replicas where there are three brokers; wait for leaders."""
        default = min(3, self._count)
        self._cluster().create_topic(name, partitions, replication or default, config or {})

    def add_partitions(self, name: str, partitions: int) -> None:
        """Give a topic so many partitions in all; wait until they have leaders."""
        self._cluster().add_partitions(name, partitions)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and wait until it is gone."""
        self._cluster().delete_topic(name)

    def run_tool(
        self, main_class: str, *args: str, input: str | None = None, timeout_s: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Run one of Kafka's own Java tools to its end; its exit code is the caller's to judge.

        `main_class` is its full name, such as `org.apache.kafka.tools.GetOffsetShell`.
        """
        runtime = self._runtime or Runtime.find()
        return runtime.run_tool(main_class, args, input, timeout_s)

    # Inside

    def _place_nodes(self) -> tuple[Node, ...]:
        if self._port is not None:
            ports = [self._port + offset for offset in range(self._count)]
            controller_ports = free_ports(self._count, avoid=ports)
        else:
            chosen = free_ports(2 * self._count)
            ports, controller_ports = chosen[: self._count], chosen[self._count :]
        return tuple(
            Node(number, port, controller_port)
            for number, (port, controller_port) in enumerate(
                zip(ports, controller_ports, strict=True), start=1
            )
        )

    def _end(self, *, clean: bool) -> None:
        if clean:
            # All together: the last ones would wait in vain for a quorum to say goodbye to.
            with ThreadPoolExecutor(self._count) as threads:
                list(threads.map(lambda each: each.stop(_STOP_TIMEOUT_S), self._all_brokers()))
        else:
            for broker in self._all_brokers():
                broker.kill()
        self._brokers = {}
        if self._data_dir is None and self._folder is not None:
            shutil.rmtree(self._folder)
            self._folder = None

    def _all_brokers(self) -> list[Broker]:
        return list(self._brokers.values())

    def _broker(self, number: int) -> Broker:
        if number not in self._brokers:
            raise LocalError(
                f"There is no broker {number}: this cluster has {sorted(self._brokers) or 'none'}"
                + ("." if self._brokers else " because it isn't started.")
            )
        return self._brokers[number]

    def _cluster(self) -> Cluster:
        return Cluster(self._all_brokers())
