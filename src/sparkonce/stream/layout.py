"""Who may write where: each output partition has one writer at a time.

The one seam for it. Where rows lie right already, each task has partitions of its own; elsewhere
tasks write to a partition in turns, and rows stay where they are all the same. Dead letters are
nobody's own: they always go in turns. What is assumed here is checked, by each task for rows that
name no partition, by the brokers, and before the decision: should two tasks have written to the
same partition, the attempt is given up and the batch is written in turns (`Overlap`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from sparkonce.errors import AbortableError


class Overlap(AbortableError):
    """Two tasks wrote to the same partition of the target, and not in turns."""


@dataclass(frozen=True, slots=True)
class Apart:
    """Tasks write what they have, each to partitions of its own."""

    tasks: int
    """0: as many as there are."""
    shares: int
    """Into how many parts the partitions are divided for rows without a key; 1: not at all."""

    @property
    def lies_by_partition(self) -> bool:
        """Whether each task has the partitions that its rows name, and no others."""
        return self.shares == 1 and self.tasks != 1


@dataclass(frozen=True, slots=True)
class InTurns:
    """Any task may have rows for any partition."""

    tasks: int
    """0: as many as there are."""


Layout = Apart | InTurns


def layout_of(
    frame: DataFrame,
    columns: Sequence[str],
    *,
    keeps_partition: bool,
    partition_count: int | None,
    enough: int | None = None,
) -> Layout:
    """`partition_count` is the target's, where it is one topic that is known beforehand.

    Where rows lie right, tasks may be joined, which moves nothing: where there are more of them
    than partitions, or than are `enough` for so little work.
    """
    tasks = _task_count(frame)
    names = {name.lower(): name for name in columns}
    if tasks is not None and tasks <= 1:
        return Apart(tasks, 1)
    if "partition" in names:
        if keeps_partition or _lies_by(frame, names["partition"]):
            return Apart(min(tasks, enough or tasks) if tasks else 0, 1)
    elif "key" not in names and partition_count is not None and tasks is not None:
        shares = min(tasks, enough or tasks, partition_count)
        return Apart(shares, shares)
    return InTurns(min(tasks, enough or tasks) if tasks else 0)


def _task_count(frame: DataFrame) -> int | None:
    """None for an adaptive plan: it settles on its tasks while it runs, and is to run once."""
    execution = frame._jdf.queryExecution()
    if execution.logical().nodeName() == "LogicalRDD":
        return int(execution.logical().rdd().getNumPartitions())  # a micro-batch: no need to plan
    if execution.executedPlan().nodeName() == "AdaptiveSparkPlan":
        return None
    return int(execution.toRdd().getNumPartitions())


def check_apart(written: Iterable[tuple[int, str, int]]) -> None:
    """Task, topic and partition of everything that was written. Raises Overlap."""
    writers: dict[tuple[str, int], int] = {}
    for task, topic, partition in written:
        other = writers.setdefault((topic, partition), task)
        if other != task:
            raise Overlap(
                f"tasks {other} and {task} both wrote to partition {partition} of {topic}"
            )


def _lies_by(frame: DataFrame, column: str) -> bool:
    """Whether Spark has all rows with the same value of the column in one task."""
    plan = frame._jdf.queryExecution().executedPlan()
    if plan.nodeName() == "AdaptiveSparkPlan":
        plan = plan.initialPlan()
    partitioning = plan.outputPartitioning()
    if partitioning.getClass().getSimpleName() not in (
        "HashPartitioning",
        "ShufflePartitionIdPassThrough",
    ):
        return False
    names = [_name(each) for each in _each(partitioning.references().toSeq())]
    return names == [column]


def _each(found: Any) -> Iterable[Any]:
    return [found.apply(index) for index in range(found.size())]


def _name(attribute: Any) -> str:
    return str(attribute.name())
