"""Proof: faults put into pipelines from a seed, and what became of the records."""

from sparkonce.verify.network import (
    CorruptRequest,
    CutMidFrame,
    DelayRequest,
    DelayResponse,
    Did,
    DuplicateRequest,
    Event,
    Fault,
    FaultProxy,
    LoseRequest,
    LoseResponse,
    ProxyError,
    Reorder,
    Stall,
    draw_faults,
)

__all__ = [
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
    "Stall",
    "draw_faults",
]
