"""Schedules: drawn from a seed, kept as text, read back; what fits which pipeline."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparkonce.guarantees import Guarantee
from sparkonce.verify.contract import POINTS, Pipeline
from sparkonce.verify.network import LoseRequest
from sparkonce.verify.pipelines import built_in, peers_built_in
from sparkonce.verify.schedule import (
    FAMILIES,
    MIXED,
    Checkpoint,
    Kill,
    KillAfter,
    KillSent,
    Outlast,
    Pause,
    draw,
    families,
    lives,
    parse,
    to_text,
)

PIPELINES = {each.name: each for each in [*built_in(), *peers_built_in()]}
CELLS = [
    (name, guarantee, family)
    for name, pipeline in PIPELINES.items()
    for guarantee in pipeline.guarantees
    for family in [*families(pipeline, guarantee), MIXED]
]


@pytest.mark.parametrize(("name", "guarantee", "family"), CELLS)
def test_a_seed_makes_the_same_schedule_and_its_text_makes_it_again(
    seed: int, name: str, guarantee: Guarantee, family: str
) -> None:
    pipeline = PIPELINES[name]
    for number in range(20):
        drawn = draw(seed + number, pipeline, guarantee, family)
        assert drawn, "a trial without faults proves nothing"
        assert drawn == draw(seed + number, pipeline, guarantee, family)
        assert parse(to_text(drawn)) == drawn


def test_elements_are_shown_as_the_code_that_makes_them() -> None:
    drawn = (Kill(point="offsets", nth=2), LoseRequest("EndTxn"), Checkpoint(action="lose"))
    assert to_text(drawn) == (
        "Kill(point='offsets', nth=2)",
        "LoseRequest(api='EndTxn')",
        "Checkpoint(action='lose')",
    )


def test_points_are_those_that_the_pipeline_tells(seed: int) -> None:
    for name, guarantee, family in CELLS:
        pipeline = PIPELINES[name]
        for number in range(20):
            for each in draw(seed + number, pipeline, guarantee, family):
                if point := getattr(each, "point", None):
                    assert point in pipeline.points, (name, each)


def test_every_point_is_killed_at_by_some_seed() -> None:
    stateless = PIPELINES["stateless"]
    drawn = [draw(n, stateless, Guarantee.EXACTLY_ONCE, "crash")[0] for n in range(200)]
    assert {each.point for each in drawn if isinstance(each, Kill)} == set(POINTS)
    assert any(isinstance(each, KillSent) for each in drawn)


def test_a_batch_with_state_is_undone_and_so_is_the_one_behind_it() -> None:
    """Where the second begins from what is on disk, not in memory."""
    stateful = PIPELINES["stateful"]
    for number in range(20):
        first, second = draw(number, stateful, Guarantee.EXACTLY_ONCE, "timeout")
        assert isinstance(first, Outlast) and first.nth == 1
        assert second == replace(first, nth=3)
    crashes = [draw(n, stateful, Guarantee.EXACTLY_ONCE, "crash") for n in range(200)]
    twice = [each for each in crashes if lives(each) == 3]
    assert 30 < len(twice) < 90
    for kills in twice:
        assert [(each.nth, each.life) for each in kills if isinstance(each, Kill)] == [
            (1, 0),
            (2, 1),
        ]


def test_a_pipeline_that_tells_nothing_is_killed_with_records_on_their_way() -> None:
    peer: Pipeline = PIPELINES["Spark's own sink"]
    kinds = {type(draw(n, peer, Guarantee.EXACTLY_ONCE, "crash")[0]) for n in range(30)}
    assert kinds == {KillSent, KillAfter}
    # A control has to show something, so it is hit where it hurts.
    kinds = {type(draw(n, peer, Guarantee.AT_LEAST_ONCE, "crash")[0]) for n in range(30)}
    assert kinds == {KillSent}


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ((), 1),
        ((LoseRequest("Produce"),), 1),
        ((Kill(point="open"),), 2),
        ((Kill(point="open"), Pause(point="end", life=1)), 3),
        ((KillSent(),), 2),
    ],
)
def test_lives(schedule: tuple[object, ...], expected: int) -> None:
    assert lives(schedule) == expected  # type: ignore[arg-type]


def test_exactly_once_has_trials_in_all_families() -> None:
    own = [each for each in FAMILIES if each != "database"]
    assert families(PIPELINES["stateful"], Guarantee.EXACTLY_ONCE) == own
    into = Pipeline.load("sparkonce.verify.pipelines.into_postgres")
    of_tables = {"crash", "worker", "zombie", "checkpoint", "database"}
    assert set(families(into, Guarantee.EXACTLY_ONCE)) == of_tables
