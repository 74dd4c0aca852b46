"""The pipelines that come with the verifier; each is a module that keeps the `contract`."""

from __future__ import annotations

from importlib.util import find_spec

from sparkonce.verify.contract import Pipeline

BUILT_IN = (
    "relay", "joined", "stateless", "stateful", "topics", "dead_letters", "batch", "shuffled",
)  # fmt: skip
ENDS = (
    "from_files",
    "from_table",
    "from_latin1",
    "from_partitions",
    "from_duckdb",
    "from_sqlite",
    "into_duckdb",
    "into_postgres",
    "into_delta",
    "upsert_into_delta",
    "bad_into_duckdb",
    "bad_into_postgres",
    "two_into_postgres",
    "end_to_end",
)
"""From files and tables, and into databases."""
PEERS = {"spark_sink": "pyspark", "confluent_loop": "confluent_kafka", "quix_loop": "quixstreams"}
"""Other people's, and the package that each needs."""


def built_in() -> list[Pipeline]:
    return [Pipeline.load(f"{__name__}.{each}") for each in BUILT_IN]


def ends_built_in() -> list[Pipeline]:
    return [Pipeline.load(f"{__name__}.{each}") for each in ENDS]


def peers_built_in() -> list[Pipeline]:
    """Those of our peers whose package is installed."""
    there = [peer for peer, package in PEERS.items() if find_spec(package)]
    return [Pipeline.load(f"{__name__}.{each}") for each in there]
