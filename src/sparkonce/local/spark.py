"""LocalSpark: a standalone Spark cluster as child processes of this Python.

Stands beside `kafka.py`: where a session with `local[*]` has driver and executors in one JVM, here
they are processes of their own, so that tests can kill one and look at what the others make of it.
Only PySpark's own jars and scripts are needed. The master itself is asked who takes part.
"""

from __future__ import annotations

import http.client
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from sparkonce.errors import LocalError
from sparkonce.local.archive import Archive
from sparkonce.local.java import Java, find_java, short_lived
from sparkonce.local.jvm import Jvm
from sparkonce.local.ports import HOST, free_ports

_TIMEOUT_S = 60.0
_POLL_S = 0.05
_LOG_LINES_SHOWN = 25
_LEAST_MEMORY_MB = 512  # an executor refuses to start with less than about 450
_EXECUTOR_CLASS = "org.apache.spark.executor.CoarseGrainedExecutorBackend"

# Executors are children of a worker, out of our warden's reach. So all JVMs are started by this
# `java`, which asks the kernel to end them with their parent. (The signal comes when the thread
# that started the process ends; a worker's thread waits there for its executor's end.)
_JAVA = """\
#!/bin/sh
exec {python} -I -S -c {die_with_parent} {java} "$@"
"""
_DIE_WITH_PARENT = """\
import ctypes, os, signal, sys
if sys.platform == "linux":
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
os.execv(sys.argv[1], sys.argv[1:])
"""


class LocalSpark:
    """A master and workers on 127.0.0.1; workers are numbered from 1.

    `cores` and `memory_mb` are what each worker has to give. With the defaults that is one executor
    a worker, because an executor takes 1 GiB unless `spark.executor.memory` says otherwise. All
    files, logs among them, live in a temporary folder that goes with the cluster.
    """

    def __init__(self, workers: int = 2, cores: int = 1, memory_mb: int = 1024) -> None:
        if workers < 1 or cores < 1 or memory_mb < _LEAST_MEMORY_MB:
            raise LocalError(
                f"A Spark cluster of {workers} workers with {cores} cores and {memory_mb} MB each "
                "can run nothing: it needs one worker, one core and "
                f"{_LEAST_MEMORY_MB} MB at least."
            )
        self._count = workers
        self._cores = cores
        self._memory_mb = memory_mb
        self._folder: Path | None = None
        self._ports: list[int] = []  # the master's, its web page's, then the workers'
        self._master: Jvm | None = None
        self._workers: dict[int, Jvm] = {}
        self._archive: tuple[str, ...] = ()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # Life of the whole cluster

    def start(self) -> Self:
        """Start master and workers; wait until the master knows all of them."""
        if self._folder is not None:
            raise LocalError("This cluster is already running; stop() it before a new start().")
        self._folder = Path(tempfile.mkdtemp(prefix="sparkonce-spark-"))
        self._ports = free_ports(2 + self._count)
        try:
            java = find_java()
            _write_java(self._folder / "java" / "bin" / "java", java)
            self._archive = spark_archive(java).options()
            port, page_port = self._ports[:2]
            self._master = self._spawn(
                "master", "master.Master", "--port", str(port), "--webui-port", str(page_port)
            )
            # A worker that doesn't find its master tries again only seconds later.
            self._wait(lambda: self._registered_ports() is not None, "the master to be ready")
            for number in self.worker_numbers:
                self._launch_worker(number)
            for number in self.worker_numbers:
                self._wait_registered(number)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End all processes, executors too, and remove the temporary folder."""
        for worker in self._workers.values():
            worker.kill()
        if self._master is not None:
            self._master.kill()
        for number in self._workers:
            self._wait_executors_gone(number)
        self._workers, self._master = {}, None
        if self._folder is not None:
            shutil.rmtree(self._folder)
            self._folder = None

    @property
    def master_url(self) -> str:
        """What `spark.master` must be for an application to run here."""
        if self._master is None:
            raise LocalError("This cluster isn't running, so it has no address. start() it first.")
        return f"spark://{HOST}:{self._ports[0]}"

    @property
    def folder(self) -> Path:
        """Where logs lie: `master.log`, `worker-N.log`, and executors' below `worker-N`."""
        if self._folder is None:
            raise LocalError("This cluster isn't running, so it has no folder. start() it first.")
        return self._folder

    @property
    def worker_numbers(self) -> list[int]:
        """The workers' numbers, from 1; running or not."""
        return list(range(1, self._count + 1))

    # One process

    def executor_pids(self) -> list[int]:
        """The process ids of the executors' JVMs, of all applications that run now."""
        return [pid for number in self._workers for pid in self._executors_of(number)]

    def worker_pid(self, number: int) -> int:
        """The process id of a running worker's JVM."""
        worker = self._worker(number)
        if worker is None or not worker.is_alive():
            raise LocalError(f"Worker {number} isn't running, so it has no process id.")
        return worker.pid

    def kill_worker(self, number: int) -> None:
        """SIGKILL a worker; returns when it and its executors are gone and the master knows."""
        worker = self._worker(number)
        if worker is not None:
            worker.kill()
            self._wait_executors_gone(number)
            self._wait_forgotten(number)

    def start_worker(self, number: int) -> None:
        """Start a worker that was killed, on its old port; wait until the master knows it."""
        worker = self._worker(number)
        if worker is None or not worker.is_alive():
            # Before that, the master would refuse the new one as a double of the old one.
            self._wait_forgotten(number)
            self._launch_worker(number)
            self._wait_registered(number)

    # Inside

    def _worker(self, number: int) -> Jvm | None:
        if number not in self.worker_numbers:
            raise LocalError(
                f"There is no worker {number}: this cluster has {self.worker_numbers}."
            )
        return self._workers.get(number)

    def _port_of(self, number: int) -> int:
        return self._ports[1 + number]

    def _launch_worker(self, number: int) -> None:
        arguments = {
            "--port": self._port_of(number),
            "--webui-port": 0,
            "--cores": self._cores,
            "--memory": f"{self._memory_mb}M",
            "--work-dir": self.folder / f"worker-{number}",
        }
        flat = [str(part) for pair in arguments.items() for part in pair]
        self._workers[number] = self._spawn(
            f"worker-{number}", "worker.Worker", *flat, self.master_url
        )

    def _spawn(self, name: str, main_class: str, *arguments: str) -> Jvm:
        home = spark_home()
        environment = {
            "JAVA_HOME": self.folder / "java",
            "SPARK_HOME": home,
            "SPARK_LOCAL_DIRS": self.folder / "local",
            "SPARK_LOCAL_IP": HOST,  # web pages would listen on all addresses
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": " ".join([*short_lived(), *self._archive]),
            # The REST server has a fixed port, and nobody here asks it.
            "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
        }
        command = [
            "env",
            *(f"{key}={value}" for key, value in environment.items()),
            str(home / "bin" / "spark-class"),  # becomes the JVM: the process id stays
            f"org.apache.spark.deploy.{main_class}",
            "--host",
            HOST,
            *arguments,
        ]
        return Jvm(command, output=self.folder / f"{name}.log", scratch=self.folder)

    def _wait_registered(self, number: int) -> None:
        port = self._port_of(number)

        def is_registered() -> bool:
            if not self._workers[number].is_alive():
                raise LocalError(self._explain(f"Worker {number} ended", f"worker-{number}"))
            return port in (self._registered_ports() or ())

        self._wait(is_registered, f"worker {number} to register")

    def _wait_forgotten(self, number: int) -> None:
        port = self._port_of(number)
        self._wait(
            lambda: port not in (self._registered_ports() or ()),
            f"the master to give up worker {number}",
        )

    def _wait_executors_gone(self, number: int) -> None:
        _poll(
            lambda: not self._executors_of(number),
            lambda: LocalError(
                f"Executors of worker {number} outlived it by {_TIMEOUT_S:g} s: processes "
                f"{self._executors_of(number)}. They may hang in the kernel; look with `ps`."
            ),
        )

    def _wait(self, is_so: Callable[[], bool], what: str) -> None:
        """Poll a condition that needs the master; it is an error if that ends meanwhile."""

        def is_so_or_dead() -> bool:
            if self._master is None or not self._master.is_alive():
                raise LocalError(self._explain("The Spark master ended", "master"))
            return is_so()

        message = f"Waited {_TIMEOUT_S:g} s for {what}, in vain"
        _poll(is_so_or_dead, lambda: LocalError(self._explain(message, "master")))

    def _explain(self, what: str, log_name: str) -> str:
        log_file = self.folder / f"{log_name}.log"
        lines = log_file.read_text(errors="replace").splitlines() if log_file.exists() else []
        shown = "\n".join(f"  {line}" for line in lines[-_LOG_LINES_SHOWN:])
        return (
            f"{what}. The end of {log_file.name} says why, or check whether this machine has "
            f"memory and processors to spare:\n{shown}"
        )

    def _registered_ports(self) -> set[int] | None:
        """Ports of the workers that the master counts on; None before it is ready."""
        connection = http.client.HTTPConnection(HOST, self._ports[1], timeout=10)
        try:
            connection.request("GET", "/json/")
            response = connection.getresponse()
            if "json" not in response.headers.get("Content-Type", ""):
                return None  # other pages are there before this one
            state: dict[str, Any] = json.load(response)
        except OSError:  # nobody listens there yet
            return None
        finally:
            connection.close()
        if state["status"] != "ALIVE":  # it accepts nobody before it has elected itself
            return None
        return {each["port"] for each in state["workers"] if each["state"] == "ALIVE"}

    def _executors_of(self, number: int) -> list[int]:
        # Known by what they were told, not by their parent, which may be gone.
        marks = (_EXECUTOR_CLASS, f"spark://Worker@{HOST}:{self._port_of(number)}")
        return [pid for pid, command in _processes() if all(mark in command for mark in marks)]


