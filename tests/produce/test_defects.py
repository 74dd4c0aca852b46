"""What is said of the brokers' defects, once, when a producer takes over."""

from __future__ import annotations

import logging

import pytest

from parts import a_producer
from sparkonce.local import LocalKafka
from sparkonce.produce.defects import known_defects

NOT_TOLD = 0
LAST_EPOCH, LOST_END = "KAFKA-20090", "KAFKA-20734"
CASES = [
    (NOT_TOLD, 2, []),
    (20, 1, []),  # 3.8
    (21, 1, []),  # 3.9
    (25, 2, [(logging.INFO, LAST_EPOCH)]),  # 4.0
    (27, 2, [(logging.INFO, LAST_EPOCH)]),  # 4.1
    (29, 2, [(logging.INFO, LAST_EPOCH)]),  # 4.2
    (29, 1, []),
    (30, 2, [(logging.WARNING, LOST_END)]),  # 4.3
    (30, 1, [(logging.WARNING, LOST_END)]),
    (33, 2, []),  # 4.4
]


@pytest.mark.parametrize(("level", "transaction_version", "expected"), CASES)
def test_defects_by_minor_release(
    level: int, transaction_version: int, expected: list[tuple[int, str]]
) -> None:
    found = known_defects(level, transaction_version)
    assert [defect.log_level for defect in found] == [log_level for log_level, _ in expected]
    for defect, (_, issue) in zip(found, expected, strict=True):
        assert issue in defect.words


def test_it_is_told_once_by_the_one_who_takes_over(
    cluster: LocalKafka, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "sparkonce.produce"), a_producer(cluster) as producer:
        for _ in range(2):
            with producer.transaction():
                producer.produce(topic, "row")
    told = [record.levelno for record in caplog.records if LAST_EPOCH in record.getMessage()]
    assert told == ([logging.INFO] if cluster.transaction_version == 2 else [])


def test_a_broker_that_may_show_aborted_records_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With features that are not released yet, the broker of these tests says that it supports the
    level of 4.3."""
    unreleased = {"unstable.feature.versions.enable": "true"}
    with LocalKafka(properties=unreleased) as of_4_3, a_producer(of_4_3):
        pass
    (told,) = [each for each in caplog.records if LOST_END in each.getMessage()]
    assert told.levelno == logging.WARNING
