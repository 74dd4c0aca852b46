"""A commit whose answer never came: the ledger is asked, and nothing is guessed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import sparkonce
from deliver.tables import DuckDBTable
from sparkonce.deliver import duckdb, register
from sparkonce.deliver.conformance import ENTRY, SCHEMA, SOURCES
from sparkonce.deliver.sink import TableSink
from sparkonce.deliver.store import Store, StoreError, Transaction
from sparkonce.deliver.target import TableTarget
from sparkonce.errors import OutcomeUnknown


class Unanswered:
    """Of the first commit nobody hears; whether it happened, and can be asked, is as told."""

    def __init__(self, store: Store, *, happened: bool, answers: bool) -> None:
        self._store = store
        self._happened = happened
        self._answers = answers
        self._commits = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def holder(self) -> Any:
        if self._commits and not self._answers:
            raise StoreError("nobody there")
        return self._store.holder()

    def begin(self, epoch: int) -> Transaction:
        transaction = self._store.begin(epoch)
        commit = transaction.commit

        def lose_the_answer() -> None:
            self._commits += 1
            if self._commits > 1:
                commit()
                return
            if self._happened:
                commit()
            else:
                transaction.rollback()
            raise OutcomeUnknown("no answer")

        transaction.commit = lose_the_answer  # type: ignore[method-assign]
        return transaction


def write(spark: SparkSession, table: DuckDBTable, **how: bool) -> None:
    def target(options: Mapping[str, str], query_name: str | None) -> TableTarget:
        made = duckdb.target(options, query_name)
        return replace(made, open_store=lambda *given: Unanswered(made.open_store(*given), **how))

    register("unanswered", target)
    (
        sparkonce.write(spark.range(10))
        .format("unanswered")
        .option("pipeline", "p")
        .option("runId", "once")
        .options(**table.options())
        .save()
    )


@pytest.mark.parametrize("happened", [True, False])
def test_each_row_once_whether_it_happened_or_not(
    spark: SparkSession, tmp_path: Path, happened: bool
) -> None:
    table = DuckDBTable(tmp_path / "w.duckdb")
    write(spark, table, happened=happened, answers=True)
    assert sorted(row["id"] for row in table.rows()) == list(range(10))


@pytest.mark.parametrize("happened", [True, False])
def test_where_the_ledger_can_not_be_asked_nothing_is_tried_again(
    spark: SparkSession, tmp_path: Path, happened: bool
) -> None:
    table = DuckDBTable(tmp_path / "w.duckdb")
    with pytest.raises(OutcomeUnknown, match="nobody there"):
        write(spark, table, happened=happened, answers=False)
    assert len(table.rows()) == (10 if happened else 0)


@pytest.mark.parametrize("happened", [True, False])
@pytest.mark.parametrize("answers", [True, False])
def test_a_signature(tmp_path: Path, happened: bool, answers: bool) -> None:
    """Before the first batch, of a driver that goes on from an entry with sources."""
    table = DuckDBTable(tmp_path / "w.duckdb")
    made = duckdb.target({"pipeline": "p", **table.options()}, None)
    columns = made._columns(SCHEMA)
    store = Unanswered(made.open_store(made.settings, columns), happened=happened, answers=answers)
    sink = TableSink(made.settings, columns, store, None, None)
    sink.take_over()
    signed = replace(ENTRY, sources=("t",))
    if happened and answers:
        sink.sign(signed, SOURCES)
    else:
        expected, told = (StoreError, "not happen") if answers else (OutcomeUnknown, "nobody there")
        with pytest.raises(expected, match=told):
            sink.sign(signed, SOURCES)
    sink.close()
    opened = made.open_store(made.settings, columns)
    held = opened.holder()
    assert (held.entry, held.sources) == ((ENTRY, SOURCES) if happened else (None, None))
    opened.close()
