"""What is drawn of a seed: the same again, within what happens, and round among what there is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kafka.partitioner import murmur2

from sparkonce.guarantees import Guarantee
from sparkonce.verify.clusters import TRANSACTIONS_LEFT
from sparkonce.verify.contract import POINTS, Pipeline
from sparkonce.verify.drawing import Plan, draw
from sparkonce.verify.families import (
    CHECKPOINT,
    COORDINATOR,
    CRASH,
    EPOCHS,
    EXECUTOR,
    EXPIRY,
    FAMILIES,
    LATE,
    MIXED,
    NETWORK,
    PARTITIONS,
    REFUSAL,
    STATE,
    TIMEOUT,
    ZOMBIE,
    families,
    trials_of,
)
from sparkonce.verify.network import (
    CorruptRequest,
    CutMidFrame,
    DelayRequest,
    DelayResponse,
    DuplicateRequest,
    LoseRequest,
    LoseResponse,
    Reorder,
    Stall,
)
from sparkonce.verify.pipelines import built_in, ends_built_in, peers_built_in
from sparkonce.verify.schedule import (
    ENDS,
    AddPartitions,
    Arm,
    AwaitAnother,
    AwaitSnapshot,
    Checkpoint,
    Kill,
    KillAfter,
    KillExecutor,
    KillIdleWorkers,
    KillOtherExecutor,
    KillSent,
    MoreInput,
    Outlast,
    Pause,
    faults_of,
    lives,
    parse,
    to_text,
)
from sparkonce.verify.traffic import requests, transactions
from sparkonce.verify.workload import BY_VERSION, Workload

PIPELINES = {each.name: each for each in [*built_in(), *ends_built_in(), *peers_built_in()]}
EXACTLY = Guarantee.EXACTLY_ONCE
CELLS = [
    (name, guarantee, family)
    for name, pipeline in PIPELINES.items()
    for guarantee in pipeline.guarantees
    for family in [*families(pipeline, guarantee), MIXED if pipeline.families is None else EXECUTOR]
]


def plans(name: str, family: str, count: int = 200, guarantee: Guarantee = EXACTLY) -> list[Plan]:
    return [draw(number, PIPELINES[name], guarantee, family) for number in range(count)]


def turns(name: str, family: str) -> list[Plan]:
    """As a cell of the quick preset has them."""
    count = trials_of(PIPELINES[name], EXACTLY, family)
    return [draw(7, PIPELINES[name], EXACTLY, family, turn=turn) for turn in range(count)]


@pytest.mark.parametrize(("name", "guarantee", "family"), CELLS)
def test_a_seed_makes_the_same_plan_and_its_text_makes_it_again(
    seed: int, name: str, guarantee: Guarantee, family: str
) -> None:
    pipeline = PIPELINES[name]
    for number in range(20):
        drawn = draw(seed + number, pipeline, guarantee, family)
        assert drawn.schedule, "a trial without faults proves nothing"
        assert drawn == draw(seed + number, pipeline, guarantee, family)
        assert parse(to_text(drawn.schedule)) == drawn.schedule
        assert Workload.parse(repr(drawn.workload)) == drawn.workload


def test_points_are_those_that_the_pipeline_tells(seed: int) -> None:
    for name, guarantee, family in CELLS:
        pipeline = PIPELINES[name]
        for number in range(20):
            for each in draw(seed + number, pipeline, guarantee, family).schedule:
                if point := getattr(each, "point", None):
                    assert point in pipeline.points, (name, each)


def test_no_fault_of_the_network_waits_for_more_than_is_sent() -> None:
    """Of each transaction there is one TxnOffsetCommit and one EndTxn, and so many Produce."""
    for name in ("producer", "joined producers", "stateless", "topics", "batch"):
        pipeline = PIPELINES[name]
        for plan in [*plans(name, NETWORK), *turns(name, NETWORK)]:
            sent = requests(pipeline, plan.workload)
            places = []
            for arm in plan.schedule:
                assert isinstance(arm, Arm) and arm.point in ("open", "produce:first")
                assert arm.nth <= transactions(pipeline, plan.workload)
                assert arm.fault.nth <= (sent if arm.fault.api == "Produce" else 1), plan
                places.append((arm.nth, arm.fault.api, arm.fault.nth))
            assert len(set(places)) == len(places), "one of two would wait for the next request"


@pytest.mark.parametrize("name", ["producer", "joined producers"])
def test_each_fault_of_the_network_has_a_transaction_to_itself(name: str) -> None:
    """One that leads to an abort undoes what another one has brought about."""
    for turn in range(12):
        for seed in range(10):
            plan = draw(seed, PIPELINES[name], EXACTLY, NETWORK, turn=turn)
            assert len(plan.schedule) == (7 if plan.workload.batch_size else 8)
            nths = [each.nth for each in plan.schedule if isinstance(each, Arm)]
            assert len(set(nths)) == len(plan.schedule)
            assert max(nths) <= plan.workload.batches


@pytest.mark.parametrize("name", ["producer", "joined producers"])
def test_each_trial_of_the_network_has_what_surely_hurts_in_it(name: str) -> None:
    """The last request of a partition is lost, or its answer; or one in the midst of many is
    refused, so that those behind it are out of order."""
    for turn in range(12):
        plan = draw(3, PIPELINES[name], EXACTLY, NETWORK, turn=turn)
        assert DuplicateRequest("EndTxn", until="Produce") in faults_of(plan.schedule)
        if plan.workload.batch_size:
            halfway = requests(PIPELINES[name], plan.workload) // 2
            corrupted = [e for e in faults_of(plan.schedule) if isinstance(e, CorruptRequest)]
            assert any(5 < each.nth <= halfway for each in corrupted)
        else:
            arms = [each for each in plan.schedule if isinstance(each, Arm)]
            behind = {type(e.fault) for e in arms if e.point == "produce:first"}
            assert behind == {LoseRequest, LoseResponse}


@pytest.mark.parametrize("name", ["stateless", "stateful", "dead letters"])
def test_faults_that_share_transactions_are_spread_over_them(name: str) -> None:
    for turn in range(12):
        plan = draw(3, PIPELINES[name], EXACTLY, NETWORK, turn=turn)
        # Three of Produce: of few records there is one for each transaction.
        assert len(plan.schedule) == (5 if plan.workload.batch_size else 4)
        nths = [each.nth for each in plan.schedule if isinstance(each, Arm)]
        assert set(nths) == {1, 2} and max(map(nths.count, nths)) <= 3


def test_what_waits_for_another_transaction_is_not_aimed_at_the_last() -> None:
    waiting = 0
    for name in ("producer", "joined producers", "stateless", "batch"):
        pipeline = PIPELINES[name]
        for plan in [*plans(name, NETWORK), *turns(name, NETWORK)]:
            for arm in plan.schedule:
                fault = arm.fault if isinstance(arm, Arm) else None
                if fault and fault.api == "EndTxn" and getattr(fault, "until", None) == "Produce":
                    assert isinstance(arm, Arm)
                    assert arm.nth < transactions(pipeline, plan.workload), plan
                    waiting += 1
    assert waiting > 50


def test_large_trials_are_aimed_at_the_middle_and_the_end_of_a_transaction() -> None:
    drawn = [plan for plan in plans("stateless", NETWORK) if plan.workload.batch_size]
    sent = requests(PIPELINES["stateless"], drawn[0].workload)
    assert sent > 100
    nths = {each.nth for plan in drawn for each in faults_of(plan.schedule)}
    assert nths == {1, (sent + 1) // 2, sent}


def test_a_cell_of_the_quick_preset_has_each_kind_of_input_and_different_faults() -> None:
    drawn = turns("stateless", NETWORK)
    workloads = [plan.workload for plan in drawn]
    assert any(each.batch_size for each in workloads)
    assert any(each.aborted for each in workloads)
    assert any(each.partitions > 2 for each in workloads)
    kinds = [(type(f).__name__, f.api) for plan in drawn for f in faults_of(plan.schedule)]
    assert len(set(kinds)) > 8
    of_produce = {type(f) for p in turns("producer", NETWORK) for f in faults_of(p.schedule)}
    assert of_produce == {Stall, Reorder, CorruptRequest, CutMidFrame, DelayRequest, DelayResponse,
                          DuplicateRequest, LoseRequest, LoseResponse}  # fmt: skip
    crashed = [plan.schedule[0] for plan in turns("stateless", "crash")]
    assert len({repr(each) for each in crashed}) == len(crashed)


def test_sizes_and_input_of_exactly_once_differ_from_seed_to_seed() -> None:
    own = families(PIPELINES["topics"], EXACTLY)
    workloads = {plan.workload for family in own for plan in plans("topics", family, 40)}
    assert any(each.aborted for each in workloads)
    assert any(each.per_batch >= 1_000 and each.value_bytes > each.batch_size for each in workloads)
    assert any(each.partitions >= 8 for each in workloads)


def test_what_reads_no_topic_has_no_aborted_input() -> None:
    for family in families(PIPELINES["from files"], EXACTLY):
        assert {plan.workload for plan in plans("from files", family, 20)} == {Workload()}


def test_every_point_is_killed_at_by_some_seed() -> None:
    drawn = [plan.schedule[0] for plan in plans("into Delta", "crash")]
    assert {each.point for each in drawn if isinstance(each, Kill)} == set(POINTS)
    drawn = [plan.schedule[0] for plan in plans("stateless", "crash")]
    assert {each.point for each in drawn if isinstance(each, Kill)} == {*POINTS} - {"committed"}
    assert any(isinstance(each, KillSent) for each in drawn)


def test_a_batch_with_state_is_undone_and_so_is_the_one_behind_it() -> None:
    """Where the second begins from what is on disk, not in memory; and so does another life."""
    for plan in plans("stateful", "timeout", 40):
        first, second, more = plan.schedule
        assert isinstance(first, Outlast) and first.nth < plan.workload.batches
        assert second == replace(first, nth=first.nth + 2)
        assert isinstance(more, MoreInput)
    crashes = [plan.schedule for plan in plans("stateful", "crash")]
    twice = [each for each in crashes if lives(each) == 3]
    assert 30 < len(twice) < 90
    for kills in twice:
        first, second = (each for each in kills if isinstance(each, Kill))
        assert (first.life, second.life, second.nth) == (0, 1, 2)


def test_what_undoes_state_has_a_long_history_at_times_and_is_maintained_at_times() -> None:
    """Versions enough for a snapshot by Spark's own default, and undone at any of them."""
    for family in (CRASH, TIMEOUT, ZOMBIE, CHECKPOINT, MIXED):
        drawn = plans("stateful", family)
        long = [plan for plan in drawn if plan.workload.batches > 10]
        assert 0.2 < len(long) / len(drawn) < 0.4, family
        maintained = [plan.workload.maintained for plan in drawn]
        assert 0.3 < sum(maintained) / len(long) < 0.7, family
        assert not any(p.workload.maintained for p in drawn if p not in long)
        nths = {
            each.nth
            for plan in long
            for each in plan.schedule
            if isinstance(each, (*ENDS, Outlast))
        }
        assert max(nths) > 10, family
        assert {plan.workload.store for plan in long} >= {"", "rocksdb"}
    long = [plan for plan in turns("stateful", STATE) if plan.workload.batches > 10]
    assert len(long) == 1, "it takes its time"
    for name, family in (("stateless", CRASH), ("stateful", NETWORK)):
        assert all(plan.workload.batches < 4 for plan in plans(name, family))


