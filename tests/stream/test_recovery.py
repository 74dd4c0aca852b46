"""Ledger and checkpoint side by side: what is done, and what is refused with both named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparkonce.guarantees import Guarantee
from sparkonce.stream.checkpoint import Checkpoint
from sparkonce.stream.ledger import Entry, LedgerError
from sparkonce.stream.recovery import Begin, FinishCommit, GoOn, StartFromLedger, Step, next_step

OURS, OTHER = "query-a", "query-b"
RECORDED_AFTER_DATA = [each for each in Guarantee if each is not Guarantee.AT_MOST_ONCE]


def ledger(batch: int, query: str = OURS) -> Entry:
    return Entry(
        query=query,
        batch=batch,
        number=7,
        guarantee="exactly_once",
        host="worker-7",
        pid=4711,
        checkpoint="/former",
        sources=None,
    )


BEGUN = replace(ledger(-1), sources=())


def step(
    entry: Entry | None,
    checkpoint: Checkpoint,
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE,
    ledger_lost: str = "fail",
    *,
    keeps_state: bool = False,
) -> Step:
    return next_step(
        entry and replace(entry, guarantee=guarantee.value),
        checkpoint,
        pipeline="payments",
        named_by="kafka.transactional.id",
        location="/here",
        guarantee=guarantee,
        ledger_lost=ledger_lost,
        keeps_state=keeps_state,
    )


@pytest.mark.parametrize("guarantee", list(Guarantee))
@pytest.mark.parametrize(
    ("entry", "checkpoint", "expected"),
    [
        pytest.param(None, Checkpoint(None, None, None), Begin(), id="all new"),
        pytest.param(None, Checkpoint(OURS, None, None), Begin(), id="named, and died"),
        pytest.param(BEGUN, Checkpoint(OURS, None, None), Begin(), id="signed, and died"),
        pytest.param(BEGUN, Checkpoint(OURS, 0, None), GoOn(), id="died in its first batch"),
        pytest.param(BEGUN, Checkpoint(OURS, 2, 1), GoOn(), id="its first batches were empty"),
        pytest.param(BEGUN, Checkpoint(None, None, None), Begin(), id="signed, checkpoint lost"),
        pytest.param(BEGUN, Checkpoint(OTHER, None, None), Begin(), id="signed, checkpoint moved"),
        pytest.param(None, Checkpoint(OURS, 5, 5), GoOn(), id="another sink finished batch 5"),
        pytest.param(ledger(5), Checkpoint(OURS, 5, 5), GoOn(), id="all finished"),
        pytest.param(ledger(4), Checkpoint(OURS, 5, 4), GoOn(), id="batch 5 not decided"),
        pytest.param(ledger(2), Checkpoint(OURS, 5, 4), GoOn(), id="empty batches left out"),
        pytest.param(ledger(2), Checkpoint(OURS, 5, 5), GoOn(), id="the last ones were empty"),
        pytest.param(
            ledger(-1), Checkpoint(OURS, 0, None), GoOn(), id="from the ledger, died in 0"
        ),
        pytest.param(ledger(5), Checkpoint(None, None, None), StartFromLedger(), id="lost"),
        pytest.param(ledger(5, OTHER), Checkpoint(OURS, None, None), StartFromLedger(), id="moved"),
        pytest.param(
            ledger(-1),
            Checkpoint(OURS, None, None),
            StartFromLedger(),
            id="died between signing the ledger and planning its first batch",
        ),
    ],
)
def test_what_is_done_under_every_guarantee(
    entry: Entry | None, checkpoint: Checkpoint, expected: Step, guarantee: Guarantee
) -> None:
    assert step(entry, checkpoint, guarantee) == expected


@pytest.mark.parametrize("checkpoint", [Checkpoint(OURS, 5, 4), Checkpoint(OURS, 5, None)])
@pytest.mark.parametrize("guarantee", RECORDED_AFTER_DATA)
def test_a_batch_that_was_decided_is_finished(guarantee: Guarantee, checkpoint: Checkpoint) -> None:
    assert step(ledger(5), checkpoint, guarantee) == FinishCommit(5)


@pytest.mark.parametrize("guarantee", RECORDED_AFTER_DATA)
def test_a_commit_that_was_lost_is_written_though_the_next_batch_is_planned(
    guarantee: Guarantee,
) -> None:
    assert step(ledger(4), Checkpoint(OURS, 5, 3), guarantee) == FinishCommit(4)
    assert step(ledger(4), Checkpoint(OURS, 5, None), guarantee) == FinishCommit(4)


def test_the_very_first_batch_is_finished_too() -> None:
    assert step(ledger(0), Checkpoint(OURS, 0, None)) == FinishCommit(0)


def test_at_most_once_lets_spark_run_it_again_for_its_state() -> None:
    assert step(ledger(5), Checkpoint(OURS, 5, 4), Guarantee.AT_MOST_ONCE) == GoOn()


@pytest.mark.parametrize(("planned", "committed"), [(5, 4), (5, None), (0, None)])
def test_a_ledger_that_is_gone_is_asked_about(planned: int, committed: int | None) -> None:
    """That of a first batch too: it was signed before the batch was planned."""
    checkpoint = Checkpoint(OURS, planned, committed)
    assert step(None, checkpoint, ledger_lost="replay") == GoOn()
    assert step(None, checkpoint, ledger_lost="skip") == FinishCommit(planned)
    with pytest.raises(LedgerError) as refused:
        step(None, checkpoint)
    said = str(refused.value)
    for words in (
        f"batch {planned}",
        "/here",
        "'payments'",
        "offsets.retention.minutes",
        "ledgerLost",
    ):
        assert words in said


@pytest.mark.parametrize("guarantee", list(Guarantee))
@pytest.mark.parametrize(("planned", "committed"), [(5, 4), (0, None)])
def test_a_batch_with_state_is_not_skipped(
    planned: int, committed: int | None, guarantee: Guarantee
) -> None:
    """Nobody could say which state Spark has to go on from."""
    checkpoint = Checkpoint(OURS, planned, committed)
    with pytest.raises(LedgerError, match=rf"skip takes batch {planned} of /here .*keeps state"):
        step(None, checkpoint, guarantee, "skip", keeps_state=True)
    assert step(None, checkpoint, guarantee, "replay", keeps_state=True) == GoOn()


def test_state_is_no_reason_to_refuse_where_the_ledger_is_there() -> None:
    found = step(ledger(5), Checkpoint(OURS, 5, 4), ledger_lost="skip", keeps_state=True)
    assert found == FinishCommit(5)
    found = step(None, Checkpoint(OURS, 5, 5), ledger_lost="skip", keeps_state=True)
    assert found == GoOn()


@pytest.mark.parametrize("guarantee", [each for each in Guarantee if each.may_repeat])
def test_where_records_may_be_repeated_the_batch_is_run_again(guarantee: Guarantee) -> None:
    assert step(None, Checkpoint(OURS, 5, 4), guarantee) == GoOn()
    assert step(None, Checkpoint(OURS, 5, 4), guarantee, "skip") == FinishCommit(5)


def test_at_most_once_asks_too() -> None:
    with pytest.raises(LedgerError, match="ledgerLost"):
        step(None, Checkpoint(OURS, 5, 4), Guarantee.AT_MOST_ONCE)


@pytest.mark.parametrize("ledger_lost", ["fail", "replay", "skip"])
def test_nothing_is_asked_where_nothing_is_open(ledger_lost: str) -> None:
    assert step(None, Checkpoint(OURS, 5, 5), ledger_lost=ledger_lost) == GoOn()
    assert step(ledger(4), Checkpoint(OURS, 5, 4), ledger_lost=ledger_lost) == GoOn()
    assert step(ledger(5), Checkpoint(OURS, 5, 4), ledger_lost=ledger_lost) == FinishCommit(5)


@pytest.mark.parametrize("ledger_lost", ["fail", "replay", "skip"])
@pytest.mark.parametrize("guarantee", list(Guarantee))
@pytest.mark.parametrize(
    ("entry", "checkpoint", "words"),
    [
        pytest.param(
            ledger(5, OTHER),
            Checkpoint(OURS, 5, 4),
            ["'payments'", "/former", OTHER, "/here", OURS, "transactional.id", "empty checkpoint"],
            id="another query's checkpoint",
        ),
        pytest.param(
            ledger(5),
            Checkpoint(None, 5, 4),
            ["'payments'", OURS, "/here", "None"],
            id="a checkpoint without a name",
        ),
        pytest.param(
            ledger(6),
            Checkpoint(OURS, 5, 4),
            ["/here is older", "planned batch 5", "'payments'", "batch 6", "/former", "Restore"],
            id="a checkpoint from a backup",
        ),
        pytest.param(
            ledger(6),
            Checkpoint(OURS, 5, 5),
            ["/here is older", "planned batch 5", "batch 6"],
            id="a whole one from a backup",
        ),
        pytest.param(
            ledger(5),
            Checkpoint(OURS, None, None),
            ["/here has lost its offsets", "batch 5", "/former", "remove what is left"],
            id="offsets deleted",
        ),
    ],
)
def test_what_is_refused_names_both_sides(
    entry: Entry,
    checkpoint: Checkpoint,
    words: list[str],
    guarantee: Guarantee,
    ledger_lost: str,
) -> None:
    with pytest.raises(LedgerError) as refused:
        step(entry, checkpoint, guarantee, ledger_lost)
    for word in [*words, "process 4711 on worker-7"]:
        assert word in str(refused.value)
