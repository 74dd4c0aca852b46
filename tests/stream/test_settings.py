"""A writer's settings: Spark's and Kafka's names, and refusals that name the way out."""

from __future__ import annotations

import pyspark
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from sparkonce.errors import ConfigError
from sparkonce.guarantees import Guarantee
from sparkonce.options import ProducerOptions
from sparkonce.stream.kafka_settings import COLUMNS, KafkaSettings, check_schema
from sparkonce.stream.spark_version import check_version

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
NAMED = SERVERS | {"kafka.transactional.id": "payments"}


def test_what_follows_where_nothing_is_said() -> None:
    settings = KafkaSettings.parse(NAMED, None)
    assert settings == KafkaSettings(
        pipeline="payments",
        named_by="kafka.transactional.id",
        guarantee=Guarantee.EXACTLY_ONCE,
        topic=None,
        owner={
            "bootstrap.servers": "127.0.0.1:9092",
            "transactional.id": "payments",
            "transaction.timeout.ms": "max",
        },
        writers={"bootstrap.servers": "127.0.0.1:9092"},
        dead_letter_topic=None,
        attempts_max=3,
        ledger_lost="fail",
        lost_state="fail",
        driver_host=None,
        driver_port=0,
        run_id=None,
    )
    assert settings.group == "payments"


def test_names_are_taken_in_any_case() -> None:
    options = {
        "KAFKA.Bootstrap.Servers": "127.0.0.1:9092",
        "Kafka.Transactional.Id": "Payments",
        "TOPIC": "Out",
        "Guarantee": "At_Least_Once",
        "CHECKPOINTLOCATION": "/c",
        "deadlettertopic": "Dead",
        "batchattempts": "7",
        "LedgerLost": "REPLAY",
        "loststate": "Empty",
        "driverhost": "driver",
        "DRIVERPORT": "4040",
        "RunID": "Day-1",
        "kafka.Linger.MS": "3",
    }
    settings = KafkaSettings.parse(options, None)
    assert (settings.pipeline, settings.topic) == ("Payments", "Out"), "values are left as they are"
    assert settings.guarantee is Guarantee.AT_LEAST_ONCE
    assert (settings.dead_letter_topic, settings.attempts_max) == ("Dead", 7)
    assert (settings.ledger_lost, settings.lost_state) == ("replay", "empty")
    assert (settings.driver_host, settings.driver_port) == ("driver", 4040)
    assert settings.group == "Payments~run~Day-1"
    assert settings.writers["linger.ms"] == "3"


def test_a_query_name_serves_as_the_name_of_the_pipeline() -> None:
    assert KafkaSettings.parse(SERVERS, "orders").pipeline == "orders"
    assert KafkaSettings.parse(SERVERS | {"queryName": "orders"}, None).pipeline == "orders"
    assert KafkaSettings.parse(NAMED | {"queryName": "orders"}, "orders").pipeline == "payments"


def test_the_name_of_a_pipeline_is_no_other_ones_run_or_second_group() -> None:
    with pytest.raises(ConfigError, match="queryName='orders~2' has a '~' in it"):
        KafkaSettings.parse(SERVERS, "orders~2")
    settings = KafkaSettings.parse(NAMED | {"queryName": "as ~ you like"}, None)
    assert settings.pipeline == "payments", "the query's name is another matter"
    run = KafkaSettings.parse(NAMED | {"runId": "~1"}, None)
    assert (run.group, run.former_group) == ("payments~run~~1", "payments-run-~1")


def test_dead_letters_are_told_to_those_who_write() -> None:
    settings = KafkaSettings.parse(NAMED | {"deadLetterTopic": "dead"}, None)
    assert settings.writers["dead.letter.topic"] == "dead"


@pytest.mark.parametrize("guarantee", list(Guarantee))
def test_the_ledger_is_kept_in_transactions_whatever_the_records_are(guarantee: Guarantee) -> None:
    options = NAMED | {
        "guarantee": guarantee.value,
        "deadLetterTopic": "dead",
        "kafka.client.id": "me",
        "kafka.request.timeout.ms": "4000",
        "kafka.delivery.timeout.ms": "4000",
        "kafka.linger.ms": "0",
        "kafka.transaction.timeout.ms": "9000",
    }
    settings = KafkaSettings.parse(options, None)
    owner = ProducerOptions.parse(settings.owner)
    assert (owner.transactional_id, owner.transaction_timeout_ms) == ("payments", 9000)
    assert (owner.acks, owner.enable_idempotence, owner.retries > 0) == (-1, True, True)
    assert (owner.client_id, owner.request_timeout_ms) == ("me", 4000)
    assert not settings.writers.keys() & {"transactional.id", "transaction.timeout.ms"}
    writers = ProducerOptions.parse({**settings.writers, "guarantee": guarantee.value})
    assert (writers.client_id, writers.linger_ms) == ("me", 0)


