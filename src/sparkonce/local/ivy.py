"""Ivy as a subprocess: Maven coordinates in, a folder of jars out.

PySpark ships Ivy for its own `--packages`, so no build tool has to be installed, and Ivy's default
settings know the public repository, so no address has to be written down. It keeps its own cache
inside sparkonce's, never in the user's `~/.ivy2`.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from xml.sax.saxutils import quoteattr

from rich.console import Console
from rich.progress import Progress

from sparkonce.errors import LocalError
from sparkonce.local.cache import cache_dir
from sparkonce.local.java import find_java

_DESCRIPTOR = """\
<ivy-module version="2.0">
  <info organisation="sparkonce" module={module}/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
{dependencies}
  </dependencies>
</ivy-module>
"""


@dataclass(frozen=True, slots=True)
class Coordinate:
    """A published module by name; with `transitive`, everything it depends on comes along."""

    organisation: str
    name: str
    revision: str
    transitive: bool = False

    def as_xml(self) -> str:
        return (
            f"    <dependency org={quoteattr(self.organisation)} name={quoteattr(self.name)}"
            f" rev={quoteattr(self.revision)} conf='default->default'"
            f" transitive='{str(self.transitive).lower()}'/>"
        )


def retrieve(
    set_name: str, coordinates: Iterable[Coordinate], into: Path, expected_count: int | None
) -> None:
    """Download the modules' jars into a folder; raises LocalError with what Ivy said."""
    into.mkdir(parents=True, exist_ok=True)
    ivy_home = cache_dir() / "ivy"
    ivy_home.mkdir(parents=True, exist_ok=True)
    descriptor = ivy_home / f"{set_name}.xml"
    descriptor.write_text(
        _DESCRIPTOR.format(
            module=quoteattr(set_name),
            dependencies="\n".join(coordinate.as_xml() for coordinate in coordinates),
        )
    )
    command = [
        str(find_java().executable),
        f"-Divy.home={ivy_home}",
        "-cp",
        str(_ivy_jar()),
        "org.apache.ivy.Main",
        "-cache",
        str(ivy_home / "cache"),
        "-ivy",
        str(descriptor),
        # Some modules call their jar a "bundle" (scala-logging, snappy-java): take those too.
        "-types",
        "jar",
        "bundle",
        "-retrieve",
        str(into / "[artifact]-[revision](-[classifier]).[ext]"),
    ]
    said, code = _run_with_progress(command, set_name, expected_count)
    if code != 0:
        raise LocalError(
            f"The jars of the set '{set_name}' could not be downloaded. Ivy said:\n"
            + "\n".join(f"  {line}" for line in _essence(said))
            + "\nCheck the network (behind a proxy, set JAVA_TOOL_OPTIONS to "
            "-Dhttps.proxyHost=... -Dhttps.proxyPort=...), then try again: "
            "what was already downloaded is kept."
        )


def _run_with_progress(
    command: list[str], set_name: str, expected_count: int | None
) -> tuple[list[str], int]:
    said: list[str] = []
    # Ivy first finds each module, then downloads each jar: two steps a jar.
    total = None if expected_count is None else 2 * expected_count
    console = Console(stderr=True)
    if not console.is_terminal:
        console.print(f"Fetching jars: {set_name} ({expected_count or 'unknown'} files, once)")
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"Fetching jars: {set_name}", total=total)
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as ivy:
            assert ivy.stdout is not None  # because of PIPE
            for line in ivy.stdout:
                said.append(line.rstrip())
                if line.startswith("\tfound ") or "[SUCCESSFUL ]" in line:
                    progress.advance(task)
    return said, ivy.returncode


def _essence(said: list[str]) -> list[str]:
    """What matters of a failed run: its warnings, without progress dots and blank lines."""
    start = next((n for n, line in enumerate(said) if ":: problems summary ::" in line), 0)
    lines = [line.strip() for line in said[start:] if line.strip() and line.strip(".") != ""]
    return lines[-25:]


def _ivy_jar() -> Path:
    pyspark = find_spec("pyspark")
    if pyspark is None or pyspark.origin is None:
        raise LocalError(
            "PySpark isn't installed, and its jars hold the downloader that fetches Kafka's. "
            "Install it: pip install pyspark"
        )
    found = sorted((Path(pyspark.origin).parent / "jars").glob("ivy-*.jar"))
    if not found:
        raise LocalError(
            f"PySpark at {Path(pyspark.origin).parent} carries no Ivy among its jars. "
            "Install PySpark anew: pip install --force-reinstall pyspark"
        )
    return found[-1]
