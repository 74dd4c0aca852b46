"""Batches as Prometheus metrics, beside the query that writes them.

Counters hold what became visible: the records of a failed batch are not counted, nor those of a
skipped one, which an earlier run counted. Every series of a pipeline exists, at zero, from its
first batch on, because a rate over a series that first appears with its first failure misses it.
"""

from __future__ import annotations

import threading
from typing import Final, Self
from weakref import WeakKeyDictionary
from wsgiref.simple_server import WSGIServer

from prometheus_client import (
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    start_http_server,
)

from sparkonce.errors import SparkonceError
from sparkonce.stream.report import OUTCOMES, BatchReport

# A commit takes a few milliseconds, a large batch minutes: 1, 2, 5 over the whole range.
_BUCKETS_S = tuple(
    round(step * 10.0**power, 3) for power in range(-3, 3) for step in (1, 2, 5)
)  # 1 ms to 500 s

_LET_IN_S: Final = 1.0
_CLOSED_WITHIN_S: Final = 10.0


class _Collectors:
    """The metrics of one registry, which refuses to hold the same name twice."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(f"sparkonce_{name}", about, ("pipeline", *labels), registry=registry)

        def histogram(name: str, about: str) -> Histogram:
            return Histogram(
                f"sparkonce_{name}", about, ("pipeline",), registry=registry, buckets=_BUCKETS_S
            )

        def gauge(name: str, about: str) -> Gauge:
            return Gauge(f"sparkonce_{name}", about, ("pipeline",), registry=registry)

        self.records = counter("records_total", "Records written, by topic.", "topic")
        self.size_bytes = counter("bytes_total", "Bytes of the records written.")
        self.dead_letters = counter("dead_letters_total", "Rows written to the dead letters.")
        self.lost = counter("lost_total", "Rows that at_most_once gave up.")
        self.batches = counter("batches_total", "Batches, by how they ended.", "outcome")
        self.attempts = counter("attempts_total", "Attempts at batches; one each if all is well.")
        self.batch_s = histogram("batch_seconds", "Time of a committed batch, all attempts.")
        self.transaction_s = histogram(
            "transaction_seconds", "Share of the transaction in a batch: fence, record, decide."
        )
        self.epoch = gauge("epoch", "The producer's epoch; it grows with every attempt.")
        self.last_batch = gauge(
            "last_batch_timestamp_seconds", "When the last batch that did not fail ended."
        )


_shared: WeakKeyDictionary[CollectorRegistry, _Collectors] = WeakKeyDictionary()
_shared_lock = threading.Lock()


class MetricsListener:
    """Counts batches in a registry, Prometheus' own by default; any number may share one."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = REGISTRY if registry is None else registry
        with _shared_lock:
            if registry not in _shared:
                _shared[registry] = _Collectors(registry)
            self._collectors = _shared[registry]

    def on_batch(self, report: BatchReport) -> None:
        to, pipeline = self._collectors, report.pipeline
        for outcome in OUTCOMES:
            to.batches.labels(pipeline, outcome).inc(outcome == report.outcome)
        to.attempts.labels(pipeline).inc(report.attempts)
        # A batch that at_most_once gave up may have failed: its rows are lost all the same.
        to.lost.labels(pipeline).inc(report.lost)
        to.size_bytes.labels(pipeline).inc(report.size_bytes if report.is_written else 0)
        to.dead_letters.labels(pipeline).inc(report.dead_letters if report.is_written else 0)
        for topic, records in report.targets.items():
            to.records.labels(pipeline, topic).inc(records if report.is_written else 0)
        if report.epoch >= 0:
            to.epoch.labels(pipeline).set(report.epoch)
        if report.outcome != "failed":
            to.last_batch.labels(pipeline).set(report.ended_s)
        batch_s, transaction_s = to.batch_s.labels(pipeline), to.transaction_s.labels(pipeline)
        if report.outcome == "committed":
            batch_s.observe(report.total_ms / 1000)
            if report.transaction_ms > 0:
                transaction_s.observe(report.transaction_ms / 1000)


class MetricsServer:
    """Metrics over HTTP until it is closed."""

    def __init__(self, server: WSGIServer, thread: threading.Thread) -> None:
        self.port: int = server.server_port
        self._server = server
        self._thread = thread

    def close(self) -> None:
        """Free the port; a second call does nothing."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join(_CLOSED_WITHIN_S)
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(
    port: int, host: str = "127.0.0.1", registry: CollectorRegistry | None = None
) -> MetricsServer:
    """Answer at http://host:port/metrics; port 0 takes a free one, which `.port` then tells.

    Only this machine may ask unless `host` says otherwise: topic names are in the answer.
    """
    try:
        started = start_http_server(port, host, REGISTRY if registry is None else registry)
    except (OSError, OverflowError) as error:
        raise SparkonceError(
            f"metrics can't be served at {host}:{port}: {error}; "
            "choose another port, or 0 for any that is free"
        ) from error
    # One who hangs up before he is let in must not keep the server, and whoever closes it.
    started[0].socket.settimeout(_LET_IN_S)
    return MetricsServer(*started)
