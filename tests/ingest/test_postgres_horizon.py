"""Horizons that hold: over a crash, past 2**32 transactions, and on replicas. Real servers."""

from __future__ import annotations

import re
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ingest.following import Follower
from sparkonce.errors import ConfigError
from sparkonce.ingest.position import PositionError
from sparkonce.ingest.postgres import table as table_module
from sparkonce.ingest.postgres.horizon import horizon_now
from sparkonce.local.installation import find_postgres
from sparkonce.local.owner import Owner
from sparkonce.local.ports import free_ports
from sparkonce.local.postgres import LocalPostgres

Connect = Callable[[], psycopg.Connection[Any]]
Follow = Callable[..., Follower]

NOW = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint"


def test_a_crash_does_not_take_the_horizon_back() -> None:
    """Numbers of transactions that were rolled back are used again after a crash."""
    with LocalPostgres(settings={"wal_writer_delay": "2s"}) as server:
        with psycopg.connect(server.url) as connection:
            connection.execute("CREATE TABLE t (id int)")
        taken_back = [_horizon_and_after_crash(server, _without_waiting) for _ in range(4)]
        assert any(after < before for before, after in taken_back), "there was nothing to fear"
        for _ in range(2):
            before, after = _horizon_and_after_crash(server, lambda c: horizon_now(c).xid)
            assert after >= before


