"""Trials on a real cluster: what is planned comes to pass, and pipelines that are wrong are caught.

Without Spark: its pipelines go the same way, and take their time.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkonce.guarantees import Guarantee
from sparkonce.local import LocalKafka, LocalPostgres
from sparkonce.verify.contract import Pipeline
from sparkonce.verify.drawing import Plan, draw
from sparkonce.verify.families import COORDINATOR, LATE, NETWORK, TIMEOUT
from sparkonce.verify.network import DelayRequest, DuplicateRequest
from sparkonce.verify.outcome import Defect, Outcome, Verdict
from sparkonce.verify.report.firing import Firing
from sparkonce.verify.round import Round
from sparkonce.verify.schedule import Arm, Database, Kill, MoreInput, Pause
from sparkonce.verify.trial import Trial
from sparkonce.verify.workload import Workload

RELAY = "sparkonce.verify.pipelines.relay"
JOINED = "sparkonce.verify.pipelines.joined"
EXACTLY = Guarantee.EXACTLY_ONCE

# Takes a commit of which nobody knows the outcome for one that was taken.
CREDULOUS = """
from sparkonce.errors import OutcomeUnknown
from sparkonce.verify.pipelines import relay
from sparkonce.verify.pipelines.relay import POINTS, SHARES, identity, units

def commit(producer):
    try:
        producer.commit_transaction()
    except OutcomeUnknown:
        pass

def run(job):
    relay.commit = commit
    relay.run(job)
"""

# Its writers don't wait for what they have sent.
HASTY = """
from sparkonce.verify.pipelines import joined
from sparkonce.verify.pipelines.joined import POINTS, identity, units

class Hasty(joined._Writers):
    def write(self, batch):
        for message in batch:
            self._joined[message.partition() % 2].produce_arrow(
                self._job.output_topic,
                __import__("pyarrow").table({"key": [message.key()], "value": [message.value()]}),
            )

def run(job):
    joined._Writers = Hasty
    joined.run(job)
"""

# Its own folder is gone when it is to be cleared away; and it may have written nothing.
CLEARED = """
import shutil
from pathlib import Path
from sparkonce.verify.pipelines import relay
from sparkonce.verify.pipelines.relay import POINTS, SHARES, identity, units

def run(job):
    if job.per_batch != 7:
        relay.run(job)
    if job.per_batch != 20:
        shutil.rmtree(Path(job.folder).parent)
"""

# Drops a table of its own, as for each batch, and waits for whoever has it; perhaps it fails then.
DROPPING = """
import psycopg
from sparkonce.verify.contract import Record

POINTS = ("end",)
SERVICES = ("postgres",)
SHARES = True

def run(job):
    stage = job.name.replace("-", "_") + "_stage"
    with psycopg.connect(job.services["postgres"], autocommit=True) as connection:
        connection.execute(f"CREATE TABLE IF NOT EXISTS {stage} (id bigint)")
        job.observe("end")
        connection.execute("SET lock_timeout = '8s'")
        connection.execute(f"DROP TABLE {stage}")
    assert job.per_batch == 20, "it never comes to its end"

def provide(job, rows):
    pass

def collect(job):
    return [Record("", 0, n, None, (job.name[7:] + f"-{n:06}").encode()) for n in range(40)]
