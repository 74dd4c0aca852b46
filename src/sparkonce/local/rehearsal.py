"""A short run of Kafka and one of Spark, from which class archives are made (`archive.py`).

The last step of `python -m sparkonce.local`. It takes about a minute, once for each Java and each
set of jars; every later start of a JVM is quicker for it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from sparkonce.errors import LocalError
from sparkonce.local.archive import Archive
from sparkonce.local.cache import exclusive
from sparkonce.local.jars import broker_jars
from sparkonce.local.java import Java
from sparkonce.local.kafka import LocalKafka
from sparkonce.local.ports import HOST
from sparkonce.local.spark import spark_archive, spark_home

_TIMEOUT_S: Final = 300.0
_JOB: Final = Path(__file__).with_name("rehearsed_job.py")
_TOPIC: Final = "rehearsal"
_RECORDS: Final = "100"


def make_archives(java: Java, say: Callable[[str], None]) -> None:
    """Make what is missing; a Java that can't is no error, starts only stay as slow as they are."""
    for name, archive, rehearse in (
        ("Kafka", Archive.of(java, broker_jars()[0].parent), _run_kafka),
        ("Spark", spark_archive(java), _run_spark),
    ):
        with exclusive("archiving"):
            if not archive.file.exists() and archive.can_be_made():
                say(f"Archiving {name}'s classes, so that it starts quicker from now on")
                with archive.draft() as options:
                    rehearse(java, options)
            archive.remove_outdated()
        if not archive.file.exists():
            say(f"{name}'s classes can't be archived with this Java: it has no archive of its own")


def _run_kafka(_: Java, options: tuple[str, ...]) -> None:
    # A folder of its own, because then the broker is stopped, not killed, and writes the archive.
    with (
        tempfile.TemporaryDirectory(prefix="sparkonce-rehearsal-") as folder,
        LocalKafka(data_dir=folder, java_options=options) as kafka,
    ):
        kafka.create_topic(_TOPIC)
        servers = f"bootstrap.servers={kafka.bootstrap_servers}"
        for tool, arguments in (
            (
                "ProducerPerformance",
                f"--topic {_TOPIC} --num-records {_RECORDS} --record-size 100 --throughput -1 "
                f"--transactional-id {_TOPIC} --transaction-duration-ms 10 "
                f"--producer-props {servers}",
            ),
            (
                "consumer.ConsoleConsumer",
                f"--topic {_TOPIC} --from-beginning --max-messages {_RECORDS} --group {_TOPIC} "
                f"--isolation-level read_committed --bootstrap-server {kafka.bootstrap_servers}",
            ),
        ):
            said = kafka.run_tool(f"org.apache.kafka.tools.{tool}", *arguments.split())
            if said.returncode != 0:
                raise LocalError(f"Kafka's {tool} failed in the rehearsal: {said.stderr[-2000:]}")


def _run_spark(java: Java, options: tuple[str, ...]) -> None:
    settings = {
        "spark.master": "local[2]",
        "spark.driver.extraJavaOptions": " ".join(options),
        "spark.driver.host": HOST,
        "spark.driver.bindAddress": HOST,
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
    }
    with tempfile.TemporaryDirectory(prefix="sparkonce-rehearsal-") as folder:
        given = [part for pair in settings.items() for part in ("--conf", "=".join(pair))]
        environment = {
            "JAVA_HOME": str(java.home),
            "SPARK_HOME": str(spark_home()),
            "PYSPARK_PYTHON": sys.executable,
        }
        said = subprocess.run(
            [spark_home() / "bin" / "spark-submit", *given, _JOB, folder],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            env=os.environ | environment,
        )
    if said.returncode != 0:
        raise LocalError(f"Spark failed in the rehearsal: {said.stderr[-2000:]}")
