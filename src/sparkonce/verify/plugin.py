"""A pytest plugin: a real Kafka, faults in front of it, and the check, for tests of one's own.

Put `pytest_plugins = ["sparkonce.verify.plugin"]` into the topmost conftest.py. See docs/verify.md.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from sparkonce.guarantees import Guarantee
from sparkonce.local import LocalKafka
from sparkonce.verify import readers
from sparkonce.verify.checker import check
from sparkonce.verify.clusters import USUAL
from sparkonce.verify.contract import Pipeline, Record
from sparkonce.verify.drawing import Plan, draw
from sparkonce.verify.families import families
from sparkonce.verify.history import History, Reading, Seen, Sent
from sparkonce.verify.network import FaultProxy
from sparkonce.verify.outcome import Finding, Outcome, Verdict
from sparkonce.verify.round import Round
from sparkonce.verify.schedule import Schedule
from sparkonce.verify.trial import Trial
from sparkonce.verify.workload import Workload

_SEED = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("sparkonce")
    group.addoption("--sparkonce-seed", type=int, help="seed of the faults; default: a new one")
    group.addoption(
        "--sparkonce-brokers", type=int, default=1, help="brokers of the fixture kafka; default: 1"
    )


def pytest_configure(config: pytest.Config) -> None:
    given = config.getoption("--sparkonce-seed") or os.environ.get("SPARKONCE_SEED")
    config.stash[_SEED] = int(given) if given else random.SystemRandom().randrange(2**32)


def pytest_report_header(config: pytest.Config) -> str:
    return f"sparkonce: repeat this run's faults with --sparkonce-seed={config.stash[_SEED]}"


@pytest.fixture(scope="session")
def sparkonce_seed(request: pytest.FixtureRequest) -> int:
    """From --sparkonce-seed, or SPARKONCE_SEED, or new; it stands in the report's header."""
    return request.config.stash[_SEED]


@pytest.fixture(scope="session")
def kafka(request: pytest.FixtureRequest) -> Iterator[LocalKafka]:
    """A real cluster for all tests of the session: use topics of your own."""
    count = int(request.config.getoption("--sparkonce-brokers"))
    with USUAL.start(count) as cluster:
        yield cluster


@pytest.fixture
def faults(kafka: LocalKafka, sparkonce_seed: int) -> Iterator[FaultProxy]:
    """A proxy in front of `kafka`: give its bootstrap_servers to what is tested, `add` faults."""
    with FaultProxy(kafka.bootstrap_servers, seed=sparkonce_seed) as proxy:
        yield proxy


class CheckExactlyOnce(Protocol):
    def __call__(
        self,
        topic: str,
        sent: Iterable[str],
        identity: Callable[[Record], str] = ...,
        *,
        lane: Callable[[str], str] = ...,
    ) -> None: ...


@pytest.fixture
def check_exactly_once(kafka: LocalKafka) -> CheckExactlyOnce:
    """Fails unless a topic has each of these identities once, in order, and nothing is left open.

    `sent` has the identities in the order in which they went in; `identity` finds one in an output
    record (default: its value); `lane` says which of them have to keep their order among each
    other (default: none; `lambda identity: "all"` for all that share a partition).
    """

    def checked(
        topic: str,
        sent: Iterable[str],
        identity: Callable[[Record], str] = lambda record: (record.value or b"").decode(),
        *,
        lane: Callable[[str], str] = lambda identity: "",
    ) -> None:
        servers = kafka.bootstrap_servers
        left_open = readers.left_open(servers, [topic])
        seen = [
            Seen(identity(each), each.topic, each.partition, each.offset)
            for each in readers.read(servers, [topic])
        ]
        history = History(
            sent=tuple(Sent(each, lane(each)) for each in sent),
            readings=(Reading("confluent-kafka", tuple(seen)),),
            left_open=tuple(left_open),
        )
        found = check(history)
        assert not found, _told(found)

    return checked


class VerifyPipeline(Protocol):
    def __call__(
        self,
        program: str | Path,
        *,
        guarantee: str = ...,
        schedules: Iterable[Schedule] | None = ...,
    ) -> list[Outcome]: ...


@pytest.fixture
def verify_pipeline(kafka: LocalKafka, sparkonce_seed: int, tmp_path: Path) -> VerifyPipeline:
    """Runs a pipeline's file through faults, kills and restarts; fails if its promise is broken.

    Without `schedules`, one of each family that fits is drawn from the seed.
    """

    def verified(
        program: str | Path,
        *,
        guarantee: str = Guarantee.EXACTLY_ONCE.value,
        schedules: Iterable[Schedule] | None = None,
    ) -> list[Outcome]:
        pipeline, promised = Pipeline.load(str(program)), Guarantee(guarantee)
        brokers = len(kafka.broker_ids)
        drawn = {
            family: draw(sparkonce_seed, pipeline, promised, family, brokers=brokers)
            for family in families(pipeline, promised)
        }
        given = [("given", Plan(each, Workload())) for each in schedules or ()]
        outcomes: list[Outcome] = []
        chosen = drawn.items() if schedules is None else given
        for number, (family, plan) in enumerate(chosen, 1):
            trial = Trial(
                number=number,
                seed=sparkonce_seed,
                pipeline=pipeline,
                guarantee=promised,
                family=family,
                schedule=plan.schedule,
                workload=plan.workload,
            )
            outcomes += Round(kafka, [trial], tmp_path).run()
        bad = [each for each in outcomes if each.verdict is not Verdict.KEPT]
        assert not bad, "\n".join(_story(each) for each in bad)
        return outcomes

    return verified


def _story(outcome: Outcome) -> str:
    lines = [f"{outcome.family}, seed {outcome.seed}: {outcome.verdict.value} {outcome.error}"]
    lines += [f"  schedule: {each}" for each in outcome.schedule]
    lines += [f"  {each.at_s:8.3f} s  {each.kind}: {each.text}" for each in outcome.story]
    return "\n".join([*lines, _told(outcome.findings)])


def _told(findings: Iterable[Finding]) -> str:
    return "\n".join(
        f"  {each.defect.value}: {each.count} ({each.reader}), such as {', '.join(each.examples)}"
        for each in findings
    )
