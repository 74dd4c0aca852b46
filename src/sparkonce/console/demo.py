"""`sparkonce demo`: exactly once, seen with one's own eyes, beside the same job without it.

The face of two trials: what is happening while they run, then one table and a verdict.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sparkonce.console.payments import Payments
from sparkonce.console.trial import (
    NAMES,
    Outcome,
    Stage,
    complaints,
    draw_deaths,
    try_spark,
    try_sparkonce,
)
from sparkonce.local import LocalKafka
from sparkonce.local.jars import broker_jars, connector_jars

_INTERRUPTED = 130
_PLAIN_EVERY_S = 5.0


def demo(
    headless: Annotated[
        bool, typer.Option("--headless", help="Plain lines, no terminal control, for logs and CI.")
    ] = False,
    records: Annotated[int, typer.Option(min=1000, help="How many payments.")] = 10_000,
    seed: Annotated[
        int | None,
        typer.Option(help="Draws the payments, and the batches in which drivers are killed."),
    ] = None,
) -> None:
    """Kill a Spark job's driver twice, and count what its output has lost and repeated.

    A real Kafka is started on this machine, and payments are written into it. A Spark job keeps a
    running balance for each account and writes it back to Kafka, through sparkonce. Its driver is
    killed with SIGKILL at two moments that hurt, and started again. Another client then reads the
    balances and compares them with those of a run without failures. Then the same job runs with
    Spark's own Kafka sink, which repeats some.

    Ends with 0 if sparkonce lost, repeated or reordered nothing, else with 1.
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
    started_s = time.monotonic()
    console.print(f"Seed {seed}; the same again: sparkonce demo --seed {seed}")
    # Here, because their progress bar and the spinner below can't share the screen.
    broker_jars()
    connector_jars()
    payments = Payments.draw(seed, records)
    due = sum(1 for _ in payments.due())
    with (
        tempfile.TemporaryDirectory(prefix="sparkonce-demo-") as folder,
        _spoken(console) as now,
    ):
        now("starting Kafka")
        with LocalKafka() as kafka:
            payments.write(kafka)
            console.print(f"Kafka is up, with {records:,} payments that make {due:,} balances.")
            stage = Stage(
                kafka=kafka,
                folder=Path(folder),
                payments=payments,
                batches_to_die_in=draw_deaths(seed),
                now=now,
                event=lambda line: console.print(escape(line), soft_wrap=True),
            )
            ours = try_sparkonce(stage)
            theirs = try_spark(stage)
    console.print(_table(records, due, ours, theirs))
    found = complaints(due, records, ours, theirs)
    for complaint in found:
        console.print(f"[bold red]Failed:[/] {escape(complaint)}", soft_wrap=True)
    if not found:
        console.print(
            f"[bold green]Exactly once:[/] sparkonce lost 0, repeated 0, reordered 0 of {due:,} "
            f"balances, its driver killed {ours.kills} times; Spark's own sink repeated "
            f"{theirs.tally.repeated:,} ({time.monotonic() - started_s:.0f} s).",
            soft_wrap=True,
        )
    return not found


@contextmanager
def _spoken(console: Console) -> Iterator[Callable[[str], None]]:
    """A line that changes on a terminal, a new one every few seconds elsewhere."""
    if console.is_terminal:
        with console.status("...") as status:
            yield lambda line: status.update(escape(line))
        return
    said_s = -_PLAIN_EVERY_S

    def say(line: str) -> None:
        nonlocal said_s
        if time.monotonic() - said_s >= _PLAIN_EVERY_S:
            said_s = time.monotonic()
            console.print(f"... {escape(line)}", soft_wrap=True)

    yield say


def _table(records: int, due: int, ours: Outcome, theirs: Outcome) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("")
    for name in NAMES.values():
        table.add_column(name, justify="right")

    def row(what: str, left: int, right: int, style: str = "") -> None:
        table.add_row(what, f"{left:,}", f"{right:,}", style=style)

    left, right = ours.tally, theirs.tally
    row("payments in", records, records)
    row("payments in the last balances", left.counted, right.counted)
    row("balances due", due, due)
    row("balances read", left.read, right.read)
    row("lost", left.lost, right.lost, "bold")
    row("repeated", left.repeated, right.repeated, "bold")
    row("reordered", left.reordered, right.reordered, "bold")
    row("wrong", left.wrong, right.wrong, "bold")
    row("driver killed (-9)", ours.kills, theirs.kills)
    row("driver started", ours.starts, theirs.starts)
    return table
