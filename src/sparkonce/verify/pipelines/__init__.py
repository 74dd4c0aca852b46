"""The pipelines that come with the verifier; each is a module that keeps the `contract`."""

from __future__ import annotations

from sparkonce.verify.contract import Pipeline

BUILT_IN = ("relay", "stateless", "stateful", "topics", "batch")
PEERS = ("spark_sink", "confluent_loop")


def built_in() -> list[Pipeline]:
    return [Pipeline.load(f"{__name__}.{each}") for each in BUILT_IN]


def peers_built_in() -> list[Pipeline]:
    """Other people's."""
    return [Pipeline.load(f"{__name__}.{each}") for each in PEERS]