def test_the_last_batch_is_undone_behind_its_snapshot_with_each_state_store() -> None:
    drawn = turns("stateful", STATE)
    assert {plan.workload.store for plan in drawn} == {"rocksdb", *BY_VERSION}
    for plan in drawn + plans("stateful", STATE, 40):
        snapshot, undone, more = plan.schedule
        assert isinstance(snapshot, AwaitSnapshot)
        assert isinstance(undone, Kill | Outlast | Pause)
        assert snapshot.point == undone.point
        assert snapshot.nth == undone.nth == plan.workload.batches
        assert isinstance(more, MoreInput), "who comes reads it from disk"
    assert any(plan.workload.batches > 10 for plan in plans("stateful", STATE, 40))


def test_state_is_lost_when_all_is_decided_and_what_comes_later_would_begin_from_none() -> None:
    for plan in [*turns("stateful", REFUSAL), *plans("stateful", REFUSAL, 20)]:
        killed, lost, more = plan.schedule
        assert killed == Kill(point="end:answered", nth=plan.workload.batches)
        assert lost == Checkpoint(action="lose")
        assert isinstance(more, MoreInput)
        # Of records that are aborted some stand in each batch, and more batches would follow.
        assert not plan.workload.aborted


def test_a_zombie_with_state_has_planned_its_batch_and_another_life_follows() -> None:
    drawn = turns("stateful", ZOMBIE)
    assert "rocksdb" in {plan.workload.store for plan in drawn}
    for plan in drawn:
        pause, more = plan.schedule
        assert isinstance(pause, Pause) and pause.point == "open"
        assert pause.nth == plan.workload.batches, "whose version is the last"
        assert isinstance(more, MoreInput)


