"""How soon does the verifier notice? Runs mutants, and says after how many trials each is seen.

    scripts/mutants [NAME…] [--seeds 3] [--json mutants.json] [--table] [--list]

Each mutant is a sabotaged copy of the product. It runs under the cell of a preset that it
belongs to, once for each seed, the seeds side by side. It is noticed where the verdict is that the
promise was broken, or a control weak; a pipeline that only fails does not count. The product as it
is runs under the same cells and seeds, and must keep its promise. Names may be parts of names.

What was measured is kept in the JSON, also of a run that ended early: without names, a later run
measures only what is missing, or was measured on another state of the sources or of the mutant. One
that does not apply any more, or does not come to its end, is told of, and the others go on. Exit
code 1: a mutant was not noticed with each seed.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from mutants.catalog import MUTANTS
from mutants.cell import draw
from mutants.measure import measure, tree
from mutants.mutant import Cell, DoesNotApply, Mutant
from mutants.results import AS_IS, Results, Row

_told = Console(stderr=True, highlight=False, soft_wrap=True)


def main() -> None:
    asked = _arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    chosen = _chosen(asked.names)
    if asked.list:
        for mutant in chosen:
            print(f"{mutant.name}  [{'; '.join(map(str, mutant.cells))}]")
        return
    seeds = tuple(range(1, asked.seeds + 1))
    results = Results.read(asked.json)
    if not asked.table:
        try:
            _measure_as_is(chosen, seeds, results)
            _measure(chosen, seeds, results, again=bool(asked.names))
        except KeyboardInterrupt:
            _told.print("Stopped. What was measured before is kept.")
            sys.exit(130)
    rows = [
        Row(mutant, cell, results.of(mutant.name, cell, seeds, _state(mutant)))
        for mutant in chosen
        for cell in mutant.cells
    ]
    _show(rows, as_markdown=asked.table)
    spoilt = [
        (cell, each)
        for cell in _cells(chosen)
        for each in results.of(AS_IS, cell, seeds, tree(None))
        if not each.is_kept
    ]
    for cell, each in spoilt:
        _told.print(f"[red]As it is:[/] {cell}, seed {each.seed}: {each.verdict}. {each.error}")
    if spoilt or not all(row.is_noticed and len(row.seeds) == len(seeds) for row in rows):
        sys.exit(1)


def _measure_as_is(chosen: Sequence[Mutant], seeds: Sequence[int], results: Results) -> None:
    """Pipeline by pipeline: what is measured of one is not lost with another."""
    missing = [c for c in _cells(chosen) if not results.has(AS_IS, c, _due(c, seeds), tree(None))]
    for pipeline in dict.fromkeys(cell.pipeline for cell in missing):
        cells = [cell for cell in missing if cell.pipeline == pipeline]
        _told.print(f"as it is: {pipeline}, {len(cells)} cells with {len(seeds)} seeds …")
        measured = measure(None, cells, seeds)
        results.put(measured.results)
        if measured.why_early is not None:
            _told.print(f"{pipeline}: it ended early:\n{measured.why_early}", markup=False)


def _measure(
    chosen: Sequence[Mutant], seeds: Sequence[int], results: Results, *, again: bool
) -> None:
    """Whatever is missing; mutants that were named, in any case."""
    for number, mutant in enumerate(chosen, 1):
        what = f"[{number}/{len(chosen)}] {mutant.name}"
        try:
            if not again and all(
                results.has(mutant.name, cell, _due(cell, seeds), tree(mutant))
                for cell in mutant.cells
            ):
                continue
            began_s = time.monotonic()
            measured = measure(mutant, mutant.cells, seeds)
        except DoesNotApply as error:
            _told.print(f"{what}: it does not apply: {error}", markup=False)
            continue
        found = measured.results
        results.put(found)
        if measured.why_early is not None:
            _told.print(f"{what}: it ended early:\n{measured.why_early}", markup=False)
        noticed = {each.seed for each in found if each.is_noticed}
        seen = sum(each.is_noticed for each in found)
        failed = sum(each.is_failed for each in found)
        _told.print(
            f"{what}: noticed with {len(noticed)} of {len(seeds)} seeds, in {seen} of {len(found)} "
            "trials"
            + (f", {failed} failed" if failed else "")
            + f" ({time.monotonic() - began_s:.0f} s)",
            markup=False,
        )


def _due(cell: Cell, seeds: Sequence[int]) -> Counter[int]:
    """How many trials each seed has of a cell."""
    return Counter(each.seed for each in draw([cell], seeds))


def _state(mutant: Mutant) -> str:
    """None that was ever measured, for one that does not apply."""
    try:
        return tree(mutant)
    except DoesNotApply:
        return ""


def _cells(chosen: Sequence[Mutant]) -> list[Cell]:
    return list(dict.fromkeys(cell for mutant in chosen for cell in mutant.cells))


def _show(rows: Sequence[Row], *, as_markdown: bool) -> None:
    titles = ("what is sabotaged", "cell", "noticed", "after", "as", "failed")
    lines = [
        (
            row.mutant.sabotages if as_markdown else row.mutant.name,
            str(row.cell),
            f"{sum(row.seeds.values())} of {len(row.seeds)}" if row.trials else "not measured",
            f"{row.first}" if row.first else "-",
            row.findings,
            str(row.failed or ""),
        )
        for row in rows
    ]
    if as_markdown:
        for line in (titles, ["---"] * len(titles), *lines):
            print(f"| {' | '.join(line)} |")
        return
    table = Table(*titles)
    for row, line in zip(rows, lines, strict=True):
        table.add_row(*line, style="" if row.is_noticed else "red")
    Console().print(table)
    seen = sum(row.is_noticed for row in rows)
    print(f"{seen} of {len(rows)} are noticed with each seed.")


def _chosen(names: Sequence[str]) -> list[Mutant]:
    if not names:
        return list(MUTANTS.values())
    exact = [MUTANTS[name] for name in names if name in MUTANTS]
    parts = [name for name in names if name not in MUTANTS]
    found = [
        each
        for each in MUTANTS.values()
        if each in exact or any(part.lower() in each.name.lower() for part in parts)
    ]
    if not found:
        sys.exit(f"no mutant has {' or '.join(map(repr, names))} in its name; --list lists all")
    return found


def _arguments() -> argparse.Namespace:
    first, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        prog="scripts/mutants",
        description=first,
        epilog=rest,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="of mutants, or a part of it")
    parser.add_argument("--seeds", type=int, default=3, help="from 1 on; default: 3")
    parser.add_argument("--json", type=Path, default=Path("mutants.json"), help="what is measured")
    parser.add_argument("--table", action="store_true", help="measure nothing; a table for docs")
    parser.add_argument("--list", action="store_true", help="measure nothing; names and cells")
    return parser.parse_args()


if __name__ == "__main__":
    main()
