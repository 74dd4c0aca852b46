"""The life of a transactional producer: every state, every allowed step, in one table.

Pure: it knows nothing of brokers. `Lifecycle.to` is the only way from one state to another, and a
step that isn't in the table names both states and the way out.
"""

from __future__ import annotations

import enum
import threading

from sparkonce.errors import FatalError, StateError


class State(enum.Enum):
    UNINITIALIZED = "uninitialized"
    READY = "ready"
    IN_TRANSACTION = "in transaction"
    COMMITTING = "committing"
    ABORTING = "aborting"
    MUST_ABORT = "must abort"
    JOINED = "joined"
    FAILED = "failed"
    CLOSED = "closed"


ALLOWED: dict[State, frozenset[State]] = {
    State.UNINITIALIZED: frozenset({State.READY, State.FAILED, State.CLOSED}),
    State.READY: frozenset({State.IN_TRANSACTION, State.FAILED, State.CLOSED}),
    State.IN_TRANSACTION: frozenset(
        {State.COMMITTING, State.ABORTING, State.MUST_ABORT, State.FAILED, State.CLOSED}
    ),
    # To itself: the answer was lost, and the same decision is asked for again.
    State.COMMITTING: frozenset(
        {State.COMMITTING, State.READY, State.MUST_ABORT, State.FAILED, State.CLOSED}
    ),
    State.ABORTING: frozenset({State.ABORTING, State.READY, State.FAILED, State.CLOSED}),
    State.MUST_ABORT: frozenset({State.ABORTING, State.FAILED, State.CLOSED}),
    State.JOINED: frozenset({State.FAILED, State.CLOSED}),
    State.FAILED: frozenset({State.CLOSED}),
    State.CLOSED: frozenset(),
}

WAY_OUT: dict[State, str] = {
    State.UNINITIALIZED: "call init_transactions() first",
    State.READY: "no transaction is open: begin_transaction() opens one",
    State.IN_TRANSACTION: "end the open transaction first, with commit_transaction() "
    "or abort_transaction()",
    State.COMMITTING: "the commit was sent and its outcome isn't known: call "
    "commit_transaction() again to learn it; it can't be turned into an abort",
    State.ABORTING: "the abort was sent and its outcome isn't known: call "
    "abort_transaction() again",
    State.MUST_ABORT: "the transaction failed: call abort_transaction(), then begin a new one",
    State.JOINED: "this producer only writes into another's transaction: the one that opened it "
    "begins, commits and aborts",
    State.FAILED: "close this producer and start a new one with the same transactional.id",
    State.CLOSED: "it was closed: make a new one",
}

NEW = frozenset({State.UNINITIALIZED})
WRITABLE = frozenset({State.IN_TRANSACTION, State.JOINED})
COMMITTABLE = frozenset({State.IN_TRANSACTION, State.COMMITTING})
BROKEN = frozenset({State.MUST_ABORT, State.FAILED})
ABORTABLE = frozenset({State.IN_TRANSACTION, State.MUST_ABORT, State.ABORTING})


class Lifecycle:
    """The present state, and why it is what it is."""

    def __init__(self, state: State = State.UNINITIALIZED) -> None:
        self.state = state
        self.cause: BaseException | None = None
        self._lock = threading.Lock()

    def to(self, target: State, cause: BaseException | None = None) -> None:
        """Step to `target`, or raise a StateError that names both and what to do instead."""
        with self._lock:
            if target not in ALLOWED[self.state]:
                raise self._refusal(f"can't go from {self.state.name} to {target.name}")
            self.state = target
            self.cause = cause

    def need(self, present: frozenset[State], target: State) -> None:
        """Refuse the way to `target` from anywhere but these."""
        if self.state not in present:
            raise self._refusal(f"can't go from {self.state.name} to {target.name}")

    def need_writable(self) -> None:
        if self.state not in WRITABLE:
            raise self._refusal(
                f"can't write in state {self.state.name}: it takes {State.IN_TRANSACTION.name}"
            )

    def _refusal(self, what: str) -> Exception:
        if self.state is State.FAILED and isinstance(self.cause, FatalError):
            return self.cause
        message = f"{what}: {WAY_OUT[self.state]}"
        if self.cause is not None:
            message += f". It came to this because: {self.cause}"
        error = StateError(message)
        error.__cause__ = self.cause
        return error
