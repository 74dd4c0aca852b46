"""Runs cells of a preset on the product that is on Python's path: `python -m mutants.cell`.

In a process of its own, started by `measure` with a mutant's copy of the product. All trials of all
seeds go in rounds, side by side, as in the quick preset itself; a schedule that broke the promise
is not shrunk. What came out is written line by line, as it comes.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import sparkonce
from mutants.mutant import Cell
from sparkonce.local import LocalPostgres
from sparkonce.local.java import short_lived_variable
from sparkonce.verify.campaign import in_rounds
from sparkonce.verify.child import end_with_parent
from sparkonce.verify.clusters import CLUSTERS, FOR_MANY
from sparkonce.verify.contract import Pipeline
from sparkonce.verify.outcome import Outcome
from sparkonce.verify.pipelines import built_in, ends_built_in
from sparkonce.verify.presets import Presets, Wish
from sparkonce.verify.round import Round
from sparkonce.verify.trial import Trial

BROKERS = 3
_OWN_WORDS = ("log", "reader", "life")
"""What a story has beside the things that were done to the pipeline, and its ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What such a process is asked to do."""

    source: str
    """Where the product must come from."""
    cells: tuple[Cell, ...]
    seeds: tuple[int, ...]
    results: str
    """The file to write: for each trial a line of JSON."""

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Task:
        fields: dict[str, Any] = json.loads(text)
        cells = tuple(Cell(**each) for each in fields.pop("cells"))
        return cls(cells=cells, seeds=tuple(fields.pop("seeds")), **fields)


@dataclass(frozen=True, slots=True)
class Drawn:
    """A trial, and what it was drawn for."""

    trial: Trial
    cell: Cell
    seed: int


def main() -> None:
    end_with_parent()
    task = Task.parse(sys.argv[1])
    found = Path(sparkonce.__file__).parents[1]
    assert found == Path(task.source), f"the product of {found} is measured, not {task.source}"
    os.environ.update(short_lived_variable())
    with Path(task.results).open("a") as results:
        for drawn, outcome in run(draw(task.cells, task.seeds)):
            print(json.dumps(_told(drawn, outcome)), file=results, flush=True)


def draw(cells: Sequence[Cell], seeds: Sequence[int]) -> list[Drawn]:
    """As a preset draws the cells from each of the seeds: the quick one, and what the full one
    begins with beside it."""
    numbers = itertools.count(1)
    return [
        Drawn(replace(trial, number=next(numbers)), cell, seed)
        for cell in cells
        for seed in seeds
        for trial in _of_preset(cell, seed)
    ]


def _of_preset(cell: Cell, seed: int) -> list[Trial]:
    wish = Wish(
        pipelines=tuple(_pipelines(cell.pipeline)),
        seed=seed,
        brokers=BROKERS,
        minutes=1.0,  # the full preset, of which only the beginning is taken
        only=(cell.pipeline, cell.guarantee, cell.family),
    )
    found = [
        trial
        for trial in Presets(wish).first(itertools.count(1), ())
        if Cell(trial.name, trial.guarantee.value, trial.family) == cell
    ]
    assert found, f"no preset has a cell {cell}"
    return found


def _pipelines(name: str) -> list[Pipeline]:
    at_ends = ends_built_in()
    return at_ends if name in {each.name for each in at_ends} else built_in()


def run(drawn: Sequence[Drawn]) -> Iterator[tuple[Drawn, Outcome]]:
    """Round by round; each outcome with what it is of."""
    by_number = {each.trial.number: each for each in drawn}
    needs_postgres = any("postgres" in each.trial.pipeline.services for each in drawn)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="verify-")))
        postgres = stack.enter_context(LocalPostgres(settings=FOR_MANY)) if needs_postgres else None
        for cluster in CLUSTERS.values():
            trials = [each.trial for each in drawn if each.trial.cluster is cluster]
            if not trials:
                continue
            with cluster.start(BROKERS) as kafka:
                for together in in_rounds(trials):
                    for outcome in Round(kafka, together, folder, postgres=postgres).run():
                        yield by_number[outcome.number], outcome


def _told(drawn: Drawn, outcome: Outcome) -> dict[str, Any]:
    defects = {finding.defect.value: 0 for finding in outcome.findings}
    for finding in outcome.findings:
        defects[finding.defect.value] += finding.count
    return {
        "cell": asdict(drawn.cell),
        "seed": drawn.seed,
        "verdict": outcome.verdict.value,
        "findings": defects,
        "workload": outcome.workload,
        "schedule": list(outcome.schedule),
        "happened": _happened(outcome),
        "duration_s": outcome.duration_s,
        "error": outcome.error[-2000:],
        "at": round(time.time()),
    }


def _happened(outcome: Outcome) -> list[str]:
    """Each thing once, however often it was done."""
    told = (each.text for each in outcome.story if each.kind not in _OWN_WORDS)
    return list(dict.fromkeys(told))


if __name__ == "__main__":
    main()
