"""What users set on a writer, under Spark's and Kafka's own names; checked before anything starts.

Options are Spark's (`topic`, `checkpointLocation`, `kafka.…`) and a few of our own. Names are taken
in any case, as Spark does; one that is unknown is refused, since a mistyped promise is no promise.
"""

from __future__ import annotations

import difflib
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

COLUMNS = ("key", "value", "headers", "topic", "partition", "dead_letter", "source")
"""What of a DataFrame is written; other columns are left out, as Spark's own sink does."""

_KAFKA = "kafka."
_OWN = {
    name.lower(): name
    for name in (
        "topic",
        "guarantee",
        "checkpointLocation",
        "queryName",
        "deadLetterTopic",
        "batchAttempts",
        "ledgerLost",
        "lostState",
        "driverHost",
        "driverPort",
        "runId",
    )
}
_OWN_IN_KAFKA = {"guarantee": "guarantee", "dead.letter.topic": "deadLetterTopic"}
"""The producer's names of options that have one here."""
_OF_RECORDS = frozenset(
    {"acks", "enable.idempotence", "max.in.flight.requests.per.connection", "retries"}
)
"""How records are sent: what a weaker guarantee leaves open, and a transactional id does not."""
_PORT_MAX = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """A writer's settings, checked."""

    pipeline: str
    guarantee: Guarantee
    topic: str | None
    owner: Mapping[str, str]
    """For the driver's producer, which has the transactional id."""
    writers: Mapping[str, str]
    """For the producers on executors."""
    dead_letter_topic: str | None
    attempts_max: int
    ledger_lost: str
    lost_state: str
    driver_host: str | None
    driver_port: int
    run_id: str | None

    @property
    def group(self) -> str:
        """The consumer group that is the ledger; a batch job has one for each of its runs."""
        return self.pipeline if self.run_id is None else f"{self.pipeline}-run-{self.run_id}"

    @classmethod
    def parse(cls, options: Mapping[str, str], query_name: str | None) -> StreamSettings:
        own, kafka = _sorted_out(options)
        guarantee = _one_of("guarantee", own, [each.value for each in Guarantee], "exactly_once")
        pipeline = kafka.pop("transactional.id", None) or query_name or own.get("queryName")
        if pipeline is None:
            raise ConfigError(
                "kafka.transactional.id is missing: name the pipeline, the same name after a "
                "restart and no other pipeline's (a queryName serves as well)"
            )
        dead_letters = own.get("deadLetterTopic")
        if dead_letters:
            kafka["dead.letter.topic"] = dead_letters
        timeout_ms = kafka.pop("transaction.timeout.ms", "max")
        owner = {**kafka, "transactional.id": pipeline, "transaction.timeout.ms": timeout_ms}
        promise = Guarantee(guarantee)
        if promise is not Guarantee.EXACTLY_ONCE:
            # The driver's own producer only keeps the ledger; how records are sent isn't its.
            owner = {name: value for name, value in owner.items() if name not in _OF_RECORDS}
            _parse({**kafka, "guarantee": guarantee})
        _parse(owner)
        return cls(
            pipeline=pipeline,
            guarantee=promise,
            topic=own.get("topic"),
            owner=owner,
            writers=kafka,
            dead_letter_topic=dead_letters,
            attempts_max=_number("batchAttempts", own, default=3, low=1),
            ledger_lost=_one_of("ledgerLost", own, ["fail", "replay", "skip"], "fail"),
            lost_state=_one_of("lostState", own, ["fail", "empty"], "fail"),
            driver_host=own.get("driverHost"),
            driver_port=_number("driverPort", own, default=0, low=0, high=_PORT_MAX),
            run_id=own.get("runId"),
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


def _sorted_out(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Our own options and Kafka's, by their proper names."""
    own: dict[str, str] = {}
    kafka: dict[str, str] = {}
    for name, value in options.items():
        if not value:
            # From a variable that is not set, say: a runId of nothing would be every run's.
            raise ConfigError(f"{name} is empty: give it a value, or leave it out")
        if name.lower().startswith(_KAFKA):
            given = name[len(_KAFKA) :].lower()
            if given in _OWN_IN_KAFKA:
                raise ConfigError(f"{name} is the option {_OWN_IN_KAFKA[given]} here: use that")
            kafka[given] = value
        elif name.lower() in _OWN:
            own[_OWN[name.lower()]] = value
        else:
            near = difflib.get_close_matches(name.lower(), [*_OWN, _KAFKA + name.lower()], n=1)
            hint = f"did you mean {_OWN.get(near[0], near[0])!r}?" if near else ""
            raise ConfigError(
                f"unknown option {name!r}: {hint} known are {', '.join(sorted(_OWN.values()))}, "
                "and Kafka's own with kafka. before them"
            )
    if "bootstrap.servers" not in kafka:
        raise ConfigError("kafka.bootstrap.servers is missing: name a broker as host:port")
    return own, kafka


def _parse(settings: Mapping[str, str]) -> None:
    try:
        ProducerOptions.parse(settings)
    except ConfigError as error:
        raise ConfigError(f"in the options that begin with kafka.: {error}") from error


def _one_of(name: str, own: Mapping[str, str], allowed: list[str], default: str) -> str:
    value = own.get(name, default).lower()
    if value not in allowed:
        raise ConfigError(f"{name}={value!r}: it must be one of {', '.join(allowed)}")
    return value


def _number(
    name: str, own: Mapping[str, str], *, default: int, low: int, high: int | None = None
) -> int:
    text = own.get(name, str(default))
    if not text.isdecimal() or int(text) < low or (high is not None and int(text) > high):
        allowed = f"{low} or more" if high is None else f"{low} to {high}"
        raise ConfigError(f"{name}={text!r}: it must be a whole number, {allowed}")
    return int(text)
