"""A table as a sink: the four steps of a batch, over any database that is a `Store`.

Under `exactly_once` rows and ledger entry are in one transaction. The weaker guarantees are the
same transactions in another order: rows in one, progress in another, before or after.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from sparkonce.deliver.columns import Columns
from sparkonce.deliver.lag import Lag
from sparkonce.deliver.later import Later
from sparkonce.deliver.settings import TableSettings
from sparkonce.deliver.store import Held, Loaded, Part, Sources, Store, StoreError, Transaction
from sparkonce.deliver.task import FIGURES, StageTask
from sparkonce.errors import FencedError, OutcomeUnknown
from sparkonce.guarantees import Guarantee
from sparkonce.stream.handover import Handover
from sparkonce.stream.ledger import Entry, Offsets, kept_sources, run_query
from sparkonce.stream.steps import Observer, Written

_log = logging.getLogger("sparkonce.deliver")


class TableSink:
    def __init__(
        self,
        settings: TableSettings,
        columns: Columns,
        store: Store,
        lag: Lag | None,
        observe: Observer | None,
        open_former: Callable[[], Store] | None = None,
    ) -> None:
        self._settings = settings
        self._columns = columns
        self._store = store
        self._lag = lag
        self._observe = observe
        self._open_former = open_former
        self._held = Held(0, None, None)
        self._attempt = 0
        self._left_to_later = 0
        """The last attempt whose rows `Later` loads, and removes from the stage."""
        self._parts: list[Part] = []
        self._transaction: Transaction | None = None
        self._noted: tuple[Entry, Sources] | None = None
        self._written = Written()
        self._handover = Handover()
        is_later = settings.guarantee is Guarantee.NONE
        self._later = Later(settings.pipeline) if is_later else None

    # -- before the query starts --------------------------------------------------------------

    def take_over(self) -> Entry | None:
        self._store.prepare()
        self._held = self._store.take_over()
        entry, sources = self._held.entry, self._held.sources or []
        if entry is None:
            return self._former_entry()
        return replace(entry, sources=kept_sources(sources))

    def sources_at(self, entry: Entry) -> list[Offsets | str] | None:
        return self._held.sources

    def sign(self, entry: Entry, sources: Sequence[Offsets | str] | None) -> None:
        transaction = self._store.begin(self._held.epoch)
        try:
            transaction.note(entry, list(sources or []))
            transaction.commit()
        except OutcomeUnknown as unknown:
            transaction.rollback()
            self._settle(entry, unknown)
        except BaseException:
            transaction.rollback()
            raise

    def _former_entry(self) -> Entry | None:
        """What this run of a batch job has left under its former name."""
        if self._open_former is None or self._settings.run_id is None:
            return None
        store = self._open_former()
        try:
            entry = store.holder().entry
        finally:
            store.close()
        is_own = entry is not None and entry.query == run_query(self._settings.run_id)
        return entry if is_own else None

    def holder(self) -> Entry | None:
        return self._store.holder().entry

    # -- the steps ----------------------------------------------------------------------------

    @property
    def epoch(self) -> tuple[int, int]:
        return self._attempt, self._held.epoch

    @property
    def trouble(self) -> str | None:
        return None  # Spark's own message has it

    def check_owner(self) -> None:
        """Begins no transaction: under `none` one may be under way in another thread."""
        held = self._store.holder()
        if held.epoch != self._held.epoch:
            raise self._fenced(held)

    def fence(self) -> None:
        """The epoch was raised when this driver took over. An attempt is told from others by the
        place where its rows are staged, and no transaction loads any other's."""
        self._tell("open")

    def write(self, frame: DataFrame) -> Written:
        self._attempt += 1
        stage = self._store.stage(self._held.epoch, self._attempt)
        staged = self._columns.of(frame)
        if self._settings.tasks_max is not None:
            staged = staged.coalesce(self._settings.tasks_max)
        rows = staged.mapInArrow(StageTask(stage, self._observe), FIGURES)
        try:
            with self._handover.in_force(frame.sparkSession):
                self._parts = [Part(**row.asDict()) for row in rows.collect()]
        except PySparkException:
            self._handover.be_careful()
            raise
        records = sum(part.records for part in self._parts)
        if not records:
            self._clear(self._attempt)
        self._handover.learn(records, sum(part.size_bytes for part in self._parts))
        if self._settings.guarantee is Guarantee.EXACTLY_ONCE or not records:
            return self._sum(Loaded(records))
        if self._later:
            parts, attempt = self._parts, self._attempt
            self._later.do(lambda: self._load(parts, attempt), records)
            self._left_to_later = attempt
            return self._sum(Loaded(records))
        return self._sum(self._load(self._parts, self._attempt))

    def record(self, entry: Entry, sources: Sequence[Offsets | str]) -> None:
        self._noted = (entry, list(sources))
        if self._later:
            noted = self._noted
            self._later.note_at_times(lambda: self._note(*noted))
            return
        self._transaction = self._store.begin(self._held.epoch)
        if self._settings.guarantee is Guarantee.EXACTLY_ONCE:
            self._written = self._sum(self._transaction.load(self._parts))
        self._transaction.note(*self._noted)
        self._tell("offsets")

    def decide(self) -> Written | None:
        if self._transaction is None or self._noted is None:
            raise StoreError("there is nothing to decide: this is a mistake of sparkonce's")
        self._tell("end")
        try:
            self._transaction.commit()
        except OutcomeUnknown as unknown:
            self._settle(self._noted[0], unknown)
        self._transaction = None
        self._tell("end:answered")
        self._after()
        return self._written if self._settings.guarantee is Guarantee.EXACTLY_ONCE else None

    def abandon(self) -> None:
        if self._transaction is not None:
            self._transaction.rollback()
            self._transaction = None
        if self._attempt != self._left_to_later:
            self._clear(self._attempt)

    def leave_empty(self) -> None:
        """Nothing was staged, so nothing is there."""

    def close(self) -> None:
        try:
            if self._later:
                self._later.close()
        finally:
            if self._transaction is not None:
                self._transaction.rollback()
            if self._lag:
                self._lag.close()
            self._store.close()

    # -- on the way ---------------------------------------------------------------------------

    def _load(self, parts: Sequence[Part], attempt: int) -> Loaded:
        """Rows in a transaction of their own. Whatever becomes of it, it is not tried a second
        time with what was staged: another attempt stages its rows anew."""
        try:
            return self._load_staged(parts)
        finally:
            self._clear(attempt)

    def _load_staged(self, parts: Sequence[Part]) -> Loaded:
        transaction = self._store.begin(self._held.epoch)
        try:
            loaded = transaction.load(parts)
            transaction.commit()
            return loaded
        except OutcomeUnknown as unknown:
            # No ledger tells. Whoever may repeat tries again, whoever may lose does not.
            transaction.rollback()
            raise StoreError(f"rows may have been written or not: {unknown}") from unknown
        except BaseException:
            transaction.rollback()
            raise

    def _note(self, entry: Entry, sources: Sources) -> None:
        """Progress in a transaction of its own."""
        transaction = self._store.begin(self._held.epoch)
        try:
            transaction.note(entry, sources)
            transaction.commit()
        except BaseException:
            transaction.rollback()
            raise
        if self._lag:
            self._lag.move(sources)

    def _settle(self, entry: Entry, unknown: OutcomeUnknown) -> None:
        """The ledger tells what became of the commit; its row was in it."""
        self._transaction = None
        try:
            held = self._store.holder()
        except StoreError as error:
            # Whether it was written is not known: the next start asks again.
            raise OutcomeUnknown(f"{unknown}, and the ledger can't be asked: {error}") from error
        if held.entry == replace(entry, sources=None):  # which stand beside it
            _log.info("%s: the answer to a commit was lost, the ledger has it", entry)
            return
        if held.epoch != self._held.epoch:
            raise self._fenced(held)
        raise StoreError(f"the commit did not happen: {unknown}") from unknown

    def _fenced(self, held: Held) -> FencedError:
        return FencedError(f"epoch {self._held.epoch} is over: {held.epoch} has taken over")

    def _after(self) -> None:
        """What is seen to once the batch is decided; nothing depends on it."""
        if self._settings.guarantee is Guarantee.EXACTLY_ONCE and self._parts:
            self._clear(self._attempt)
        if self._lag and self._noted:
            self._lag.move(self._noted[1])

    def _clear(self, attempt: int) -> None:
        """Of what was staged. What can't be removed now goes when the next driver takes over."""
        try:
            self._store.discard(self._held.epoch, attempt)
        except (StoreError, OSError) as error:
            _log.warning("%s: what was staged stays for now: %s", self._settings.pipeline, error)

    def _sum(self, loaded: Loaded) -> Written:
        return Written(
            records=loaded.records,
            size_bytes=sum(part.size_bytes for part in self._parts),
            dead_letters=loaded.dead_letters,
            tasks=len(self._parts),
            targets={self._settings.table: loaded.records} if loaded.records else {},
        )

    def _tell(self, point: str) -> None:
        if self._observe:
            self._observe(point)
