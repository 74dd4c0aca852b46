"""The columns of the matrix: which families of faults a pipeline has trials in, and how many."""

from __future__ import annotations

from typing import Final

from sparkonce.guarantees import Guarantee
from sparkonce.verify.contract import Pipeline

NETWORK: Final = "network"
LATE: Final = "late"
CRASH: Final = "crash"
WORKER: Final = "worker"
PARTITIONS: Final = "partitions"
BROKERS: Final = "brokers"
COORDINATOR: Final = "coordinator"
ZOMBIE: Final = "zombie"
TIMEOUT: Final = "timeout"
STATE: Final = "state"
CHECKPOINT: Final = "checkpoint"
REFUSAL: Final = "refusal"
DATABASE: Final = "database"
DUMP: Final = "dump"
RETRY: Final = "retry"
FAMILIES: Final = (
    NETWORK, LATE, CRASH, WORKER, PARTITIONS, BROKERS, COORDINATOR, ZOMBIE, TIMEOUT, STATE,
    CHECKPOINT, REFUSAL, DATABASE, DUMP, RETRY,
)  # fmt: skip
MIXED: Final = "mixed"
EXECUTOR: Final = "executor"
"""On a cluster with executors as processes of their own; in the full preset."""
EXPIRY: Final = "expiry"
"""On a cluster that soon forgets transactional ids; in the full preset."""

EPOCHS: Final = "epochs"
"""On a cluster where producer ids are soon used up; in the full preset."""

OUTSIDE: Final = frozenset({"fence", "end:answered", "spark-commit"})
"""Points between two transactions."""
OPEN: Final = frozenset({"produce:last", "offsets", "end"})
"""Points at which a transaction is open for sure."""
ON_EXECUTORS: Final = frozenset({"produce:first", "produce:last"})
COMMITTED: Final = "committed"
DECIDING: Final = frozenset({"offsets", "end", COMMITTED})
"""Points around the commit of rows and progress."""
UNDONE: Final = frozenset({"offsets", "end"})
"""Points at which the state of a batch is written and the batch not decided."""


def families(pipeline: Pipeline, guarantee: Guarantee) -> list[str]:
    """In the order of the columns; without those that need a cluster of their own."""
    found = [NETWORK, CRASH] if pipeline.writes_kafka else [CRASH]
    # The weaker guarantees are there as controls: these two families make them lose and repeat.
    if guarantee is Guarantee.EXACTLY_ONCE and pipeline.points:
        found += _of_points(pipeline)
    own = FAMILIES if pipeline.families is None else pipeline.families
    return [each for each in FAMILIES if each in found and each in own]


def _of_points(pipeline: Pipeline) -> list[str]:
    told = set(pipeline.points)
    is_on_kafka = pipeline.writes_kafka
    has_state = pipeline.spark and pipeline.is_stateful and pipeline.provide is None
    fits = {
        BROKERS: is_on_kafka,
        LATE: is_on_kafka and "open" in told,
        COORDINATOR: is_on_kafka and "end" in told,
        DATABASE: "postgres" in pipeline.services,
        # In a round of its own, so for the plain one alone.
        RETRY: "postgres" in pipeline.services
        and not is_on_kafka
        and len(pipeline.guarantees) > 1
        and bool(told & ON_EXECUTORS),
        DUMP: "postgres" in pipeline.services and not pipeline.alters and bool(told & OPEN),
        ZOMBIE: bool(told - OUTSIDE - set(pipeline.holds)),
        TIMEOUT: is_on_kafka and bool(told & OPEN),
        WORKER: pipeline.spark and bool(told & ON_EXECUTORS),
        # In a round of its own, so for the plain one alone.
        PARTITIONS: pipeline.spark
        and pipeline.by_key
        and not pipeline.is_stateful
        and _is_plain(pipeline)
        and {"open", "produce:first", "offsets"} <= told,
        STATE: has_state and "end" in told,
        CHECKPOINT: "spark-commit" in told,
        REFUSAL: _is_plain(pipeline) and "spark-commit" in told,
    }
    return [family for family, does_fit in fits.items() if does_fit]


def trials_of(pipeline: Pipeline, guarantee: Guarantee, family: str) -> int:
    """How many the quick preset has of a cell: what one trial can't be enough for has several.

    Without Spark they cost little. Of pipelines with Spark the plain one has most, and that with
    state where state is at stake: the others share the steps of the protocol with these.
    """
    if guarantee is not Guarantee.EXACTLY_ONCE:
        return 1
    if not pipeline.spark:
        return _WITHOUT_SPARK.get(family, 1)
    if family == ZOMBIE and COMMITTED in pipeline.points:
        return 3
    if family == CRASH and not pipeline.writes_kafka and DECIDING.intersection(pipeline.points):
        return 2
    if pipeline.provide is not None or not pipeline.writes_kafka:
        return 1
    if pipeline.is_stateful:
        return _WITH_STATE.get(family, 1)
    return _PLAIN.get(family, 1) if _is_plain(pipeline) else 1


def _is_plain(pipeline: Pipeline) -> bool:
    """From one topic to another, in batches."""
    return (
        pipeline.writes_kafka
        and pipeline.provide is None
        and pipeline.batched
        and pipeline.outputs == 1
    )


_WITHOUT_SPARK: Final = {NETWORK: 4, CRASH: 4, LATE: 2, COORDINATOR: 2, ZOMBIE: 2, EPOCHS: 5}
_PLAIN: Final = {
    NETWORK: 3, CRASH: 3, WORKER: 2, COORDINATOR: 2, REFUSAL: 4, EPOCHS: 5, EXECUTOR: 2,
}  # fmt: skip
_WITH_STATE: Final = {CRASH: 2, STATE: 5, ZOMBIE: 2}
