"""PostgreSQL, whether it is read or written: how it is reached, and how long it is waited for."""

from sparkonce.postgresql.connection import (
    PATIENCE_S,
    PAUSE_S,
    Connection,
    commit,
    connect,
    is_hopeless,
    message,
)
from sparkonce.postgresql.silence import QUERY_TIMEOUT, QUERY_TIMEOUT_S, NoAnswer, Silence, answered
from sparkonce.postgresql.url import conninfo, keep_secrets

__all__ = [
    "PATIENCE_S",
    "PAUSE_S",
    "QUERY_TIMEOUT",
    "QUERY_TIMEOUT_S",
    "Connection",
    "NoAnswer",
    "Silence",
    "answered",
    "commit",
    "connect",
    "conninfo",
    "is_hopeless",
    "keep_secrets",
    "message",
]
