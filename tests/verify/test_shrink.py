"""Shrinking finds what is needed for a failure, within its budget, and never more than it saw."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

from hypothesis import given, settings
from hypothesis import seed as hypothesis_seed
from hypothesis import strategies as st

from sparkonce.verify.shrink import shrink

PLENTY = 10_000


class Trials:
    """A failure of which the cause is known, and what was tried to find it."""

    def __init__(self, is_failing: Callable[[tuple[int, ...]], bool]) -> None:
        self._is_failing = is_failing
        self.tried: list[tuple[int, ...]] = []
        self.failed: list[tuple[int, ...]] = []

    def fails(self, elements: tuple[int, ...]) -> bool:
        self.tried.append(elements)
        if self._is_failing(elements):
            self.failed.append(elements)
            return True
        return False


def needing(culprits: Iterable[int]) -> Trials:
    needed = set(culprits)
    return Trials(lambda elements: needed <= set(elements))


def test_the_minimal_part_is_found_in_its_order(seed: int) -> None:
    @hypothesis_seed(seed)
    @settings(max_examples=200, deadline=None, database=None)
    @given(st.lists(st.integers(0, 999), unique=True, max_size=40), st.data())
    def is_minimal(elements: list[int], data: st.DataObject) -> None:
        culprits = {each for each in elements if data.draw(st.integers(0, 5)) == 0}
        trials = needing(culprits)
        shortest = shrink(elements, trials.fails, PLENTY)
        assert shortest == tuple(each for each in elements if each in culprits)
        assert len(trials.tried) == len(set(trials.tried))

    is_minimal()


def test_whatever_fails_the_result_was_seen_to_fail_within_the_budget(seed: int) -> None:
    @hypothesis_seed(seed)
    @settings(max_examples=200, deadline=None, database=None)
    @given(st.integers(0, 20), st.integers(0, 60), st.randoms(use_true_random=False))
    def is_seen(count: int, budget: int, luck: Random) -> None:
        trials = Trials(lambda elements: luck.random() < 0.3)
        elements = tuple(range(count))
        result = shrink(elements, trials.fails, budget)
        assert result in (elements, *trials.failed)
        assert result == min([elements, *trials.failed], key=len)
        assert len(trials.tried) <= budget

    is_seen()


def test_none_of_the_result_can_be_left_out() -> None:
    """Where several parts fail, one that is minimal is found: here two that belong together."""
    trials = Trials(lambda elements: any({at, at + 8} <= set(elements) for at in range(8)))
    shortest = shrink(range(16), trials.fails, PLENTY)
    assert len(shortest) == 2
    assert shortest[1] - shortest[0] == 8


def test_a_failure_that_comes_and_goes_with_the_number_is_still_minimal() -> None:
    """After a pass over single elements that left some out, others can be left out too."""
    trials = Trials(lambda elements: 0 in elements and (7 not in elements or 1 in elements))
    assert shrink((1, 0, 7), trials.fails, PLENTY) == (0,)


def test_without_budget_the_input_comes_back_untried() -> None:
    trials = needing(())
    assert shrink([3, 1, 2], trials.fails, 0) == (3, 1, 2)
    assert trials.tried == []


def test_a_small_budget_gives_the_shortest_so_far() -> None:
    trials = needing([7])
    shortest = shrink(range(64), trials.fails, 3)
    assert len(trials.tried) == 3
    assert shortest == min(trials.failed, key=len)
    assert 7 in shortest and len(shortest) < 64


def test_one_culprit_of_many_takes_few_trials() -> None:
    trials = needing([700])
    assert shrink(range(1024), trials.fails, PLENTY) == (700,)
    assert len(trials.tried) <= 30  # a search by halves takes ten, with both halves tried twenty


def test_what_fails_by_itself_shrinks_to_nothing() -> None:
    trials = needing(())
    assert shrink([1, 2, 3], trials.fails, PLENTY) == ()
    assert shrink([], trials.fails, PLENTY) == ()


def test_equal_elements_and_those_without_a_hash_are_told_apart_by_their_place() -> None:
    faults = [["lose"], ["lose"], ["stall"], ["lose"]]
    assert shrink(faults, lambda part: part.count(["lose"]) >= 2, PLENTY) == (["lose"], ["lose"])
