"""What a broker of a local cluster is told: its `server.properties` and its logging (pure).

Between the cluster's layout and the files that `broker.py` writes. Sizes are those of a laptop:
few partitions in the internal topics, small buffers; and faults shall show quickly, so sessions
and time-outs are short.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sparkonce.local.ports import HOST


@dataclass(frozen=True, slots=True)
class Node:
    """One process of the cluster, broker and controller in one."""

    node_id: int
    port: int
    controller_port: int


@dataclass(frozen=True, slots=True)
class Layout:
    """All nodes of a cluster, and what its user wants different from the defaults."""

    nodes: tuple[Node, ...]
    heap_mb: int
    overrides: Mapping[str, str] = field(default_factory=dict)
    java_options: tuple[str, ...] = ()

    @property
    def replication(self) -> int:
        return min(3, len(self.nodes))

    @property
    def min_in_sync(self) -> int:
        """With three replicas two: the loss of one broker stops nothing and loses nothing."""
        return 2 if self.replication == 3 else 1


LOG4J2 = """\
<Configuration status="warn">
  <Appenders>
    <Console name="out"><PatternLayout pattern="[%d] %p %m (%c)%n"/></Console>
  </Appenders>
  <Loggers>
    <Logger name="org.apache.kafka.common.config.AbstractConfig" level="warn"/>
    <Root level="info"><AppenderRef ref="out"/></Root>
  </Loggers>
</Configuration>
"""


def server_properties(layout: Layout, node: Node, log_dir: Path) -> str:
    """The text of `server.properties` for one node."""
    settings = {
        **_identity(layout, node, log_dir),
        **_replication(layout),
        **_PACE,
        **layout.overrides,
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def _identity(layout: Layout, node: Node, log_dir: Path) -> dict[str, str]:
    voters = (f"{each.node_id}@{HOST}:{each.controller_port}" for each in layout.nodes)
    return {
        "process.roles": "broker,controller",
        "node.id": str(node.node_id),
        # Voters in the settings, not in the metadata log: ports may change between two starts.
        "controller.quorum.voters": ",".join(voters),
        "listeners": f"PLAINTEXT://{HOST}:{node.port},CONTROLLER://{HOST}:{node.controller_port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{node.port}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(log_dir),
    }


def _replication(layout: Layout) -> dict[str, str]:
    replication, min_in_sync = str(layout.replication), str(layout.min_in_sync)
    return {
        "default.replication.factor": replication,
        "min.insync.replicas": min_in_sync,
        "offsets.topic.replication.factor": replication,
        "transaction.state.log.replication.factor": replication,
        "transaction.state.log.min.isr": min_in_sync,
        "share.coordinator.state.topic.replication.factor": replication,
        "share.coordinator.state.topic.min.isr": min_in_sync,
    }


_PACE = {
    # A topic that nobody created is a mistake worth seeing.
    "auto.create.topics.enable": "false",
    # More than one partition each, so that coordinators live on different brokers.
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
    # A transaction past its time-out is aborted within about a second, not ten.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    # A killed broker loses its leaderships after four seconds, not nine.
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "4000",
    # By age only: a limit on size would delete records under a running benchmark.
    "log.retention.hours": "24",
    "log.segment.bytes": str(128 * 1024 * 1024),
    # A deleted topic gives its disk back at once, not after a minute.
    "log.segment.delete.delay.ms": "1000",
    "log.index.size.max.bytes": str(1024 * 1024),
    "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
}