def test_a_held_produce_comes_behind_the_end_of_its_attempt() -> None:
    for name in ("producer", "joined producers", "stateless"):
        for plan in plans(name, LATE, 20):
            held, lost = faults_of(plan.schedule)
            assert isinstance(held, DelayRequest) and held.cut
            assert "InitProducerId" in str(held.until)
            assert isinstance(lost, LoseRequest) and lost.nth == 2 and lost.lasting_s > 2


def test_what_comes_late_is_of_either_half_of_a_transaction() -> None:
    """The last half is waited for by the commit itself."""
    halves = {"producer": {"open", "produce:first"}, "stateless": {"open"}}
    for name, points in halves.items():
        arms = [each for plan in plans(name, LATE, 20) for each in plan.schedule]
        assert {each.point for each in arms if isinstance(each, Arm)} == points
    both = [each for plan in turns("producer", LATE) for each in plan.schedule]
    assert {each.point for each in both if isinstance(each, Arm)} == halves["producer"]


def test_the_last_decision_is_lost_or_one_is_taken_without_an_answer() -> None:
    for name in ("producer", "stateless", "batch"):
        seen = set()
        for plan in plans(name, COORDINATOR, 20):
            (arm,) = plan.schedule
            assert isinstance(arm, Arm) and arm.point == "end" and arm.fault.lasting_s > 3
            last = transactions(PIPELINES[name], plan.workload)
            assert arm.nth == last if isinstance(arm.fault, LoseRequest) else arm.nth <= last
            seen.add(type(arm.fault))
        assert seen == {LoseRequest, LoseResponse}
    for name in ("producer", "stateless"):
        both = {
            type(fault) for plan in turns(name, COORDINATOR) for fault in faults_of(plan.schedule)
        }
        assert both == {LoseRequest, LoseResponse}


