"""Who writes: the producer id and epoch that brokers tell attempts apart by."""

from __future__ import annotations

from dataclasses import dataclass

Partition = tuple[str, int]
"""Topic and index: the place that has sequences of its own."""

EPOCH_MAX = 32_766
"""32767 is kept by the brokers for fencing; a new producer id comes before it."""


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """Enough for another process to write into the same transaction (`TransactionalProducer.join`).

    A value: it can be pickled and sent to wherever the writing is done.
    """

    transactional_id: str | None
    producer_id: int
    epoch: int

    def __str__(self) -> str:
        name = f"{self.transactional_id!r} " if self.transactional_id else ""
        return f"{name}(producer id {self.producer_id}, epoch {self.epoch})"


NO_IDENTITY = ProducerIdentity(None, -1, -1)
"""Of a producer without idempotence."""
