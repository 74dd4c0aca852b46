"""A trial's clock runs while its pipeline works, and at no other time."""

from __future__ import annotations

import threading

from sparkonce.verify.gate import START, Arrival, Gate
from sparkonce.verify.lived import LivedTime


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_lives_are_added_up_and_each_trial_has_its_own() -> None:
    clock = Clock()
    lived = LivedTime(clock)
    lived.start(1, 0)
    clock.now_s += 2
    lived.start(2, 0)
    clock.now_s += 3
    assert lived.stop(1, 0)
    clock.now_s += 50
    assert not lived.stop(1, 0), "it stands already"
    lived.start(1, 1)
    clock.now_s += 0.5
    assert lived.of(1) == 5
    lived.end(1)
    lived.end(0)
    assert (lived.of(1), lived.of(2), lived.of(3)) == (5.5, 53.5, 0)


def test_the_gate_lets_it_stand_while_the_pipeline_waits() -> None:
    """For its turn, for a broker, for the others and for its death."""
    clock = Clock()
    resting, go_on = threading.Event(), threading.Event()

    def decide(arrival: Arrival) -> None:
        if arrival.point == START:
            gate.admit(arrival.trial, arrival.life, 6)
        elif arrival.point == "open":
            with gate.resting(arrival.trial, arrival.life):
                resting.set()
                assert go_on.wait(10)
        else:
            gate.hold(arrival.trial, arrival.life)

    with Gate(decide) as gate:
        gate.lived = LivedTime(clock)
        told = gate.a_pass(7, 0)
        clock.now_s += 1000  # its process starts
        told(START)
        clock.now_s += 1
        thread = threading.Thread(target=told, args=("open",))
        thread.start()
        assert resting.wait(10)
        clock.now_s += 1000
        go_on.set()
        thread.join(10)
        clock.now_s += 2
        thread = threading.Thread(target=told, args=("end",))
        thread.start()
        assert gate.wait(lambda: gate.is_held(7, 0), 10)
        clock.now_s += 1000
        assert gate.lived.of(7) == 3
        gate.release(0)
        thread.join(10)
        clock.now_s += 4
        told.ended()
        clock.now_s += 1000
        assert gate.lived.of(7) == 7
