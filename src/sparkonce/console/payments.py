"""The demo's input: payments drawn from a seed, and the balances that a run without failures makes.

Upstream of both jobs, and the yardstick behind them: `tally` compares what was read with `due`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from sparkonce.local import LocalKafka
from sparkonce.produce import Producer

BATCHES = 10
TOPIC = "payments"
_ACCOUNTS = 100
_AMOUNT_MAX = 100_000


class Payment(NamedTuple):
    account: str
    amount: int
    """In cents."""


@dataclass(frozen=True, slots=True)
class Balance:
    """An account after so many payments; what the jobs write."""

    account: str
    count: int
    sum: int


@dataclass(frozen=True, slots=True)
class Payments:
    each: tuple[Payment, ...]
    per_batch: int

    @classmethod
    def draw(cls, seed: int, count: int) -> Payments:
        rng = random.Random(f"{seed}/payments")
        each = tuple(
            Payment(f"account-{rng.randrange(_ACCOUNTS):02}", rng.randint(1, _AMOUNT_MAX))
            for _ in range(count)
        )
        return cls(each, -(-count // BATCHES))

    def due(self) -> Iterator[Balance]:
        """In update mode a batch gives one balance for each account that it has payments of."""
        counts: dict[str, int] = {}
        sums: dict[str, int] = {}
        for first in range(0, len(self.each), self.per_batch):
            batch = self.each[first : first + self.per_batch]
            for account, amount in batch:
                counts[account] = counts.get(account, 0) + 1
                sums[account] = sums.get(account, 0) + amount
            for account in sorted({account for account, _ in batch}):
                yield Balance(account, counts[account], sums[account])

    def write(self, kafka: LocalKafka) -> None:
        # One partition: so Spark's batches are known beforehand, and with them what is due.
        kafka.create_topic(TOPIC)
        table = pa.table(
            {
                "key": [account for account, _ in self.each],
                "value": [str(amount) for _, amount in self.each],
            }
        )
        with Producer({"bootstrap.servers": kafka.bootstrap_servers}) as producer:
            producer.produce_arrow(TOPIC, table)
            producer.flush()
