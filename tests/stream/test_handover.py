"""Rows handed to Python by count, as long as their size is known and nothing has failed."""

from __future__ import annotations

from pyspark.sql import SparkSession

from sparkonce.stream.handover import Handover

ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"


def rows_for(row_bytes: int, rows_max: int = 10_000) -> int | None:
    handover = Handover()
    handover.learn(10, 10 * row_bytes)
    settings = handover.settings(rows_max)
    return int(settings[ROWS]) if settings else None


def test_the_count_follows_the_size_of_rows() -> None:
    assert rows_for(100) == 10_000, "what Spark has set is the most"
    assert rows_for(1000) == 1024 * 1024 // 1000
    assert rows_for(1_000_000) == 100, "and never too few"
    assert rows_for(1000, rows_max=500) == 500
    assert rows_for(1000, rows_max=0) == 1024 * 1024 // 1000, "0 is no limit, to Spark"


def test_nothing_is_changed_before_sizes_are_known_and_after_a_failure() -> None:
    handover = Handover()
    assert handover.settings(10_000) == {}
    handover.learn(0, 0)
    assert handover.settings(10_000) == {}
    handover.learn(10, 1000)
    assert handover.settings(10_000)
    handover.be_careful()
    assert handover.settings(10_000) == {}


def test_the_session_has_its_own_settings_back(spark: SparkSession) -> None:
    own = spark.newSession()
    own.conf.set(ROWS, "1234")
    before = own.conf.get(BYTES)
    handover = Handover()
    handover.learn(10, 1000)
    with handover.in_force(own):
        assert (own.conf.get(ROWS), own.conf.get(BYTES)) == ("1234", str(2**31 - 1))
    assert (own.conf.get(ROWS), own.conf.get(BYTES)) == ("1234", before)
