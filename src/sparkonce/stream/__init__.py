"""Spark's micro-batches as Kafka transactions: `write_stream`, `write`, and what recovers them.

Nothing is imported here: executors need `task` alone, and start sooner without the rest.
"""
