"""What a streaming DataFrame reads and keeps, seen in its plan before the query starts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from sparkonce.produce.identity import Partition

_STATEFUL = frozenset(
    {
        "Aggregate",
        "Deduplicate",
        "DeduplicateWithinWatermark",
        "Distinct",
        "FlatMapGroupsInPandasWithState",
        "FlatMapGroupsWithState",
        "GlobalLimit",
        "Join",
        "TransformWithState",
        "TransformWithStateInPySpark",
    }
)

_ROWS_STAY = frozenset({"EventTimeWatermark", "Filter", "Project", "SubqueryAlias", "View"})
"""Steps that leave every row in its task."""


@dataclass(frozen=True, slots=True)
class Source:
    """A streaming source: Spark's name for it, and the options it was given (lower case)."""

    kind: str
    options: Mapping[str, str]

    @property
    def is_kafka(self) -> bool:
        return self.kind == "kafka"

    @property
    def is_told_by_offsets(self) -> bool:
        """Whether the offset log has all of its progress: it keeps no files of its own."""
        return self.kind in ("kafka", "sparkonce_table")

    @property
    def reads_uncommitted(self) -> bool:
        level = self.options.get("kafka.isolation.level", "read_uncommitted")
        return self.is_kafka and level != "read_committed"


@dataclass(frozen=True, slots=True)
class Reading:
    """The sources in the order in which Spark logs their offsets, and whether state is kept."""

    sources: tuple[Source, ...]
    is_stateful: bool
    keeps_partition: bool
    """Whether all rows with the same `partition` are in one task: it is the column of the only
    source, a single Kafka topic, and rows are where they were read; or they were repartitioned
    by it."""

    @property
    def first_partitions(self) -> tuple[Partition, ...]:
        """The first partition of each Kafka topic that is read by name."""
        found: list[Partition] = []
        for source in self.sources:
            if source.is_kafka:
                names = source.options.get("subscribe", "").split(",")
                found += [(name.strip(), 0) for name in names if name.strip()]
                assigned = json.loads(source.options.get("assign", "{}"))
                found += [(topic, min(indexes)) for topic, indexes in assigned.items() if indexes]
        return tuple(found)


def reading_of(frame: DataFrame) -> Reading:
    plan = frame._jdf.queryExecution().analyzed()
    leaves = [node for node in _nodes(plan) if node.nodeName().startswith("StreamingRelation")]
    sources = tuple(_source(leaf) for leaf in leaves)
    stateful = any(_keeps_state(node) for node in _nodes(plan))
    keeps_partition = _keeps_partition(plan, leaves, sources) or _was_repartitioned(plan)
    return Reading(sources, stateful, keeps_partition)


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    children = plan.children()
    for index in range(children.size()):
        yield from _nodes(children.apply(index))


def _keeps_state(node: Any) -> bool:
    if node.nodeName() not in _STATEFUL or not node.isStreaming():
        return False
    # Joined with a table, a stream needs no memory of itself.
    is_join = node.nodeName() == "Join"
    return not is_join or bool(node.left().isStreaming() and node.right().isStreaming())


def _source(leaf: Any) -> Source:
    if leaf.nodeName() == "StreamingRelationV2":
        given = leaf.extraOptions()
        options = {key.lower(): given.get(key) for key in given.keySet()}
        return Source(leaf.sourceName(), options)
    return Source(str(leaf.sourceName()), {})


def _keeps_partition(plan: Any, leaves: list[Any], sources: tuple[Source, ...]) -> bool:
    if len(leaves) != 1 or not sources[0].is_kafka:
        return False
    options = sources[0].options
    if "," in options.get("subscribe", ",") or {"minpartitions", "maxrecordsperpartition"} & set(
        options
    ):
        return False
    if any(node.nodeName() not in _ROWS_STAY for node in _nodes(plan) if node.children().size()):
        return False
    kept = _attribute(plan, "partition")
    return kept is not None and kept == _attribute(leaves[0], "partition")


def _was_repartitioned(plan: Any) -> bool:
    """By the column `partition` and nothing else, and not moved since."""
    wanted = _attribute(plan, "partition")
    while plan.nodeName() in _ROWS_STAY and plan.children().size() == 1:
        plan = plan.children().apply(0)
    if wanted is None or plan.nodeName() != "RepartitionByExpression":
        return False
    by = plan.partitionExpressions()
    return (
        by.size() == 1
        and by.apply(0).nodeName() == "AttributeReference"
        and (int(by.apply(0).exprId().id()) == wanted)
    )


def _attribute(plan: Any, name: str) -> int | None:
    """Spark's own id of an output column: the same as long as the column is the same."""
    output = plan.output()
    for index in range(output.size()):
        attribute = output.apply(index)
        if attribute.name().lower() == name:
            return int(attribute.exprId().id())
    return None
