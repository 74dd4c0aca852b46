"""The kinds of sinks by the name that users give to `format`, loaded when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Protocol, cast

from pyspark.sql import DataFrame

from sparkonce.errors import ConfigError
from sparkonce.stream.settings import PipelineSettings
from sparkonce.stream.sources import Reading
from sparkonce.stream.steps import Observer, Sink


class Target(Protocol):
    """Where rows are to go: options checked, nothing touched yet."""

    @property
    def settings(self) -> PipelineSettings: ...

    def open(self, frame: DataFrame, reading: Reading | None, observe: Observer | None) -> Sink:
        """The sink for rows like the frame's; `reading` is None for a batch job."""


Format = Callable[[Mapping[str, str], str | None], Target]
"""From options and the query's name."""

_formats: dict[str, Format | str] = {
    "kafka": "sparkonce.stream.kafka:KafkaTarget.parse",
    "duckdb": "sparkonce.deliver.duckdb:target",
    "postgres": "sparkonce.deliver.postgres:target",
    "delta": "sparkonce.deliver.delta:target",
}


def register(name: str, form: Format) -> None:
    """Let users say `.format(name)`."""
    _formats[name.lower()] = form


def find(name: str) -> Format:
    found = _formats.get(name.lower())
    if found is None:
        raise ConfigError(
            f"format {name!r} is unknown: there are {', '.join(sorted(_formats))}; one of your own "
            "is made known by sparkonce.deliver.register"
        )
    if not isinstance(found, str):
        return found
    module, _, path = found.partition(":")
    value: object = import_module(module)
    for part in path.split("."):
        value = getattr(value, part)
    return cast("Format", value)
