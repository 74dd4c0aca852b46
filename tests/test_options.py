"""Settings: Kafka's names, derived values, and contradictions that name both sides."""

from __future__ import annotations

import re

import pytest

from sparkonce.encode import Codec
from sparkonce.errors import ConfigError
from sparkonce.guarantees import NEEDS, Guarantee
from sparkonce.options import ProducerOptions
from sparkonce.wire.address import Address

SERVERS = {"bootstrap.servers": "127.0.0.1:9092"}


def parse(**settings: object) -> ProducerOptions:
    return ProducerOptions.parse(SERVERS | {k.replace("_", "."): v for k, v in settings.items()})


def test_kafka_names_with_values_as_text_or_python() -> None:
    options = parse(
        acks="all", linger_ms="7", enable_idempotence=True, compression_type="zstd", batch_size=4096
    )
    assert options.bootstrap_servers == (Address("127.0.0.1", 9092),)
    assert (options.acks, options.linger_ms, options.batch_size) == (-1, 7, 4096)
    assert options.compression_type is Codec.ZSTD


def test_addresses() -> None:
    many = ProducerOptions.parse({"bootstrap.servers": "a:1, [::1]:2,PLAINTEXT://b:3"})
    assert many.bootstrap_servers == (Address("a", 1), Address("::1", 2), Address("b", 3))
    for bad in ("", "a", "a:b", ":9", "a:99999"):
        with pytest.raises(ConfigError, match=r"bootstrap\.servers"):
            ProducerOptions.parse({"bootstrap.servers": bad})
    with pytest.raises(ConfigError, match=r"bootstrap\.servers is missing"):
        ProducerOptions.parse({})


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"enable.idempotence": "true", "acks": "1"}, ["enable.idempotence=true", "acks=1"]),
        ({"enable.idempotence": "true", "acks": "0"}, ["enable.idempotence=true", "acks=0"]),
        ({"enable.idempotence": "true", "retries": 0}, ["enable.idempotence=true", "retries=0"]),
        (
            {"enable.idempotence": True, "max.in.flight.requests.per.connection": 6},
            ["enable.idempotence=true", "max.in.flight.requests.per.connection=6"],
        ),
        ({"transactional.id": "x", "acks": "1"}, ["transactional.id=x", "acks=1"]),
        (
            {"transactional.id": "x", "enable.idempotence": "false"},
            ["transactional.id", "enable.idempotence=true", "false"],
        ),
        (
            {"guarantee": "exactly_once", "acks": "1"},
            ["guarantee=exactly_once", "acks=all", "acks=1"],
        ),
        (
            {"guarantee": "at_most_once", "retries": "5"},
            ["guarantee=at_most_once", "retries=0", "retries=5"],
        ),
        ({"delivery.timeout.ms": 100}, ["delivery.timeout.ms=100", "request.timeout.ms=30000"]),
        ({"batch.size": 2 * 1024 * 1024}, ["batch.size=2097152", "max.request.size=1048576"]),
        ({"buffer.memory": 2048}, ["buffer.memory=2048", "batch.size"]),
        ({"transaction.timeout.ms": 1000}, ["transaction.timeout.ms", "transactional.id"]),
        ({"compression.level": 3}, ["compression.level=3", "compression.type"]),
        (
            {"transactional.id": "x", "guarantee": "at_most_once"},
            ["transactional.id=x", "guarantee=at_most_once"],
        ),
        ({"security.protocol": "SSL"}, ["security.protocol=SSL"]),
        ({"ssl.ca.location": "x"}, ["ssl.ca.location", "PLAINTEXT"]),
    ],
)
def test_a_contradiction_names_both(settings: dict[str, object], named: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        ProducerOptions.parse(SERVERS | settings)
    for name in named:
        assert re.search(re.escape(name), str(refused.value)), f"{name} in: {refused.value}"


@pytest.mark.parametrize(
    "settings",
    [{"acks": "1"}, {"retries": 0}, {"max.in.flight.requests.per.connection": 10}],
)
def test_idempotence_gives_way_where_nobody_asked_for_it(settings: dict[str, object]) -> None:
    assert ProducerOptions.parse(SERVERS).enable_idempotence
    assert not ProducerOptions.parse(SERVERS | settings).enable_idempotence


@pytest.mark.parametrize("guarantee", list(Guarantee))
def test_a_guarantee_brings_its_settings(guarantee: Guarantee) -> None:
    options = parse(guarantee=guarantee.value)
    expected = ProducerOptions.parse(SERVERS | dict(NEEDS[guarantee]))
    assert (options.acks, options.retries, options.enable_idempotence) == (
        expected.acks,
        expected.retries,
        expected.enable_idempotence,
    )
    # What may not repeat either never resends or is idempotent; what may not lose asks for all.
    assert guarantee.may_repeat or options.retries == 0 or options.enable_idempotence
    assert guarantee.may_lose or options.acks == -1


def test_unknown_and_malformed_settings_are_named() -> None:
    with pytest.raises(ConfigError, match=r"'linger\.s'.*did you mean 'linger\.ms'"):
        ProducerOptions.parse(SERVERS | {"linger.s": 1})
    with pytest.raises(ConfigError, match=r"linger\.ms='soon'"):
        parse(linger_ms="soon")
    with pytest.raises(ConfigError, match=r"compression\.type='rar'"):
        parse(compression_type="rar")
    with pytest.raises(ConfigError, match=r"guarantee='twice'"):
        parse(guarantee="twice")