"""

pytestmark = pytest.mark.slow


def run(
    kafka: LocalKafka,
    folder: Path,
    program: str,
    *plans: Plan,
    postgres: LocalPostgres | None = None,
    **fields: object,
) -> list[Outcome]:
    pipeline = Pipeline.load(program)
    trials = [
        Trial(
            number=number,
            seed=number,
            pipeline=pipeline,
            guarantee=EXACTLY,
            family="given",
            schedule=plan.schedule,
            workload=plan.workload,
            **fields,  # type: ignore[arg-type]
        )
        for number, plan in enumerate(plans, 1)
    ]
    outcomes = Round(kafka, trials, folder, postgres=postgres).run()
    for each in outcomes:
        print(each.verdict, each.schedule, each.fired, each.findings, each.error[-2000:])
        print(*each.story, sep="\n")
    return outcomes


def drawn(program: str, family: str, seed: int, count: int) -> list[Plan]:
    pipeline = Pipeline.load(program)
    return [draw(seed, pipeline, EXACTLY, family, brokers=1, turn=turn) for turn in range(count)]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("program", [RELAY, JOINED])
def test_what_is_drawn_comes_to_pass(
    kafka: LocalKafka, tmp_path: Path, seed: int, program: str
) -> None:
    plans = [
        *drawn(program, NETWORK, seed, 4),
        *drawn(program, LATE, seed, 2),
        *drawn(program, COORDINATOR, seed, 2),
        *drawn(program, TIMEOUT, seed, 1),
    ]
    outcomes = run(kafka, tmp_path, program, *plans)
    assert [each.verdict for each in outcomes] == [Verdict.KEPT] * len(plans)
    firing = Firing.of(outcomes)
    assert firing.planned > 20
    assert firing.fired >= 0.9 * firing.planned


def test_a_copy_that_is_never_delivered_did_not_come_to_pass(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    """It waits for the Produce of another transaction: behind the last one there is none."""
    late = DuplicateRequest("EndTxn", until="Produce")
    plans = [Plan((Arm(point="open", nth=nth, fault=late),), Workload()) for nth in (1, 2)]
    outcomes = run(kafka, tmp_path, RELAY, *plans)
    assert [each.verdict for each in outcomes] == [Verdict.KEPT] * 2
    assert [each.fired for each in outcomes] == [(True,), (False,)]


def test_input_that_was_aborted_is_noticed_when_it_is_read(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    plan = Plan((), Workload(aborted=9))
    (kept,) = run(kafka, tmp_path / "a", RELAY, plan)
    assert kept.verdict is Verdict.KEPT
    uncommitted = {"verify.isolation": "read_uncommitted"}
    (broken,) = run(kafka, tmp_path / "b", RELAY, plan, settings=uncommitted)
    assert broken.verdict is Verdict.BROKEN
    assert Defect.ABORTED in {each.defect for each in broken.findings}


def test_another_life_works_off_what_came_when_all_was_done(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    (first, zombie) = (
        (Kill(point="offsets", nth=2), MoreInput(records=30)),
        (Pause(point="open", nth=2), MoreInput(records=30)),
    )
    (killed,) = run(kafka, tmp_path / "a", RELAY, Plan(first, Workload()))
    (paused,) = run(kafka, tmp_path / "b", RELAY, Plan(zombie, Workload()))
    for outcome in (killed, paused):
        assert (outcome.verdict, outcome.fired, outcome.records) == (Verdict.KEPT, (True, True), 70)
    order = [each.text for each in paused.story if each.kind in ("life", "end")]
    woken = next(at for at, text in enumerate(order) if "goes on" in text)
    more = next(at for at, text in enumerate(order) if "30 records more" in text)
    assert woken < more < len(order) - 1


def test_a_commit_that_is_taken_for_granted_is_noticed(kafka: LocalKafka, tmp_path: Path) -> None:
    """With each of three seeds, by the trials that a cell of the quick preset has."""
    program = tmp_path / "credulous.py"
    program.write_text(CREDULOUS)
    cells = [drawn(str(program), COORDINATOR, seed, 2) for seed in range(3)]
    found = run(kafka, tmp_path, str(program), *(plan for cell in cells for plan in cell))
    for first, second in zip(found[::2], found[1::2], strict=True):
        defects = {each.defect for outcome in (first, second) for each in outcome.findings}
        assert Defect.LOST in defects


def test_writers_that_do_not_wait_are_noticed(kafka: LocalKafka, tmp_path: Path) -> None:
    program = tmp_path / "hasty.py"
    program.write_text(HASTY)
    slow = DelayRequest("Produce", until="EndTxn", seconds=0.2)
    plan = Plan((Arm(point="open", nth=2, fault=slow),), Workload())
    (outcome,) = run(kafka, tmp_path / "hasty", str(program), plan)
    assert outcome.verdict is Verdict.BROKEN
    assert Defect.LOST in {each.defect for each in outcome.findings}


def test_what_goes_wrong_in_closing_a_trial_fails_that_trial_alone(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    """And hides no broken promise."""
    program = tmp_path / "cleared.py"
    program.write_text(CLEARED)
    plans = [Plan((), Workload(per_batch=size)) for size in (20, 10, 7)]
    kept, cleared, broken = run(kafka, tmp_path / "courses", str(program), *plans)
    assert (kept.verdict, kept.error) == (Verdict.KEPT, "")
    assert cleared.verdict is Verdict.FAILED
    assert broken.verdict is Verdict.BROKEN
    assert {each.defect for each in broken.findings} >= {Defect.LOST}
    for outcome in (cleared, broken):
        assert "FileNotFoundError" in outcome.error


@pytest.mark.timeout(240)
def test_who_is_in_the_way_of_a_dump_breaks_the_promise(
    kafka: LocalKafka, postgres: LocalPostgres, tmp_path: Path
) -> None:
    """Whatever becomes of the pipeline itself."""
    program = tmp_path / "dropping.py"
    program.write_text(DROPPING)
    dump = (Database(point="end", action="dump"),)
    plans = [Plan(dump, Workload(per_batch=size)) for size in (20, 7)]
    whole, failed = run(kafka, tmp_path, str(program), *plans, postgres=postgres)
    for outcome in (whole, failed):
        assert outcome.verdict is Verdict.BROKEN
        assert {each.defect for each in outcome.findings} == {Defect.INTERFERENCE}
    assert whole.error == "" and "never comes to its end" in failed.error


def test_time_under_faults_is_that_of_trials_that_met_one(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    killed = Plan((Kill(point="offsets", nth=2),), Workload())
    never = Plan((Arm(point="open", nth=99, fault=DelayRequest("Produce")),), Workload())
    outcomes = run(kafka, tmp_path, RELAY, killed, never)
    assert [each.verdict for each in outcomes] == [Verdict.KEPT] * 2
    hit, missed = outcomes
    assert (hit.is_proof, missed.is_without_fault) == (True, True)
    assert 0 < hit.under_faults_s < hit.duration_s
    assert missed.under_faults_s == 0
