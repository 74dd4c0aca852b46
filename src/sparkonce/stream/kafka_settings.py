"""What users set for Kafka as a sink, under Spark's and Kafka's names, and what it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegralType,
    NullType,
    StringType,
    StructType,
)

from sparkonce.errors import ConfigError
from sparkonce.guarantees import Guarantee
from sparkonce.options import ProducerOptions
from sparkonce.stream import settings
from sparkonce.stream.given import Given
from sparkonce.stream.settings import PipelineSettings, check_pipeline_name

COLUMNS = ("key", "value", "headers", "topic", "partition", "dead_letter", "source")
"""What of a DataFrame is written; other columns are left out, as Spark's own sink does."""

_KAFKA = "kafka."
OPTIONS = ("topic", "deadLetterTopic", "driverHost", "driverPort")
_OWN_IN_KAFKA = {"guarantee": "guarantee", "dead.letter.topic": "deadLetterTopic"}
"""The producer's names of options that have one here."""
_OF_RECORDS = frozenset(
    {"acks", "enable.idempotence", "max.in.flight.requests.per.connection", "retries"}
)
"""How records are sent: what a weaker guarantee leaves open, and a transactional id does not."""
_PORT_MAX = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings(PipelineSettings):
    """A writer's settings, checked."""

    topic: str | None
    owner: Mapping[str, str]
    """For the driver's producer, which has the transactional id."""
    writers: Mapping[str, str]
    """For the producers on executors."""
    dead_letter_topic: str | None
    driver_host: str | None
    driver_port: int

    @classmethod
    def parse(cls, options: Mapping[str, str], query_name: str | None) -> KafkaSettings:
        given = Given.sort_out(options, (*settings.OPTIONS, *OPTIONS), prefix=_KAFKA)
        kafka = _of_kafka(given)
        named = kafka.pop("transactional.id", None)
        pipeline = named or query_name or given.get("queryName")
        if pipeline is None:
            raise ConfigError(
                "kafka.transactional.id is missing: name the pipeline, the same name after a "
                "restart and no other pipeline's (a queryName serves as well)"
            )
        check_pipeline_name(pipeline, "kafka.transactional.id" if named else "queryName")
        dead_letters = given.get("deadLetterTopic")
        if dead_letters:
            kafka["dead.letter.topic"] = dead_letters
        timeout_ms = kafka.pop("transaction.timeout.ms", "max")
        owner = {**kafka, "transactional.id": pipeline, "transaction.timeout.ms": timeout_ms}
        in_common = settings.in_common(given)
        if in_common["guarantee"] is not Guarantee.EXACTLY_ONCE:
            # The driver's own producer only keeps the ledger; how records are sent isn't its.
            owner = {name: value for name, value in owner.items() if name not in _OF_RECORDS}
            _parse({**kafka, "guarantee": in_common["guarantee"].value})
        _parse(owner)
        return cls(
            **in_common,
            pipeline=pipeline,
            named_by="kafka.transactional.id",
            topic=given.get("topic"),
            owner=owner,
            writers=kafka,
            dead_letter_topic=dead_letters,
            driver_host=given.get("driverHost"),
            driver_port=given.number("driverPort", default=0, low=0, high=_PORT_MAX),
        )


def check_schema(schema: StructType, topic: str | None) -> list[str]:
    """The columns to write; refuses a DataFrame that has no place in Kafka."""
    by_name = {name.lower(): name for name in schema.names}
    found = [name for name in COLUMNS if name in by_name]
    for name in found:
        if sum(each.lower() == name for each in schema.names) > 1:
            raise ConfigError(f"there are several columns {name!r}: drop or rename all but one")
    if "value" not in found:
        raise ConfigError(
            f"the DataFrame has no column 'value' (it has {', '.join(schema.names)}): a Kafka "
            "record needs one; build it, for example with to_json(struct('*')).alias('value')"
        )
    if topic is None and "topic" not in found:
        raise ConfigError(
            "there is neither an option topic nor a column 'topic': set .option('topic', …), or "
            "add the column where rows go to several topics"
        )
    for name in found:
        kind = schema[by_name[name]].dataType
        if not _fits(name, kind):
            raise ConfigError(
                f"column {name!r} is of type {kind.simpleString()}; it must be {_TYPES[name]}: "
                "cast it first"
            )
    return [by_name[name] for name in found]


_TYPES = {
    "key": "string or binary",
    "value": "string or binary",
    "headers": "array<struct<key: string, value: binary>>",
    "topic": "string",
    "partition": "int",
    "dead_letter": "string (the reason, null for rows that are well)",
    "source": "struct<topic: string, partition: int, offset: bigint>, see sparkonce.source()",
}


def _fits(name: str, kind: DataType) -> bool:
    if isinstance(kind, NullType):
        return True
    if name in ("key", "value"):
        return isinstance(kind, StringType | BinaryType)
    if name in ("topic", "dead_letter"):
        return isinstance(kind, StringType)
    if name == "partition":
        return isinstance(kind, IntegralType)
    if name == "source":
        return _is_struct(kind, _SOURCE)
    return isinstance(kind, ArrayType) and _is_struct(kind.elementType, _HEADER)


_Kinds = Mapping[str, type[DataType] | tuple[type[DataType], ...]]
_SOURCE: _Kinds = {"topic": StringType, "partition": IntegralType, "offset": IntegralType}
_HEADER: _Kinds = {"key": StringType, "value": (StringType, BinaryType)}


def _is_struct(kind: DataType, fields: _Kinds) -> bool:
    return (
        isinstance(kind, StructType)
        and kind.names == list(fields)
        and all(isinstance(kind[name].dataType, each) for name, each in fields.items())
    )


def _of_kafka(given: Given) -> dict[str, str]:
    """The options that begin with kafka., by Kafka's names."""
    kafka: dict[str, str] = {}
    for name, value in given.prefixed.items():
        if name in _OWN_IN_KAFKA:
            raise ConfigError(f"{_KAFKA}{name} is the option {_OWN_IN_KAFKA[name]} here: use that")
        kafka[name] = value
    if "bootstrap.servers" not in kafka:
        raise ConfigError("kafka.bootstrap.servers is missing: name a broker as host:port")
    return kafka


def _parse(settings: Mapping[str, str]) -> None:
    try:
        ProducerOptions.parse(settings)
    except ConfigError as error:
        raise ConfigError(f"in the options that begin with kafka.: {error}") from error
