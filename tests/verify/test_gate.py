"""The gate: points are told and counted, whoever is to wait there waits."""

from __future__ import annotations

import threading

import pytest

from sparkonce.verify.gate import START, Arrival, Gate


def test_arrivals_are_counted_by_trial_life_and_point() -> None:
    seen: list[tuple[int, int, str, int]] = []

    def decide(arrival: Arrival) -> None:
        seen.append((arrival.trial, arrival.life, arrival.point, arrival.time))

    with Gate(decide) as gate:
        gate.a_pass(1, 0)("open")
        gate.a_pass(1, 0)("open")
        gate.a_pass(1, 1)("open")
        gate.a_pass(2, 0)("end")
    assert seen == [(1, 0, "open", 1), (1, 0, "open", 2), (1, 1, "open", 1), (2, 0, "end", 1)]


def test_who_is_held_goes_on_when_released() -> None:
    with Gate(lambda arrival: gate.hold(arrival.trial, arrival.life)) as gate:
        went_on = threading.Event()

        def pipeline() -> None:
            gate.a_pass(7, 0)("offsets")
            went_on.set()

        thread = threading.Thread(target=pipeline)
        thread.start()
        assert gate.wait(lambda: gate.is_held(7, 0), 10)
        assert not went_on.is_set()
        gate.release(0)
        thread.join(10)
        assert went_on.is_set()


def test_ends_are_told_with_their_reason() -> None:
    with Gate(lambda arrival: None) as gate:
        assert gate.ended(1, 0) is None
        gate.a_pass(1, 0).ended()
        gate.a_pass(2, 0).ended("FencedError: taken over")
        assert gate.ended(1, 0) == ""
        assert gate.ended(2, 0) == "FencedError: taken over"


def test_what_fails_at_the_gate_is_told_of_its_trial_and_the_others_go_on() -> None:
    def decide(arrival: Arrival) -> None:
        if arrival.trial == 1:
            raise ValueError("no such broker")

    with Gate(decide) as gate:
        gate.a_pass(1, 0)("open")
        gate.a_pass(2, 0)("open")
    assert {trial: str(error) for trial, error in gate.errors.items()} == {1: "no such broker"}


def test_a_pass_fails_when_the_verifier_is_gone() -> None:
    with Gate(lambda arrival: None) as gate:
        left = gate.a_pass(1, 0)
    with pytest.raises(ConnectionError):
        left("open")


def test_only_so_many_are_on_their_way() -> None:
    """Whoever is held or has ended makes room."""

    def decide(arrival: Arrival) -> None:
        if arrival.point == START:
            gate.admit(arrival.trial, arrival.life, 1)
        else:
            gate.hold(arrival.trial, arrival.life)

    begun: list[int] = []

    def pipeline(trial: int) -> None:
        gate.a_pass(trial, 0)(START)
        begun.append(trial)

    with Gate(decide) as gate:
        pipeline(1)
        second = threading.Thread(target=pipeline, args=(2,))
        second.start()
        held = threading.Thread(target=lambda: gate.a_pass(1, 0)("open"))
        held.start()
        second.join(10)
        assert begun == [1, 2]
        third = threading.Thread(target=pipeline, args=(3,))
        third.start()
        assert not gate.wait(lambda: 3 in begun, 0.3)
        gate.a_pass(2, 0).ended()
        third.join(10)
        assert begun == [1, 2, 3]
        gate.release(0)
        held.join(10)


def test_a_wait_is_over_when_nobody_tells_anything_for_too_long() -> None:
    with Gate(lambda arrival: None) as gate:
        seen = 0

        def is_far() -> bool:
            nonlocal seen
            seen += 1
            if seen < 10:
                gate.a_pass(1, 0)("open")  # somebody is still on the way
            return False

        assert not gate.wait(is_far, timeout_s=60, quiet_s=0.3)
        assert seen >= 10
        assert not gate.wait(lambda: False, timeout_s=0.1)
        assert gate.wait(lambda: True, timeout_s=0.1, quiet_s=0.1)


def test_one_waits_at_a_point_until_another_comes_there() -> None:
    came: list[bool] = []

    def decide(arrival: Arrival) -> None:
        if (arrival.trial, arrival.point, arrival.time) == (1, "produce:first", 1):
            came.append(gate.await_arrival(1, 0, "produce:first", 2, 10))

    with Gate(decide) as gate:
        first = threading.Thread(target=gate.a_pass(1, 0), args=("produce:first",))
        first.start()
        assert gate.await_arrival(1, 0, "produce:first", 1, 10)
        gate.a_pass(1, 0)("produce:last")
        gate.a_pass(2, 0)("produce:first")
        assert first.is_alive()
        gate.a_pass(1, 0)("produce:first")
        first.join(10)
    assert came == [True]


def test_another_that_never_comes_is_not_waited_for_without_end() -> None:
    with Gate(lambda arrival: None) as gate:
        gate.a_pass(1, 0)("produce:first")
        assert not gate.await_arrival(1, 0, "produce:first", 2, 0)
