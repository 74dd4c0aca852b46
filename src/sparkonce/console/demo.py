"""`sparkonce demo`: exactly once, seen with one's own eyes, beside the same without it.

The face of two trials: what is happening while they run, then one table and a verdict.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from sparkonce.console.trial import (
    Outcome,
    Step,
    Written,
    try_transactions,
    try_without_idempotence,
)
from sparkonce.local import LocalKafka
from sparkonce.local.jars import broker_jars

_PLAIN_STEPS = 5
_INTERRUPTED = 130


def demo(
    headless: Annotated[
        bool, typer.Option("--headless", help="Plain lines, no terminal control, for logs and CI.")
    ] = False,
    records: Annotated[int, typer.Option(min=1000, help="How many records.")] = 100_000,
    seed: Annotated[
        int | None, typer.Option(help="Where the faults strike; the same seed, the same plan.")
    ] = None,
) -> None:
    """Write records in transactions while connections are cut, and count what arrived.

    A real Kafka is started on this machine, with a proxy in front of it that cuts connections in
    mid-frame and loses answers. Another client then reads everything back. The same records are
    written once more with idempotence off: there the same cuts make duplicates.

    Ends with 0 if nothing was lost, duplicated or reordered, else with 1.
    """
    console = Console(force_terminal=False if headless else None, highlight=False)
    chosen = random.SystemRandom().randrange(2**32) if seed is None else seed
    try:
        held = _run(console, records, chosen)
    except KeyboardInterrupt:
        console.print("Stopped. Nothing is left running.")
        raise typer.Exit(_INTERRUPTED) from None
    if not held:
        raise typer.Exit(1)


def _run(console: Console, records: int, seed: int) -> bool:
    console.print(f"Seed {seed}; the same faults again: sparkonce demo --seed {seed}")
    broker_jars()  # here, because its progress bar and the spinner below can't share the screen
    kafka = LocalKafka()
    with console.status("Starting Kafka ..."):
        kafka.start()
    console.print("Kafka is up; a proxy in front of it cuts connections.")
    try:
        start_s = time.monotonic()
        with _progress(console, "exactly once", records) as step:
            protected = try_transactions(kafka, records, seed, step)
        with _progress(console, "idempotence off", records) as step:
            control = try_without_idempotence(kafka, records, seed, step)
        took_s = time.monotonic() - start_s
    finally:
        kafka.stop()
    console.print(_table(records, protected, control))
    found = complaints(records, protected, control)
    for complaint in found:
        console.print(f"[bold red]Failed:[/] {escape(complaint)}", soft_wrap=True)
    if not found:
        console.print(
            f"[bold green]Exactly once:[/] lost 0, duplicated 0, reordered 0 of {records:,} "
            f"records, through {protected.cuts} cut connections ({took_s:.0f} s).",
            soft_wrap=True,
        )
    return not found


def complaints(records: int, protected: Outcome, control: Outcome) -> list[str]:
    """Every reason why this run doesn't show what it should; none if it does."""
    found = []
    count = protected.tally
    if not count.is_exact:
        found.append(
            f"lost {count.lost}, duplicated {count.duplicated}, reordered {count.reordered}, "
            f"never written {count.foreign} of {records:,} records: the promise was broken"
        )
    if protected.progress != records:
        found.append(f"the source offset is {protected.progress}, it should be {records}")
    for fault in protected.never_fired + control.never_fired:
        found.append(f"{fault!r} never happened, so this run proves nothing: take more records")
    if not control.tally.duplicated:
        found.append("nothing was duplicated with idempotence off: the faults were too weak")
    return found


@contextmanager
def _progress(console: Console, what: str, total: int) -> Iterator[Step]:
    """A bar on a terminal, a line now and then elsewhere."""
    if not console.is_terminal:
        lines_said = 0

        def say(written: Written, cuts: int) -> None:
            nonlocal lines_said
            due = written.records * _PLAIN_STEPS // total
            if due > lines_said:
                lines_said = due
                line = f"{what}: {written.records:,} of {total:,}; {_note(written, cuts)}"
                console.print(line, soft_wrap=True)

        yield say
        return
    columns = (TextColumn("{task.description:>16}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TextColumn("{task.fields[note]}"), console=console) as bar:
        task = bar.add_task(what, total=total, note="")
        yield lambda written, cuts: bar.update(
            task, completed=written.records, note=_note(written, cuts)
        )


def _note(written: Written, cuts: int) -> str:
    note = f"{cuts} connections cut"
    if written.committed:
        note += f", {written.committed} transactions committed, {written.aborted} aborted"
    return note


def _table(records: int, protected: Outcome, control: Outcome) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("")
    for name in ("exactly once", "idempotence off"):
        table.add_column(name, justify="right")

    def row(what: str, left: int, right: int | None, style: str = "") -> None:
        table.add_row(what, f"{left:,}", "-" if right is None else f"{right:,}", style=style)

    ours, theirs = protected.tally, control.tally
    row("records written", records, records)
    row("records read", ours.read, theirs.read)
    row("lost", ours.lost, theirs.lost, "bold")
    row("duplicated", ours.duplicated, theirs.duplicated, "bold")
    row("reordered", ours.reordered, theirs.reordered, "bold")
    row("connections cut", protected.cuts, control.cuts)
    row("transactions committed", protected.written.committed, None)
    row("transactions aborted", protected.written.aborted, None)
    row("source offset committed", protected.progress, None)
    return table
