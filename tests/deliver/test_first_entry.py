"""A table's ledger before the first batch, and under a run's former name; no Spark is needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from deliver.delta_folder import DeltaFolder
from sparkonce.deliver import duckdb, postgres
from sparkonce.deliver.conformance import ENTRY, SCHEMA, SOURCES
from sparkonce.deliver.sink import TableSink
from sparkonce.deliver.target import TableTarget
from sparkonce.guarantees import Guarantee
from sparkonce.stream.checkpoint import Checkpoint
from sparkonce.stream.ledger import Entry, run_query
from sparkonce.stream.recovery import Begin, GoOn, StartFromLedger, Step, next_step

Open = Callable[..., TableSink]
NEW, FIRST_BATCH = Checkpoint(None, None, None), Checkpoint(ENTRY.query, 0, None)
FIRST = replace(ENTRY, batch=-1, number=0)


@pytest.fixture(params=["duckdb", "postgres", "delta"])
def open_sink(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    def target(**options: str) -> TableTarget:
        if request.param == "delta":
            return DeltaFolder(tmp_path).target(**options)
        given = {"dbtable": "target", "createTable": "true", "pipeline": "payments"}
        if request.param == "postgres":
            # The ledger's schema is the table's, which the search path may say.
            url, schema = (request.getfixturevalue(f"postgres{each}") for each in ("", "_schema"))
            given["url"] = f"{url.url}?options=-csearch_path%3D{schema}"
            return postgres.target(given | options, None)
        given["path"] = str(tmp_path / "w.duckdb")
        return duckdb.target(given | options, None)

    def open_sink(**options: str) -> TableSink:
        made = target(**options)
        columns = made._columns(SCHEMA)
        store = made.open_store(made.settings, columns)
        return TableSink(made.settings, columns, store, None, None, made._former(columns))

    return open_sink


def step(entry: Entry | None, checkpoint: Checkpoint) -> Step:
    return next_step(
        entry,
        checkpoint,
        pipeline="payments",
        named_by="pipeline",
        location="/here",
        guarantee=Guarantee.EXACTLY_ONCE,
        ledger_lost="fail",
        keeps_state=False,
    )


def test_what_has_merely_begun_begins_again(open_sink: Open) -> None:
    sink = open_sink()
    assert step(sink.take_over(), NEW) == Begin()
    sink.sign(FIRST, [])
    sink.close()
    sink = open_sink()
    begun = sink.take_over()
    assert begun is not None and (begun.batch, begun.number) == (-1, 0)
    assert step(begun, NEW) == Begin(), "its checkpoint was lost before anything was recorded"
    assert step(begun, FIRST_BATCH) == GoOn(), "it died in its first batch"
    sink.sign(replace(ENTRY, batch=-1, number=1), SOURCES)
    sink.close()
    sink = open_sink()
    assert step(sink.take_over(), NEW) == StartFromLedger(), "it had gone on from its ledger"
    sink.close()


def test_a_run_is_found_under_its_former_name(open_sink: Open) -> None:
    """And nothing else that is there."""
    monday = replace(ENTRY, query=run_query("monday"), batch=0)
    for name, entry in (("payments-run-monday", monday), ("payments-run-tuesday", ENTRY)):
        sink = open_sink(pipeline=name)
        assert sink.take_over() is None
        sink.sign(entry, [])
        sink.close()
    for run_id, expected in (("monday", monday), ("tuesday", None), ("wednesday", None)):
        sink = open_sink(runId=run_id)
        assert sink.take_over() == expected
        sink.close()
