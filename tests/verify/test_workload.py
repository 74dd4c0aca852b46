"""What goes in: values of all lengths, each told from the others, cut ones too."""

from __future__ import annotations

from sparkonce.verify.identity import short
from sparkonce.verify.trial import trial_number
from sparkonce.verify.workload import STORES, Workload


def test_values_are_from_a_few_bytes_to_as_long_as_was_asked_for() -> None:
    workload = Workload(value_bytes=1500, batch_size=1024)
    lengths = [len(workload.identity(3, number)) for number in range(1000)]
    assert min(lengths) < 30
    assert 1024 < max(lengths) <= 1500
    assert lengths == [len(workload.identity(3, number)) for number in range(1000)]
    assert {len(Workload().identity(3, number)) for number in range(100)} == {len("t3-000000")}


def test_an_identity_says_how_long_the_value_was() -> None:
    workload = Workload(value_bytes=200)
    values = [workload.identity(3, number) for number in range(300)]
    assert len({short(value) for value in values}) == 300
    assert max(len(short(value)) for value in values) < 20
    long = next(value for value in values if len(value) > 20)
    assert short(long[:-1]) != short(long), "a value that was cut is another one"
    assert short("t3-000000") == "t3-000000"
    assert short("17") == "17", "of a pipeline of the user's own"
    assert trial_number(long.encode()) == 3


def test_its_text_makes_it_again() -> None:
    workload = Workload(records=160, partitions=8, store="hdfs", deltas=2)
    assert repr(workload) == "Workload(records=160, partitions=8, store='hdfs', deltas=2)"
    assert Workload.parse(repr(workload)) == workload


def test_settings_are_those_that_differ() -> None:
    assert Workload().settings == {}
    assert Workload(batch_size=1024).settings == {"batch.size": "1024"}
    assert Workload(store="hdfs").conf == STORES["hdfs"]
    given = Workload(store="hdfs", deltas=2).conf
    assert given["spark.sql.streaming.stateStore.minDeltasForSnapshot"] == "2"


def test_batches() -> None:
    assert Workload().batches == 2
    assert Workload(records=61).batches == 4
