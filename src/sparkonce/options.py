"""What users set, under Kafka's own names; read and checked once, before anything is opened.

A setting that is left out follows from the guarantee, as in the Java client. One that contradicts
another is refused with a message that names both and what to change: a promise that was quietly
switched off is worse than none.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from sparkonce.encode import Codec
from sparkonce.errors import ConfigError, EncodeError
from sparkonce.guarantees import NEEDS, Guarantee
from sparkonce.wire.address import Address, parse_addresses
from sparkonce.wire.security import Security

LONGEST = 0
"""As a transaction's time-out: what the brokers allow at most."""

IN_FLIGHT_MAX = 5
"""As many batches of a producer as a broker remembers per partition (KAFKA-5494)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """A producer's settings, checked; times in milliseconds, sizes in bytes."""

    bootstrap_servers: tuple[Address, ...]
    client_id: str = "sparkonce"
    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000
    guarantee: Guarantee | None = None
    enable_idempotence: bool = True
    acks: int = -1
    retries: int = 2**31 - 1
    in_flight_max: int = IN_FLIGHT_MAX
    connections_per_broker: int = 2
    delivery_timeout_ms: int = 120_000
    request_timeout_ms: int = 30_000
    max_block_ms: int = 60_000
    retry_backoff_ms: int = 5
    retry_backoff_max_ms: int = 1_000
    linger_ms: int = 5
    batch_size: int = 512 * 1024
    max_request_size: int = 1024 * 1024
    buffer_memory: int = 32 * 1024 * 1024
    compression_type: Codec = Codec.NONE
    compression_level: int | None = None
    metadata_max_age_ms: int = 300_000
    dead_letter_topic: str | None = None
    security: Security = Security()

    @classmethod
    def parse(cls, settings: Mapping[str, Any]) -> ProducerOptions:
        """From names as Kafka spells them, values as strings or as Python has them."""
        given = dict(settings)
        for name in given:
            if name not in _READERS and not Security.owns(name):
                raise ConfigError(_unknown(name))
        guarantee = _read("guarantee", given["guarantee"]) if "guarantee" in given else None
        if guarantee is not None:
            _fill_from(guarantee, given)
        if "bootstrap.servers" not in given:
            raise ConfigError("bootstrap.servers is missing: name a broker as host:port")
        values = {
            _FIELD[name]: _read(name, value) for name, value in given.items() if name in _READERS
        }
        _settle_idempotence(given, values)
        options = cls(**values, security=Security.parse(given))
        _check(options, given)
        return options


def _bool(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("must be true or false")
    return text.lower() == "true"


def _at_least(low: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        number = int(text)
        if number < low:
            raise ValueError(f"must be {low} or more")
        return number

    return read


def _acks(text: str) -> int:
    known = {"0": 0, "1": 1, "all": -1, "-1": -1}
    if text not in known:
        raise ValueError("must be 0, 1 or all")
    return known[text]


def _timeout(text: str) -> int:
    return LONGEST if text == "max" else _at_least(1)(text)


def _text(text: str) -> str:
    if not text:
        raise ValueError("must not be empty")
    return text


_READERS: dict[str, Callable[[str], Any]] = {
    "bootstrap.servers": parse_addresses,
    "client.id": str,
    "transactional.id": _text,
    "transaction.timeout.ms": _timeout,
    "guarantee": Guarantee,
    "enable.idempotence": _bool,
    "acks": _acks,
    "retries": _at_least(0),
    "max.in.flight.requests.per.connection": _at_least(1),
    "connections.per.broker": _at_least(1),
    "delivery.timeout.ms": _at_least(1),
    "request.timeout.ms": _at_least(1),
    "max.block.ms": _at_least(1),
    "retry.backoff.ms": _at_least(1),
    "retry.backoff.max.ms": _at_least(1),
    "linger.ms": _at_least(0),
    "batch.size": _at_least(1024),
    "max.request.size": _at_least(1024),
    "buffer.memory": _at_least(1024),
    "compression.type": Codec.parse,
    "compression.level": int,
    "metadata.max.age.ms": _at_least(1),
    "dead.letter.topic": _text,
}
_FIELD = {name: name.replace(".", "_") for name in _READERS} | {
    "max.in.flight.requests.per.connection": "in_flight_max"
}
# The table and the dataclass name the same things, or importing this fails.
assert set(_FIELD.values()) | {"security"} == {field.name for field in fields(ProducerOptions)}


def _read(name: str, value: Any) -> Any:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    try:
        return _READERS[name](text)
    except (ValueError, EncodeError) as error:
        raise ConfigError(f"{name}={text!r}: {error}") from None


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, [*_READERS, *Security.NAMES], n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(_READERS))}"
    return f"unknown setting {name!r}: {hint}"


