"""What the verifier does to a database server."""

from __future__ import annotations

import psycopg

from sparkonce.local import LocalPostgres
from sparkonce.verify.disturb import Server


def next_number(postgres: LocalPostgres) -> int:
    """Of a transaction that writes nothing, so nobody waits until its end is on disk."""
    with psycopg.connect(postgres.url) as connection:
        found = connection.execute("SELECT txid_current()").fetchone()
    assert found is not None
    return int(found[0])


def test_numbers_are_given_out_again_where_the_log_was_held() -> None:
    with LocalPostgres() as postgres:
        server = Server(postgres)
        server.hold_log()
        before = [next_number(postgres) for _ in range(3)]
        server.disturb("kill")
        assert next_number(postgres) == before[0]
        server.settle()
