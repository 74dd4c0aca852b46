"""Schedules: kept as text, read back; what they take of a trial."""

from __future__ import annotations

import pytest

from sparkonce.verify.network import DelayRequest, LoseRequest, LoseResponse
from sparkonce.verify.schedule import (
    AddPartitions,
    Arm,
    AwaitAnother,
    Checkpoint,
    Kill,
    KillIdleWorkers,
    KillSent,
    MoreInput,
    Outlast,
    Pause,
    Schedule,
    faults_of,
    lives,
    parse,
    settings_for,
    to_text,
)


def test_elements_are_shown_as_the_code_that_makes_them() -> None:
    drawn = (
        Kill(point="offsets", nth=2),
        LoseRequest("EndTxn"),
        Checkpoint(action="lose"),
        Arm(point="open", nth=2, fault=DelayRequest("Produce", until=("EndTxn", "Produce"))),
        MoreInput(),
        AwaitAnother(point="produce:first", nth=3),
        AddPartitions(point="open", nth=2, to=5),
        KillIdleWorkers(point="open", nth=2),
    )
    assert to_text(drawn) == (
        "Kill(point='offsets', nth=2)",
        "LoseRequest(api='EndTxn')",
        "Checkpoint(action='lose')",
        "Arm(point='open', nth=2, fault=DelayRequest(api='Produce', until=('EndTxn', 'Produce')))",
        "MoreInput()",
        "AwaitAnother(point='produce:first', nth=3)",
        "AddPartitions(point='open', nth=2, to=5)",
        "KillIdleWorkers(point='open', nth=2)",
    )
    assert parse(to_text(drawn)) == drawn


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ((), 1),
        ((LoseRequest("Produce"),), 1),
        ((Kill(point="open"),), 2),
        ((Kill(point="open"), Pause(point="end", life=1)), 3),
        ((KillSent(),), 2),
        ((MoreInput(),), 1),
    ],
)
def test_lives(schedule: Schedule, expected: int) -> None:
    """What comes behind all of them is not one of them."""
    assert lives(schedule) == expected


def test_faults_are_those_from_the_start_and_those_that_come_into_force() -> None:
    lost, cut = LoseRequest("Produce"), LoseResponse("EndTxn")
    schedule = (lost, Kill(point="open"), Arm(point="end", fault=cut))
    assert faults_of(schedule) == [lost, cut]


def test_a_client_gives_up_before_a_fault_that_lasts_is_over() -> None:
    away = Arm(point="end", fault=LoseRequest("EndTxn", lasting_s=4.0))
    unsent = Arm(point="open", fault=LoseRequest("Produce", lasting_s=2.5))
    assert float(settings_for((away,))["max.block.ms"]) < 4_000
    given = settings_for((unsent, Outlast(point="end")))
    assert float(given["delivery.timeout.ms"]) < 2_500
    assert "transaction.timeout.ms" in given
    assert settings_for((LoseRequest("EndTxn"), Kill(point="end"))) == {}
