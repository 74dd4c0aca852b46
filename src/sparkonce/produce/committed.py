"""How far a group has come: the committed offsets, asked where they are kept.

What a transaction that isn't decided yet wrote is neither shown nor hidden: the coordinator is
asked again until the outcome is known (RequireStable, KIP-447).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kafka.protocol.consumer import OffsetFetchRequest

from sparkonce.produce.coordinator import Coordinator, OffsetAndMetadata
from sparkonce.produce.identity import Partition
from sparkonce.produce.questions import NotYet
from sparkonce.wire import Message

_UNSTABLE_OFFSET_COMMIT: Final = 88


def committed_offsets(
    coordinator: Coordinator, group: str, end_stray: Callable[[], None]
) -> dict[Partition, OffsetAndMetadata]:
    """Everything the group has committed; empty for a group nobody has heard of.

    `end_stray` is called where something about it is undecided, before it is waited for.
    """
    request = Message(
        OffsetFetchRequest,
        8,
        9,
        {
            "groups": [OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=None)],
            "require_stable": True,
        },
    )

    def codes(answer: Any) -> list[int]:
        told = answer.groups[0]
        parts = [part.error_code for topic in told.topics for part in topic.partitions]
        return [told.error_code, *parts]

    try:
        answer = coordinator.ask_group_once("OffsetFetch", group, request, codes)
    except NotYet as error:
        if error.code == _UNSTABLE_OFFSET_COMMIT:
            end_stray()
        answer = coordinator.ask_group("OffsetFetch", group, request, codes)
    return {
        (topic.name, part.partition_index): OffsetAndMetadata(
            part.committed_offset, part.metadata or "", part.committed_leader_epoch
        )
        for topic in answer.groups[0].topics
        for part in topic.partitions
        if part.committed_offset >= 0
    }
