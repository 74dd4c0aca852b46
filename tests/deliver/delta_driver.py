"""A driver that writes one batch after another until it is killed or fenced.

`python tests/deliver/delta_driver.py <folder> <kind>` goes on where the ledger ends; each batch is
a row with the batch's number, which is printed when it is committed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from deliver.delta_folder import DeltaFolder, write
from sparkonce.deliver.store import StoreError


def main(folder: str, kind: str) -> None:
    store, epoch = DeltaFolder(Path(folder)).open_kind(kind)
    entry = store.holder().entry
    number = entry.number if entry else 0
    while True:
        try:
            write(store, epoch, [number + 1], number + 1)
        except (StoreError, FileNotFoundError):
            # Its stage was removed by who took over; run again, it will learn so.
            write(store, epoch, [number + 1], number + 1, attempt=0)
        number += 1
        print(number, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
