"""Spark's Python daemon with our imports done: workers are forked from it, and start at once.

Named by `spark.python.daemon.module`. Without it every new worker takes a second to import what
writing to Kafka needs; and after every task Python looks through all of that for garbage, which
costs more than a small task itself. What is imported here is none: it is frozen.
"""

from __future__ import annotations

import gc

import pyarrow as pa
from pyspark.daemon import manager

import sparkonce.stream.task  # noqa: F401

if __name__ == "__main__":
    pa.array([0])  # Arrow imports pandas, if there is one, with the first Python value
    gc.collect()
    gc.freeze()
    manager()
