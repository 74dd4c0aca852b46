"""Tables that are attached to the one that is read, with rows older than the position."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from ingest.following import Follower
from sparkonce.errors import ConfigError
from sparkonce.ingest.postgres.children import Attachment, Children, same_tables, widened

Connect = Callable[[], psycopg.Connection[Any]]
Follow = Callable[..., Follower]

WAYS = {
    "row versions": {},
    "recent keys": {"keyLag": "1000"},
    "column": {"transactionColumn": "txid"},
    "update time": {"updateColumn": "changed"},
    "update time and column": {"updateColumn": "changed", "transactionColumn": "txid"},
}
COLUMNS = """id bigserial NOT NULL, shard int NOT NULL, value text,
             txid xid8 NOT NULL DEFAULT pg_current_xact_id(),
             changed timestamptz NOT NULL DEFAULT clock_timestamp()"""


@pytest.fixture
def run(connect: Connect) -> Callable[[str], None]:
    """Each in a transaction of its own."""

    def statement(sql: str) -> None:
        with connect() as connection:
            connection.execute(sql.encode())

    return statement


Run = Callable[[str], None]


def _partitioned(run: Run, table: str) -> None:
    run(f"CREATE TABLE {table} ({COLUMNS}) PARTITION BY LIST (shard)")
    run(f"CREATE TABLE {table}_0 PARTITION OF {table} FOR VALUES IN (0)")
    _set_txid(run, table)


def _set_txid(run: Run, table: str) -> None:
    """Rows that are changed get a new number; so does each row of a partition."""
    run(
        "CREATE OR REPLACE FUNCTION set_txid() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN NEW.txid := pg_current_xact_id(); RETURN NEW; END'"
    )
    run(
        f"CREATE TRIGGER set_txid BEFORE UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION set_txid()"
    )


def _standalone(run: Run, table: str, shard: int, count: int) -> None:
    """Like a partition, with rows whose keys and numbers are from the table's own."""
    run(f"CREATE TABLE {table}_{shard} (LIKE {table} INCLUDING DEFAULTS)")
    run(f"INSERT INTO {table}_{shard} (shard) SELECT {shard} FROM generate_series(1, {count})")


def _attach(table: str, shard: int) -> str:
    return f"ALTER TABLE {table} ATTACH PARTITION {table}_{shard} FOR VALUES IN ({shard})"


def _reads_the_same_again(follower: Follower) -> None:
    for start, end, rows in follower.batches:
        assert follower.read(start, end) == rows


@pytest.mark.parametrize("way", WAYS)
def test_rows_of_a_partition_that_is_attached_are_read(
    run: Run, follow: Follow, table: str, way: str
) -> None:
    _partitioned(run, table)
    _standalone(run, table, 1, 5)  # keys 1 to 5
    run(f"INSERT INTO {table} (shard) SELECT 0 FROM generate_series(1, 5)")
    follower = follow(dbtable=table, **WAYS[way])
    assert [row["id"] for row in follower.drain()] == [6, 7, 8, 9, 10]
    run(_attach(table, 1))
    _reads_the_same_again(follower)
    assert [row["id"] for row in follower.drain(2)] == [1, 2, 3, 4, 5]
    run(f"INSERT INTO {table} (shard) VALUES (1), (0)")
    assert [row["id"] for row in follower.drain()] == [11, 12]
    _reads_the_same_again(follower)


@pytest.mark.parametrize("way", WAYS)
def test_rows_of_a_table_that_inherits_are_read(
    run: Run, follow: Follow, table: str, way: str
) -> None:
    run(f"CREATE TABLE {table} ({COLUMNS})")
    _standalone(run, table, 1, 3)
    for each in (table, f"{table}_1"):
        _set_txid(run, each)
    run(f"INSERT INTO {table} (shard) VALUES (0)")
    follower = follow(dbtable=table, **WAYS[way])
    assert [row["id"] for row in follower.drain()] == [4]
    run(f"ALTER TABLE {table}_1 INHERIT {table}")
    _reads_the_same_again(follower)
    assert [row["id"] for row in follower.drain()] == [1, 2, 3]
    run(f"ALTER TABLE {table}_1 NO INHERIT {table}")
    run(f"INSERT INTO {table} (shard) VALUES (0)")
    assert [row["id"] for row in follower.drain()] == [5]
    run(f"ALTER TABLE {table}_1 INHERIT {table}")  # all its rows have come into the table again
    assert [row["id"] for row in follower.drain()] == [1, 2, 3]