def _poll(is_so: Callable[[], bool], too_late: Callable[[], LocalError]) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not is_so():
        if time.monotonic() > deadline:
            raise too_late()
        time.sleep(_POLL_S)


def _processes() -> Iterator[tuple[int, list[str]]]:
    """All processes with their arguments; one that has ended and waits to be reaped has none."""
    if sys.platform != "linux":
        listed = subprocess.run(["ps", "-axwwo", "pid=,command="], capture_output=True, text=True)
        for line in listed.stdout.splitlines():
            pid, *command = line.split()
            yield int(pid), command
        return
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command_line = (entry / "cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError):  # it ended while we looked
                continue
            yield int(entry.name), command_line.decode(errors="replace").split("\0")


def _write_java(path: Path, java: Java) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(
        _JAVA.format(
            python=shlex.quote(sys.executable),
            die_with_parent=shlex.quote(_DIE_WITH_PARENT),
            java=shlex.quote(str(java.executable)),
        )
    )
    path.chmod(0o755)


def spark_home() -> Path:
    """PySpark's own folder, which is an installation of Spark."""
    pyspark = find_spec("pyspark")
    if pyspark is None or pyspark.origin is None:
        raise LocalError(
            "PySpark isn't installed, and a Spark cluster is started from its files. "
            "Install it: pip install pyspark"
        )
    return Path(pyspark.origin).parent


def spark_archive(java: Java) -> Archive:
    """For the JVMs of drivers, executors, masters and workers: they have one class path."""
    return Archive.of(java, spark_home() / "jars")
