"""Any verb in any state, against a real broker: what the table of states says, and no more.

Hypothesis walks a transactional producer through its life. The model beside it is the table in
`produce/states.py`, who was fenced, and the values that were committed; another client reads at
the end whether that is what is there. The way to the broker leads through a proxy that can be
shut, so that decisions get lost and the states COMMITTING and ABORTING are reached too.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Set
from typing import ClassVar

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import seed as hypothesis_seed
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from oracle import committed, values
from sparkonce import TransactionalProducer
from sparkonce.errors import EncodeError, FencedError, OutcomeUnknown, StateError
from sparkonce.local import LocalKafka
from sparkonce.produce import State
from sparkonce.produce.states import ABORTABLE, ALLOWED, COMMITTABLE, NEW, WRITABLE
from sparkonce.verify import FaultProxy

STEPS = 20
EXAMPLES = 15
NO_OFFSET = -1001  # confluent-kafka's word for "none committed"
VERBS = (
    "init_transactions",
    "begin_transaction",
    "produce",
    "produce_arrow",
    "produce_unfit_arrow",
    "send_offsets",
    "flush",
    "commit",
    "abort",
    "fence",
    "fence_and_commit",
    "fence_and_abort",
    "close",
)
STARTS = (
    State.IN_TRANSACTION,
    State.MUST_ABORT,
    State.COMMITTING,
    State.ABORTING,
    State.FAILED,
    State.READY,
    State.UNINITIALIZED,
)


class Life(RuleBasedStateMachine):
    kafka: LocalKafka
    topic: str
    proxy: FaultProxy
    lives = itertools.count()
    met: ClassVar[Counter[tuple[str, State]]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.name = f"{self.topic}-{next(self.lives)}"
        self.numbers = itertools.count()
        self.committed: list[bytes] = []
        self.committed_offset = NO_OFFSET
        self.successors: list[TransactionalProducer] = []
        self._open()

    @rule(start=st.sampled_from(STARTS) | st.none(), verb=st.sampled_from(VERBS))
    def step(self, start: State | None, verb: str) -> None:
        """One verb, in this state or wherever the last one has led to."""
        goes_on_as_zombie = self.fenced and self.state is not State.FAILED
        if start is not None and not goes_on_as_zombie:
            self._arrive(start)
        self.met[verb, self.state] += 1
        getattr(self, verb)()
        assert self.producer.state is self.state

    def _arrive(self, target: State) -> None:
        if self.state is target:
            return
        if self.fenced or target is State.UNINITIALIZED:
            self.close()
        if target is State.UNINITIALIZED:
            return
        if self.state is State.UNINITIALIZED:
            self.init_transactions()
        elif self.state is State.COMMITTING:
            self.commit()
        elif self.state is not State.IN_TRANSACTION or target is State.READY:
            self.abort()
        if target is State.READY:
            return
        if self.state is State.READY:
            self.begin_transaction()
        self.produce_arrow()
        if target is State.MUST_ABORT:
            self.produce_unfit_arrow()
        elif target in (State.COMMITTING, State.ABORTING):
            self._lose_decision(target)
        elif target is State.FAILED:
            self.fence()
            self.abort()
        assert self.state is target

    # -- the model -----------------------------------------------------------------------------

    def _open(self) -> None:
        self.producer = TransactionalProducer(
            {"bootstrap.servers": self.proxy.bootstrap_servers, "transactional.id": self.name}
        )
        self.state = State.UNINITIALIZED
        self.fenced = False
        self._forget()

    def _forget(self) -> None:
        """Nothing is in the transaction, and the broker has not heard of it."""
        self.pending: list[bytes] = []
        self.pending_offset: int | None = None
        self.unsent = False
        self.told_broker = False

    def _value(self) -> str:
        return f"{self.name}/{next(self.numbers)}"

    def _to(self, target: State) -> None:
        assert target in ALLOWED[self.state], f"the model left the table: {self.state} to {target}"
        self.state = target

    def _allowed(self, verb: Callable[[], object], wanted: State, present: Set[State]) -> bool:
        """Whether the table lets the verb run; where it doesn't, the refusal names both states."""
        if self.state in present:
            return True
        if self.state is State.FAILED:
            with pytest.raises(FencedError):  # why it is dead, again
                verb()
        else:
            with pytest.raises(StateError, match=self.state.name) as refused:
                verb()
            assert wanted.name in str(refused.value)
        return False

    def _refused_as_fenced(self, verb: Callable[[], object]) -> None:
        with pytest.raises(FencedError, match=r"another producer with the same transactional\.id"):
            verb()
        self._to(State.FAILED)
        self._forget()

    # -- verbs -----------------------------------------------------------------------------------

    def init_transactions(self) -> None:
        verb = self.producer.init_transactions
        if self._allowed(verb, State.READY, NEW):
            verb()
            self._to(State.READY)

    def begin_transaction(self) -> None:
        verb = self.producer.begin_transaction
        if self._allowed(verb, State.IN_TRANSACTION, {State.READY}):
            verb()
            self._forget()
            self._to(State.IN_TRANSACTION)

    def produce(self) -> None:
        value = self._value()

        def verb() -> None:
            self.producer.produce(self.topic, value)

        if self._allowed(verb, State.IN_TRANSACTION, WRITABLE):
            verb()
            self.pending.append(value.encode())
            self.unsent = True

    def produce_arrow(self) -> None:
        rows = [self._value() for _ in range(10)]

        def verb() -> None:
            self.producer.produce_arrow(self.topic, pa.table({"value": rows}))
            self.producer.flush()

        if not self._allowed(verb, State.IN_TRANSACTION, WRITABLE):
            return
        if self.fenced:
            return self._refused_as_fenced(verb)
        verb()
        self.pending += [row.encode() for row in rows]
        self.unsent, self.told_broker = False, True

    def produce_unfit_arrow(self) -> None:
        self.flush()  # or it would be open which is told first, the unfit row or an older refusal

        def verb() -> None:
            rows = pa.table({"value": ["fit", "unfit"], "partition": [0, 99]})
            self.producer.produce_arrow(self.topic, rows)

        if self._allowed(verb, State.IN_TRANSACTION, WRITABLE):
            with pytest.raises(EncodeError, match="row 1: partition 99 is out of range"):
                verb()
            self._to(State.MUST_ABORT)

    def send_offsets(self) -> None:
        offset = next(self.numbers)

        def verb() -> None:
            self.producer.send_offsets_to_transaction({(self.topic, 0): offset}, self.name)

        if not self._allowed(verb, State.IN_TRANSACTION, WRITABLE):
            return
        if self.fenced:
            return self._refused_as_fenced(verb)
        verb()
        self.pending_offset = offset
        self.told_broker = True

    def flush(self) -> None:
        if self.state is not State.IN_TRANSACTION:
            return  # nothing to wait for; what is refused is told by the other verbs
        if self.fenced and self.unsent:
            return self._refused_as_fenced(self.producer.flush)
        assert self.producer.flush()
        self.told_broker |= self.unsent
        self.unsent = False

    def commit(self) -> None:
        verb = self.producer.commit_transaction
        if not self._allowed(verb, State.COMMITTING, COMMITTABLE):
            return
        if self.fenced and (self.told_broker or self.unsent):
            return self._refused_as_fenced(verb)
        verb()
        self.committed += self.pending
        if self.pending_offset is not None:
            self.committed_offset = self.pending_offset
        self._forget()
        self._to(State.COMMITTING)
        self._to(State.READY)

    def abort(self) -> None:
        verb = self.producer.abort_transaction
        if not self._allowed(verb, State.ABORTING, ABORTABLE):
            return
        if self.fenced and self.told_broker:
            return self._refused_as_fenced(verb)
        verb()
        self._forget()
        self._to(State.ABORTING)
        self._to(State.READY)

    def close(self) -> None:
        """And a new one under the same name, as after a restart."""
        self.producer.close()
        self._to(State.CLOSED)
        assert self.producer.state is State.CLOSED
        self._allowed(self.producer.begin_transaction, State.IN_TRANSACTION, set())
        self._open()

    # -- what befalls it ------------------------------------------------------------------------

    def _lose_decision(self, verdict: State) -> None:
        """The network is gone for as long as the producer waits: it doesn't know, and says so."""
        commits = verdict is State.COMMITTING
        decide = self.producer.commit_transaction if commits else self.producer.abort_transaction
        self.proxy.stop_accepting()
        self.proxy.cut_all()
        # A setting for this call alone: with so little patience everything else would fail too.
        questions = self.producer._coordinator.questions
        patience_ms, questions.max_block_ms = questions.max_block_ms, 150
        try:
            with pytest.raises(OutcomeUnknown, match=r"_transaction\(\) again"):
                decide()
        finally:
            questions.max_block_ms = patience_ms
            self.proxy.accept()
        self._to(verdict)

    def fence(self) -> None:
        """Another producer takes over."""
        settings = {"bootstrap.servers": self.kafka.bootstrap_servers}
        successor = TransactionalProducer(settings | {"transactional.id": self.name})
        self.successors.append(successor)
        successor.init_transactions()
        self.fenced = self.state is not State.UNINITIALIZED

    def fence_and_commit(self) -> None:
        self.fence()
        value = self._value()
        with self.successors[-1].transaction() as successor:
            successor.produce(self.topic, value)
        self.committed.append(value.encode())

    def fence_and_abort(self) -> None:
        self.fence()
        successor = self.successors[-1]
        successor.begin_transaction()
        successor.produce(self.topic, self._value())
        successor.flush()
        successor.abort_transaction()

    def teardown(self) -> None:
        for producer in (self.producer, *self.successors):
            producer.close()
        # What was left undecided is aborted by whoever comes next.
        self.fence()
        self.successors[-1].close()
        prefix = f"{self.name}/".encode()
        seen = values(self.kafka.bootstrap_servers, self.topic)
        assert [value for value in seen if value and value.startswith(prefix)] == self.committed
        offset, _ = committed(self.kafka.bootstrap_servers, self.name, self.topic)
        assert offset == self.committed_offset


@pytest.mark.slow
def test_every_walk_through_the_states_ends_as_the_table_says(kafka: LocalKafka, seed: int) -> None:
    topic = f"states-{seed:x}"
    kafka.create_topic(topic, partitions=1)
    try:
        with FaultProxy(kafka.bootstrap_servers, seed=seed) as proxy:
            walker = type("Walker", (Life,), {"kafka": kafka, "topic": topic, "proxy": proxy})
            run_state_machine_as_test(
                hypothesis_seed(seed)(walker),
                settings=settings(
                    max_examples=EXAMPLES,
                    stateful_step_count=STEPS,
                    deadline=None,
                    database=None,
                    phases=[Phase.generate],  # a walk takes seconds: too long to shrink it
                    print_blob=True,
                    suppress_health_check=list(HealthCheck),
                ),
            )
    finally:
        kafka.delete_topic(topic)
    assert {state for _, state in Life.met} >= set(STARTS), "the walks were too short to prove much"
