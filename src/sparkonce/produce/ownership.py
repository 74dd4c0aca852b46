"""Whose a transactional id is: judged from what its coordinator tells, and taken on from there.

A producer whose epoch is refused was fenced by a successor, or timed out, or forgotten by the
cluster; brokers answer the same to all of them. `standing` tells them apart (pure). `Ownership`
asks, raises the error that says how to react, and moves a producer to its next epoch without ever
taking it from a successor.
"""

from __future__ import annotations

import enum
from dataclasses import replace
from typing import Final

from sparkonce.errors import (
    BrokerError,
    FatalError,
    FencedError,
    OutcomeUnknown,
    OwnershipUncertain,
    TransactionalIdExpired,
    TransactionTimedOut,
    Unreachable,
    explain,
)
from sparkonce.produce.coordinator import Coordinator, TransactionStatus
from sparkonce.produce.identity import EPOCH_MAX, ProducerIdentity
from sparkonce.produce.questions import EpochRefused, NotYet

_ABORTED: Final = frozenset({"PrepareAbort", "CompleteAbort", "PrepareEpochFence"})
BEING_ENDED: Final = frozenset({"PrepareAbort", "PrepareCommit", "PrepareEpochFence"})
_NO_TRANSACTION_YET: Final = "Empty"
_UNKNOWN_SERVER_ERROR: Final = -1


class Standing(enum.Enum):
    """Of a producer, as the coordinator sees it."""

    CURRENT = "it has the present epoch, and no transaction is open"
    OPEN = "it has the present epoch, and its transaction is open"
    ABORTED = "the coordinator aborted its transaction and raised the epoch"
    SUCCEEDED = "another producer took over"
    UNCERTAIN = "what the coordinator has may be its own doing, or another producer's"
    EXPIRED = "the coordinator has forgotten the transactional id"


class Begun(enum.Enum):
    """Whether the coordinator knows of the producer's transaction, as far as the producer knows."""

    NO = "none was begun"
    MAYBE = "something was sent, by it or by those who joined it; or a commit, and it may be over"
    YES = "something was acknowledged"


def standing(
    who: ProducerIdentity, told: TransactionStatus, begun: Begun, version: int
) -> Standing:
    """Of `who`, under this version of the transaction protocol."""
    if not told.is_known:
        return Standing.EXPIRED
    if told.producer_id != who.producer_id:
        # Behind the last epoch there is another producer id; before Kafka 4.4 (KAFKA-20357) a
        # coordinator that was started anew does not know any more whom it gave it to.
        was_due = who.epoch >= EPOCH_MAX and (told.state, told.epoch) == (_NO_TRANSACTION_YET, 0)
        return Standing.UNCERTAIN if was_due else Standing.SUCCEEDED
    if told.epoch == who.epoch:
        return Standing.OPEN if told.state == "Ongoing" else Standing.CURRENT
    if told.state not in _ABORTED:
        return Standing.SUCCEEDED
    raised = told.epoch - who.epoch
    if raised == 1:
        # An abort by the coordinator raises the epoch once, and a successor then raises it again.
        # But one that found no transaction open has the same epoch as after an abort; and under
        # version 1 an abort of its own leaves it so.
        is_ours = begun is Begun.YES or (begun is Begun.MAYBE and version >= 2)
        return Standing.ABORTED if is_ours else Standing.UNCERTAIN
    if raised == 2 and begun is Begun.YES and version >= 2:
        return Standing.ABORTED  # Kafka 4.0.0 raises it twice (KAFKA-19367)
    return Standing.SUCCEEDED


