"""What a pipeline sends in a transaction, and faults of the network that are aimed at it.

A fault that waits for the fifth Produce where four are sent tests nothing. So what is counted is
the requests of one transaction, from the point where it opens, and no further than it surely has
some. Pure.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from sparkonce.guarantees import Guarantee
from sparkonce.verify.contract import Pipeline
from sparkonce.verify.network import (
    CorruptRequest,
    CutMidFrame,
    DelayRequest,
    DelayResponse,
    DuplicateRequest,
    Fault,
    LoseRequest,
    LoseResponse,
    Reorder,
    Stall,
)
from sparkonce.verify.network.faults import apis_of
from sparkonce.verify.schedule import Arm, Schedule
from sparkonce.verify.workload import Workload

_OPENS: Final = "open"
_HALFWAY: Final = "produce:first"
_RECORD_BYTES: Final = 40
"""What a record takes beside its value, at most."""
_TRANSACTIONS_MAX: Final = 3

_Kind = Callable[[random.Random], Fault]

# Aimed at Produce, beginning with those that hurt whoever does not wait, number, or resend rightly.
_OF_PRODUCE: Final[tuple[_Kind, ...]] = (
    # Under way when the transaction is decided, if nobody waits for it.
    lambda rng: DelayRequest("Produce", until="EndTxn", seconds=0.2),
    lambda rng: LoseResponse("Produce"),
    lambda rng: DelayRequest("Produce", until="EndTxn", seconds=_some(rng, 0.3), cut=True),
    lambda rng: Stall("Produce", seconds=1 + _some(rng, 1.0)),
    lambda rng: DuplicateRequest("Produce", own_connection=rng.random() < 0.5),
    lambda rng: LoseRequest("Produce"),
    lambda rng: CorruptRequest("Produce"),
    lambda rng: CutMidFrame("Produce", direction="response"),
    lambda rng: DuplicateRequest("Produce", until="EndTxn", seconds=_some(rng, 0.3)),
    lambda rng: Reorder("Produce", seconds=_some(rng, 1.0)),
    lambda rng: CutMidFrame("Produce", direction="request"),
    lambda rng: DelayResponse("Produce", seconds=_some(rng, 1.0)),
)
_OF_OFFSETS: Final[tuple[_Kind, ...]] = (
    lambda rng: DelayRequest("TxnOffsetCommit", until="EndTxn", seconds=0.2),
    lambda rng: LoseRequest("TxnOffsetCommit"),
    lambda rng: LoseResponse("TxnOffsetCommit"),
    lambda rng: DelayRequest("TxnOffsetCommit", until="EndTxn", seconds=0.1, cut=True),
    lambda rng: DuplicateRequest("TxnOffsetCommit", until="EndTxn", seconds=_some(rng, 0.3)),
    lambda rng: CutMidFrame("TxnOffsetCommit", direction="response"),
)
_OF_END: Final[tuple[_Kind, ...]] = (
    lambda rng: LoseResponse("EndTxn"),
    lambda rng: LoseRequest("EndTxn"),
    # In the middle of the next transaction.
    lambda rng: DuplicateRequest("EndTxn", until="Produce", seconds=_some(rng, 0.1)),
    lambda rng: DelayRequest("EndTxn", until="Produce", seconds=_some(rng, 0.1), cut=True),
    lambda rng: CutMidFrame("EndTxn", direction="response"),
    lambda rng: Stall("EndTxn", seconds=_some(rng, 1.0)),
    lambda rng: DuplicateRequest("EndTxn", own_connection=True),
)


def requests(pipeline: Pipeline, workload: Workload) -> int:
    """How many Produce requests a transaction has at least."""
    if not workload.batch_size:
        return 1
    # A request has one batch of each partition at most, and a large value is a batch by itself.
    batch_bytes = max(workload.batch_size, workload.value_bytes + _RECORD_BYTES)
    places = workload.partitions * pipeline.outputs
    per_batch = workload.per_batch if pipeline.batched else workload.records
    written = per_batch * workload.value_bytes // 2
    return max(1, written // (batch_bytes * places))


def transactions(pipeline: Pipeline, workload: Workload) -> int:
    """How many there are at least."""
    return workload.batches if pipeline.batched else 1


def is_told_halfway(pipeline: Pipeline) -> bool:
    """Whether it tells the point between the halves of a transaction, at which all that was sent is
    acknowledged. Tasks of Spark's tell theirs each for itself."""
    return _HALFWAY in pipeline.points and not pipeline.spark


