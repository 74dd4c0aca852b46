"""What to do before a query starts: fence, read the ledger, compare it with Spark's checkpoint.

The ledger is the truth, since it was committed by the same decision as the records. Pure: the two
sides come in as values, and the answer is one of the steps below or a refusal that says why.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparkonce.guarantees import Guarantee
from sparkonce.stream.checkpoint import Checkpoint
from sparkonce.stream.ledger import Entry, LedgerError


@dataclass(frozen=True, slots=True)
class GoOn:
    """Ledger and checkpoint agree, or Spark will run again what was not decided."""


@dataclass(frozen=True, slots=True)
class FinishCommit:
    """The batch was decided, and Spark did not come to note it: note it, don't run it again."""

    batch: int


@dataclass(frozen=True, slots=True)
class StartFromLedger:
    """The checkpoint is new and the pipeline is not: go on where the ledger ends."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Checkpoint and pipeline are new: sign the ledger before Spark plans the first batch. A batch
    that is planned and no ledger is then a ledger that is gone, the first batch included."""


Step = GoOn | FinishCommit | StartFromLedger | Begin


def next_step(
    entry: Entry | None,
    checkpoint: Checkpoint,
    *,
    pipeline: str,
    named_by: str,
    location: str,
    guarantee: Guarantee,
    ledger_lost: str,
    keeps_state: bool,
) -> Step:
    if checkpoint.planned is None:
        return _new_checkpoint(entry, checkpoint, location)
    if entry is None:
        # Under `none` a crash may come before the clock has noted anything. Where a record may be
        # repeated nobody has to be asked: the batch is run again.
        lost = "replay" if guarantee.may_repeat and ledger_lost == "fail" else ledger_lost
        return _no_ledger(
            checkpoint, checkpoint.planned, pipeline, location, lost, keeps_state=keeps_state
        )
    if entry.query != checkpoint.query:
        raise LedgerError(
            f"{named_by} {pipeline!r} belongs to another checkpoint: its ledger has {entry} "
            f"(query {entry.query}), and {location} is of query {checkpoint.query}. If two "
            f"pipelines are meant, give each its own {named_by}; if this one "
            "moved here, start it with an empty checkpointLocation, and it goes on from the ledger"
        )
    if entry.batch > checkpoint.planned:
        raise LedgerError(
            f"the checkpoint {location} is older than the pipeline: it has planned batch "
            f"{checkpoint.planned}, and the ledger of {pipeline!r} has {entry}. Running it would "
            "repeat what was written since. Restore the newer checkpoint, or start with an empty "
            "checkpointLocation, and the pipeline goes on from the ledger"
        )
    committed = -1 if checkpoint.committed is None else checkpoint.committed
    # Also where Spark has planned another since, and the commit got lost: it names the state.
    if committed < entry.batch and not entry.came_first:
        return FinishCommit(entry.batch)
    return GoOn()


def _new_checkpoint(entry: Entry | None, checkpoint: Checkpoint, location: str) -> Step:
    if entry is None or entry.is_a_mere_beginning:
        return Begin()
    # A batch below zero: it was about to start from the ledger, and died before its first batch.
    if entry.query == checkpoint.query and entry.batch >= 0:
        raise LedgerError(
            f"{location} has lost its offsets, and the ledger has {entry} of the same query: "
            "remove what is left of the checkpoint, and the pipeline goes on from the ledger"
        )
    return StartFromLedger()


def _no_ledger(
    checkpoint: Checkpoint,
    planned: int,
    pipeline: str,
    location: str,
    ledger_lost: str,
    *,
    keeps_state: bool,
) -> Step:
    """The first run with this sink, or a ledger that is gone: one that has begun with this sink has
    an entry before its first batch is planned."""
    if checkpoint.committed == planned or ledger_lost == "replay":
        return GoOn()
    if ledger_lost == "skip" and keeps_state:
        # Spark would go on from whatever state the last attempt left, or find none.
        raise LedgerError(
            f"ledgerLost=skip takes batch {planned} of {location} for written, and the query keeps "
            f"state: which state belongs to the batch was in the ledger of {pipeline!r}, which is "
            'gone. Look at the target. If the batch is not there, use .option("ledgerLost", '
            '"replay"); if it is, start with an empty checkpointLocation, empty state and '
            "startingOffsets behind what was written"
        )
    if ledger_lost == "skip":
        return FinishCommit(planned)
    raise LedgerError(
        f"nobody knows whether batch {planned} of {location} was written: Spark has not finished "
        f"it, and there is no ledger of {pipeline!r} (committed offsets expire after the brokers' "
        "offsets.retention.minutes; or another sink wrote the batches before; or there was no "
        "place for one before the first rows). Look at the target, "
        'then say what to do with .option("ledgerLost", "replay") or "skip" (not with state)'
    )
