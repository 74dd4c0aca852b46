"""`python -m sparkonce.local`: all that can be done ahead of time, as `scripts/setup` does it.

Finds Java, fetches the jars, and archives their classes, so that JVMs start quicker.
With `--lock` it first writes `jars.lock` anew, from whatever the jars' names resolve to.
"""

from __future__ import annotations

import sys

from sparkonce.errors import LocalError
from sparkonce.local.jars import ALL_SETS, resolve, write_lock
from sparkonce.local.java import find_java
from sparkonce.local.rehearsal import make_archives


def main(arguments: list[str]) -> int:
    try:
        java = find_java()
        print(f"Java {java.version} from {java.origin}")
        if "--lock" in arguments:
            write_lock()
        for jar_set in ALL_SETS:
            print(f"{len(resolve(jar_set))} jars: {jar_set.name}")
        make_archives(java, lambda line: print(line, flush=True))
    except LocalError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
