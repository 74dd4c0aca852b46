"""Questions to the coordinators, in the caller's thread: who am I, what is in, how did it end.

Each question is asked until it has a definite answer or its time is over: lost connections, moved
coordinators and markers still being written are no answers. What remains unknown at the end of
the time is raised as unknown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kafka.protocol.admin import DescribeConfigsRequest, DescribeTransactionsRequest
from kafka.protocol.metadata import FindCoordinatorRequest
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

from sparkonce.errors import (
    AbortableError,
    BrokerError,
    FatalError,
    FencedError,
    OutcomeUnknown,
    Reaction,
    TransactionTimedOut,
    Unreachable,
    explain,
    reaction,
)
from sparkonce.options import LONGEST, ProducerOptions
from sparkonce.produce.identity import Partition, ProducerIdentity
from sparkonce.wire import Address, Client, Message, NotKafka

_GROUP, _TRANSACTION = 0, 1
_BROKER_RESOURCE = 4
_NOT_TOLD = frozenset({29, 31})
_TIMEOUT_MS = 60_000
_PAUSE_S = 0.002
_PAUSE_MAX_S = 0.2
_TRANSACTIONAL_ID_NOT_FOUND = 105
_CAUSED_BY_TIMEOUT = frozenset({"PrepareAbort", "CompleteAbort", "PrepareEpochFence"})


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """How far a source was read: the next offset to read, and a note to keep beside it."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class _Found:
    node_id: int
    address: Address


