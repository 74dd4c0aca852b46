"""`sparkonce up` as people run it: in a process of its own, ended by Ctrl-C."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import psycopg
import pytest

_SPARKONCE = [sys.executable, "-c", "from sparkonce.console.app import main; main()"]


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_it_runs_until_it_is_told_to_end(end: signal.Signals) -> None:
    with subprocess.Popen([*_SPARKONCE, "up"], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        servers = next(
            line.removeprefix("bootstrap servers: ").strip()
            for line in program.stdout
            if line.startswith("bootstrap servers: ")
        )
        host, port = servers.split(":")
        socket.create_connection((host, int(port)), timeout=10).close()
        program.send_signal(end)
        rest = program.stdout.read()
        assert program.wait(timeout=60) == 0
    assert "Kafka is down." in rest
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), timeout=10)


def test_a_postgres_beside_it_ends_with_it_and_keeps_its_data() -> None:
    # Not pytest's folder: PostgreSQL doesn't run as root, and others can't enter that one.
    with tempfile.TemporaryDirectory(prefix="sparkonce-test-") as name:
        Path(name).chmod(0o711)
        command = [*_SPARKONCE, "up", "--postgres", "--data", f"{name}/kept"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
            assert program.stdout is not None
            url = next(
                line.removeprefix("database url: ").strip()
                for line in program.stdout
                if line.startswith("database url: ")
            )
            with psycopg.connect(url) as client:
                assert client.execute("SELECT 1").fetchone() == (1,)
            program.send_signal(signal.SIGINT)
            rest = program.stdout.read()
            assert program.wait(timeout=60) == 0
        assert "Kafka and PostgreSQL are down." in rest
        with pytest.raises(psycopg.OperationalError, match="refused"):
            psycopg.connect(url)
        log = (Path(name) / "kept" / "postgres" / "postgres.log").read_text()
        assert log.rstrip().endswith("database system is shut down")


def test_a_taken_port_is_a_message_not_a_traceback() -> None:
    with socket.create_server(("127.0.0.1", 0)) as occupant:
        port = str(occupant.getsockname()[1])
        said = subprocess.run(
            [*_SPARKONCE, "up", "--port", port], capture_output=True, text=True, timeout=100
        )
    assert said.returncode == 1
    assert f"Port {port}" in said.stderr
    assert "Traceback" not in said.stderr


def test_help_teaches() -> None:
    said = subprocess.run([*_SPARKONCE, "up", "--help"], capture_output=True, text=True, timeout=60)
    assert said.returncode == 0
    for word in ("--brokers", "--data", "--port", "--postgres", "Ctrl-C", "Examples"):
        assert word in said.stdout
