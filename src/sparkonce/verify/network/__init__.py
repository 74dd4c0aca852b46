"""Faults between any Kafka client and the brokers: a proxy that breaks what it is told."""

from sparkonce.verify.network.faults import (
    TRANSACTION_APIS,
    CorruptRequest,
    CutMidFrame,
    DelayRequest,
    DelayResponse,
    DuplicateRequest,
    Fault,
    LoseRequest,
    LoseResponse,
    Reorder,
    ShortRepr,
    Stall,
    draw_faults,
)
from sparkonce.verify.network.journal import Did, Event
from sparkonce.verify.network.proxy import FaultProxy, ProxyError

__all__ = [
    "TRANSACTION_APIS",
    "CorruptRequest",
    "CutMidFrame",
    "DelayRequest",
    "DelayResponse",
    "Did",
    "DuplicateRequest",
    "Event",
    "Fault",
    "FaultProxy",
    "LoseRequest",
    "LoseResponse",
    "ProxyError",
    "Reorder",
    "ShortRepr",
    "Stall",
    "draw_faults",
]
