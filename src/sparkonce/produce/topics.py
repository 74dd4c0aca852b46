"""What a producer must know of a topic before it writes there: that it is there, its partitions,
and the largest batch that it takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from kafka.protocol.admin import DescribeConfigsRequest

from sparkonce.errors import BrokerError, FatalError, Unreachable, explain
from sparkonce.wire import Client, Message, NotKafka

_TOPIC_RESOURCE = 2
_UNKNOWN_TOPIC = 3
_INVALID_TOPIC = 17
_NEW_TOPIC_S = 3.0
"""Brokers learn of a new topic one after the other: so long an unknown one may just be new."""
_MISSING_S = 60.0
_PAUSE_S = 0.02
_PAUSE_MAX_S = 0.2
_ASK_S = 1.0
"""Then another broker is asked."""

_T = TypeVar("_T")


class UnknownTopic(BrokerError):
    """The topic isn't there; nothing was written to it, and it is not created by writing."""


class Topics:
    def __init__(self, client: Client, max_block_ms: int) -> None:
        self._client = client
        self._max_block_ms = max_block_ms
        self.partition_counts: dict[str, int] = {}
        self.batch_limits: dict[str, int] = {}
        self._missing_until_s: dict[str, float] = {}
        self._stale: set[str] = set()

    def learn(self, names: Iterable[str]) -> None:
        """Ask the cluster for topics not known yet, and go by what it said last of the others.
        Raises UnknownTopic."""
        wanted = set(names)
        fresh = sorted((wanted - self.partition_counts.keys()) | (wanted & self._stale))
        cluster = self._client.cluster
        for name in wanted.difference(fresh):
            # Asked for now and then by the client itself: partitions may have been added.
            self.partition_counts[name] = cluster.partition_count(name)
        if not fresh:
            return
        self._stale.difference_update(fresh)
        self._learn_partitions(fresh)
        self._learn_limits(fresh)

    def ask_again(self, name: str) -> None:
        """A broker refused a batch that should have fitted: the topic's limit has changed."""
        self._stale.add(name)

    def is_known(self, name: str) -> bool:
        """Whether the topic is there; one that isn't is not asked for again for a while."""
        if time.monotonic() < self._missing_until_s.get(name, 0.0):
            return False
        try:
            self.learn([name])
        except UnknownTopic:
            self._missing_until_s[name] = time.monotonic() + _MISSING_S
            return False
        return True

    def _learn_partitions(self, names: list[str]) -> None:
        new_until_s = time.monotonic() + _NEW_TOPIC_S
        pause_s = _PAUSE_S
        while True:
            cluster = self._patiently(lambda left_s: self._client.refreshed(names, left_s))
            missing = [name for name in names if not cluster.partition_count(name)]
            if not missing:
                break
            code = cluster.errors.get(missing[0], _UNKNOWN_TOPIC)
            if code == _INVALID_TOPIC or time.monotonic() > new_until_s:
                raise UnknownTopic(
                    f"topic {missing[0]!r}: {explain(code)}. Create it first; topics are not "
                    "created by writing to them, a mistyped name would be lost data",
                    code,
                )
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _PAUSE_MAX_S)
        for name in names:
            self.partition_counts[name] = cluster.partition_count(name)

    def _patiently(self, ask: Callable[[float], _T]) -> _T:
        """Ask until somebody answers, for `max.block.ms` at most."""
        deadline_s = time.monotonic() + self._max_block_ms / 1000
        while True:
            left_s = deadline_s - time.monotonic()
            try:
                return ask(min(_ASK_S, max(_PAUSE_S, left_s)))
            except Unreachable as error:
                if self._client.refusals(NotKafka):
                    raise FatalError(self._client.reasons()) from error
                if left_s <= 0:
                    raise Unreachable(
                        "the cluster could not be asked about topics within max.block.ms="
                        f"{self._max_block_ms}: {self._client.reasons()}"
                    ) from error
                time.sleep(_PAUSE_S)

    def _learn_limits(self, names: list[str]) -> None:
        """max.message.bytes, so that batches are cut to fit before they are numbered."""
        resource = DescribeConfigsRequest.DescribeConfigsResource
        request = Message(
            DescribeConfigsRequest,
            1,
            4,
            {
                "resources": [
                    resource(
                        resource_type=_TOPIC_RESOURCE,
                        resource_name=name,
                        configuration_keys=["max.message.bytes"],
                    )
                    for name in names
                ],
                "include_synonyms": False,
                "include_documentation": False,
            },
        )
        answer = self._patiently(lambda left_s: self._client.ask_any(request, left_s))
        for result in answer.results:
            # A principal without DESCRIBE_CONFIGS writes all the same; a batch that is too
            # large is then refused by the broker with a message that says what to change.
            if not result.error_code and result.configs:
                self.batch_limits[result.resource_name] = int(result.configs[0].value)
