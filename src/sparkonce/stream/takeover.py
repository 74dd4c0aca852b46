"""Before a query starts: fence, read the ledger, and bring Spark's checkpoint to where it is."""

from __future__ import annotations

import logging
import os
import socket
import uuid
from collections.abc import Callable
from dataclasses import replace

from sparkonce.stream.checkpoint import Checkpoint, CheckpointFolder
from sparkonce.stream.ledger import LAYOUT, Entry, LedgerError, Offsets
from sparkonce.stream.pipeline import source_lines
from sparkonce.stream.recovery import Begin, FinishCommit, StartFromLedger, next_step
from sparkonce.stream.settings import PipelineSettings
from sparkonce.stream.sources import Reading
from sparkonce.stream.state import StateNotes
from sparkonce.stream.steps import Sink

_log = logging.getLogger("sparkonce.stream")


def take_over(
    sink: Sink,
    folder: CheckpointFolder,
    notes: StateNotes,
    reading: Reading,
    settings: PipelineSettings,
) -> Entry | None:
    """The entry to go on from, signed by this process."""
    entry = sink.take_over()
    checkpoint = folder.read()
    step = next_step(
        entry,
        checkpoint,
        pipeline=settings.pipeline,
        named_by=settings.named_by,
        location=folder.location,
        guarantee=settings.guarantee,
        ledger_lost=settings.ledger_lost,
        keeps_state=reading.is_stateful,
    )
    if isinstance(step, FinishCommit):
        folder.finish(step.batch, notes.ids(entry))
        _log.info("batch %d was written before the last stop: noted for Spark", step.batch)
    begin: Callable[[], None] | None = None
    if isinstance(step, StartFromLedger) and entry is not None:
        begin = _beginning(sink, folder, reading, settings, entry)
        sources = sink.sources_at(entry)
        entry = replace(entry, query=_named(folder, checkpoint), batch=-1, state=None)
    elif isinstance(step, Begin) or entry is None:
        number = -1 if entry is None else entry.number
        entry, sources = _first_entry(folder, reading, settings, number)
    else:
        sources = sink.sources_at(entry)
    signed = replace(
        entry,
        number=entry.number + 1,
        host=socket.gethostname(),
        pid=os.getpid(),
        checkpoint=folder.location,
        layout=LAYOUT,
    )
    sink.sign(signed, sources)
    if begin is not None:
        # Behind the signature: whoever dies before it has begun begins again.
        begin()
        _log.info("the checkpoint is new: %s goes on from its ledger", settings.pipeline)
    return signed


def _named(folder: CheckpointFolder, checkpoint: Checkpoint) -> str:
    """The query's id. A new checkpoint gets one before Spark gives it one."""
    query = checkpoint.query or str(uuid.uuid4())
    if checkpoint.query is None:
        folder.name_query(query)
    return query


def _first_entry(
    folder: CheckpointFolder, reading: Reading, settings: PipelineSettings, number: int
) -> tuple[Entry, list[Offsets | str]]:
    """Of a pipeline without a ledger: what Spark has finished, and where the sources were then.
    Nobody has to be asked about that again, whatever happens in the next batch."""
    checkpoint = folder.read()
    done = -1 if checkpoint.committed is None else checkpoint.committed
    sources: list[Offsets | str] = []
    if done >= 0:
        kafka = [source.is_kafka for source in reading.sources]
        sources = source_lines(folder.planned(done).sources, kafka)
    entry = Entry(
        query=_named(folder, checkpoint),
        batch=done,
        number=number,
        guarantee=settings.guarantee.value,
        host="",
        pid=0,
        checkpoint="",
        sources=None,
    )
    return entry, sources


def _beginning(
    sink: Sink,
    folder: CheckpointFolder,
    reading: Reading,
    settings: PipelineSettings,
    entry: Entry,
) -> Callable[[], None]:
    """What lets a new checkpoint go on from the ledger."""
    only_kafka = all(source.is_kafka for source in reading.sources)
    if reading.is_stateful and (settings.lost_state != "empty" or not only_kafka):
        or_empty = (
            'or go on from the ledger with empty state by .option("lostState", "empty"); '
            if only_kafka
            else ""
        )
        raise LedgerError(
            f"{folder.location} is empty, and {settings.pipeline!r} has come to {entry}: its state "
            f"was in the checkpoint, and no ledger can bring it back. Restore the checkpoint; "
            f"{or_empty}or start over with another {settings.named_by}"
        )
    sources = sink.sources_at(entry)
    if sources is None or len(sources) != len(reading.sources):
        raise LedgerError(
            f"{folder.location} is empty, and the ledger of {settings.pipeline!r} ({entry}) has "
            "other sources than this query: restore the checkpoint, or start over with another "
            f"{settings.named_by}"
        )
    for source, told in zip(reading.sources, sources, strict=True):
        if not source.is_told_by_offsets or source.is_kafka == isinstance(told, str):
            raise LedgerError(
                f"{folder.location} is empty, and the source {source.kind!r} keeps its progress "
                f"there: restore the checkpoint, or start over with another {settings.named_by}"
            )
    if not only_kafka:
        return lambda: folder.begin_behind(sources)

    def start_from() -> None:
        for index, told in enumerate(sources):
            assert not isinstance(told, str)
            folder.start_from(index, told)

    return start_from