def test_a_partition_below_a_partition_counts_from_when_all_of_them_were_attached(
    run: Run, follow: Follow, table: str
) -> None:
    _partitioned(run, table)
    run(f"CREATE TABLE {table}_1 (LIKE {table} INCLUDING DEFAULTS) PARTITION BY LIST (shard)")
    run(f"CREATE TABLE {table}_1a (LIKE {table} INCLUDING DEFAULTS)")
    run(f"INSERT INTO {table}_1a (shard) VALUES (1)")
    run(f"INSERT INTO {table} (shard) VALUES (0)")
    follower = follow(dbtable=table)
    assert [row["id"] for row in follower.drain()] == [2]
    run(f"ALTER TABLE {table}_1 ATTACH PARTITION {table}_1a FOR VALUES IN (1)")
    run(f"INSERT INTO {table} (shard) VALUES (0)")
    assert [row["id"] for row in follower.drain()] == [3]
    run(_attach(table, 1))
    assert [row["id"] for row in follower.drain()] == [1]
    _reads_the_same_again(follower)


def test_a_partition_waits_for_the_horizon_as_rows_do(
    run: Run, connect: Connect, follow: Follow, table: str
) -> None:
    _partitioned(run, table)
    _standalone(run, table, 1, 2)
    run(f"INSERT INTO {table} (shard) VALUES (0)")
    follower = follow(dbtable=table)
    open_ = connect()
    open_.execute(f"INSERT INTO {table} (shard) VALUES (0)")
    run(_attach(table, 1))
    assert [row["id"] for row in follower.drain()] == [3]
    assert follower.drain() == []
    _reads_the_same_again(follower)
    open_.commit()
    assert [row["id"] for row in follower.drain()] == [1, 2, 4]
    _reads_the_same_again(follower)


def test_nothing_of_an_attached_partition_is_deleted_before_it_was_read(
    run: Run, connect: Connect, follow: Follow, table: str
) -> None:
    _partitioned(run, table)
    _standalone(run, table, 1, 3)
    run(f"INSERT INTO {table} (shard, value) VALUES (0, 'v')")
    follower = follow(dbtable=table, outbox="true", deleteAfterPublishing="true")
    assert [row["id"] for row in follower.drain()] == [4]
    run(_attach(table, 1))
    follower.delete()
    assert _keys(connect, table) == [1, 2, 3]
    assert [row["id"] for row in follower.step(2, follower.table.newest())] == [1, 2]
    follower.delete()
    assert _keys(connect, table) == [3]
    follower.drain()
    follower.delete()
    assert _keys(connect, table) == []


def _keys(connect: Connect, table: str) -> list[int]:
    with connect() as connection:
        rows = connection.execute(f"SELECT id FROM {table} ORDER BY id").fetchall()
    return [key for (key,) in rows]


def test_a_partition_that_is_being_detached_is_not_taken_for_a_new_one(
    run: Run, connect: Connect, follow: Follow, table: str
) -> None:
    _partitioned(run, table)
    run(f"CREATE TABLE {table}_1 PARTITION OF {table} FOR VALUES IN (1)")
    run(f"INSERT INTO {table} (shard) VALUES (0), (1)")
    follower = follow(dbtable=table)
    assert [row["id"] for row in follower.drain()] == [1, 2]
    reader, detacher = connect(), connect()
    reader.execute(f"SELECT FROM {table}")  # which the second half of the detachment waits for
    detacher.autocommit = True
    detacher.execute("SET lock_timeout = '50ms'")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        detacher.execute(f"ALTER TABLE {table} DETACH PARTITION {table}_1 CONCURRENTLY".encode())
    reader.rollback()
    run(f"INSERT INTO {table} (shard) VALUES (0)")
    assert [row["id"] for row in follower.drain()] == [3]
    run(f"ALTER TABLE {table} DETACH PARTITION {table}_1 FINALIZE")
    run(f"INSERT INTO {table} (shard) VALUES (0)")
    assert [row["id"] for row in follower.drain()] == [4]


def test_a_foreign_table_is_refused_whenever_it_is_attached(
    run: Run, follow: Follow, table: str
) -> None:
    _partitioned(run, table)
    run(f"INSERT INTO {table} (shard) VALUES (0)")
    follower = follow(dbtable=table)
    follower.drain()
    run(f"CREATE FOREIGN DATA WRAPPER {table}_w")
    try:
        run(f"CREATE SERVER {table}_s FOREIGN DATA WRAPPER {table}_w")
        run(
            f"CREATE FOREIGN TABLE {table}_1 PARTITION OF {table} FOR VALUES IN (1) "
            f"SERVER {table}_s"
        )
        with pytest.raises(ConfigError, match=f"{table}_1 is a foreign table"):
            follower.drain()
        with pytest.raises(ConfigError, match="foreign table"):
            follow(dbtable=table)
    finally:
        run(f"DROP FOREIGN DATA WRAPPER {table}_w CASCADE")