@pytest.mark.parametrize(
    ("guarantee", "name", "value"),
    [
        (Guarantee.NONE, "acks", "0"),
        (Guarantee.AT_MOST_ONCE, "retries", "0"),
        (Guarantee.AT_MOST_ONCE, "acks", "1"),
        (Guarantee.AT_LEAST_ONCE, "enable.idempotence", "false"),
        (Guarantee.AT_LEAST_ONCE, "max.in.flight.requests.per.connection", "20"),
    ],
)
def test_how_records_are_sent_is_not_how_the_ledger_is(
    guarantee: Guarantee, name: str, value: str
) -> None:
    options = NAMED | {"guarantee": guarantee.value, f"kafka.{name}": value}
    settings = KafkaSettings.parse(options, None)
    assert settings.writers[name] == value
    assert name not in settings.owner
    with pytest.raises(ConfigError, match=r"transactional\.id"):
        KafkaSettings.parse(options | {"guarantee": "exactly_once"}, None)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topik": "x"}, ["unknown option 'topik'", "did you mean 'topic'?", "guarantee"]),
        ({"linger.ms": "5"}, ["'linger.ms'", "did you mean 'kafka.linger.ms'?"]),
        ({"checkpointlocatoin": "x"}, ["did you mean 'checkpointLocation'?"]),
        ({"zzz": "x"}, ["unknown option 'zzz'", "deadLetterTopic", "kafka. before them"]),
        ({"kafka.linger.s": "5"}, ["kafka.", "'linger.s'", "did you mean 'linger.ms'?"]),
        ({"kafka.linger.ms": "soon"}, ["kafka.", "linger.ms='soon'"]),
        ({"kafka.guarantee": "none"}, ["kafka.guarantee", "the option guarantee"]),
        ({"kafka.dead.letter.topic": "x"}, ["kafka.dead.letter.topic", "deadLetterTopic"]),
        ({"guarantee": "twice"}, ["guarantee='twice'", "exactly_once", "at_least_once", "none"]),
        ({"ledgerLost": "guess"}, ["ledgerLost='guess'", "fail, replay, skip"]),
        ({"lostState": "guess"}, ["lostState='guess'", "fail, empty"]),
        ({"batchAttempts": "0"}, ["batchAttempts='0'", "1 or more"]),
        ({"batchAttempts": "two"}, ["batchAttempts='two'", "whole number"]),
        ({"batchAttempts": "-1"}, ["batchAttempts='-1'", "1 or more"]),
        ({"batchAttempts": "\N{SUPERSCRIPT TWO}"}, ["batchAttempts=", "whole number"]),
        ({"driverPort": "http"}, ["driverPort='http'", "whole number"]),
        ({"driverPort": "65536"}, ["driverPort='65536'", "0 to 65535"]),
        ({"kafka.transactional.id": "a~2"}, ["kafka.transactional.id='a~2'", "'~'", "without it"]),
        ({"runId": ""}, ["runId is empty", "leave it out"]),
        ({"kafka.transactional.id": ""}, ["kafka.transactional.id is empty"]),
        ({"kafka.bootstrap.servers": "nowhere"}, ["bootstrap.servers='nowhere'"]),
        ({"kafka.acks": "1"}, ["kafka.", "transactional.id=payments", "acks=1", "change acks"]),
        ({"kafka.enable.idempotence": "false"}, ["transactional.id", "enable.idempotence"]),
        ({"kafka.retries": "0"}, ["transactional.id=payments", "retries=0"]),
        (
            {"kafka.max.in.flight.requests.per.connection": "6"},
            ["transactional.id=payments", "max.in.flight.requests.per.connection=6"],
        ),
        ({"kafka.security.protocol": "SSL"}, ["security.protocol=SSL"]),
        (
            {"guarantee": "at_most_once", "kafka.retries": "5"},
            ["guarantee=at_most_once", "retries=0", "retries=5"],
        ),
        (
            {"guarantee": "at_least_once", "kafka.acks": "1"},
            ["guarantee=at_least_once", "acks=all", "acks=1"],
        ),
        ({"guarantee": "none", "kafka.acks": "all"}, ["guarantee=none", "acks=0", "acks=all"]),
        ({"guarantee": "none", "kafka.linger.s": "5"}, ["kafka.", "linger.ms"]),
        ({"guarantee": "none", "kafka.security.protocol": "SSL"}, ["security.protocol=SSL"]),
    ],
)
def test_a_refusal_names_the_option_and_the_way_out(
    options: dict[str, str], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as refused:
        KafkaSettings.parse(NAMED | options, None)
    for word in words:
        assert word in str(refused.value)


@pytest.mark.parametrize("guarantee", list(Guarantee))
def test_what_is_missing_is_named(guarantee: Guarantee) -> None:
    promise = {"guarantee": guarantee.value}
    with pytest.raises(ConfigError, match=r"kafka\.transactional\.id is missing.*queryName"):
        KafkaSettings.parse(SERVERS | promise, None)
    with pytest.raises(ConfigError, match=r"kafka\.bootstrap\.servers is missing.*host:port"):
        KafkaSettings.parse({"kafka.transactional.id": "payments"} | promise, None)


# -- the columns of a DataFrame ---------------------------------------------------------------


def schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def struct(*names: str, kinds: list[DataType]) -> StructType:
    return schema(**dict(zip(names, kinds, strict=True)))


HEADER = struct("key", "value", kinds=[StringType(), BinaryType()])
ORIGIN = struct("topic", "partition", "offset", kinds=[StringType(), IntegerType(), LongType()])
GOOD: dict[str, list[DataType]] = {
    "key": [StringType(), BinaryType(), NullType()],
    "value": [StringType(), BinaryType(), NullType()],
    "headers": [ArrayType(HEADER), NullType()],
    "topic": [StringType(), NullType()],
    "partition": [IntegerType(), ShortType(), LongType(), NullType()],
    "dead_letter": [StringType(), NullType()],
    "source": [ORIGIN, NullType()],
}
BAD: dict[str, list[DataType]] = {
    "key": [IntegerType(), ORIGIN],
    "value": [DoubleType(), MapType(StringType(), StringType())],
    "headers": [
        StringType(),
        HEADER,
        ArrayType(StringType()),
        ArrayType(struct("key", "other", kinds=[StringType(), BinaryType()])),
        ArrayType(struct("key", "value", kinds=[StringType(), IntegerType()])),
    ],
    "topic": [BinaryType(), IntegerType()],
    "partition": [StringType(), DoubleType()],
    "dead_letter": [BooleanType()],
    "source": [
        StringType(),
        HEADER,
        struct("topic", "partition", "offset", kinds=[StringType(), StringType(), LongType()]),
    ],
}


def test_every_column_has_its_types_here() -> None:
    assert tuple(GOOD) == tuple(BAD) == COLUMNS


@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name, kinds in GOOD.items() for kind in kinds]
)
def test_types_that_fit(name: str, kind: DataType) -> None:
    columns: dict[str, DataType] = {"value": StringType(), "at": TimestampType(), name: kind}
    assert sorted(check_schema(schema(**columns), "out")) == sorted({"value", name})