def _without_waiting(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute(NOW).fetchone()
    assert row is not None
    return int(row[0])


def _horizon_and_after_crash(
    server: LocalPostgres, ask: Callable[[psycopg.Connection[Any]], int]
) -> tuple[int, int]:
    with (
        psycopg.connect(server.url, autocommit=True) as control,
        psycopg.connect(server.url) as writer,
    ):
        writer.execute("INSERT INTO t VALUES (1)")
        writer.rollback()
        before = ask(control)
        server.kill()
    server.start()
    with psycopg.connect(server.url, autocommit=True) as control:
        return before, _without_waiting(control)


@contextmanager
def _server_past_its_first_round(place: Path) -> Iterator[LocalPostgres]:
    """With ten frozen rows whose numbers the next transactions bear again, 2**32 later."""
    server = LocalPostgres(folder=place / "server")
    with server:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(
                "CREATE TABLE t (id bigserial PRIMARY KEY, v text, "
                "txid xid8 NOT NULL DEFAULT pg_current_xact_id())"
            )
            connection.execute(
                "CREATE TABLE p (id int NOT NULL, txid xid8 NOT NULL DEFAULT pg_current_xact_id())"
            )
            connection.execute("INSERT INTO t (v) VALUES ('first')")
            connection.execute("CREATE TABLE bare (id bigserial PRIMARY KEY)")
            for child in range(9):
                connection.execute("INSERT INTO t (v) VALUES ('old')")
                connection.execute(f"CREATE TABLE p_{child} () INHERITS (p)".encode())
                connection.execute(f"INSERT INTO p_{child} (id) VALUES ({child})".encode())
            connection.execute("VACUUM FREEZE")
            row = connection.execute("SELECT min(xmin::text::int) FROM t").fetchone()
            assert row is not None
        owner = Owner.choose()
        tool = find_postgres(owner).program("pg_resetwal")
    _run(owner, tool, "-e", "1", "-x", str(row[0] + 2), "-D", str(place / "server" / "data"))
    with server:
        yield server


def test_numbers_that_come_around() -> None:
    with _folder() as place, _server_past_its_first_round(place) as server:
        plain = {"url": server.url, "dbtable": "t", "keyColumn": "id"}
        with pytest.raises(ConfigError, match=r"keyLag.*transactionColumn"):
            Follower(plain)
        followers = [
            Follower(plain | {"keyLag": "2"}),
            Follower(plain | {"transactionColumn": "txid"}),
        ]
        for follower in followers:
            follower.drain(rows_max=3)
        for _ in range(5):
            with psycopg.connect(server.url) as connection:
                connection.execute("INSERT INTO t (v) VALUES ('new')")
            for follower in followers:
                follower.drain()
        for follower in followers:
            assert sorted(follower.keys) == list(range(1, 16))
            for start, end, rows in follower.batches:
                assert follower.read(start, end) == rows
            follower.close()


def test_what_a_server_past_its_first_round_asks_for_is_enough() -> None:
    with _folder() as place, _server_past_its_first_round(place) as server:
        options = {"url": server.url, "dbtable": "bare", "keyColumn": "id"}
        with pytest.raises(ConfigError) as caught:
            Follower(options)
        told = re.search(r"transactionColumn: (ALTER .*); docs/", str(caught.value))
        assert told is not None
        with psycopg.connect(server.url) as connection:
            connection.execute(told[1].encode())
            connection.execute("INSERT INTO bare DEFAULT VALUES")
        follower = Follower(options | {"transactionColumn": "txid"})
        assert [row["id"] for row in follower.drain()] == [1]
        follower.close()


def test_attachments_whose_numbers_come_around() -> None:
    """The children that were there are no new ones when their numbers are used again."""
    with _folder() as place, _server_past_its_first_round(place) as server:
        follower = Follower(
            {"url": server.url, "dbtable": "p", "keyColumn": "id", "transactionColumn": "txid"}
        )
        follower.drain(rows_max=4)
        with psycopg.connect(server.url, autocommit=True) as connection:
            for _ in range(40):
                connection.execute("INSERT INTO t (v) VALUES ('new')")
                follower.drain()
        assert follower.keys == list(range(9))
        for start, end, rows in follower.batches:
            assert follower.read(start, end) == rows
        follower.close()


def test_a_server_that_is_behind_the_position_is_refused(
    connect: Connect, follow: Follow, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_module, "_LAG_PATIENCE_S", 0.0)
    with connect() as connection:
        connection.execute(f"CREATE TABLE {table} (id bigserial PRIMARY KEY)")
        connection.execute(f"INSERT INTO {table} DEFAULT VALUES")
    follower = follow(dbtable=table)
    follower.drain()
    system = follower.table.form.system
    ahead = f'{{"by": ["id"], "system": "{system}", "xid": {10**9}, "upto": [1]}}'
    start, follower.offset = follower.offset, ahead
    with pytest.raises(PositionError, match="restored from a backup"):
        follower.step()
    with pytest.raises(PositionError, match="restored from a backup"):
        follower.read(start, ahead)
    follower.offset = ahead.replace(str(system), "17")
    with pytest.raises(PositionError, match="system identifier"):
        follower.step()


def test_rows_are_read_from_a_replica(
    postgres: LocalPostgres, connect: Connect, follow: Follow, table: str
) -> None:
    with connect() as connection:
        connection.execute(f"CREATE TABLE {table} (id bigserial PRIMARY KEY)")
        connection.execute(f"INSERT INTO {table} DEFAULT VALUES")
    with _replica_of(postgres) as url, psycopg.connect(url, autocommit=True) as replica:
        follower = follow(dbtable=table, url=url)
        open_, other = connect(), connect()
        open_.execute(f"INSERT INTO {table} DEFAULT VALUES")
        other.execute(f"INSERT INTO {table} DEFAULT VALUES")
        other.commit()
        _wait_for_replay(other, replica)
        follower.drain()
        assert follower.keys == [1]  # what is open on the primary is open here
        open_.commit()
        _wait_for_replay(other, replica)
        follower.drain()
        assert follower.keys == [1, 2, 3]

        # A batch that was planned on the primary waits for a replica that lags.
        on_primary = follow(dbtable=table)
        replica.execute("SELECT pg_wal_replay_pause()")
        other.execute(f"INSERT INTO {table} DEFAULT VALUES")
        other.commit()
        rows = on_primary.drain()
        start, end, _ = on_primary.batches[0]
        found: list[Any] = []
        reading = threading.Thread(target=lambda: found.extend(follower.read(start, end)))
        reading.start()
        reading.join(timeout=1.0)
        assert reading.is_alive(), "rows were read that the replica can't have had"
        replica.execute("SELECT pg_wal_replay_resume()")
        reading.join(timeout=60)
        assert found == rows and len(rows) == 4


def test_nothing_is_deleted_on_a_replica(
    postgres: LocalPostgres, connect: Connect, table: str
) -> None:
    with connect() as connection:
        connection.execute(f"CREATE TABLE {table} (id bigserial PRIMARY KEY, value text)")
    options = {"dbtable": table, "keyColumn": "id", "outbox": "true"}
    with _replica_of(postgres) as url, pytest.raises(ConfigError, match="replica"):
        Follower({**options, "url": url, "deleteAfterPublishing": "true"})


def _wait_for_replay(primary: psycopg.Connection[Any], replica: psycopg.Connection[Any]) -> None:
    row = primary.execute("SELECT pg_current_wal_flush_lsn()").fetchone()
    primary.rollback()
    for _ in range(3000):
        done = replica.execute(
            "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn, pg_sleep(0.01)", row
        ).fetchone()
        if done is not None and done[0]:
            return
    raise AssertionError("the replica does not follow")


@contextmanager
def _replica_of(primary: LocalPostgres) -> Iterator[str]:
    with _folder() as place:
        yield from _replica_in(place, primary)


def _replica_in(place: Path, primary: LocalPostgres) -> Iterator[str]:
    owner = Owner.choose()
    installation = find_postgres(owner)
    (port,) = free_ports(1)
    data = place / "data"
    _run(owner, installation.program("pg_basebackup"), "-R", "-d", primary.url, "-D", str(data))
    control = [installation.program("pg_ctl"), "-D", str(data), "-w", "-l", str(place / "log")]
    # A replica must allow for as many prepared transactions as its primary.
    settings = f"-p {port} -h 127.0.0.1 -c max_prepared_transactions=20 -k ''"
    _run(owner, *control, "-o", settings, "start")
    try:
        yield primary.url.replace(f":{primary.port}/", f":{port}/")
    finally:
        _run(owner, *control, "-m", "immediate", "stop")


@contextmanager
def _folder() -> Iterator[Path]:
    """Where the user that PostgreSQL runs as can reach it; pytest's own is for us alone."""
    with tempfile.TemporaryDirectory(prefix="sparkonce-test-") as name:
        place = Path(name)
        place.chmod(0o755)
        Owner.choose().give(place)
        yield place


def _run(owner: Owner, *command: str) -> None:
    other = {"user": owner.uid, "group": owner.gid} if owner.is_other() else {}
    # Its output is a file: a server that pg_ctl starts would keep a pipe open.
    done = subprocess.run(command, stdout=subprocess.DEVNULL, cwd="/", check=False, **other)
    assert done.returncode == 0, command
