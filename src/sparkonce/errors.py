"""One tree of errors; a class says how to react, a message says what, why and what to do next.

`Reaction` is the same question asked of a Kafka error code: what may a client do after it?
The answers are those of the Java client, with the additions of KIP-890 (120, and 47 during a
transaction that the coordinator has timed out).
"""

from __future__ import annotations

import enum

from sparkonce.redaction import redacted


class SparkonceError(Exception):
    """Everything this package raises on purpose; no message has a password in it."""

    def __init__(self, *told: object) -> None:
        super().__init__(*(redacted(each) if isinstance(each, str) else each for each in told))


class ConfigError(SparkonceError):
    """Settings that are unknown, malformed or contradict each other; nothing was started."""


class LocalError(SparkonceError):
    """A part started on this machine (Java, jars, Kafka) is missing, broken or died."""


class EncodeError(SparkonceError):
    """Rows that can't become Kafka records; nothing of them was sent."""


class StateError(SparkonceError):
    """A verb that the transaction's present state does not allow."""


class BrokerError(SparkonceError):
    """The cluster refused or could not be reached; `code` is Kafka's error code, -1 for none."""

    def __init__(self, message: str, code: int = -1) -> None:
        super().__init__(message)
        self.code = code


class Unreachable(BrokerError):
    """No answer from the cluster in the time allowed; nothing is known to have been done."""


class OutcomeUnknown(Unreachable):
    """The decision was sent and its answer never came: ask again, never guess."""


class DeliveryFailed(BrokerError):
    """Records outside a transaction that were not acknowledged; later ones are not affected."""


class DeadLettered(BrokerError):
    """The record could not be written to its topic and went to the dead letters instead."""


class AbortableError(BrokerError):
    """The transaction can only be aborted; the producer lives on with a new one."""


class TransactionTimedOut(AbortableError):
    """The coordinator aborted the transaction because it outlasted transaction.timeout.ms."""


class FatalError(BrokerError):
    """This producer can do nothing more: close it, and start a new one."""


class FencedError(FatalError):
    """Another producer took over this transactional id; what this one writes is refused."""


class OwnershipUncertain(FatalError):
    """Whether another producer took over meanwhile, the cluster can't tell: what was committed last
    says it. Nothing more is written by this producer."""


class TransactionalIdExpired(OwnershipUncertain):
    """The cluster has forgotten the transactional id, which nobody used for so long."""


class Reaction(enum.Enum):
    """What an error code leaves to do."""

    NONE = "it worked"
    RESEND = "send the same again"
    FIND_LEADER = "refresh the metadata, then send the same again"
    FIND_COORDINATOR = "look up the coordinator, then send the same again"
    EPOCH = "fenced or timed out: ask the coordinator which"
    OUT_OF_ORDER = "wait for those before it, or abort if there are none"
    ABORT = "abort and start a new attempt"
    FATAL = "give up"


_REACTIONS: dict[Reaction, tuple[int, ...]] = {
    # 46: an exact repeat older than the offsets the broker remembers; it was written.
    Reaction.NONE: (0, 46),
    # 2: a batch damaged on the way; 89: throttled; 51: markers of the former transaction are
    # being written; 19: also while two verifications of one transaction overlap.
    Reaction.RESEND: (2, 7, 14, 19, 20, 51, 56, 88, 89),
    Reaction.FIND_LEADER: (3, 5, 6, 9, 13, 72, 74, 75, 100),
    Reaction.FIND_COORDINATOR: (15, 16),
    Reaction.EPOCH: (47, 48, 49, 90),
    Reaction.OUT_OF_ORDER: (45, 59),
    Reaction.ABORT: (10, 17, 18, 22, 25, 27, 29, 30, 32, 43, 76, 82, 87, 120),
}
_BY_CODE = {code: reaction for reaction, codes in _REACTIONS.items() for code in codes}

_ADVICE = {
    10: "lower batch.size below the topic's max.message.bytes, or raise that on the topic",
    17: "choose a topic name of letters, digits, '.', '_' and '-', up to 249 characters",
    29: "grant this principal WRITE on the topic",
    30: "grant this principal READ on the group",
    31: "grant this principal what the request needs on the cluster",
    32: "write timestamps within the topic's message.timestamp.before/after.max.ms",
    42: "check the settings named above",
    50: "lower transaction.timeout.ms to the brokers' transaction.max.timeout.ms at most",
    53: "grant this principal WRITE on the transactional id",
    76: "choose a compression.type that the brokers support",
    87: "check the records against the topic's settings (a compacted topic needs keys)",
}


def reaction(code: int) -> Reaction:
    """How to react to Kafka's error `code`; one that is not listed is fatal."""
    return _BY_CODE.get(code, Reaction.FATAL)


def explain(code: int) -> str:
    """Name, number and, where there is one, the way out of an error code."""
    import kafka.errors  # all of kafka-python comes with it, and few processes get to see an error

    known = kafka.errors.for_code(code)
    name = getattr(known, "message", None) or known.__name__
    advice = _ADVICE.get(code)
    return f"{name} ({code})" + (f"; {advice}" if advice else "")
