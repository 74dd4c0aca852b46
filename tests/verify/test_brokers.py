"""What is done to brokers comes to pass before it is noted, and hinders nobody afterwards."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from parts import a_producer
from sparkonce.errors import LocalError, SparkonceError
from sparkonce.guarantees import Guarantee
from sparkonce.local import LocalKafka
from sparkonce.verify.contract import Pipeline
from sparkonce.verify.disturb import Brokers
from sparkonce.verify.schedule import Broker, LoseUnreplicated, MoveLeaders
from sparkonce.verify.trial import Course, Trial
from sparkonce.verify.workload import Workload

_numbers = itertools.count(700)
RELAY = Pipeline.load("sparkonce.verify.pipelines.relay")


@pytest.fixture
def course(kafka3: LocalKafka, tmp_path: Path) -> Iterator[Course]:
    """Whose output is led by another broker than its id's coordinator, and than the controller."""
    found = a_course(kafka3, tmp_path)
    (topic,) = found.output_topics
    kafka3.create_topic(topic)
    taken = {kafka3.coordinator_of(found.name), kafka3.controller()}
    kafka3.move_leader(topic, 0, next(each for each in kafka3.broker_ids if each not in taken))
    yield found
    kafka3.wait_until_healthy()
    kafka3.delete_topic(topic)


def a_course(kafka: LocalKafka, folder: Path) -> Course:
    trial = Trial(
        number=next(_numbers),
        pipeline=RELAY,
        guarantee=Guarantee.EXACTLY_ONCE,
        family="brokers",
        schedule=(),
        workload=Workload(partitions=1),
    )
    return Course(trial, kafka, folder)


def paused(role: str) -> Broker:
    return Broker(point="open", action="pause", role=role)


@pytest.mark.parametrize("role", ["coordinator", "controller", "leader"])
def test_a_broker_is_paused_until_another_has_its_role(
    kafka3: LocalKafka, course: Course, role: str
) -> None:
    def who() -> int:
        if role == "coordinator":
            return kafka3.coordinator_of(course.name)
        return kafka3.controller() if role == "controller" else kafka3.leader_of(topic, 0)

    (topic,) = course.output_topics
    former, brokers = who(), Brokers(kafka3)
    brokers.disturb(paused(role), course)
    brokers.settle()
    assert course.has_happened(paused(role))
    assert who() != former


def test_a_broker_that_nobody_missed_goes_on_and_is_not_noted(
    kafka3: LocalKafka, course: Course
) -> None:
    brokers = Brokers(kafka3, missed_timeout_s=0)
    brokers.disturb(paused("coordinator"), course)
    brokers.settle()
    assert not course.has_happened(paused("coordinator"))


def test_one_that_could_not_be_disturbed_hinders_no_other(
    kafka3: LocalKafka, tmp_path: Path
) -> None:
    course, brokers = a_course(kafka3, tmp_path), Brokers(kafka3)  # without a topic
    losing, moving = LoseUnreplicated(point="produce:first"), MoveLeaders(point="open", times=1)
    for _ in range(2):
        with pytest.raises(LocalError):
            brokers.stop_replicating(losing, course)
        with pytest.raises(LocalError):
            brokers.disturb(paused("leader"), course)
    brokers.move_leaders(moving, course)
    with pytest.raises(SparkonceError, match="could not be brought back"):
        brokers.settle()
    assert not course.has_happened(moving)


def test_followers_that_stand_still_for_a_record_that_never_comes_go_on(
    kafka3: LocalKafka, course: Course
) -> None:
    losing, moving = LoseUnreplicated(point="produce:first"), MoveLeaders(point="open", times=1)
    brokers = Brokers(kafka3)
    brokers.stop_replicating(losing, course)
    brokers.settle()
    assert not course.has_happened(losing)
    brokers.move_leaders(moving, course)
    brokers.settle()
    assert course.has_happened(moving)


def test_only_a_transaction_that_is_open_is_outlasted(kafka: LocalKafka) -> None:
    brokers = Brokers(kafka)
    assert not brokers.outlast("nobody")
    with a_producer(kafka, transaction_timeout_ms="1000", transactional_id="outlasted") as ours:
        assert not brokers.outlast("outlasted"), "it has not begun"
        ours.begin_transaction()
        kafka.create_topic("outlasted")
        ours.produce("outlasted", "waits")
        ours.flush()
        assert brokers.outlast("outlasted")