def _fill_from(guarantee: Guarantee, given: dict[str, Any]) -> None:
    for name, needed in NEEDS[guarantee].items():
        if name in given and _read(name, given[name]) != _read(name, needed):
            raise ConfigError(
                f"guarantee={guarantee.value} needs {name}={needed}, but {name}={given[name]} is "
                f"set: leave {name} out, or choose another guarantee"
            )
        given.setdefault(name, needed)


def _settle_idempotence(given: Mapping[str, Any], values: dict[str, Any]) -> None:
    """On unless something the user set excludes it (KIP-679); asked for, it rules."""
    wanted = values.get("enable_idempotence")
    demand = "enable.idempotence=true" if wanted else None
    if "transactional_id" in values:
        guarantee = values.get("guarantee")
        if guarantee in (Guarantee.NONE, Guarantee.AT_MOST_ONCE):
            raise ConfigError(
                f"transactional.id={values['transactional_id']} contradicts guarantee="
                f"{guarantee.value}: a transaction neither loses nor repeats; leave "
                "transactional.id out, or choose guarantee=exactly_once"
            )
        if wanted is False:
            raise ConfigError(
                "transactional.id needs enable.idempotence=true, but it is set to false: "
                "leave enable.idempotence out, or drop transactional.id"
            )
        demand = f"transactional.id={values['transactional_id']}"
    against = {
        "acks": (values.get("acks", -1) != -1, "all"),
        "retries": (values.get("retries", 1) == 0, "1 or more"),
        "max.in.flight.requests.per.connection": (
            values.get("in_flight_max", 1) > IN_FLIGHT_MAX,
            f"{IN_FLIGHT_MAX} or less",
        ),
    }
    for name, (contradicts, needed) in against.items():
        if contradicts and demand:
            raise ConfigError(
                f"{demand} needs {name} to be {needed}, but {name}={given[name]} is set: change "
                f"{name}, or give up {demand.split('=')[0]} and with it the promise that a "
                "resend is written once"
            )
        if contradicts:
            values["enable_idempotence"] = False


def _check(options: ProducerOptions, given: Mapping[str, Any]) -> None:
    if options.delivery_timeout_ms < options.linger_ms + options.request_timeout_ms:
        raise ConfigError(
            f"delivery.timeout.ms={options.delivery_timeout_ms} is below linger.ms="
            f"{options.linger_ms} + request.timeout.ms={options.request_timeout_ms}: one request "
            "must fit into it; raise delivery.timeout.ms or lower request.timeout.ms"
        )
    if options.compression_level is not None and options.compression_type is Codec.NONE:
        raise ConfigError(
            f"compression.level={options.compression_level} is set but compression.type is none: "
            "set compression.type, or leave compression.level out"
        )
    if options.batch_size > options.max_request_size:
        raise ConfigError(
            f"batch.size={options.batch_size} is over max.request.size={options.max_request_size}: "
            "a batch must fit into a request; lower batch.size or raise max.request.size"
        )
    if options.buffer_memory < options.batch_size:
        raise ConfigError(
            f"buffer.memory={options.buffer_memory} is below batch.size={options.batch_size}: "
            "raise buffer.memory or lower batch.size"
        )
    if options.transactional_id is None and "transaction.timeout.ms" in given:
        raise ConfigError(
            "transaction.timeout.ms is set but transactional.id is not: "
            "set transactional.id, or leave transaction.timeout.ms out"
        )
