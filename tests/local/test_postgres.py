"""A real PostgreSQL: its life, its deaths, and what is left of the data after each."""

from __future__ import annotations

import errno
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import adbc_driver_postgresql.dbapi
import psycopg
import pytest

from parts import state_of, wait_until, wait_until_gone
from sparkonce.errors import ConfigError, LocalError
from sparkonce.local import LocalPostgres, installation, owner

_BUSY_FOR_EVER = "DO $$ BEGIN LOOP END LOOP; END $$"

_PARENT = """
import sys, time
from sparkonce.local import LocalPostgres
postgres = LocalPostgres().start()
print(postgres.pid, postgres.url, postgres.folder, flush=True)
time.sleep(1000)
"""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root hands it to another user")


@pytest.fixture(scope="module")
def _one_server() -> Iterator[LocalPostgres]:
    with LocalPostgres() as server:
        yield server


@pytest.fixture
def postgres(_one_server: LocalPostgres) -> LocalPostgres:
    """A server for all tests here, alive and without tables of earlier ones."""
    if not _one_server.is_alive():
        _one_server.start()
    with psycopg.connect(_one_server.url) as client:
        client.execute("DROP SCHEMA public CASCADE")
        client.execute("CREATE SCHEMA public")
    return _one_server


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users may enter: pytest's own are closed to them."""
    with tempfile.TemporaryDirectory(prefix="sparkonce-test-") as name:
        Path(name).chmod(0o711)
        yield Path(name)


def ask(server: LocalPostgres, query: str) -> list[tuple[object, ...]]:
    with psycopg.connect(server.url) as client:
        return client.execute(query).fetchall()


def family_of(url: str, postmaster: int) -> list[int]:
    """All processes of a server, apart from the one that answers this question."""
    query = "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
    with psycopg.connect(url) as client:
        return [postmaster, *(pid for (pid,) in client.execute(query).fetchall())]


