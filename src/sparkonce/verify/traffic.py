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


def aimed(rng: random.Random, pipeline: Pipeline, workload: Workload, turn: int | None) -> Schedule:
    """Faults for what exactly_once sends: some in each of its steps."""
    transactions_min = transactions(pipeline, workload)
    count = min(_TRANSACTIONS_MAX, transactions_min)
    ends = [each for each in _OF_END if transactions_min > 1 or not needs_another(each(rng))]
    produced = requests(pipeline, workload)
    middle = {1, (produced + 1) // 2, produced}
    faults = [
        *(
            replace(kind(rng), nth=rng.choice(sorted(middle)))
            for kind in _some_of(rng, _OF_PRODUCE, 3, turn)
        ),
        *(kind(rng) for kind in _some_of(rng, _OF_OFFSETS, 1, turn)),
        *(kind(rng) for kind in _some_of(rng, ends, 1, turn)),
    ]
    if _OPENS not in pipeline.points:
        return _unaimed(faults)
    # One for each request of each transaction: of two, one would wait for what may not come.
    arms: dict[tuple[str, int, int], Arm] = {}
    for fault in faults:
        last = min(count, transactions_min - 1) if needs_another(fault) else count
        nth = rng.randint(1, last)
        arms.setdefault((fault.api, fault.nth, nth), Arm(point=_OPENS, nth=nth, fault=fault))
    return tuple(sorted(arms.values(), key=lambda arm: arm.nth))


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