@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name, kinds in BAD.items() for kind in kinds]
)
def test_types_that_do_not_fit_are_named_with_those_that_do(name: str, kind: DataType) -> None:
    with pytest.raises(ConfigError) as refused:
        check_schema(schema(**{"value": StringType(), name: kind}), "out")
    said = str(refused.value)
    assert f"column {name!r} is of type {kind.simpleString()}" in said
    assert "it must be " in said
    assert "cast it" in said


def test_columns_are_found_in_any_case_and_others_are_left_out() -> None:
    frame = schema(Other=TimestampType(), VALUE=StringType(), Topic=StringType())
    assert check_schema(frame, None) == ["VALUE", "Topic"]


def test_a_frame_without_a_value_or_a_place_to_go_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no column 'value' \(it has id, key\).*to_json"):
        check_schema(schema(id=LongType(), key=StringType()), "out")
    with pytest.raises(ConfigError, match=r"option topic nor a column 'topic'.*\.option\('topic'"):
        check_schema(schema(value=StringType()), None)


def test_a_column_that_is_there_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"several columns 'value'.*rename"):
        check_schema(schema(value=StringType(), Value=BinaryType()), "out")
    twice = StructType([StructField("key", StringType())] * 2).add("value", StringType())
    with pytest.raises(ConfigError, match="several columns 'key'"):
        check_schema(twice, "out")


def test_a_spark_whose_checkpoints_are_not_known_is_refused() -> None:
    check_version(pyspark.__version__)
    check_version("4.2.1-amzn-0")
    for version in ("3.5.9", "4.1.4", "4.20.0", "5.0.0"):
        with pytest.raises(ConfigError, match=f"Spark {version}, and recovery is tested with 4.2"):
            check_version(version)
