"""Python rows, gathered into columns until there are enough of them to encode."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from sparkonce.errors import EncodeError
from sparkonce.produce.delivery import OnDelivery

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_ROW_BYTES = 64
"""What a row weighs besides its key and value."""

Headers = Mapping[str, Any] | Iterable[tuple[str, Any]] | None


class PendingRows:
    def __init__(self) -> None:
        self.size_bytes = 0
        self._topics: list[str] = []
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._partitions: list[int | None] = []
        self._timestamps_ms: list[int | None] = []
        self._headers: list[list[dict[str, Any]] | None] = []
        self._reports: list[OnDelivery | None] = []

    def __len__(self) -> int:
        return len(self._topics)

    def add(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        partition: int | None,
        timestamp_ms: int | None,
        headers: list[dict[str, Any]] | None,
        report: OnDelivery | None,
    ) -> None:
        self._topics.append(topic)
        self._keys.append(key)
        self._values.append(value)
        self._partitions.append(partition)
        self._timestamps_ms.append(timestamp_ms)
        self._headers.append(headers)
        self._reports.append(report)
        self.size_bytes += _ROW_BYTES + len(key or b"") + len(value or b"")

    def table(self) -> pa.Table:
        columns: dict[str, pa.Array] = {
            "topic": pa.array(self._topics, pa.string()),
            "key": pa.array(self._keys, pa.binary()),
            "value": pa.array(self._values, pa.binary()),
            "partition": pa.array(self._partitions, pa.int32()),
            "timestamp": pa.array(self._timestamps_ms, pa.int64()),
        }
        if any(self._headers):
            columns["headers"] = pa.array(self._headers, _HEADERS)
        return pa.table(columns)

    def reports(self) -> list[OnDelivery | None] | None:
        """One per row, or None where nobody asked."""
        asked = any(report is not None for report in self._reports)
        return self._reports if asked else None


def as_bytes(name: str, value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise EncodeError(
        f"{name} is a {type(value).__name__}: Kafka's {name}s are bytes; give bytes, str or None"
    )


def check_number(name: str, value: Any) -> None:
    if value is not None and (not isinstance(value, int) or value < 0):
        raise EncodeError(f"{name} is {value!r}: give a whole number from 0 on, or leave it out")


def header_pairs(headers: Headers) -> list[tuple[str, Any]]:
    return list(headers.items() if isinstance(headers, Mapping) else headers or ())


def as_headers(headers: Headers) -> list[dict[str, Any]] | None:
    pairs = header_pairs(headers)
    for key, _ in pairs:
        if not isinstance(key, str):
            raise EncodeError(f"a header's key is a {type(key).__name__}: give it as a str")
    return [{"key": key, "value": as_bytes("header", value)} for key, value in pairs] or None
