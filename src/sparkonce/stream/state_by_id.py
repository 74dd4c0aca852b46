"""State store checkpoint format 2: each attempt's state has an id of its own.

Files are named by the id, and Spark's commit log names the ids to go on from, so what others write
is never read. But Spark takes the ids of the *first* attempt at a batch, as it knows of one alone,
and writes them when the batch is long decided. So the ids of the attempt that is about to be
decided go into its note, and are the only ones that are left to Spark.

Spark reports an id for each run of a task with state. Where a task ran more than once, in a second
attempt or because an executor was lost, the last one counts: where the state is computed in the
same stage as the rows, all are computed again; where it is below another shuffle, Spark reads what
the last run left, and runs again only what is missing.
"""

from __future__ import annotations

import json
import logging
from typing import Any, Final

from py4j.java_gateway import is_instance_of
from pyspark.sql import SparkSession

from sparkonce.errors import SparkonceError
from sparkonce.stream.checkpoint import CheckpointFolder
from sparkonce.stream.ledger import Entry, LedgerError
from sparkonce.stream.state import IDS, StateNotes

_log = logging.getLogger("sparkonce.stream")
_KEEPS_STATE: Final = "org.apache.spark.sql.execution.streaming.operators.stateful.StateStoreWriter"


class StateById:
    is_shared = False

    def __init__(self, spark: SparkSession, folder: CheckpointFolder, notes: StateNotes) -> None:
        self._spark = spark
        self._folder = folder
        self._notes = notes
        self._query: str | None = None

    def seal(self, batch: int, former: str | None) -> str:
        operators = self._operators()
        if not operators:
            raise LedgerError(
                f"the query of {self._folder.location} keeps state, and the plan of batch {batch} "
                "has no operator that does: this is a plan that is not understood, and which state "
                "belongs to the batch can't be told; please report it"
            )
        ids: dict[str, list[list[str]]] = {}
        begun_from: dict[str, list[list[str] | None]] = {}
        for operator in operators:
            number = str(operator.getStateInfo().operatorId())
            last = self._last_runs(operator)
            ids[number] = [each["stateStoreCkptId"] for each in last]
            begun_from[number] = [each.get("baseStateStoreCkptId") for each in last]
        if former is not None and begun_from != (visible := self._notes.read(former)[IDS]):
            raise LedgerError(
                f"batch {batch} of {self._folder.location} went on from the state {begun_from}, "
                f"and the one whose output is visible is {visible}: the checkpoint was changed "
                "while the query ran. Start the query again, and it goes on from the visible one"
            )
        return self._notes.write(batch, {IDS: ids})

    def prepare(self, batch: int, *, is_first: bool) -> None:
        """Nobody ever reads state under an id that was not decided."""

    def verify(self, entry: Entry | None) -> None:
        """Where a commit names other ids than the ledger, the ledger's are put in their place."""
        # Where Spark has gone on, it was under a guarantee that may leave the ledger behind.
        if entry is None or entry.batch != self._folder.read().committed:
            return
        ids = self._notes.ids(entry)
        if ids is not None and ids != self._folder.state_ids(entry.batch):
            _log.warning(
                "%s/commits/%d named other state than that of the visible attempt: corrected",
                self._folder.location, entry.batch,
            )  # fmt: skip
            self._folder.set_state_ids(entry.batch, ids)

    def _operators(self) -> list[Any]:
        """Of the plan of the batch that runs, those that keep state."""
        if self._query is None:
            self._query = self._folder.read().query
        jvm_session: Any = self._spark._jsparkSession
        query = jvm_session.sessionState().streamingQueryManager().get(self._query)
        plan = query.streamingQuery().lastExecution().executedPlan()
        gateway = self._spark.sparkContext._gateway
        return [node for node in _nodes(plan) if is_instance_of(gateway, node, _KEEPS_STATE)]

    def _last_runs(self, operator: Any) -> list[dict[str, Any]]:
        """What the last run of each task told, by partition; left to Spark as the only one."""
        told = operator.checkpointInfoAccumulator().value()
        jvm: Any = self._spark._jvm
        checkpointing = jvm.org.apache.spark.sql.execution.streaming.checkpointing
        # In one call: there may be hundreds of partitions.
        text = jvm.org.json4s.jackson.Serialization.write(
            told, checkpointing.CommitMetadata.format()
        )
        runs = json.loads(text)
        last = {run["partitionId"]: index for index, run in enumerate(runs)}
        partitions = operator.getStateInfo().numPartitions()
        if operator.outputPartitioning().numPartitions() == 1:
            partitions = 1  # a limit over all rows: one task has the state
        if sorted(last) != list(range(partitions)):
            raise SparkonceError(
                f"{operator.nodeName()} has {partitions} partitions of state, and those that told "
                f"what they wrote are {sorted(last)}: a part of the batch was not computed"
            )
        if len(runs) > len(last):
            operator.checkpointInfoAccumulator().reset()
            for index in last.values():
                operator.checkpointInfoAccumulator().add(told.get(index))
        return [runs[last[partition]] for partition in range(partitions)]


def _nodes(plan: Any) -> list[Any]:
    children = plan.children()
    below = [each for i in range(children.size()) for each in _nodes(children.apply(i))]
    return [plan, *below]