class BusyClient:
    """A client in a statement without end: its backend never looks whether somebody is there."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self.backend_pid = self._connection.info.backend_pid
        self._failed: list[psycopg.Error] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        query = f"SELECT query FROM pg_stat_activity WHERE pid = {self.backend_pid}"
        with psycopg.connect(url, autocommit=True) as other:
            wait_until(lambda: other.execute(query).fetchone() == (_BUSY_FOR_EVER,), "it is busy")

    def _run(self) -> None:
        try:
            self._connection.execute(_BUSY_FOR_EVER)
        except psycopg.Error as error:
            self._failed.append(error)

    def has_lost_its_server(self) -> bool:
        self._thread.join(30)
        self._connection.close()
        return [type(error) for error in self._failed] == [psycopg.OperationalError]


# Life


def test_it_answers_psycopg_and_adbc(postgres: LocalPostgres) -> None:
    assert ask(postgres, "SELECT current_user, current_database()") == [("postgres", "postgres")]
    with adbc_driver_postgresql.dbapi.connect(postgres.url) as client, client.cursor() as cursor:
        cursor.execute("SELECT 42")
        assert cursor.fetchone() == (42,)
    password = postgres.url.split(":")[2].split("@")[0]
    assert postgres.jdbc_url == (
        f"jdbc:postgresql://127.0.0.1:{postgres.port}/postgres?user=postgres&password={password}"
    )


def test_it_is_new_enough_durable_and_for_this_machine_only(postgres: LocalPostgres) -> None:
    def setting(name: str) -> object:
        return ask(postgres, f"SHOW {name}")[0][0]

    assert int(str(setting("server_version_num"))) >= installation.OLDEST_VERSION * 10_000
    assert [setting(name) for name in ("fsync", "full_page_writes", "synchronous_commit")] == [
        "on"
    ] * 3
    assert setting("listen_addresses") == "127.0.0.1"
    assert setting("unix_socket_directories") == ""


def test_without_the_password_nobody_comes_in(postgres: LocalPostgres) -> None:
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(f"postgresql://postgres@127.0.0.1:{postgres.port}/postgres")


def test_it_can_be_told_settings() -> None:
    with LocalPostgres(settings={"work_mem": "5MB", "search_path": "a, public"}) as server:
        assert ask(server, "SHOW work_mem") == [("5MB",)]
        assert ask(server, "SHOW search_path") == [("a, public",)]


def test_two_live_side_by_side(postgres: LocalPostgres) -> None:
    with LocalPostgres() as other:
        assert other.port != postgres.port and other.folder != postgres.folder
        with psycopg.connect(other.url) as client:
            client.execute("CREATE TABLE mine (id int)")
        assert ask(other, "SELECT to_regclass('mine')::text") == [("mine",)]
        assert ask(postgres, "SELECT to_regclass('mine')::text") == [(None,)]
        other.kill()
        assert ask(postgres, "SELECT 1") == [(1,)]


def test_stopping_removes_the_temporary_folder() -> None:
    server = LocalPostgres().start()
    place, postmaster = server.folder, server.pid
    server.stop()
    assert not place.exists() and state_of(postmaster) == ""
    server.stop()  # twice is once
    with pytest.raises(LocalError, match="isn't running"):
        server.pause()
    with pytest.raises(LocalError, match="isn't started"):
        _ = server.url


def test_it_starts_once(postgres: LocalPostgres) -> None:
    with pytest.raises(LocalError, match="already running"):
        postgres.start()


# What is left of the data


def test_a_folder_keeps_its_data_and_its_password(folder: Path) -> None:
    with LocalPostgres(folder=folder / "kept") as server:
        with psycopg.connect(server.url) as client:
            client.execute("CREATE TABLE diary AS SELECT 'dear' AS line")
        url, port = server.url, server.port
    with LocalPostgres(folder=folder / "kept", port=port) as server:
        assert server.url == url
        assert ask(server, "SELECT line FROM diary") == [("dear",)]
        assert "not properly shut down" not in (server.folder / "postgres.log").read_text()


def test_what_was_committed_survives_a_kill_and_unlogged_tables_are_emptied(
    postgres: LocalPostgres,
) -> None:
    for table in ("TABLE logged", "UNLOGGED TABLE unlogged"):
        with psycopg.connect(postgres.url) as client:
            client.execute(f"CREATE {table} (id int)")
            client.execute(f"INSERT INTO {table.split()[-1]} SELECT generate_series(1, 1000)")
    counts = "SELECT (SELECT count(*) FROM logged), (SELECT count(*) FROM unlogged)"
    postgres.restart()
    assert ask(postgres, counts) == [(1000, 1000)]  # a clean stop keeps both

    url, open_client = postgres.url, psycopg.connect(postgres.url)
    open_client.execute("INSERT INTO logged VALUES (1001)")
    postgres.kill()
    with pytest.raises(psycopg.OperationalError):
        open_client.commit()
    postgres.start()
    assert postgres.url == url
    assert ask(postgres, counts) == [(1000, 0)]


# Kill and pause mean every process


def test_a_kill_leaves_nobody_behind(postgres: LocalPostgres) -> None:
    client = BusyClient(postgres.url)
    family = family_of(postgres.url, postgres.pid)
    assert client.backend_pid in family
    postgres.kill()
    assert not postgres.is_alive()
    assert [state_of(pid) for pid in family] == [""] * len(family)
    assert segments_of(family[0]) == []
    assert client.has_lost_its_server()
    postgres.kill()  # of something dead: nothing to do, no error
    with pytest.raises(LocalError, match="isn't running"):
        postgres.resume()
    postgres.start()  # which an old backend would prevent
    assert ask(postgres, "SELECT 1") == [(1,)]


def test_a_postmaster_that_somebody_else_kills_takes_all_with_it(postgres: LocalPostgres) -> None:
    client = BusyClient(postgres.url)
    os.kill(postgres.pid, signal.SIGKILL)
    wait_until(lambda: not postgres.is_alive(), "the end is noticed")
    assert state_of(client.backend_pid) == "" and client.has_lost_its_server()
    with pytest.raises(LocalError, match="isn't running"):
        postgres.raise_if_died()


def test_paused_it_stands_still_and_resumed_it_goes_on(postgres: LocalPostgres) -> None:
    with psycopg.connect(postgres.url, autocommit=True) as client:
        family = family_of(postgres.url, postgres.pid)
        postgres.pause()
        assert [state_of(pid) for pid in family] == ["T"] * len(family)
        assert postgres.is_alive()
        with pytest.raises(LocalError, match="paused"):
            postgres.wait_until_ready(timeout_s=0)
        client.pgconn.send_query(b"SELECT 42")
        postgres.resume()
        postgres.wait_until_ready()
        answer = client.pgconn.get_result()
        assert answer is not None and answer.get_value(0, 0) == b"42"
        assert client.pgconn.get_result() is None


def test_a_paused_one_can_be_killed_and_restarted(postgres: LocalPostgres) -> None:
    postgres.pause()
    postgres.restart()
    postgres.pause()
    postgres.kill()
    postgres.start()
    assert ask(postgres, "SELECT 1") == [(1,)]


def segments_of(pid: int) -> list[str]:
    """The shared memory that a process made and that is still there."""
    table = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    return [line for line in table if line.split()[4] == str(pid)]


@pytest.mark.parametrize("paused", [False, True])
def test_killing_the_parent_ends_every_process_and_removes_the_folder(paused: bool) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid_text, url, place = parent.stdout.readline().split()
        client = BusyClient(url)
        family = family_of(url, int(pid_text))
        assert client.backend_pid in family and Path(place).exists()
        if paused:
            os.kill(int(pid_text), signal.SIGSTOP)
        parent.kill()
    for pid in family:
        wait_until_gone(pid)
    wait_until(lambda: not Path(place).exists(), f"{place} is gone")
    wait_until(lambda: segments_of(int(pid_text)) == [], "its shared memory is gone")
    assert client.has_lost_its_server()


@pytest.mark.skipif(sys.platform != "linux", reason="needs the kernel's parent-death signal")
def test_killing_the_guard_ends_the_postmaster() -> None:
    with LocalPostgres() as server:
        family = family_of(server.url, server.pid)
        os.kill(server._running()._guard.pid, signal.SIGKILL)
        for pid in family:
            wait_until_gone(pid)
        wait_until(lambda: not server.is_alive(), "the end is noticed")
        server.start()
        assert ask(server, "SELECT 1") == [(1,)]


# Starts that fail, with a reason


def test_a_taken_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as occupant:
        port = occupant.getsockname()[1]
        with pytest.raises(LocalError, match=f"Port {port} .* is taken"):
            LocalPostgres(port=port).start()


def test_a_port_that_is_taken_meanwhile_loses_no_data() -> None:
    with LocalPostgres() as server:
        with psycopg.connect(server.url) as client:
            client.execute("CREATE TABLE diary AS SELECT 'dear' AS line")
        server.kill()
        with (
            socket.create_server(("127.0.0.1", server.port)),
            pytest.raises(LocalError, match=f"Port {server.port} .* is taken"),
        ):
            server.start()
        server.start()
        assert ask(server, "SELECT line FROM diary") == [("dear",)]


def test_a_folder_with_other_things_is_left_alone(folder: Path) -> None:
    (folder / "thesis.txt").write_text("precious")
    with pytest.raises(LocalError, match=r"isn't empty.*thesis\.txt"):
        LocalPostgres(folder=folder).start()
    assert [entry.name for entry in folder.iterdir()] == ["thesis.txt"]


def test_a_folder_that_cannot_be_made_is_an_error(folder: Path) -> None:
    (folder / "file").write_text("")
    with pytest.raises(LocalError, match=r"can't be prepared.*folder"):
        LocalPostgres(folder=folder / "file" / "folder").start()


def test_a_folder_in_use_is_an_error_and_its_server_lives_on(folder: Path) -> None:
    with LocalPostgres(folder=folder / "one") as first:
        with pytest.raises(LocalError, match=rf"postmaster.*PID {first.pid}"):
            LocalPostgres(folder=folder / "one").start()
        assert ask(first, "SELECT 1") == [(1,)]


def test_a_first_start_that_was_cut_short_can_be_repeated(folder: Path) -> None:
    (folder / "data.new" / "base").mkdir(parents=True)
    (folder / "password").write_text("half")
    with LocalPostgres(folder=folder) as server:
        assert ask(server, "SELECT 1") == [(1,)]


@needs_root
def test_a_folder_that_the_other_user_cannot_reach_is_an_error(folder: Path) -> None:
    (folder / "closed").mkdir(mode=0o700)
    with pytest.raises(LocalError, match=rf"may not pass through {folder / 'closed'}\."):
        LocalPostgres(folder=folder / "closed" / "data").start()


@needs_root
def test_a_closed_folder_for_temporary_files_is_passed_over(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.chmod(0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with LocalPostgres() as server:
        assert folder not in server.folder.parents


def test_a_setting_that_it_does_not_accept_shows_its_log() -> None:
    with pytest.raises(LocalError, match=r"shared_buffers.*plenty"):
        LocalPostgres(settings={"shared_buffers": "plenty"}).start()


def test_what_is_fixed_cannot_be_set() -> None:
    with pytest.raises(ConfigError, match=r"'port'.*port=\.\.\."):
        LocalPostgres(settings={"port": "5432"})


@needs_root
def test_a_full_disk_is_called_so(folder: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=80m", "tmpfs", str(folder)], check=True)
    try:
        server = LocalPostgres(folder=folder / "small")
        with server, psycopg.connect(server.url) as client:
            client.execute("CREATE TABLE diary AS SELECT 'dear' AS line")
        filler = folder / "filler"
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            filler.write_bytes(bytes(80 * 1024 * 1024))
        with pytest.raises(LocalError, match=r"The disk that holds .* is full"):
            server.start()
        filler.unlink()
        with server:
            assert ask(server, "SELECT line FROM diary") == [("dear",)]
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


# Which PostgreSQL, and as whom


@needs_root
@pytest.mark.parametrize("name", ["postgres", "nobody"])
def test_as_root_it_runs_as_somebody_else(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "_INSTEAD_OF_ROOT", ("no-such-user", name))
    with LocalPostgres() as server:
        assert Path(f"/proc/{server.pid}").owner() == name
        assert server.folder.owner() == name


@pytest.fixture
def no_system_postgres(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("PATH", str(folder / "bin"))
    monkeypatch.setattr(installation, "_SYSTEM_FOLDERS", ())


@pytest.mark.usefixtures("no_system_postgres")
def test_an_old_postgres_is_passed_over(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for name in ("postgres", "initdb"):
        program = folder / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 13.2'\n")
        program.chmod(0o755)
    with pytest.raises(LocalError, match=r"is version 13.*apt install.*sparkonce\[postgres\]"):
        LocalPostgres().start()
    shutil.rmtree(folder / "bin")
    with pytest.raises(LocalError, match=r"PATH has no.*apt install.*sparkonce\[postgres\]"):
        LocalPostgres().start()


@pytest.mark.skipif(importlib.util.find_spec("pgserver") is None, reason="needs pgserver")
@pytest.mark.usefixtures("no_system_postgres")
def test_pgserver_is_what_remains() -> None:
    assert installation.find_postgres(owner.Owner.choose()).origin == "pgserver"
    with LocalPostgres() as server:
        with psycopg.connect(server.url) as client:
            client.execute("CREATE TABLE diary AS SELECT 'dear' AS line")
        server.kill()
        server.start()
        assert ask(server, "SELECT line FROM diary") == [("dear",)]