def test_a_zombie_may_sleep_until_its_id_has_expired() -> None:
    (pause,) = draw(1, PIPELINES["stateless"], EXACTLY, EXPIRY).schedule
    assert isinstance(pause, Pause) and pause.until_expired


def test_what_is_done_around_the_last_transaction_under_a_producer_id() -> None:
    for name in ("producer", "joined producers", "stateless"):
        drawn = turns(name, EPOCHS)
        assert len({plan.schedule for plan in drawn}) == 5, "each way once"
        for plan in drawn:
            assert transactions(PIPELINES[name], plan.workload) > TRANSACTIONS_LEFT + 1
        told = {type(each) for plan in drawn for each in plan.schedule}
        assert told == {Arm, Kill, KillSent, Outlast, Pause}


def test_an_executor_is_lost_half_way_behind_a_shuffle_and_behind_both() -> None:
    """With a whole task of the other one done: of two with one core each, the third task that
    comes is the second of its executor."""
    assert {type(each) for plan in turns("shuffled", EXECUTOR) for each in plan.schedule} == {
        KillOtherExecutor,
        KillExecutor,
    }
    nths: dict[str, set[int]] = {"shuffled": set(), "produce:first": set()}
    for plan in plans("shuffled", EXECUTOR, 40):
        (element,) = plan.schedule
        assert isinstance(element, KillExecutor | KillOtherExecutor)
        nths[element.point].add(element.nth)
    assert nths == {"shuffled": {3, 7}, "produce:first": {1, 3}}, "of either batch"


