"""Progress by the clock, for guarantee `none`: noted now and then, whatever became of the data.

What consumers call enable.auto.commit. Progress and data know nothing of each other: that is why
records may be lost and repeated.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping

from sparkonce.errors import FatalError, SparkonceError
from sparkonce.produce import OffsetAndMetadata
from sparkonce.produce.identity import Partition
from sparkonce.stream.kafka_owner import KafkaOwner
from sparkonce.stream.ledger import Entry

INTERVAL_S = 5.0
"""As Kafka's auto.commit.interval.ms."""
_CLOSED_WITHIN_S = 60.0

Groups = Mapping[str, Mapping[Partition, OffsetAndMetadata]]

_log = logging.getLogger("sparkonce.stream")


class AutoCommit:
    def __init__(self, owner: KafkaOwner) -> None:
        self._owner = owner
        # The newest alone; put and taken in one step each, so that none is lost in between.
        self._noted: deque[tuple[Groups, Entry]] = deque(maxlen=1)
        self._over: FatalError | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sparkonce-auto-commit", daemon=True)
        self._thread.start()

    def note(self, groups: Groups, entry: Entry) -> None:
        """Raises what the clock has met and can't get over: another driver took over."""
        if self._over is not None:
            raise self._over
        self._noted.append((groups, entry))

    def close(self) -> None:
        self._stopped.set()
        self._thread.join(_CLOSED_WITHIN_S)
        if self._thread.is_alive():
            _log.warning(
                "progress was not noted in %g s: the cluster does not answer, and it is given up",
                _CLOSED_WITHIN_S,
            )

    def _run(self) -> None:
        over = False
        while not over:
            over = self._stopped.wait(INTERVAL_S)
            if self._noted:
                groups, entry = self._noted.pop()
                try:
                    self._owner.begin()
                    with self._owner.producer.committing() as producer:
                        for group, offsets in groups.items():
                            producer.send_offsets_to_transaction(offsets, group)
                    self._owner.note(entry)
                except FatalError as error:
                    self._over = error
                    return
                except SparkonceError as error:
                    _log.warning("progress could not be noted: %s", error)
                except Exception as error:  # noqa: BLE001 - raised by the next `note`
                    self._over = FatalError(f"progress is noted no more: {error!r}")
                    self._over.__cause__ = error
                    return
