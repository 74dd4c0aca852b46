"""Spark's Python daemon with our imports done: workers are forked from it, and start at once.

Named by `spark.python.daemon.module`; without it every new worker takes a second to import what
writing to Kafka needs.
"""

from __future__ import annotations

from pyspark.daemon import manager

import sparkonce.stream.task  # noqa: F401

if __name__ == "__main__":
    manager()
