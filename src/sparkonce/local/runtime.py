"""Java and Kafka's jars together: the command line that every Kafka process starts with.

Between `java.py` and `jars.py` on one side and brokers and tools on the other.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from sparkonce.errors import LocalError
from sparkonce.local.archive import Archive
from sparkonce.local.jars import broker_jars
from sparkonce.local.java import Java, find_java

_LOG4J2: Final = Path(__file__).with_name("tools.log4j2.xml")


@dataclass(frozen=True, slots=True)
class Runtime:
    """What every Kafka process of a cluster is started with."""

    java: Java
    jar_folder: Path

    @classmethod
    def find(cls) -> Self:
        """Java from this machine, jars from the cache; fetches them on first use."""
        return cls(find_java(), broker_jars()[0].parent)

    def command(self, *options: str) -> list[str]:
        """The command up to, not including, the main class."""
        class_path = str(self.jar_folder / "*")  # Java's own wildcard, not the shell's
        quicker = Archive.of(self.java, self.jar_folder).options()
        java = str(self.java.executable)
        return [java, *quicker, *options, "-Djava.awt.headless=true", "-cp", class_path]

    def run_tool(
        self, main_class: str, args: Sequence[str], input: str | None, timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a Java main class to its end and return what it said."""
        logging = f"-Dlog4j2.configurationFile={_LOG4J2}"
        command = [*self.command("-Xmx256m", logging), main_class, *args]
        try:
            return subprocess.run(
                command, input=input, capture_output=True, text=True, timeout=timeout_s
            )
        except subprocess.TimeoutExpired as error:
            raise LocalError(
                f"Kafka's tool {main_class} didn't end within {timeout_s:g} s and was killed. "
                f"It had said: {(error.stdout or b'')[-500:]!r} {(error.stderr or b'')[-500:]!r}"
            ) from None