class Coordinator:
    def __init__(self, client: Client, options: ProducerOptions) -> None:
        self._client = client
        self._options = options
        self._found: dict[tuple[int, str], _Found] = {}
        self._timeout_ms = options.transaction_timeout_ms

    @property
    def transaction_timeout_ms(self) -> int:
        """As the coordinator was told it; behind `init`."""
        return self._timeout_ms

    def init(self, former: ProducerIdentity | None) -> ProducerIdentity:
        """A producer id and a new epoch; its success makes any former outcome final.

        With `former`, only if nobody else has taken over since (KIP-360): a producer that
        recovers must never fence its successor.
        """
        name = self._options.transactional_id
        if self._timeout_ms == LONGEST:
            self._timeout_ms = self._longest_timeout_ms()
        request = Message(
            InitProducerIdRequest,
            3,
            5,
            {
                "transactional_id": name,
                "transaction_timeout_ms": self._timeout_ms,
                "producer_id": former.producer_id if former else -1,
                "producer_epoch": former.epoch if former else -1,
            },
        )
        if name is None:
            answer = self._until_definite("InitProducerId", None, request, _error_code)
        else:
            answer = self._ask_transaction("InitProducerId", request, _error_code)
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

    def send_offsets(
        self,
        who: ProducerIdentity,
        group: str,
        offsets: Mapping[Partition, OffsetAndMetadata],
    ) -> None:
        """Source offsets into the transaction, at the group's coordinator."""
        implicit = self._client.transaction_version >= 2
        fields = {
            "transactional_id": who.transactional_id,
            "group_id": group,
            "producer_id": who.producer_id,
            "producer_epoch": who.epoch,
        }
        if not implicit:
            request = Message(AddOffsetsToTxnRequest, 3, 3, fields)
            self._ask_transaction("AddOffsetsToTxn", request, _error_code)
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
            TxnOffsetCommitRequest, 3, 5 if implicit else 4, fields | manual | {"topics": topics}
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
                f"{self._options.max_block_ms}: call {verb}_transaction() again to learn its "
                f"outcome. {error}"
            ) from error
        if high < 5 or answer.producer_id < 0:
            return who
        return ProducerIdentity(who.transactional_id, answer.producer_id, answer.producer_epoch)

    def is_open(self, who: ProducerIdentity) -> bool:
        """Whether anybody has written into the transaction of `who`."""
        told = self._describe()
        return bool(
            told.transaction_state == "Ongoing"
            and (told.producer_id, told.producer_epoch) == (who.producer_id, who.epoch)
        )

    def fenced_or_timed_out(
        self, who: ProducerIdentity, code: int, *, decided: bool = False
    ) -> BrokerError:
        """Why the epoch of `who` was refused, as the coordinator tells it."""
        told = self._describe()
        if told.error_code == _TRANSACTIONAL_ID_NOT_FOUND:
            return FatalError(f"{who} is no longer known to the cluster (expired)", code)
        same_producer = told.producer_id == who.producer_id
        # A time-out raises the epoch once. A successor raises it once more when it takes over,
        # and may have aborted a transaction of its own since: that is no time-out of ours.
        raised_once = same_producer and told.producer_epoch == who.epoch + 1
        if raised_once and told.transaction_state in _CAUSED_BY_TIMEOUT:
            return TransactionTimedOut(
                f"the coordinator aborted the transaction of {who}: it was open longer than "
                f"transaction.timeout.ms={self._timeout_ms}. Nothing of it is "
                "visible: abort_transaction(), then write it again in smaller transactions, or "
                "raise transaction.timeout.ms (brokers allow transaction.max.timeout.ms)",
                code,
                told.producer_epoch,
            )
        if same_producer and told.producer_epoch == who.epoch:
            return FatalError(
                f"the coordinator has {who} in state {told.transaction_state} and refused the "
                f"request with {explain(code)}: the two sides disagree; start a new producer",
                code,
            )
        return FencedError(
            f"{who} was fenced: another producer with the same transactional.id started (the "
            f"coordinator now has producer id {told.producer_id}, epoch {told.producer_epoch}). "
            + (
                "Its commit was sent before that and may have been taken: read the committed "
                "offsets before anything is written again. "
                if decided
                else "Nothing of the open transaction is visible. "
            )
            + "If two pipelines are meant, give each its own transactional.id",
            code,
        )

    def _longest_timeout_ms(self) -> int:
        """What the coordinator allows a transaction at most."""
        name = self._options.transactional_id
        assert name is not None

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

        answer = self._until_definite("DescribeConfigs", (_TRANSACTION, name), request, codes)
        told = answer.results[0]
        # A principal that may not ask writes all the same, with the time every broker allows.
        return int(told.configs[0].value) if told.configs else _TIMEOUT_MS

    def _describe(self) -> Any:
        """The coordinator's own view of the transaction; unknown to it is an answer too."""
        names = [self._options.transactional_id]
        request = Message(DescribeTransactionsRequest, 0, 0, {"transactional_ids": names})

        def codes(answer: Any) -> int:
            code = int(answer.transaction_states[0].error_code)
            return 0 if code == _TRANSACTIONAL_ID_NOT_FOUND else code

        return self._ask_transaction("DescribeTransactions", request, codes).transaction_states[0]

    def ask_group(
        self, what: str, group: str, request: Message, codes: Callable[[Any], int | list[int]]
    ) -> Any:
        """Ask the coordinator of a consumer group."""
        return self._until_definite(what, (_GROUP, group), request, codes)

    def _ask_transaction(
        self, what: str, request: Message, codes: Callable[[Any], int | list[int]]
    ) -> Any:
        name = self._options.transactional_id
        assert name is not None
        return self._until_definite(what, (_TRANSACTION, name), request, codes)

    def _until_definite(
        self,
        what: str,
        coordinator: tuple[int, str] | None,
        request: Message | Callable[[int], Message],
        codes: Callable[[Any], int | list[int]],
    ) -> Any:
        deadline_s = time.monotonic() + self._options.max_block_ms / 1000
        pause_s = _PAUSE_S
        last: BrokerError | None = None
        while (left_s := deadline_s - time.monotonic()) > 0:
            try:
                if coordinator is None:
                    assert isinstance(request, Message)
                    answer = self._client.ask_any(request, left_s)
                else:
                    found = self._find(coordinator, left_s)
                    asked = request if isinstance(request, Message) else request(found.node_id)
                    answer = self._client.ask(found.address, asked, left_s)
            except Unreachable as error:
                if self._client.refusals(NotKafka):
                    raise FatalError(self._client.reasons()) from error
                last = error
                self._found.pop(coordinator or (0, ""), None)
            else:
                told = codes(answer)
                bad = [code for code in (told if isinstance(told, list) else [told]) if code]
                if not bad:
                    return answer
                _raise_if_definite(what, bad)
                last = BrokerError(f"{what} answered {explain(bad[0])}", bad[0])
                if any(reaction(code) is not Reaction.RESEND for code in bad):
                    self._found.pop(coordinator or (0, ""), None)
            time.sleep(min(pause_s, max(0.0, deadline_s - time.monotonic())))
            pause_s = min(pause_s * 2, _PAUSE_MAX_S)
        raise Unreachable(
            f"{what} had no definite answer within max.block.ms={self._options.max_block_ms}: "
            f"{last or self._client.reasons()}"
        )

    def _find(self, key: tuple[int, str], timeout_s: float) -> _Found:
        """Where the coordinator is; asking also makes the cluster create its internal topics."""
        if key not in self._found:
            kind, name = key
            request = Message(
                FindCoordinatorRequest, 4, 6, {"key_type": kind, "coordinator_keys": [name]}
            )
            told = self._client.ask_any(request, timeout_s).coordinators[0]
            if told.error_code:
                _raise_if_definite(f"FindCoordinator for {name!r}", [told.error_code])
                raise Unreachable(
                    f"{name!r} has no coordinator yet: {explain(told.error_code)}", told.error_code
                )
            self._found[key] = _Found(told.node_id, Address(told.host, told.port))
        return self._found[key]


def _error_code(answer: Any) -> int:
    return int(answer.error_code)


def _raise_if_definite(what: str, codes: list[int]) -> None:
    """Raise for a code that asking again won't change; the gravest first."""
    for kind, error in (
        (Reaction.FATAL, FatalError),
        (Reaction.EPOCH, EpochRefused),
        (Reaction.ABORT, AbortableError),
        (Reaction.OUT_OF_ORDER, AbortableError),
    ):
        for code in codes:
            if reaction(code) is kind:
                raise error(f"{what} was refused: {explain(code)}", code)


class EpochRefused(BrokerError):
    """Fenced or timed out: `Coordinator.fenced_or_timed_out` asks which."""


def _by_topic(partitions: Iterable[Partition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    return topics
