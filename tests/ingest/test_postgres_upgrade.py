"""A real pg_upgrade: another system identifier, and the numbers of transactions go on."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ingest.following import Follower
from sparkonce.errors import ConfigError
from sparkonce.ingest.position import PositionError
from sparkonce.ingest.settings import TableSettings
from sparkonce.local.installation import find_postgres
from sparkonce.local.owner import Owner
from sparkonce.local.postgres import LocalPostgres

TABLES: dict[str, dict[str, str]] = {
    "plain": {},
    "numbered": {"transactionColumn": "txid"},
    "parted": {},
}
COLUMNS = "id bigserial, shard int NOT NULL, txid xid8 NOT NULL DEFAULT pg_current_xact_id()"


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sparkonce-test-") as name:
        place = Path(name)
        place.chmod(0o755)
        Owner.choose().give(place)
        yield place


def _upgrade(place: Path) -> None:
    """Makes `new` of `old`, both stopped, with the programs of one version."""
    for name in ("old", "new"):
        access = place / name / "data" / "pg_hba.conf"
        access.write_text(access.read_text().replace("scram-sha-256", "trust"))
    owner = Owner.choose()
    programs = str(find_postgres(owner).folder)
    other = {"user": owner.uid, "group": owner.gid} if owner.is_other() else {}
    old, new = (str(place / name / "data") for name in ("old", "new"))
    command = [f"{programs}/pg_upgrade", "-b", programs, "-B", programs, "-d", old, "-D", new]
    done = subprocess.run(
        [*command, "-U", "postgres", "-s", str(place)],
        cwd=place,
        check=False,
        capture_output=True,
        text=True,
        **other,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    shutil.copy(place / "old" / "password", place / "new" / "password")  # roles came along


def _run(server: LocalPostgres, *statements: str) -> None:
    with closing(psycopg.connect(server.url, autocommit=True)) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def _follow(server: LocalPostgres, table: str, **options: str) -> Follower:
    given = {"url": server.url, "dbtable": table, "keyColumn": "id", **TABLES[table], **options}
    return Follower(given)


def test_a_stream_goes_on_behind_pg_upgrade() -> None:
    with _folder() as place:
        old, new = (LocalPostgres(folder=place / name) for name in ("old", "new"))
        left: dict[str, Follower] = {}
        with old:
            _run(
                old,
                f"CREATE TABLE plain ({COLUMNS})",
                f"CREATE TABLE numbered ({COLUMNS})",
                f"CREATE TABLE parted ({COLUMNS}) PARTITION BY LIST (shard)",
                "CREATE TABLE parted_1 PARTITION OF parted FOR VALUES IN (1)",
                "CREATE TABLE parted_2 PARTITION OF parted FOR VALUES IN (2)",
                "ALTER TABLE plain ALTER id SET NOT NULL",
            )
            for table in TABLES:
                insert = (
                    f"INSERT INTO {table} (shard) SELECT 1 + g % 2 FROM generate_series(1, 6) g"
                )
                _run(old, insert)
                left[table] = _follow(old, table)
                left[table].step()  # the first six
                _run(old, insert)
                left[table].step(2, left[table].table.newest())  # and a window's first page
                assert left[table].keys == list(range(1, 9))
                left[table].close()
            former = str(left["plain"].table.form.system)
        with new:
            pass
        _upgrade(place)
        with new:
            for table, before in left.items():
                _goes_on(new, table, before, former)
            _refuses_other_children(new, left["parted"], former)


def _goes_on(new: LocalPostgres, table: str, before: Follower, former: str) -> None:
    _run(new, f"INSERT INTO {table} (shard) VALUES (1), (2)")
    unaware = _follow(new, table)
    unaware.offset = before.offset
    with pytest.raises(PositionError, match=f"formerSystemIdentifier={former}"):
        unaware.step()
    unaware.close()
    follower = _follow(new, table, formerSystemIdentifier=former)
    follower.offset = before.offset
    for start, end, rows in before.batches:  # as if the last one was run again
        assert follower.read(start, end) == rows
    follower.drain(2)
    assert follower.keys == [9, 10, 11, 12, 13, 14]
    assert former in follower.batches[1][1] and former not in follower.offset
    for start, end, rows in follower.batches:
        assert follower.read(start, end) == rows
    follower.close()
    # From there on it is a position like any other.
    _run(new, f"INSERT INTO {table} (shard) VALUES (1)")
    again = _follow(new, table)
    again.offset = follower.offset
    again.drain()
    assert again.keys == [15]
    again.close()


def _refuses_other_children(new: LocalPostgres, before: Follower, former: str) -> None:
    follower = _follow(new, "parted", formerSystemIdentifier=former)
    whole = before.batches[0][1]  # where no window was open
    follower.offset = whole
    _run(
        new,
        "CREATE TABLE late (LIKE parted INCLUDING DEFAULTS)",
        "INSERT INTO late (id, shard) VALUES (0, 3)",
        "ALTER TABLE parted ATTACH PARTITION late FOR VALUES IN (3)",
    )
    with pytest.raises(PositionError, match="DETACH those that are new"):
        follower.drain()
    _run(new, "ALTER TABLE parted DETACH PARTITION late")
    follower.drain()
    assert follower.keys == list(range(7, 16))
    _run(new, "ALTER TABLE parted ATTACH PARTITION late FOR VALUES IN (3)")
    assert [row["id"] for row in follower.drain()] == [0]
    follower.close()


def test_it_is_for_postgresql_alone() -> None:
    options: dict[str, Any] = {"dbtable": "t", "keyColumn": "id", "formerSystemIdentifier": "7"}
    with pytest.raises(ConfigError, match="formerSystemIdentifier is for PostgreSQL"):
        TableSettings.parse({"url": "sqlite:///x", **options})