class Ownership:
    """What a producer may still do under its transactional id."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def is_open(self, who: ProducerIdentity, begun: Begun) -> bool:
        """Whether anybody has written into the transaction of `who`. Raises if it is over."""
        found, told = self._look(who, begun)
        if found in (Standing.OPEN, Standing.CURRENT):
            return found is Standing.OPEN
        raise self._error(who, found, told)

    def why_refused(
        self,
        who: ProducerIdentity,
        code: int,
        begun: Begun,
        *,
        commit_maybe_taken: bool = False,
    ) -> BrokerError:
        """What became of `who`, whose epoch was refused with this error code."""
        found, told = self._look(who, Begun.MAYBE if commit_maybe_taken else begun)
        return self._error(who, found, told, code, commit_maybe_taken)

    def end_attempt(self, who: ProducerIdentity, begun: Begun) -> ProducerIdentity:
        """Abort whatever was or will be written under `who`. Answers who comes next.

        The end markers carry a higher epoch than `who` has, so that leaders refuse what others
        who joined the attempt have under way. Version 2 does that by itself. Under version 1 the
        markers of EndTxn carry the same epoch, and a leader that does not ask the coordinator
        (before Kafka 3.6, or transaction.partition.verification.enable=false) would take a late
        batch for one of the next transaction; so the coordinator is made to fence the epoch.
        """
        if self._coordinator.transaction_version >= 2:
            try:
                return self._coordinator.end(who, commit=False)
            except EpochRefused:
                pass  # it has ended already: who may go on from there, and how, is looked up
        try:
            return self.raise_epoch(who, begun)
        except Unreachable as error:
            raise OutcomeUnknown(
                f"the abort of {who} was asked for, and is not known to be done: call "
                f"abort_transaction() again. {error}"
            ) from error

    def raise_epoch(
        self, who: ProducerIdentity, begun: Begun, *, looks_first: bool = True
    ) -> ProducerIdentity:
        """The next epoch of `who`; a transaction that is open under its present one is aborted.

        The coordinator is asked whose epoch it has before it is asked for the next (or right after
        the first refusal, not `looks_first`): it aborts an open transaction without a look at
        the epoch of the one who asks, and that could be a successor's.
        """
        # Where its epochs are used up, a new producer id is no sign that this one was forgotten.
        looks = looks_first or who.epoch >= EPOCH_MAX
        deadline = self._coordinator.questions.deadline()
        former = who
        why: BrokerError | None = None
        while deadline.left_s > 0:
            if looks:
                found, told = self._look(who, begun)
                begun = Begun.YES if found is Standing.OPEN else begun
                former = self._former(who, former, found, told, why)
                if told.state in BEING_ENDED:
                    deadline.pause()
                    continue
            looks = True
            try:
                return self._next(former, self._coordinator.init_once(former, deadline.left_s))
            except (NotYet, EpochRefused) as error:
                why = error
                deadline.pause()
            except FatalError as error:
                # An earlier request of one's own may have come after the look, and a coordinator
                # whose epochs are used up fails then, in place of comparing: see `_former`.
                if (error.code, former.epoch) != (_UNKNOWN_SERVER_ERROR, EPOCH_MAX - 1):
                    raise
                why = error
                deadline.pause()
        raise deadline.passed("InitProducerId", why or "the markers are still being written")

    # -- on the way -----------------------------------------------------------------------------

    def _look(self, who: ProducerIdentity, begun: Begun) -> tuple[Standing, TransactionStatus]:
        told = self._coordinator.describe()
        return standing(who, told, begun, self._coordinator.transaction_version), told

    def _former(
        self,
        who: ProducerIdentity,
        former: ProducerIdentity,
        found: Standing,
        told: TransactionStatus,
        refusal: BrokerError | None,
    ) -> ProducerIdentity:
        """Whose next epoch to ask for. Raises where it is not for `who` to ask."""
        is_refused = isinstance(refusal, EpochRefused)
        if found is Standing.ABORTED:
            return replace(who, epoch=told.epoch)
        if found in (Standing.CURRENT, Standing.OPEN) and not is_refused:
            return who
        is_taken = found in (Standing.SUCCEEDED, Standing.UNCERTAIN)
        if is_taken and told.state == _NO_TRANSACTION_YET and not is_refused:
            if told.producer_id == who.producer_id and told.epoch >= EPOCH_MAX:
                # Kafka's coordinators fail there before they compare epochs.
                raise self._error(who, Standing.UNCERTAIN, told)
            # Perhaps by this producer itself, and the answer was lost: asked the same again, the
            # coordinator answers the same (KIP-360), and where it was a successor it refuses.
            return former
        raise self._error(who, found, told, refusal.code if refusal else -1)

    def _next(self, former: ProducerIdentity, raised: ProducerIdentity) -> ProducerIdentity:
        if raised.producer_id != former.producer_id and former.epoch < EPOCH_MAX:
            # Of a transactional id that it has forgotten, a coordinator makes a new one.
            raise _expired(former, -1, commit_maybe_taken=False)
        return raised

    def _error(
        self,
        who: ProducerIdentity,
        found: Standing,
        told: TransactionStatus,
        code: int = -1,
        commit_maybe_taken: bool = False,
    ) -> BrokerError:
        if found is Standing.EXPIRED:
            return _expired(who, code, commit_maybe_taken)
        if found is Standing.ABORTED:
            return TransactionTimedOut(
                f"the coordinator aborted the transaction of {who}: it was open longer than "
                f"transaction.timeout.ms={self._coordinator.transaction_timeout_ms}. Nothing of "
                "it is visible: abort_transaction(), then write it again in smaller transactions, "
                "or raise transaction.timeout.ms (brokers allow transaction.max.timeout.ms)",
                code,
            )
        if found is Standing.UNCERTAIN:
            return OwnershipUncertain(
                f"whether {who} may go on, the coordinator can't tell: it now has producer id "
                f"{told.producer_id}, epoch {told.epoch}, in state {told.state}. It may have come "
                "to that by itself (a time-out; a last epoch or a new producer id, whose answer "
                "was lost), or by another producer with the same transactional.id. Read the "
                "committed offsets "
                "before anything is written again: if another producer has gone on, stop; if not, "
                "start a new producer",
                code,
            )
        if found is Standing.SUCCEEDED:
            return FencedError(
                f"{who} was fenced: another producer with the same transactional.id started (the "
                f"coordinator now has producer id {told.producer_id}, epoch {told.epoch}). "
                + (
                    "Its commit was sent before that and may have been taken: read the committed "
                    "offsets before anything is written again. "
                    if commit_maybe_taken
                    else "Nothing of the open transaction is visible. "
                )
                + "If two pipelines are meant, give each its own transactional.id",
                code,
            )
        return FatalError(
            f"the coordinator has {who} in state {told.state} and refused the request with "
            f"{explain(code)}: the two sides disagree; start a new producer",
            code,
        )


def _expired(who: ProducerIdentity, code: int, commit_maybe_taken: bool) -> TransactionalIdExpired:
    return TransactionalIdExpired(
        f"the cluster has forgotten {who}: it was not used for longer than the brokers' "
        "transactional.id.expiration.ms (7 days by default). Whether another producer took over "
        "meanwhile, it can't tell. "
        + (
            "A commit was sent and may have been taken. "
            if commit_maybe_taken
            else "Nothing of an open transaction is visible. "
        )
        + "Read the committed offsets before anything is written again: if another producer has "
        "gone on, stop; if not, start a new producer. Where a pipeline may rest for so long, raise "
        "transactional.id.expiration.ms",
        code,
    )
