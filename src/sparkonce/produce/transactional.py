"""The transactional producer: many topics and partitions, source offsets, one decision.

Each transaction has an epoch of its own, in both versions of the protocol, so that a late EndTxn
or Produce of a former one is refused. Under version 2 (KIP-890) the answer to EndTxn brings the
next one. Under version 1 it is raised before the transaction that follows a commit, and by an abort
itself. Where the epochs of a producer id are used up, a new id is taken before the last one is.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final, Self

import pyarrow as pa

from sparkonce.encode import EncodedBatch, Rejected
from sparkonce.errors import (
    BrokerError,
    ConfigError,
    FatalError,
    FencedError,
    OutcomeUnknown,
    OwnershipUncertain,
    Reaction,
    TransactionTimedOut,
    reaction,
)
from sparkonce.options import ProducerOptions
from sparkonce.produce.committed import committed_offsets
from sparkonce.produce.coordinator import OffsetAndMetadata
from sparkonce.produce.defects import known_defects
from sparkonce.produce.identity import EPOCH_MAX, Partition, ProducerIdentity
from sparkonce.produce.lane import Batch, Outcome
from sparkonce.produce.linger import Linger
from sparkonce.produce.ownership import BEING_ENDED, Begun, Ownership
from sparkonce.produce.producer import Producer
from sparkonce.produce.questions import EpochRefused
from sparkonce.produce.states import ABORTABLE, BROKEN, COMMITTABLE, NEW, Lifecycle, State

_log = logging.getLogger("sparkonce.produce")
_LOOKS_AFTER_S: Final = 2.0
"""A producer that rested for so long asks whether it is still the one before it begins again."""


class TransactionalProducer(Producer):
    """Writes in transactions: all of one becomes visible to `read_committed` readers, or nothing.

        with TransactionalProducer({"bootstrap.servers": …, "transactional.id": "payments"}) as p:
            p.init_transactions()
            with p.transaction():
                p.produce("orders", value=b"…", key=b"…")
                p.produce_arrow("ledger", table)
                p.send_offsets_to_transaction({("source", 0): 42}, "my-group")

    The verbs are those of confluent-kafka. Leaving it with a transaction open aborts it.
    """

    _whole_or_nothing: ClassVar[bool] = True

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._life = Lifecycle()
        self._added: set[Partition] = set()
        self._sent = False
        """A request left that may have opened the transaction at the coordinator."""
        self._is_known_open = False
        """The coordinator or a leader has acknowledged one that did."""
        self._shared = False
        self._commit_maybe_taken = False
        self._needs_epoch = False
        super().__init__(settings)
        self._ownership = Ownership(self._coordinator)

    @classmethod
    def join(cls, settings: Mapping[str, Any], identity: ProducerIdentity) -> Self:
        """Write into a transaction that another process opened, in partitions of one's own.

        Brokers number records per producer and partition, so no two processes may write to the
        same partition in one transaction. `flush()` tells that everything is acknowledged; the
        process that opened the transaction commits or aborts it.
        """
        if identity.transactional_id is None:
            raise ConfigError("only a transactional producer's identity can be joined")
        named = settings.get("transactional.id", identity.transactional_id)
        if named != identity.transactional_id:
            raise ConfigError(
                f"transactional.id={named} contradicts the identity of {identity}: "
                "leave transactional.id out, the identity brings it"
            )
        joined = cls({**settings, "transactional.id": identity.transactional_id})
        joined._life = Lifecycle(State.JOINED)
        joined._identity = identity
        return joined

    def rejoin(self, identity: ProducerIdentity) -> None:
        """Go on in the next transaction of the same owner, over the same connections."""
        self._life.need(frozenset({State.JOINED}), State.JOINED)
        if identity.transactional_id != self._known().transactional_id:
            raise ConfigError(f"{identity} is not the owner that this producer joined")
        if self._identity != identity:
            self._drop_pending()
            self._added.clear()
            self._is_known_open = False
            self._identity = identity

    def produce_turn(
        self, batches: Sequence[EncodedBatch], starts_at: int, outcome: Outcome
    ) -> None:
        """Write batches of one partition that others of the same transaction write to as well,
        each in turn, when all before is acknowledged; `starts_at` is how many records that were.

        `outcome` is called for each batch, on the client's own thread.
        """
        self._need_writable()
        self._topics.learn({batch.topic for batch in batches})
        self._before_enqueue(batches)
        deadline_s = time.monotonic() + self._options.delivery_timeout_ms / 1000
        turn = [Batch(batch, deadline_s, outcome) for batch in batches]
        turn[0].starts_at = starts_at
        self._sender.enqueue(self._writer(), turn)

    @property
    def identity(self) -> ProducerIdentity:
        """What another process needs to `join` the open transaction."""
        self._life.need_writable()
        self._shared = True
        return self._known()

    @property
    def state(self) -> State:
        return self._life.state

    @property
    def transaction_timeout_ms(self) -> int:
        """How long a transaction may be open; behind `init_transactions`."""
        return self._coordinator.transaction_timeout_ms

    def init_transactions(self) -> None:
        """Take over the transactional id: what a former producer left open is aborted, what it
        had decided is finished, and from here on its writes are refused."""
        self._life.need(NEW, State.READY)
        with self._failing():
            self._identity = self._coordinator.init()
            self._life.to(State.READY)
        self._tell_of_defects()

    def check_owner(self) -> None:
        """Ask the coordinator whether another producer has taken over; the error says so."""
        if self._life.state in BROKEN:
            self._life.need_writable()
        with self._failing():
            begun = Begun.NO if self._life.state is State.READY else self._begun()
            self._ownership.is_open(self._known(), begun)

    def begin_transaction(self) -> None:
        if self._life.state is State.READY:
            with self._failing():
                self._prepare_epoch()
        self._life.to(State.IN_TRANSACTION)
        self._added.clear()
        self._sent = self._is_known_open = self._shared = self._commit_maybe_taken = False

    def add_partitions(self, partitions: Iterable[Partition]) -> None:
        """Open the transaction on partitions that others, who join, will write to."""
        self._life.need_writable()
        fresh = sorted(set(partitions) - self._added)
        if not fresh:
            return
        with self._opening():
            self._coordinator.add_partitions(self._known(), fresh)
        self._added.update(fresh)

    def send_offsets_to_transaction(
        self, offsets: Mapping[Partition, OffsetAndMetadata | int], group: str
    ) -> None:
        """Source offsets, by (topic, partition) the next to read, committed with the records."""
        self._life.need_writable()
        if not offsets:
            return
        whole = {
            partition: OffsetAndMetadata(at) if isinstance(at, int) else at
            for partition, at in offsets.items()
        }
        with self._opening():
            self._coordinator.send_offsets(self._known(), group, whole)

    def committed_offsets(self, group: str) -> dict[Partition, OffsetAndMetadata]:
        """How far the group has come, once nothing about it is undecided any more."""
        with self._failing():
            return committed_offsets(self._coordinator, group, lambda: self._end_stray(group))

    def flush(self, timeout: float | None = None) -> bool:
        if self._life.state in BROKEN:
            self._life.need_writable()
        with self._failing():
            is_done = super().flush(timeout)
        self._is_known_open |= is_done and self._sent
        return is_done

    def commit_transaction(self) -> None:
        """Send what is left, wait until all of it is acknowledged, and decide.

        Raises AbortableError when it can only be aborted, OutcomeUnknown when the answer did not
        come in time (call it again), FencedError when another producer took over.
        """
        self._life.need(COMMITTABLE, State.COMMITTING)
        if self._life.state is State.IN_TRANSACTION:
            self._finish_writing()
        else:
            self._life.to(State.COMMITTING)
        with self._failing():
            if self._is_open():
                self._next(self._coordinator.end(self._known(), commit=True))
        self._life.to(State.READY)

    def abort_transaction(self) -> None:
        """Give up the transaction; nothing of it ever becomes visible, nor of what those who
        joined it may still have under way."""
        self._life.to(State.ABORTING)
        with self._failing():
            self._drop_pending()
            if self._sent or self._shared:
                self._next(self._ownership.end_attempt(self._known(), self._begun()))
        self._life.to(State.READY)

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """Begin; commit at the end of the block, abort if it raises."""
        self.begin_transaction()
        with self.committing():
            yield self

    @contextmanager
    def committing(self) -> Iterator[Self]:
        """In a transaction that was begun: commit at the end of the block, abort if it raises."""
        try:
            yield self
            self.commit_transaction()
        except BaseException:
            if self._life.state in ABORTABLE:
                self.abort_transaction()
            raise

    def close(self) -> None:
        """Abort what is open (joined: finish what was taken), and let go of every connection."""
        if self._closed:
            return
        if self._life.state is State.JOINED:
            try:
                super().close()
            finally:
                self._life.to(State.CLOSED)
            return
        self._closed = True
        try:
            if self._life.state in ABORTABLE:
                self.abort_transaction()
        except (FencedError, OwnershipUncertain):
            pass  # it is not open any more, whoever aborted it: what closing wants is done
        finally:
            self._life.to(State.CLOSED)
            self._shut()

    # -- how it differs from the plain producer ------------------------------------------

    def _check_kind(self, options: ProducerOptions) -> None:
        if options.transactional_id is None:
            raise ConfigError(
                "transactional.id is missing: name the pipeline, the same name after a restart; "
                "or use Producer, which has no transactions"
            )

    def _need_writable(self) -> None:
        self._life.need_writable()

    def _writer(self) -> ProducerIdentity:
        return self._known()

    def _before_enqueue(self, batches: Sequence[EncodedBatch]) -> None:
        partitions = {(batch.topic, batch.partition) for batch in batches}
        if self._client.transaction_version < 2:
            self.add_partitions(partitions)
        self._sent = True

    def _send_table(
        self, table: pa.Table | pa.RecordBatch, topic: str | None, outcome: Outcome
    ) -> list[Rejected]:
        """Whatever breaks off here leaves a part of the table sent: committing it would tear it."""
        with self._breaking_off(), self._failing():
            refused = super()._send_table(table, topic, outcome)
            if refused:
                self._refuse(refused, "The transaction can only be aborted")
            return refused

    def _start_linger(self) -> Linger | None:
        return None

    # -- steps -----------------------------------------------------------------------------

    def _doom(self, cause: BaseException) -> None:
        """From here on, only an abort; a joined producer can only be closed."""
        if self._life.state is State.JOINED:
            self._life.to(State.FAILED, cause)
        elif self._life.state in COMMITTABLE:
            self._life.to(State.MUST_ABORT, cause)

    def _tell_of_defects(self) -> None:
        coordinator = self._coordinator
        for defect in known_defects(coordinator.metadata_level, coordinator.transaction_version):
            _log.log(defect.log_level, "%s: %s", self._known().transactional_id, defect.words)

    def _known(self) -> ProducerIdentity:
        assert self._identity is not None
        return self._identity

    def _prepare_epoch(self) -> None:
        """Before a transaction: an epoch of its own, if nobody else has taken over."""
        rested_s = time.monotonic() - self._coordinator.questions.heard_at_s
        looks_first = rested_s > _LOOKS_AFTER_S
        ownership = self._ownership
        if looks_first and not self._needs_epoch:
            self._needs_epoch = ownership.is_open(self._known(), Begun.NO)
        if self._needs_epoch:
            who = self._known()
            self._identity = ownership.raise_epoch(who, Begun.NO, looks_first=looks_first)
            self._needs_epoch = False
        # The last epoch of a producer id opens no transaction: a time-out or a successor raises it
        # once more, and brokers of several versions can't end the transaction then (KAFKA-19367,
        # KAFKA-20090). Asked for the next epoch, with nothing open, they change the id.
        if self._known().epoch >= EPOCH_MAX:
            self._identity = ownership.raise_epoch(self._known(), Begun.NO)

    def _end_stray(self, group: str) -> None:
        """Undo what offsets of the group came behind the end of their transaction.

        Brokers that don't ask the transaction's coordinator (before Kafka 3.6, or with
        transaction.partition.verification.enable=false) keep a TxnOffsetCommit that is delivered
        late, or twice, as undecided: for ever, if no transaction of the same producer ends there.
        """
        if self._life.state is not State.READY or self._coordinator.transaction_version >= 2:
            return
        if self._coordinator.describe().state in BEING_ENDED:
            return  # its own, and the markers are on their way
        self.begin_transaction()
        with self._opening():
            self._coordinator.add_offsets(self._known(), group)
        self.abort_transaction()

    def _finish_writing(self) -> None:
        """Until there is nothing more to wait for; what is written from then on is refused.

        Delivery callbacks and other threads may write while this waits, and what they wrote may
        have failed since the last flush looked. So the failure is looked for once more when all
        is over, in one step with the end of writing.
        """
        is_over = False
        while not is_over:
            self.flush()
            with self._failing(), self._rows_lock:
                is_over = not len(self._rows) and self._sender.is_idle and not self._reports.are_due
                if is_over:
                    self._sender.raise_failure()
                    self._life.to(State.COMMITTING)

    def _begun(self) -> Begun:
        if self._is_known_open:
            return Begun.YES
        maybe = self._sent or self._shared or self._life.state is State.JOINED
        return Begun.MAYBE if maybe else Begun.NO

    def _next(self, identity: ProducerIdentity) -> None:
        # Version 1 answers a commit with the same epoch: raise it before it is used again.
        self._needs_epoch = identity == self._identity
        self._identity = identity

    def _is_open(self) -> bool:
        """Whether there is anything to commit: an empty transaction is none to the cluster."""
        if self._shared and not self._sent and not self._is_known_open:
            # Others may have written; only the coordinator knows.
            self._is_known_open = self._ownership.is_open(self._known(), Begun.MAYBE)
        return self._sent or self._is_known_open

    def _drop_pending(self) -> None:
        with self._rows_lock:
            self._rows = type(self._rows)()
        self._sender.forget("the transaction was aborted")
        self._reports.serve()
        self._reports.forget_unreported()

    @contextmanager
    def _breaking_off(self) -> Iterator[None]:
        """Whatever ends the step in its midst, the transaction is not whole any more."""
        try:
            yield
        except BaseException as error:
            self._doom(error)
            raise

    @contextmanager
    def _opening(self) -> Iterator[None]:
        """A request of the caller's that opens the transaction, if it is not open yet."""
        self._sent = True
        with self._breaking_off(), self._failing():
            yield
        self._is_known_open = True

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Let an error decide the state: what may only be aborted, what is over for good."""
        try:
            yield
        except OutcomeUnknown:
            self._commit_maybe_taken = self._life.state is State.COMMITTING
            raise
        except BrokerError as error:
            told = self._made_precise(error)
            if isinstance(told, FatalError):
                self._life.to(State.FAILED, told)
            else:
                self._doom(told)
            if told is error:
                raise
            raise told from error

    def _made_precise(self, error: BrokerError) -> BrokerError:
        """An epoch refused by a broker may mean two things; the coordinator knows which."""
        if isinstance(error, FatalError | TransactionTimedOut):
            return error
        if reaction(error.code) is not Reaction.EPOCH or self._identity is None:
            return error
        if isinstance(error, EpochRefused) and self._life.state is State.COMMITTING:
            self._commit_maybe_taken |= error.is_repeat
        return self._ownership.why_refused(
            self._identity,
            error.code,
            self._begun(),
            commit_maybe_taken=self._commit_maybe_taken,
        )
