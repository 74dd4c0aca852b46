"""How much memory a producer takes while it writes far more than that.

    scripts/bench memory [--gigabytes 5] [--record-bytes 1000] [--table-mb 16]

A process of its own writes Arrow tables in transactions of about 100 ms, with fresh bytes in each
table, to a topic that keeps little of them; its peak is printed beside what it took before the
first record. `buffer.memory` is the default.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console

from sparkonce.local import LocalKafka

TRANSACTION_MS = 100
_SEGMENT_BYTES = 16 * 1024 * 1024
SHORT_LIVED = {
    "segment.bytes": str(_SEGMENT_BYTES),
    "retention.bytes": str(2 * _SEGMENT_BYTES),
    "file.delete.delay.ms": "0",
}
# Look for what may go every second, from the start, instead of every five minutes.
KEEN = {"log.retention.check.interval.ms": "1000", "log.initial.task.delay.ms": "1000"}


def peak_mb() -> float:
    """Of this program alone where the system tells; getrusage counts the parent's before exec."""
    status = Path("/proc/self/status")
    if status.exists():
        (line,) = (x for x in status.read_text().splitlines() if x.startswith("VmHWM:"))
        return int(line.split()[1]) / 1024
    unit = 1024 * 1024 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def child(servers: str, topic: str, gigabytes: float, record_bytes: int, table_mb: int) -> None:
    import pyarrow as pa

    from sparkonce import TransactionalProducer

    rows = table_mb * 1_000_000 // record_bytes
    left = int(gigabytes * 1_000_000_000 / record_bytes)
    settings = {"bootstrap.servers": servers, "transactional.id": f"memory-{os.getpid()}"}
    with TransactionalProducer(settings) as producer:
        producer.init_transactions()
        idle_mb = peak_mb()
        start = time.perf_counter()
        while left:
            producer.begin_transaction()
            began = time.perf_counter()
            while left and time.perf_counter() - began < TRANSACTION_MS / 1000:
                count = min(rows, left)
                content = pa.py_buffer(os.urandom(count * record_bytes))
                array = pa.Array.from_buffers(pa.binary(record_bytes), count, [None, content])
                producer.produce_arrow(topic, pa.table({"value": array.cast(pa.binary())}))
                left -= count
            producer.commit_transaction()
        seconds = time.perf_counter() - start
    print(json.dumps({"idle_mb": idle_mb, "peak_mb": peak_mb(), "seconds": seconds}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=5)
    parser.add_argument("--record-bytes", type=int, default=1000)
    parser.add_argument("--table-mb", type=int, default=16)
    parser.add_argument("--partitions", type=int, default=8)
    asked = parser.parse_args()
    console = Console()
    with console.status("starting Kafka") as status, LocalKafka(properties=KEEN) as kafka:
        kafka.create_topic("memory", partitions=asked.partitions, config=SHORT_LIVED)
        status.update(f"writing {asked.gigabytes:g} GB")
        shape = [str(asked.gigabytes), str(asked.record_bytes), str(asked.table_mb)]
        done = subprocess.run(
            [sys.executable, __file__, "--child", kafka.bootstrap_servers, "memory", *shape],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        disk = sum(file.stat().st_size for file in kafka.folder.rglob("*.log"))
    told = json.loads(done.stdout)
    rate_mb = asked.gigabytes * 1000 / told["seconds"]
    console.print(
        f"{asked.gigabytes:g} GB in records of {asked.record_bytes} B and tables of "
        f"{asked.table_mb} MB: peak {told['peak_mb']:.0f} MB resident, of which "
        f"{told['idle_mb']:.0f} MB before the first record; {rate_mb:.0f} MB/s, "
        f"{disk / 1e6:.0f} MB left on disk"
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        servers, topic, gigabytes, record_bytes, table_mb = sys.argv[2:]
        child(servers, topic, float(gigabytes), int(record_bytes), int(table_mb))
    else:
        main()
