"""How soon does the verifier notice? Runs mutants, and says after how many trials each is seen.

    scripts/mutants [NAME…] [--seeds 3] [--json mutants.json] [--table] [--list]

Each mutant is a sabotaged copy of the product. It runs under the cell of the quick preset that it
belongs to, once for each seed, the seeds side by side. It is noticed where the verdict is that the
promise was broken, or a control weak; a pipeline that only fails does not count. The product as it
is runs under the same cells and seeds, and must keep its promise. Names may be parts of names.

What was measured is kept in the JSON: without names, a later run measures only what is missing, or
was measured on another state of the sources. Exit code 1: a mutant was not noticed with each seed.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from mutants.catalog import MUTANTS
from mutants.measure import NotMeasured, measure, tree
from mutants.mutant import Cell, Mutant
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
    state, results = tree(), Results.read(asked.json)
    if not asked.table:
        try:
            _measure(chosen, seeds, state, results, again=bool(asked.names))
        except KeyboardInterrupt:
            _told.print("Stopped. What was measured before is kept.")
            sys.exit(130)
    rows = [
        Row(mutant, cell, results.of(mutant.name, cell, seeds, state))
        for mutant in chosen
        for cell in mutant.cells
    ]
    _show(rows, as_markdown=asked.table)
    spoilt = [
        (cell, each)
        for cell in _cells(chosen)
        for each in results.of(AS_IS, cell, seeds, state)
        if not each.is_kept
    ]
    for cell, each in spoilt:
        _told.print(f"[red]As it is:[/] {cell}, seed {each.seed}: {each.verdict}. {each.error}")
    if spoilt or not all(row.is_noticed and len(row.seeds) == len(seeds) for row in rows):
        sys.exit(1)


def _measure(
    chosen: Sequence[Mutant],
    seeds: Sequence[int],
    state: str,
    results: Results,
    *,
    again: bool,
) -> None:
    """Whatever is missing; mutants that were named, in any case."""
    if cells := [c for c in _cells(chosen) if not results.has(AS_IS, c, seeds, state)]:
        _told.print(f"as it is: {len(cells)} cells with {len(seeds)} seeds …")
        results.put(measure(None, cells, seeds, state))
    for number, mutant in enumerate(chosen, 1):
        if not again and all(results.has(mutant.name, c, seeds, state) for c in mutant.cells):
            continue
        began_s = time.monotonic()
        try:
            found = measure(mutant, mutant.cells, seeds, state)
        except NotMeasured as error:
            _told.print(f"[{number}/{len(chosen)}] {mutant.name}: {error}", markup=False)
            continue
        results.put(found)
        noticed = {each.seed for each in found if each.is_noticed}
        seen = sum(each.is_noticed for each in found)
        failed = sum(each.is_failed for each in found)
        _told.print(
            f"[{number}/{len(chosen)}] {mutant.name}: noticed with {len(noticed)} of {len(seeds)} "
            f"seeds, in {seen} of {len(found)} trials"
            + (f", {failed} failed" if failed else "")
            + f" ({time.monotonic() - began_s:.0f} s)",
            markup=False,
        )


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