def test_a_position_without_children_knows_them_by_their_numbers(
    run: Run, follow: Follow, table: str
) -> None:
    """As checkpoints were before positions named children."""
    _partitioned(run, table)
    _standalone(run, table, 1, 2)
    run(f"INSERT INTO {table} (shard) VALUES (0)")
    follower = follow(dbtable=table)
    follower.drain()
    position = follower.table.form.from_json(_without_children(follower.offset))
    follower.offset = follower._noted(position)
    assert "children" not in follower.offset
    run(_attach(table, 1))
    assert [row["id"] for row in follower.drain()] == [1, 2]


def _without_children(offset: str) -> dict[str, Any]:
    import json

    fields: dict[str, Any] = json.loads(offset)
    del fields["children"]
    return fields


def test_a_reader_that_may_not_ask_the_partition_itself(
    run: Run, follow: Follow, table: str
) -> None:
    _partitioned(run, table)
    _standalone(run, table, 1, 2)
    run(f"INSERT INTO {table} (shard) VALUES (0)")
    run(f"CREATE ROLE {table} LOGIN PASSWORD 'secret'")
    try:
        run(f"GRANT SELECT ON {table} TO {table}")
        follower = follow(dbtable=table, user=table, password="secret")
        assert [row["id"] for row in follower.drain()] == [3]
        run(_attach(table, 1))
        assert [row["id"] for row in follower.drain()] == [1, 2]
    finally:
        run(f"DROP OWNED BY {table}; DROP ROLE {table}")


@pytest.mark.parametrize("way", WAYS)
def test_every_row_is_read_once_whatever_is_attached_when(
    run: Run, connect: Connect, follow: Follow, table: str, way: str, seed: int
) -> None:
    random_ = random.Random(f"{seed} {way} attached")
    _partitioned(run, table)
    follower = follow(dbtable=table, **WAYS[way])
    shards, attached = 0, 1
    attaching: psycopg.Connection[Any] | None = None
    writer = connect()
    for _ in range(120):
        action = random_.choice(["prepare", "attach", "commit", "write", "end", "step", "step"])
        if action == "prepare" and shards < 12:
            shards += 1
            _standalone(run, table, shards, random_.randrange(4))
        elif action == "attach" and attaching is None and attached <= shards:
            attaching = connect()
            attaching.execute(_attach(table, attached).encode())
            attached += 1
        elif action == "commit" and attaching is not None:
            attaching.commit()
            attaching = None
        elif action == "write":
            writer.execute(f"INSERT INTO {table} (shard) VALUES (0)")
        elif action == "end":
            random_.choice([writer.commit, writer.rollback])()
        elif action == "step":
            follower.step(random_.choice([None, 1, 3]), follower.table.newest())
            if random_.random() < 0.2:
                follower.reopen()
    writer.commit()
    if attaching is not None:
        attaching.commit()
    follower.drain(random_.choice([None, 2]))
    assert sorted(follower.keys) == _keys(connect, table)
    assert attached > 3
    _reads_the_same_again(follower)


def test_numbers_of_attachments_that_come_around() -> None:
    assert widened(700, 1000) == 700
    assert widened(999, 2**32 + 1000) == 2**32 + 999
    assert widened(1001, 2**32 + 1000) == 1001
    assert widened(5, 3 * 2**32 + 5) == 2 * 2**32 + 5


def test_a_child_of_several_parents_counts_from_the_first_way_that_was_complete() -> None:
    def attachment(child: int, parent: int, xid: int) -> Attachment:
        return Attachment(child, parent, xid, xid, f"t{child}")

    children = Children(
        1,
        (
            attachment(4, 2, 10),
            attachment(4, 3, 20),
            attachment(2, 1, 50),
            attachment(3, 1, 15),
            attachment(5, 4, 12),
        ),
    )
    assert children.xids == {2: 50, 3: 15, 4: 20, 5: 20}
    assert children.before(50).xids == {3: 15, 4: 20, 5: 20}
    assert children.before(20).xids == {3: 15}
    assert children.before(15).fingerprint is None


def test_a_fingerprint_tells_tables_and_attachments_apart() -> None:
    one = Children(1, (Attachment(2, 1, 7, 7, "a"),)).fingerprint
    again = Children(1, (Attachment(2, 1, 9, 9, "a"),)).fingerprint
    other = Children(1, (Attachment(3, 1, 7, 7, "b"),)).fingerprint
    assert one != again and same_tables(one, again)
    assert not same_tables(one, other)
    assert not same_tables(one, None) and same_tables(None, None)