def test_partitions_are_added_where_one_worker_knows_of_them_and_one_does_not() -> None:
    """Both tasks of the batch before write side by side, and so do those that come behind."""
    points = set()
    for plan in plans("stateless", PARTITIONS, 40):
        assert plan.workload.spread and plan.workload.partitions == 2
        before, added, killed, *undone, behind = plan.schedule
        assert isinstance(before, AwaitAnother) and isinstance(behind, AwaitAnother)
        assert before.point == behind.point == "produce:first"
        assert isinstance(added, AddPartitions) and isinstance(killed, KillIdleWorkers)
        assert (added.point, added.nth) == (killed.point, killed.nth)
        batch = (before.nth + 1) // 2
        assert before.nth % 2 == 1 and behind.nth == before.nth + 2
        if added.point == "offsets":
            assert undone == [Outlast(point="offsets", nth=batch)] and added.nth == batch
        else:
            assert not undone and added.nth == batch + 1
        assert batch < plan.workload.batches
        points.add(added.point)
    assert points == {"open", "offsets"}
    having = [name for name, p in PIPELINES.items() if PARTITIONS in families(p, EXACTLY)]
    assert having == ["stateless"]
    assert trials_of(PIPELINES["stateless"], EXACTLY, PARTITIONS) == 1


def test_added_partitions_are_another_home_for_each_key() -> None:
    """Whoever knows of them and whoever does not put it into two."""
    plan = draw(1, PIPELINES["stateless"], EXACTLY, PARTITIONS)
    (added,) = (each for each in plan.schedule if isinstance(each, AddPartitions))
    for key in range(plan.workload.keys):
        placed = murmur2(f"k{key}".encode()) & 0x7FFFFFFF
        assert placed % added.to != placed % plan.workload.partitions


def test_a_pipeline_that_tells_nothing_is_killed_with_records_on_their_way() -> None:
    peer: Pipeline = PIPELINES["Spark's own sink"]
    drawn = [draw(number, peer, EXACTLY, "crash") for number in range(60)]
    assert {type(plan.schedule[0]) for plan in drawn} == {KillSent, KillAfter}
    for plan in drawn:
        (element,) = plan.schedule
        if isinstance(element, KillAfter):
            assert element.records <= plan.workload.records
    # A control has to show something, so it is hit where it hurts.
    least = [draw(n, peer, Guarantee.AT_LEAST_ONCE, "crash").schedule[0] for n in range(30)]
    assert {type(each) for each in least} == {KillSent}


def test_exactly_once_has_trials_in_all_families() -> None:
    others = ("partitions", "database", "dump", "retry")
    own = [each for each in FAMILIES if each not in others]
    assert families(PIPELINES["stateful"], EXACTLY) == own
    into = Pipeline.load("sparkonce.verify.pipelines.into_postgres")
    of_tables = {"crash", "worker", "zombie", "checkpoint", "database", "dump", "retry"}
    assert set(families(into, EXACTLY)) == of_tables


def test_a_zombie_of_delta_is_also_one_that_has_committed() -> None:
    points = [plan.schedule[0].point for plan in turns("into Delta", "zombie")]
    assert len(points) == 3 and {"committed", "open"} < {*points}


@pytest.mark.parametrize("name", ["into Delta", "into PostgreSQL", "two into PostgreSQL"])
def test_one_of_two_crashes_of_a_table_is_where_rows_and_progress_are_committed(name: str) -> None:
    first, second = (plan.schedule[0].point for plan in turns(name, "crash"))
    assert second in {"offsets", "end", "committed"} and first != second
