"""Defects of brokers in transactions, by the minor releases that have them.

A broker tells its clients no version of its own. It tells the highest level of `metadata.version`
that it supports, which differs from one minor release to the next (`MetadataVersion` in Kafka's
sources), and is the same for all patches of one. So what is said here is of a minor release, and
names the patches that have the defect.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

_LEVELS_4_0_TO_4_2: Final = range(22, 30)
"""From 4.0-IV0 to 4.2-IV1; released brokers tell 25, 27 and 29."""
_LEVELS_4_3: Final = range(30, 31)


@dataclass(frozen=True, slots=True)
class BrokerDefect:
    """What a log should say of it: what may happen, why, and what to do."""

    levels: range
    """The highest levels of `metadata.version` that brokers with the defect support."""
    transaction_version_min: int
    log_level: int
    words: str


_ALL: Final = (
    BrokerDefect(
        _LEVELS_4_3,
        0,
        logging.WARNING,
        "the brokers run Kafka 4.3. In 4.3.0 and 4.3.1 a transaction that ends while one of its "
        "partitions has no leader stays undecided there, and the next one decides it: aborted "
        "records can become visible, and committed ones get lost (KAFKA-20734). No client can "
        "make that good. Look which release the brokers run, and take 4.2, or one with that "
        "change; until then keep three replicas of output topics, __consumer_offsets and "
        "__transaction_state",
    ),
    BrokerDefect(
        _LEVELS_4_0_TO_4_2,
        2,
        logging.INFO,
        "the brokers run Kafka 4.0, 4.1 or 4.2, with transaction version 2. There a transaction "
        "that is open under the last epoch of its producer id can hang (KAFKA-19367, KAFKA-20090, "
        "KAFKA-20310). This producer never opens one, so there is nothing to do for it; other "
        "producers of the cluster do after 32,766 transactions, unless the cluster has "
        "transaction version 1",
    ),
)


def known_defects(metadata_level: int, transaction_version: int) -> list[BrokerDefect]:
    """Those that brokers may have whose highest level of `metadata.version` is this one."""
    return [
        defect
        for defect in _ALL
        if metadata_level in defect.levels and transaction_version >= defect.transaction_version_min
    ]
