"""The words of a transaction, asked of its coordinators: who am I, what is in it, how did it end.

Each is asked until it has a definite answer or its time is over (`questions`). What remains unknown
at the end of the time is raised as unknown. What an answer means for a producer that was refused
is judged next door, in `ownership`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kafka.protocol.admin import DescribeConfigsRequest, DescribeTransactionsRequest
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

from sparkonce.errors import OutcomeUnknown, Unreachable
from sparkonce.options import LONGEST, ProducerOptions
from sparkonce.produce.identity import Partition, ProducerIdentity
from sparkonce.produce.questions import Codes, CoordinatorKind, Place, Questions
from sparkonce.wire import Client, Message

_BROKER_RESOURCE = 4
_NOT_TOLD = frozenset({29, 31})
_TIMEOUT_MS = 60_000
_TRANSACTIONAL_ID_NOT_FOUND = 105


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """How far a source was read: the next offset to read, and a note to keep beside it."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class TransactionStatus:
    """What the coordinator tells of a transactional id."""

    is_known: bool
    """An id that nobody used for `transactional.id.expiration.ms` is forgotten."""
    state: str
    producer_id: int
    epoch: int


class Coordinator:
    def __init__(self, client: Client, options: ProducerOptions) -> None:
        self.questions = Questions(client, options)
        self._client = client
        self._options = options
        self._timeout_ms = options.transaction_timeout_ms

    @property
    def transaction_version(self) -> int:
        return self._client.transaction_version

    @property
    def metadata_level(self) -> int:
        return self._client.metadata_level

    @property
    def transaction_timeout_ms(self) -> int:
        """As the coordinator was told it; behind `init`."""
        return self._timeout_ms

    def init(self) -> ProducerIdentity:
        """A producer id and a new epoch, whoever had it; success makes a former outcome final."""
        place = None if self._options.transactional_id is None else self._place
        request = self._init_request(None)
        answer = self.questions.until_definite("InitProducerId", place, request, _error_code)
        return self._identity(answer)

    def init_once(self, former: ProducerIdentity, left_s: float) -> ProducerIdentity:
        """The next epoch of `former`, if nobody else has taken over since (KIP-360).

        Asked a single time, since a coordinator aborts whatever transaction is open, its own
        producer's or a successor's, before it compares epochs: `Ownership.raise_epoch` looks first.
        """
        request = self._init_request(former)
        answer = self.questions.once("InitProducerId", self._place, request, _error_code, left_s)
        return self._identity(answer)

    def _init_request(self, former: ProducerIdentity | None) -> Message:
        if self._timeout_ms == LONGEST:
            self._timeout_ms = self._longest_timeout_ms()
        return Message(
            InitProducerIdRequest,
            3,
            5,
            {
                "transactional_id": self._options.transactional_id,
                "transaction_timeout_ms": self._timeout_ms,
                "producer_id": former.producer_id if former else -1,
                "producer_epoch": former.epoch if former else -1,
            },
        )

    def _identity(self, answer: Any) -> ProducerIdentity:
        name = self._options.transactional_id
        return ProducerIdentity(name, answer.producer_id, answer.producer_epoch)

    def add_partitions(self, who: ProducerIdentity, partitions: Iterable[Partition]) -> None:
        """Open the transaction on these partitions; version 2 needs it only to open early."""
        kind = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction.AddPartitionsToTxnTopic
        request = Message(
            AddPartitionsToTxnRequest,
            3,
            3,
            {
                "v3_and_below_transactional_id": who.transactional_id,
                "v3_and_below_producer_id": who.producer_id,
                "v3_and_below_producer_epoch": who.epoch,
                "v3_and_below_topics": [
                    kind(name=topic, partitions=indexes)
                    for topic, indexes in _by_topic(partitions).items()
                ],
            },
        )

        def codes(answer: Any) -> list[int]:
            return [
                part.partition_error_code
                for topic in answer.results_by_topic_v3_and_below
                for part in topic.results_by_partition
            ]

        self._ask_transaction("AddPartitionsToTxn", request, codes)

    def add_offsets(self, who: ProducerIdentity, group: str) -> None:
        """Open the transaction on where the group's offsets are kept."""
        request = Message(AddOffsetsToTxnRequest, 3, 3, _of_group(who, group))
        self._ask_transaction("AddOffsetsToTxn", request, _error_code)

    def send_offsets(
        self,
        who: ProducerIdentity,
        group: str,
        offsets: Mapping[Partition, OffsetAndMetadata],
    ) -> None:
        """Source offsets into the transaction, at the group's coordinator."""
        implicit = self._client.transaction_version >= 2
        if not implicit:
            self.add_offsets(who, group)
        topic_kind = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        part_kind = topic_kind.TxnOffsetCommitRequestPartition
        topics = [
            topic_kind(
                name=topic,
                partitions=[
                    part_kind(
                        partition_index=index,
                        committed_offset=offsets[topic, index].offset,
                        committed_leader_epoch=offsets[topic, index].leader_epoch,
                        committed_metadata=offsets[topic, index].metadata,
                    )
                    for index in indexes
                ],
            )
            for topic, indexes in _by_topic(offsets).items()
        ]
        # A group without members, as of a pipeline that assigns its partitions by itself.
        manual = {"generation_id": -1, "member_id": "", "group_instance_id": None}
        request = Message(
            TxnOffsetCommitRequest,
            3,
            5 if implicit else 4,
            _of_group(who, group) | manual | {"topics": topics},
        )

        def codes(answer: Any) -> list[int]:
            return [part.error_code for topic in answer.topics for part in topic.partitions]

        self.ask_group("TxnOffsetCommit", group, request, codes)

    def end(self, who: ProducerIdentity, *, commit: bool) -> ProducerIdentity:
        """The decision; asked again until the coordinator has it. Answers who comes next."""
        verb = "commit" if commit else "abort"
        fields = {
            "transactional_id": who.transactional_id,
            "producer_id": who.producer_id,
            "producer_epoch": who.epoch,
            "committed": commit,
        }
        high = 5 if self._client.transaction_version >= 2 else 4
        try:
            request = Message(EndTxnRequest, 3, high, fields)
            answer = self._ask_transaction("EndTxn", request, _error_code)
        except Unreachable as error:
            raise OutcomeUnknown(
                f"the {verb} of {who} was sent, and no answer came within max.block.ms="
                f"{self.questions.max_block_ms}: call {verb}_transaction() again to learn its "
                f"outcome. {error}"
            ) from error
        if high < 5 or answer.producer_id < 0:
            return who
        return ProducerIdentity(who.transactional_id, answer.producer_id, answer.producer_epoch)

    def describe(self) -> TransactionStatus:
        """The coordinator's own view of the transaction; unknown to it is an answer too."""
        names = [self._options.transactional_id]
        request = Message(DescribeTransactionsRequest, 0, 0, {"transactional_ids": names})

        def codes(answer: Any) -> int:
            code = int(answer.transaction_states[0].error_code)
            return 0 if code == _TRANSACTIONAL_ID_NOT_FOUND else code

        answer = self._ask_transaction("DescribeTransactions", request, codes)
        told = answer.transaction_states[0]
        return TransactionStatus(
            told.error_code != _TRANSACTIONAL_ID_NOT_FOUND,
            told.transaction_state,
            told.producer_id,
            told.producer_epoch,
        )

    def _longest_timeout_ms(self) -> int:
        """What the coordinator allows a transaction at most."""

        def request(node_id: int) -> Message:
            resource = DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=_BROKER_RESOURCE,
                resource_name=str(node_id),
                configuration_keys=["transaction.max.timeout.ms"],
            )
            return Message(
                DescribeConfigsRequest,
                1,
                4,
                {
                    "resources": [resource],
                    "include_synonyms": False,
                    "include_documentation": False,
                },
            )

        def codes(answer: Any) -> int:
            code = int(answer.results[0].error_code)
            return 0 if code in _NOT_TOLD else code

        answer = self.questions.until_definite("DescribeConfigs", self._place, request, codes)
        told = answer.results[0]
        # A principal that may not ask writes all the same, with the time every broker allows.
        return int(told.configs[0].value) if told.configs else _TIMEOUT_MS

    def ask_group(self, what: str, group: str, request: Message, codes: Codes) -> Any:
        """Ask the coordinator of a consumer group."""
        place = (CoordinatorKind.GROUP, group)
        return self.questions.until_definite(what, place, request, codes)

    def ask_group_once(self, what: str, group: str, request: Message, codes: Codes) -> Any:
        """The same, a single time. Raises NotYet where that was not enough."""
        place = (CoordinatorKind.GROUP, group)
        left_s = self.questions.deadline().left_s
        return self.questions.once(what, place, request, codes, left_s)

    def _ask_transaction(self, what: str, request: Message, codes: Codes) -> Any:
        return self.questions.until_definite(what, self._place, request, codes)

    @property
    def _place(self) -> Place:
        name = self._options.transactional_id
        assert name is not None
        return CoordinatorKind.TRANSACTION, name


def _of_group(who: ProducerIdentity, group: str) -> dict[str, Any]:
    return {
        "transactional_id": who.transactional_id,
        "group_id": group,
        "producer_id": who.producer_id,
        "producer_epoch": who.epoch,
    }


def _error_code(answer: Any) -> int:
    return int(answer.error_code)


def _by_topic(partitions: Iterable[Partition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    return topics
