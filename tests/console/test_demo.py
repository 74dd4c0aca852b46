"""`sparkonce demo` as people run it, and its count on input made by hand."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import pytest

from sparkonce.console.demo import complaints
from sparkonce.console.tally import PARTITIONS, Tally, tally
from sparkonce.console.trial import Outcome, Written, draw_cuts
from sparkonce.verify import LoseResponse

_DEMO = [sys.executable, "-c", "from sparkonce.console.app import main; main()", "demo"]
RECORDS = 5000


def whole(records: int) -> list[tuple[int, int]]:
    """All of them, once each, in order per partition."""
    return [(number % PARTITIONS, number) for number in range(records)]


@pytest.mark.slow
def test_it_shows_exactly_once_beside_duplicates(seed: int) -> None:
    said = subprocess.run(
        [*_DEMO, "--headless", "--records", str(RECORDS), "--seed", str(seed)],
        capture_output=True,
        text=True,
        timeout=110,
    )
    print(said.stdout, said.stderr)
    assert said.returncode == 0
    assert f"--seed {seed}" in said.stdout
    assert "lost 0, duplicated 0, reordered 0 of 5,000 records" in said.stdout
    ours, theirs = _columns(said.stdout)
    assert ours["records read"] == RECORDS
    assert (ours["lost"], ours["duplicated"], ours["reordered"]) == (0, 0, 0)
    assert ours["connections cut"] > 20
    assert ours["transactions committed"] == 125
    assert ours["transactions aborted"] >= 13
    assert ours["source offset committed"] == RECORDS
    assert theirs["lost"] == 0
    assert theirs["duplicated"] > 0
    assert theirs["records read"] == RECORDS + theirs["duplicated"]
    assert "\x1b" not in said.stdout
    assert "Traceback" not in said.stderr


def _columns(output: str) -> tuple[dict[str, int], dict[str, int]]:
    """The table's two columns of numbers, by the name of the row."""
    rows = re.findall(r"^([a-z ]+?) {2,}([\d,]+) +([\d,]+|-) *$", output, re.M)
    ours = {name: int(left.replace(",", "")) for name, left, _ in rows}
    theirs = {name: int(right.replace(",", "")) for name, _, right in rows if right != "-"}
    return ours, theirs


def test_ctrl_c_stops_it_without_a_traceback() -> None:
    with subprocess.Popen(
        [*_DEMO, "--headless"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        for line in program.stdout:
            if line.startswith("exactly once: "):
                break
        program.send_signal(signal.SIGINT)
        said, errors = program.communicate(timeout=60)
    assert program.returncode == 130
    assert "Stopped." in said
    assert "Traceback" not in errors


def test_the_count_of_what_is_whole() -> None:
    assert tally(40, whole(40)) == Tally(read=40, lost=0, duplicated=0, reordered=0, foreign=0)
    assert tally(40, whole(40)).is_exact


def test_partitions_may_be_read_in_any_order_among_themselves() -> None:
    assert tally(40, sorted(whole(40))).is_exact
    assert tally(40, sorted(whole(40), key=lambda pair: (-pair[0], pair[1]))).is_exact


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (whole(40)[:-1], Tally(39, lost=1, duplicated=0, reordered=0, foreign=0)),
        (whole(40)[1:], Tally(39, lost=1, duplicated=0, reordered=0, foreign=0)),
        ([], Tally(0, lost=40, duplicated=0, reordered=0, foreign=0)),
        ([*whole(40), (3, 39)], Tally(41, lost=0, duplicated=1, reordered=0, foreign=0)),
        ([*whole(40), (0, 0)], Tally(41, lost=0, duplicated=1, reordered=0, foreign=0)),
        (whole(40) * 3, Tally(120, lost=0, duplicated=80, reordered=0, foreign=0)),
        # A later one of the same partition came first.
        ([(0, 4), (0, 0), *whole(40)[1:4], *whole(40)[5:]], Tally(40, 0, 0, 1, 0)),
        # One lost and another twice: the sums alone would look right.
        ([*whole(40)[:-1], (0, 0)], Tally(40, lost=1, duplicated=1, reordered=0, foreign=0)),
        ([*whole(40), (0, 40)], Tally(41, lost=0, duplicated=0, reordered=0, foreign=1)),
        ([*whole(40)[:-1], (0, 39)], Tally(40, lost=1, duplicated=0, reordered=0, foreign=1)),
    ],
    ids=[
        "last lost",
        "first lost",
        "all lost",
        "last twice",
        "first again",
        "thrice",
        "swapped",
        "one for another",
        "never written",
        "wrong partition",
    ],
)
def test_the_count_notices(seen: list[tuple[int, int]], expected: Tally) -> None:
    assert tally(40, seen) == expected
    assert not tally(40, seen).is_exact


def _outcome(counted: Tally, times: int = 3, progress: int = 40) -> Outcome:
    fault = LoseResponse("Produce", every=3, times=None)
    return Outcome(counted, Written(40, 5, 1), {fault: times}, progress)


EXACT = Tally(40, 0, 0, 0, 0)
TWICE = Tally(41, 0, 1, 0, 0)


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        (_outcome(Tally(39, 1, 0, 0, 0)), _outcome(TWICE), "lost 1"),
        (_outcome(TWICE), _outcome(TWICE), "duplicated 1"),
        (_outcome(Tally(40, 0, 0, 1, 0)), _outcome(TWICE), "reordered 1"),
        (_outcome(Tally(41, 0, 0, 0, 1)), _outcome(TWICE), "never written 1"),
        (_outcome(EXACT, times=0), _outcome(TWICE), "never happened"),
        (_outcome(EXACT), _outcome(TWICE, times=0), "never happened"),
        (_outcome(EXACT), _outcome(EXACT), "too weak"),
        (_outcome(EXACT, progress=39), _outcome(TWICE), "source offset is 39"),
    ],
)
def test_a_run_that_does_not_show_it_fails(ours: Outcome, theirs: Outcome, said: str) -> None:
    (complaint,) = complaints(40, ours, theirs)
    assert said in complaint


def test_a_run_that_shows_it_does_not_fail() -> None:
    assert complaints(40, _outcome(EXACT), _outcome(TWICE)) == []


def test_the_same_seed_draws_the_same_cuts_and_no_two_are_alike() -> None:
    for seed in range(200):
        apis = ("Produce", "EndTxn")
        drawn = draw_cuts(seed, apis)
        assert drawn == draw_cuts(seed, apis)
        assert drawn[:3] == draw_cuts(seed, apis[:1]), "the control gets the same cuts of Produce"
        assert len(set(drawn)) == len(drawn) == 6
