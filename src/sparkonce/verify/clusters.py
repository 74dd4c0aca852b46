"""The clusters that trials run on: the usual one, and those that are started for a few of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sparkonce.local import LocalKafka
from sparkonce.produce.identity import EPOCH_MAX

PROPERTIES: Final = {
    # Timed-out transactions are looked for every 10 s by default.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "log.retention.check.interval.ms": "60000",
}
EXPIRATION_MS: Final = 10_000
TRANSACTIONS_LEFT: Final = 3
"""Under the first producer id of a pipeline, where it soon gets another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    name: str = ""
    """Stands behind the pipeline's in reports; "": the usual one."""
    transaction_version: int = 2
    brokers: int | None = None
    """None: as many as the user asked for."""
    properties: Mapping[str, str] = field(default_factory=dict, hash=False)
    epoch: int = 0
    """That pipelines' transactional ids are at when they begin; 0: they are new."""

    def start(self, brokers: int) -> LocalKafka:
        """Not started yet: to be used as a context manager."""
        return LocalKafka(
            self.brokers or brokers,
            transaction_version=self.transaction_version,
            properties={**PROPERTIES, **self.properties},
        )


USUAL: Final = Cluster()
VERSION_1: Final = Cluster(name="version 1", transaction_version=1)
"""As many brokers as on the usual one: leaders and coordinators move here too."""
UNVERIFIED: Final = Cluster(
    # As Kafka up to 3.5 is: leaders write what comes, whether the coordinator knows of it or not.
    name="version 1, unverified",
    transaction_version=1,
    brokers=1,
    properties={"transaction.partition.verification.enable": "false"},
)
FORGETFUL: Final = Cluster(
    name="ids expire",
    brokers=1,
    properties={
        "transactional.id.expiration.ms": str(EXPIRATION_MS),
        "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
    },
)
# The first to take it over gets the next epoch, and no transaction is opened under the last.
_EPOCH: Final = EPOCH_MAX - TRANSACTIONS_LEFT - 1
LAST_EPOCHS: Final = Cluster(name="last epochs", brokers=1, epoch=_EPOCH)
LAST_EPOCHS_1: Final = Cluster(
    name="version 1, last epochs", transaction_version=1, brokers=1, epoch=_EPOCH
)
CLUSTERS: Final = {
    each.name: each
    for each in (USUAL, VERSION_1, UNVERIFIED, FORGETFUL, LAST_EPOCHS, LAST_EPOCHS_1)
}

FOR_MANY: Final = {"max_connections": "400"}
"""Of PostgreSQL: dozens of trials share it, and each has several connections."""
