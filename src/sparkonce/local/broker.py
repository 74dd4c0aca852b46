"""One Kafka process: its folder, its ports, its start and its end.

`kafka.py` puts one or three of these together. A broker keeps its node id, its ports and its data
for as long as the object lives, whatever happens to the process meanwhile.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from sparkonce.errors import LocalError
from sparkonce.local.java import names_collector
from sparkonce.local.jvm import Jvm
from sparkonce.local.ports import HOST, is_free
from sparkonce.local.properties import LOG4J2, Layout, Node, server_properties
from sparkonce.local.runtime import Runtime

_LOG_LINES_SHOWN = 25
_FULL_BYTES = 64 * 1024

# Settings by which a node's folders are other than usual.
_SHAPING = frozenset({"log.dir", "log.dirs", "metadata.log.dir", "node.id", "process.roles"})

# Kafka's own choice of collector and pauses, as its start script has it.
_COLLECTOR = "-XX:+UseG1GC"
_PAUSES = (
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)


class Broker:
    """Broker and controller `node.node_id` of a cluster."""

    def __init__(
        self, node: Node, layout: Layout, folder: Path, runtime: Runtime, scratch: Path | None
    ) -> None:
        self.node = node
        self.folder = folder
        self.log_file = folder / "broker.log"
        self._layout = layout
        self._runtime = runtime
        self._scratch = scratch
        self._jvm: Jvm | None = None
        self._log_start = 0  # where this run's lines begin; earlier ones tell of former runs

    @property
    def address(self) -> str:
        return f"{HOST}:{self.node.port}"

    @property
    def pid(self) -> int | None:
        """The JVM's process id; None when it isn't running."""
        return self._jvm.pid if self._jvm is not None and self._jvm.is_alive() else None

    def is_alive(self) -> bool:
        return self._jvm is not None and self._jvm.is_alive()

    def answers(self) -> bool:
        """Whether it makes sense to talk to it: it runs and isn't paused."""
        return self._jvm is not None and self._jvm.is_alive() and not self._jvm.is_paused()

    def write_settings(self) -> None:
        log_dir = self.folder / "data"
        log_dir.mkdir(parents=True, exist_ok=True)
        (self.folder / "log4j2.xml").write_text(LOG4J2)
        settings = server_properties(self._layout, self.node, log_dir)
        (self.folder / "server.properties").write_text(settings)

    def is_formatted(self) -> bool:
        return self._identity_file.exists()

    def format_like(self, features: bytes, cluster_id: str, directory_id: str) -> None:
        """Prepare a new folder by what Kafka's tool made of another: its `features`."""
        self.features_file.write_bytes(features)
        identity = {
            "version": 1,
            "cluster.id": cluster_id,
            "node.id": self.node.node_id,
            "directory.id": directory_id,
        }
        # The last thing written: with it the folder counts as formatted.
        self._identity_file.write_text("".join(f"{key}={identity[key]}\n" for key in identity))

    @property
    def features_file(self) -> Path:
        """The levels of the cluster's features at its first start, metadata.version and others."""
        return self.folder / "data" / "bootstrap.checkpoint"

    @property
    def _identity_file(self) -> Path:
        return self.folder / "data" / "meta.properties"

    @property
    def has_usual_folders(self) -> bool:
        """Not if its user has named others, or other roles, which Kafka's tool knows about."""
        return not _SHAPING & self._layout.overrides.keys()

    def begin_format(self, cluster_id: str, transaction_version: int) -> subprocess.Popen[str]:
        """Start Kafka's tool that prepares a new folder; the caller waits for its end."""
        command = [
            # Compiling thoroughly doesn't pay within the second that this runs.
            *self._java("-XX:TieredStopAtLevel=1", "-Xmx128m"),
            "kafka.tools.StorageTool",
            "format",
            "--cluster-id",
            cluster_id,
            "--config",
            str(self.folder / "server.properties"),
            "--feature",
            f"transaction.version={transaction_version}",
        ]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )

    def start(self) -> None:
        """Start the process; that it can be talked to is for the caller to find out."""
        if self.is_alive():
            return
        for port in (self.node.port, self.node.controller_port):
            if not is_free(port):
                raise LocalError(_port_taken(self.node.node_id, port))
        self._log_start = self.log_file.stat().st_size if self.log_file.exists() else 0
        heap = f"-Xmx{self._layout.heap_mb}m"
        options = [heap, *_PAUSES, *self._layout.java_options]
        if not names_collector(options):  # a JVM that is told of two refuses to start
            options.append(_COLLECTOR)
        if self._scratch is not None:
            # What a JVM that is killed leaves lying about goes with the cluster.
            options.append(f"-Djava.io.tmpdir={self.folder}")
        command = [*self._java(*options), "kafka.Kafka"]
        self._jvm = Jvm(
            [*command, str(self.folder / "server.properties")],
            output=self.log_file,
            scratch=self._scratch,
        )

    def stop(self, timeout_s: float) -> None:
        """Shut down cleanly; a broker that doesn't manage in time is killed."""
        if self._jvm is not None and not self._jvm.terminate(timeout_s):
            self._jvm.kill()

    def kill(self) -> None:
        if self._jvm is not None:
            self._jvm.kill()

    def pause(self) -> None:
        self._running().pause()

    def resume(self) -> None:
        self._running().resume()

    def raise_if_dead(self) -> None:
        """LocalError with the reason, as far as the log tells it, if the process has ended."""
        if not self.is_alive():
            log = self.log_file.read_bytes()[self._log_start :] if self.log_file.exists() else b""
            raise LocalError(explain_death(self.node, log.decode(errors="replace"), self.log_file))

    def _running(self) -> Jvm:
        if self._jvm is None or not self._jvm.is_alive():
            raise LocalError(
                f"Broker {self.node.node_id} isn't running, so it can be neither paused nor "
                f"resumed. Start it first: start_broker({self.node.node_id})."
            )
        return self._jvm

    def _java(self, *options: str) -> list[str]:
        logging = f"-Dlog4j2.configurationFile={self.folder / 'log4j2.xml'}"
        return self._runtime.command(*options, logging)


def explain_death(node: Node, log: str, log_file: Path) -> str:
    """What happened to a broker, why, and what to do, from the text of its log."""
    if "Address already in use" in log:
        port = node.port if f":{node.port}: Address already in use" in log else None
        return _port_taken(node.node_id, port)
    shown = "\n".join(f"  {line}" for line in log.splitlines()[-_LOG_LINES_SHOWN:])
    # A full disk may have no room for that line either: the log lies on it too.
    if "No space left on device" in log or _is_full(log_file.parent):
        return (
            f"Broker {node.node_id} ended because the disk that holds {log_file.parent} is full. "
            f"Free some space or pass another data_dir. The end of its log:\n{shown}"
        )
    return (
        f"Broker {node.node_id} ended on its own. Its log, {log_file}, ends with the reason "
        f"(a setting it doesn't accept, usually):\n{shown}"
    )


def _is_full(folder: Path) -> bool:
    return folder.exists() and shutil.disk_usage(folder).free < _FULL_BYTES


def _port_taken(node_id: int, port: int | None) -> str:
    which = f"Port {port}" if port is not None else "A port"
    return (
        f"{which} on {HOST}, which broker {node_id} needs, is taken by another process. "
        "Stop that process, or start the cluster on another port (port=..., --port), "
        "or on free ones by leaving it out."
    )