def aimed(rng: random.Random, pipeline: Pipeline, workload: Workload, turn: int | None) -> Schedule:
    """Faults for what exactly_once sends: some in each of its steps."""
    transactions_min = transactions(pipeline, workload)
    ends = [each for each in _OF_END if transactions_min > 1 or not needs_another(each(rng))]
    produced = requests(pipeline, workload)
    middle = sorted({1, (produced + 1) // 2, produced})
    of_produce = [kind(rng) for kind in _some_of(rng, _OF_PRODUCE, 3, turn)]
    others = [
        *(kind(rng) for kind in _some_of(rng, _OF_OFFSETS, 1, turn)),
        *(kind(rng) for kind in _some_of(rng, ends, 1, turn)),
    ]
    if _OPENS not in pipeline.points:
        return _unaimed([*(replace(each, nth=rng.choice(middle)) for each in of_produce), *others])
    placing = _Placing(rng, transactions_min, is_spread=turn is not None)
    if turn is not None and is_told_halfway(pipeline):
        placing.place_all(_sharp(workload, produced))
    for fault in of_produce:
        placing.place(_OPENS, [replace(fault, nth=nth) for nth in middle])
    for fault in others:
        placing.place(_OPENS, [fault])
    return placing.schedule


def _sharp(workload: Workload, produced: int) -> Sequence[tuple[str, Fault]]:
    """Those that hurt for sure who resends wrongly, or not at all.

    Behind the first half, each partition gets one batch more. Lost, it is missed by nothing that
    comes behind it. Written, and its answer lost, it is the last one that the broker knows: a
    resend under another number would be taken for new. In the midst of many, one that is refused
    has others under way behind it, and these are out of order. And a copy of the decision comes
    between the halves of the next transaction: under the same epoch it would decide that one.
    """
    decided_again = (_OPENS, DuplicateRequest("EndTxn", until="Produce"))
    if workload.batch_size:
        return [decided_again, (_OPENS, CorruptRequest("Produce", nth=(produced + 1) // 2))]
    lost = [(_HALFWAY, LoseRequest("Produce")), (_HALFWAY, LoseResponse("Produce"))]
    return [decided_again, *lost]


class _Placing:
    """Gives each fault a transaction, and a request of it that no other one waits for: of two, one
    would wait for what may not come."""

    def __init__(self, rng: random.Random, transactions_min: int, *, is_spread: bool) -> None:
        """`is_spread`: each has a transaction to itself, as far as there are. One that leads to an
        abort undoes what others have brought about."""
        self._rng = rng
        self._transactions_min = transactions_min
        self._is_spread = is_spread
        self._count = transactions_min if is_spread else min(_TRANSACTIONS_MAX, transactions_min)
        self._arms: list[Arm] = []

    @property
    def schedule(self) -> Schedule:
        return tuple(sorted(self._arms, key=lambda arm: arm.nth))

    def place_all(self, faults: Sequence[tuple[str, Fault]]) -> None:
        for point, fault in faults:
            self.place(point, [fault])

    def place(self, point: str, ways: Sequence[Fault]) -> None:
        """In one of these ways."""
        last = self._count
        if needs_another(ways[0]):
            last = min(last, self._transactions_min - 1)
        taken = {(arm.nth, arm.fault.api, arm.fault.nth) for arm in self._arms}
        free = [
            Arm(point=point, nth=nth, fault=fault)
            for nth in range(1, last + 1)
            for fault in ways
            if (nth, fault.api, fault.nth) not in taken
        ]
        if not free:
            return
        if self._is_spread:
            fewest = min(map(self._beside, free))
            free = [arm for arm in free if self._beside(arm) == fewest]
        self._arms.append(self._rng.choice(free))

    def _beside(self, arm: Arm) -> int:
        """How many the same transaction has already."""
        return sum(other.nth == arm.nth for other in self._arms)


def weaker(
    rng: random.Random, pipeline: Pipeline, guarantee: Guarantee, workload: Workload
) -> Schedule:
    if guarantee is not Guarantee.AT_LEAST_ONCE:
        # The request that is lost where nobody sends it again.
        return (LoseRequest("Produce", nth=rng.randint(1, 2), every=2, times=2),)
    # Such as don't wait for a transaction's end, which a weaker guarantee need not have.
    kinds = [kind for kind in _OF_PRODUCE if getattr(kind(rng), "until", None) is None]
    count = min(_TRANSACTIONS_MAX, transactions(pipeline, workload))
    faults = [kind(rng) for kind in rng.sample(kinds, k=rng.randint(2, 3))]
    return _unaimed([replace(fault, nth=rng.randint(1, count)) for fault in faults])


def _unaimed(faults: Sequence[Fault]) -> Schedule:
    """In force from the start: where a pipeline does not say when it opens a transaction."""
    return tuple({(fault.api, fault.nth): fault for fault in faults}.values())


def needs_another(fault: Fault) -> bool:
    """Whether it waits for what only a later transaction sends: in the last it would never end."""
    return fault.api == "EndTxn" and "Produce" in apis_of(getattr(fault, "until", None))


def _some_of(
    rng: random.Random, kinds: Sequence[_Kind], count: int, turn: int | None
) -> list[_Kind]:
    if turn is None:
        return rng.sample(kinds, k=count)
    return [kinds[(turn * count + index) % len(kinds)] for index in range(count)]


def _some(rng: random.Random, most_s: float) -> float:
    return round(rng.random() * most_s, 3)
