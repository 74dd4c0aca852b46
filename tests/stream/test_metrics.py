"""Reports of batches as metrics: counted, shared by listeners, served over HTTP."""

from __future__ import annotations

import urllib.request
from urllib.error import URLError

import pytest
from prometheus_client import CollectorRegistry

from reports import report
from sparkonce.errors import SparkonceError
from sparkonce.stream.metrics import MetricsListener, serve


def test_metrics_count_what_was_written() -> None:
    registry = CollectorRegistry()
    listener = MetricsListener(registry)
    listener.on_batch(report(attempts=2, dead_letters=3))
    listener.on_batch(report(batch="13", epoch=6, targets={"audit": 5}, started_s=2000.0))
    listener.on_batch(report(batch="14", outcome="skipped", attempts=0, started_s=2500.0))
    listener.on_batch(report(batch="15", outcome="failed", dead_letters=9, started_s=3000.0))
    listener.on_batch(report(batch="1", outcome="empty", pipeline="orders", epoch=90))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"sparkonce_{name}", {"pipeline": "payments"} | labels)

    assert value("records_total", topic="enriched") == 9_000
    assert value("records_total", topic="audit") == 1_005
    assert value("bytes_total") == 2 * 9_800_000
    assert value("dead_letters_total") == 3
    assert value("lost_total") == 0
    assert value("attempts_total") == 4
    assert value("batches_total", outcome="committed") == 2
    assert value("batches_total", outcome="skipped") == 1
    assert value("batches_total", outcome="failed") == 1
    assert value("batches_total", outcome="empty") == 0
    assert value("epoch") == 7
    assert value("last_batch_timestamp_seconds") == pytest.approx(2500.14, abs=0.001)
    assert value("batch_seconds_count") == 2
    assert value("batch_seconds_sum") == pytest.approx(0.28)
    assert value("batch_seconds_bucket", le="0.1") == 0
    assert value("batch_seconds_bucket", le="0.2") == 2
    assert value("transaction_seconds_bucket", le="0.002") == 0
    assert value("transaction_seconds_bucket", le="0.005") == 2
    assert value("transaction_seconds_bucket", le="500.0") == 2
    assert value("transaction_seconds_bucket", le="0.001") == 0


def test_rows_given_up_with_a_failed_batch_are_counted_as_lost() -> None:
    registry = CollectorRegistry()
    MetricsListener(registry).on_batch(report(outcome="failed", lost=40, epoch=-1))
    labels = {"pipeline": "payments"}
    assert registry.get_sample_value("sparkonce_lost_total", labels) == 40
    assert registry.get_sample_value("sparkonce_bytes_total", labels) == 0
    assert registry.get_sample_value("sparkonce_epoch", labels) is None
    assert registry.get_sample_value("sparkonce_transaction_seconds_count", labels) == 0


def test_listeners_on_one_registry_share_their_counters() -> None:
    registry, other = CollectorRegistry(), CollectorRegistry()
    for pipeline in ("payments", "orders", "payments"):
        MetricsListener(registry).on_batch(report(pipeline=pipeline))
    MetricsListener(other).on_batch(report())
    counted = [
        each.get_sample_value("sparkonce_attempts_total", {"pipeline": "payments"})
        for each in (registry, other)
    ]
    assert counted == [2, 1]


def test_metrics_are_served_until_closed() -> None:
    registry = CollectorRegistry()
    with serve(0, registry=registry) as server:
        MetricsListener(registry).on_batch(report())
        url = f"http://127.0.0.1:{server.port}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            text = answer.read().decode()
        with pytest.raises(SparkonceError, match=f"127.0.0.1:{server.port}.*another port"):
            serve(server.port, registry=registry)
    lines = text.splitlines()
    assert 'sparkonce_records_total{pipeline="payments",topic="enriched"} 9000.0' in lines
    assert 'sparkonce_batches_total{outcome="committed",pipeline="payments"} 1.0' in lines
    server.close()
    with pytest.raises(URLError):
        urllib.request.urlopen(url, timeout=10)
