"""Proof: faults between clients and brokers, and what became of the records."""

from sparkonce.verify.faults import (
    CutMidFrame,
    DelayRequest,
    DelayResponse,
    DuplicateRequest,
    Fault,
    LoseRequest,
    LoseResponse,
    Reorder,
    Stall,
    draw_faults,
)
from sparkonce.verify.journal import Did, Event
from sparkonce.verify.proxy import FaultProxy, ProxyError

__all__ = [
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
    "Stall",
    "draw_faults",
]
