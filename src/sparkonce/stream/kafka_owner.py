"""The driver's producer, which has the pipeline's transactional id, and how it outlives a rest.

A cluster forgets a transactional id that nobody used for `transactional.id.expiration.ms`, and with
it who was fenced. A query that rested for so long may go on if and only if nobody has taken over
meanwhile; what says so is the ledger, where whoever takes over signs.
"""

from __future__ import annotations

import logging

from sparkonce.errors import FencedError, OwnershipUncertain
from sparkonce.produce import TransactionalProducer
from sparkonce.stream.kafka_settings import KafkaSettings
from sparkonce.stream.ledger import Entry, last_entry

_log = logging.getLogger("sparkonce.stream")


class KafkaOwner:
    def __init__(self, settings: KafkaSettings) -> None:
        self.producer = TransactionalProducer(settings.owner)
        self._settings = settings
        self._newest: Entry | None = None

    def holder(self) -> Entry | None:
        """The ledger's last entry as it is now, whoever wrote it."""
        return _holder(self.producer, self._settings.group)

    def note(self, newest: Entry | None) -> None:
        """The ledger's last entry as this driver knows it: found when it took over, or its own."""
        self._newest = newest

    def check(self) -> None:
        """FencedError if another driver has taken over."""
        try:
            self.producer.check_owner()
        except OwnershipUncertain as forgotten:
            self._take_over_again(forgotten)

    def begin(self) -> None:
        """Begin a transaction, under a new producer id where the cluster has forgotten the last."""
        try:
            self.producer.begin_transaction()
        except OwnershipUncertain as forgotten:
            self._take_over_again(forgotten)
            self.producer.begin_transaction()

    def _take_over_again(self, why: OwnershipUncertain) -> None:
        # Looked at before as well: a successor who rests, too, is not to be fenced.
        self._check_newest(self.producer, why)
        fresh = TransactionalProducer(self._settings.owner)
        try:
            fresh.init_transactions()
            self._check_newest(fresh, why)
        except BaseException:
            fresh.close()
            raise
        former, self.producer = self.producer, fresh
        former.abandon()
        _log.info("%s goes on under a new producer id: %s", self._settings.pipeline, why)

    def _check_newest(self, producer: TransactionalProducer, why: OwnershipUncertain) -> None:
        """Raises unless the ledger is as this driver left it."""
        found, own = _holder(producer, self._settings.group), self._newest
        if found is None or own is None:
            raise OwnershipUncertain(
                f"{why}. The ledger of {self._settings.pipeline!r} could tell, and it is empty: "
                "expired as well, by the brokers' offsets.retention.minutes. Start the query "
                "again, if no other driver has gone on: it asks for what it can't know",
                why.code,
            ) from why
        if _signature(found) != _signature(own):
            raise FencedError(
                f"{self._settings.pipeline!r} was taken over while it rested: its ledger has "
                f"{found}, and this driver left it at {own}. Nothing of the last batch is visible",
                why.code,
            ) from why


def _holder(producer: TransactionalProducer, group: str) -> Entry | None:
    return last_entry(producer.committed_offsets(group))


def _signature(entry: Entry) -> tuple[object, ...]:
    """What tells an entry from every other; the rest of it may be cut to fit."""
    return entry.number, entry.query, entry.batch, entry.host, entry.pid
