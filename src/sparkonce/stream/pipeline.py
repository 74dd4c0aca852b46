"""What Spark calls for every micro-batch: which one it is, and whether it was written before."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import DataFrame

from sparkonce.errors import FencedError
from sparkonce.guarantees import Guarantee
from sparkonce.stream.attempts import Attempts
from sparkonce.stream.checkpoint import CheckpointFolder
from sparkonce.stream.files import ListedFiles
from sparkonce.stream.ledger import Entry, LedgerError, Offsets
from sparkonce.stream.runs import Run
from sparkonce.stream.state import AttemptState
from sparkonce.stream.steps import Sink, Written

_RECORD_EVERY_S = 10.0
"""Progress of batches that write nothing is recorded this often, so that the lag shown is right."""


class Pipeline:
    """Given to Spark's foreachBatch."""

    def __init__(
        self,
        sink: Sink,
        attempts: Attempts,
        folder: CheckpointFolder,
        files: ListedFiles,
        *,
        name: str,
        named_by: str,
        guarantee: Guarantee,
        kafka_sources: Sequence[bool],
        last: Entry | None,
        run: Run,
        state: AttemptState | None,
    ) -> None:
        self._sink = sink
        self._attempts = attempts
        self._folder = folder
        self._files = files
        self._name = name
        self._named_by = named_by
        self._guarantee = guarantee
        self._kafka_sources = kafka_sources
        self._last = last
        self._run = run
        self._state = state
        self._sealed: tuple[int, str] | None = None
        """The last batch that came to its end, and what was said of its state."""
        self._sealing: tuple[int, str] | None = None
        self._recorded_s: float | None = None
        self._query: str | None = None

    def __call__(self, frame: DataFrame, batch: int) -> None:
        entry = self._entry(batch)
        if self._last and self._last.query == entry.query and self._last.batch >= batch:
            self._pass_over(frame, entry)
            return
        sources = source_lines(self._folder.planned(batch).sources, self._kafka_sources)

        def is_nothing(written: Written) -> bool:
            self._files.check(batch, sources)
            return self._is_nothing(written)

        try:
            with self._run.batch():
                ran = self._attempts.run(frame, entry, sources, is_nothing, self)
        except FencedError as error:
            raise self._fenced_by(error) from error
        if ran.recorded is not None:
            self._last = ran.recorded
            self._recorded_s = time.monotonic()
        # Behind a batch that was not worth a decision, too: Spark goes on from its state.
        self._sealed = self._sealing
        self._run.judge(ran.attempts)

    # -- what Spark computes for a batch --------------------------------------------------------

    def ready(self) -> None:
        """Before a run begins: nothing of a former one goes on, and state is what it should be."""
        self._run.settle_former()
        if self._state:
            if self._state.is_shared:
                self._sink.check_owner()
            self._state.verify(self._last)
            if self._last is not None and self._last.state is not None:
                self._sealed = self._last.batch, self._last.state

    def prepare(self, entry: Entry, *, is_first: bool) -> None:
        if self._state and self._state.is_shared:
            self._sink.check_owner()
            self._state.prepare(entry.batch, is_first=is_first)

    def seal(self, entry: Entry) -> Entry:
        self._run.check()
        if self._state is None:
            return entry
        batch, mark = self._sealed or (None, None)
        former = mark if batch == entry.batch - 1 else None
        self._sealing = entry.batch, self._state.seal(entry.batch, former)
        return replace(entry, state=self._sealing[1])

    def settle(self, entry: Entry, *, has_computed: bool) -> None:
        self._run.settle(has_computed=has_computed)

    # -- on the way -------------------------------------------------------------------------------

    def _is_nothing(self, written: Written) -> bool:
        """Whether a batch is not worth a transaction. The first of a run always is: it says whose
        the ledger is now."""
        if written.records or written.dead_letters:
            return False
        if self._state and self._guarantee is Guarantee.EXACTLY_ONCE:
            return False  # its state counts, and a fenced driver must not commit it
        if not any(self._kafka_sources):
            return True  # no offsets of Kafka's to show
        if self._recorded_s is None:
            return False
        return time.monotonic() - self._recorded_s < _RECORD_EVERY_S

    def _pass_over(self, frame: DataFrame, entry: Entry) -> None:
        """A batch that the ledger has: run for the sake of its state, nothing is written."""
        if self._last is None or not self._last.came_first:
            raise LedgerError(
                f"Spark runs batch {entry.batch} of {self._folder.location} again, and the ledger "
                f"of {self._name!r} has {self._last}: the checkpoint was changed while the query "
                "ran. Start the query again, and it goes on behind that batch"
            )
        frame.write.format("noop").mode("overwrite").save()
        self._attempts.skipped(entry)

    def _entry(self, batch: int) -> Entry:
        if self._query is None:
            self._query = self._folder.read().query or ""
        return Entry(
            query=self._query,
            batch=batch,
            number=self._last.number + 1 if self._last else 0,
            guarantee=self._guarantee.value,
            host=socket.gethostname(),
            pid=os.getpid(),
            checkpoint=self._folder.location,
            sources=None,
        )

    def _fenced_by(self, error: FencedError) -> FencedError:
        holder = self._sink.holder()
        if holder is None:
            return error
        same = holder.query == self._query
        if same and (holder.pid, holder.host) == (os.getpid(), socket.gethostname()):
            return error
        which = (
            "It runs from a copy of the same checkpoint, or the same one"
            if same
            else f"It has another checkpoint (query {holder.query})"
        )
        return FencedError(
            f"pipeline {self._name!r} was taken over by process {holder.pid} on {holder.host} with "
            f"the checkpoint {holder.checkpoint}. {which}; this one is {self._folder.location}. "
            f"Stop one of the two, or give each its own {self._named_by} and checkpoint",
            error.code,
        )


def source_lines(lines: Sequence[str], kafka: Sequence[bool]) -> list[Offsets | str]:
    """Spark's offset log as offsets, where the source is Kafka."""
    if len(lines) != len(kafka):
        raise LedgerError(
            f"Spark planned {len(lines)} sources, the DataFrame has {len(kafka)}: this is a plan "
            "that is not understood; please report it"
        )
    return [json.loads(line) if of else line for line, of in zip(lines, kafka, strict=True)]
