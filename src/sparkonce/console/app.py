"""The program `sparkonce`: its commands in one place, and how their errors are shown.

The most upstream room: it imports everything and nothing imports it.
"""

from __future__ import annotations

import sys

import typer
from rich.console import Console
from rich.markup import escape

from sparkonce.console.demo import demo
from sparkonce.console.up import up
from sparkonce.console.verify import verify
from sparkonce.errors import SparkonceError

app = typer.Typer(
    name="sparkonce",
    help="Exactly-once data pipelines between Kafka, Spark and databases.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
)
app.command()(demo)
app.command()(up)
app.command()(verify)


@app.callback()
def _commands() -> None:
    """Exactly-once data pipelines between Kafka, Spark and databases."""
    # A callback makes typer keep the command's name even where there is only one.


def main() -> None:
    """Entry point: our own errors are messages for people, without a traceback."""
    try:
        app()
    except SparkonceError as error:
        Console(stderr=True).print(f"[bold red]Error:[/] {escape(str(error))}", highlight=False)
        sys.exit(1)
