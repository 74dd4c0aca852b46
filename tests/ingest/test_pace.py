"""Looks that cost something are rare, and yet nothing that is there is called absent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
from pyspark.sql.streaming.datasource import ReadMaxRows

from sparkonce.ingest.pace import Pace
from sparkonce.ingest.source import TableSource
from sparkonce.local.postgres import LocalPostgres

Connect = Callable[[], psycopg.Connection[Any]]


class Time:
    """Passes by sleeping, and by looks that take a while."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.slept_s: list[float] = []

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.now_s += seconds


def test_a_rest_is_waited_for_and_then_there_is_a_look() -> None:
    time = Time()
    pace_ = Pace(time.clock, time.sleep)

    def search() -> None:
        time.now_s += 0.25

    assert pace_.look(search) is None
    assert pace_.look(lambda: "found") == "found"
    assert time.slept_s == [1.0]
    assert pace_.look(lambda: "at once") == "at once"
    assert time.slept_s == [1.0]


def test_nothing_is_said_only_after_a_look() -> None:
    """However long one takes: the rest after it is bounded, and waited for."""
    time, looks = Time(), []
    pace_ = Pace(time.clock, time.sleep)

    def search() -> None:
        looks.append(time.now_s)
        time.now_s += 20.0

    for number in range(1, 4):
        assert pace_.look(search) is None
        assert len(looks) == number
    assert time.slept_s == [10.0, 10.0]
    assert pace_.look(lambda: "found") == "found"


def test_rows_that_are_there_are_never_called_absent(
    postgres: LocalPostgres, connect: Connect, table: str
) -> None:
    """`processAllAvailable` ends with the first answer of nothing."""
    writer = connect()
    writer.autocommit = True
    writer.execute(f"CREATE TABLE {table} (id bigserial PRIMARY KEY)")
    source = TableSource({"url": postgres.url, "dbtable": table, "keyColumn": "id"})
    reader = source.streamReader(source.schema())
    try:
        at, limit = reader.initialOffset(), ReadMaxRows(100)
        for _ in range(5):
            while (end := reader.latestOffset(at, limit)) != at:
                at = end
            writer.execute(f"INSERT INTO {table} SELECT FROM generate_series(1, 100)")
            assert reader.latestOffset(at, limit) != at
    finally:
        reader.stop()
