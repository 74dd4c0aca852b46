"""Which request meets which fault: counted, drawn from the seed, the same each time."""

from __future__ import annotations

import pytest

from sparkonce.verify import (
    CorruptRequest,
    CutMidFrame,
    DelayRequest,
    Fault,
    LoseRequest,
    LoseResponse,
    Stall,
    draw_faults,
)
from sparkonce.verify.network.faults import Rules
from sparkonce.verify.network.frames import RequestHead

PRODUCE = RequestHead(0, 12, 1, "writer", "payments")
METADATA = RequestHead(3, 12, 1, "writer")


def hits(fault: Fault, requests: list[RequestHead], seed: int = 0, node: int = 1) -> list[int]:
    """The numbers, from 1, of the requests that meet the fault."""
    rules = Rules(seed)
    rules.add(fault)
    return [number for number, head in enumerate(requests, 1) if rules.hit(head, node)]


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (LoseRequest("Produce"), [1]),
        (LoseRequest("Produce", nth=3), [3]),
        (LoseRequest("Produce", nth=3, times=2), [3, 4]),
        (LoseRequest("Produce", nth=2, every=3, times=None), [2, 5, 8]),
        (LoseRequest("Produce", every=4, times=2), [1, 5]),
        (LoseRequest("Produce", times=None, probability=0.0), []),
        (LoseRequest("*", nth=9), [9]),
        (LoseRequest("EndTxn"), []),
        (LoseRequest("Produce", node=2), []),
        (LoseRequest("Produce", client_id="writer"), [1]),
        (LoseRequest("Produce", client_id="reader"), []),
        (LoseRequest("Produce", transactional_id="payments"), [1]),
        (LoseRequest("Produce", transactional_id="orders"), []),
    ],
)
def test_which_requests_are_hit(fault: Fault, expected: list[int]) -> None:
    assert hits(fault, [PRODUCE] * 10) == expected


def test_requests_of_other_apis_change_neither_count_nor_chance(seed: int) -> None:
    fault = LoseRequest("Produce", times=None, probability=0.5)
    alone = hits(fault, [PRODUCE] * 50, seed)
    mixed = hits(fault, [METADATA, PRODUCE] * 50, seed)
    assert 0 < len(alone) < 50
    assert mixed == [2 * number for number in alone]
    assert hits(fault, [PRODUCE] * 50, seed) == alone
    assert hits(fault, [PRODUCE] * 50, seed + 1) != alone


def test_a_request_meets_one_fault_and_the_next_rule_waits_for_its_turn() -> None:
    rules = Rules(0)
    first, second = LoseRequest("Produce"), LoseResponse("Produce")
    rules.add(first)
    rules.add(second)
    met = [rules.hit(PRODUCE, 1) for _ in range(3)]
    assert [hit.fault if hit else None for hit in met] == [first, second, None]


def test_a_fault_that_lasts_hits_all_that_comes_in_its_time() -> None:
    times_s = [100.0, 101.0, 101.5, 103.9, 104.0, 105.0]
    clock = iter(times_s)
    rules = Rules(0, clock=lambda: next(clock))
    rules.add(LoseRequest("Produce", nth=2, lasting_s=3.0))
    met = [rules.hit(PRODUCE, 1) is not None for _ in times_s]
    assert met == [False, True, True, True, False, False]


def test_faults_of_answers_pass_over_requests_without_answer() -> None:
    unanswered = RequestHead(0, 12, 1, None, None, answered=False)
    requests = [unanswered, PRODUCE]
    assert hits(LoseResponse("Produce"), requests) == [2]
    assert hits(CutMidFrame("Produce", direction="response"), requests) == [2]
    assert hits(CutMidFrame("Produce", direction="request"), requests) == [1]


def test_a_misspelt_api_is_refused() -> None:
    with pytest.raises(ValueError, match="'EndTransaction', which Kafka doesn't have"):
        LoseRequest("EndTransaction")


def test_what_has_no_checksum_is_not_corrupted() -> None:
    with pytest.raises(ValueError, match="only Produce has a checksum"):
        CorruptRequest("EndTxn")
    with pytest.raises(ValueError, match="'Commit', which Kafka doesn't have"):
        DelayRequest("Produce", until="Commit")
    with pytest.raises(ValueError, match="'Abort', which Kafka doesn't have"):
        DelayRequest("Produce", until=("EndTxn", "Abort"))


def test_drawn_faults_are_values_that_print_as_their_own_code(seed: int) -> None:
    drawn = draw_faults(seed, 20)
    assert drawn == draw_faults(seed, 20)
    assert drawn != draw_faults(seed + 1, 20)
    names = {kind.__name__: kind for kind in [*Fault.__subclasses__(), Stall]}
    assert tuple(eval(repr(fault), names) for fault in drawn) == drawn
