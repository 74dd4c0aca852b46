"""Java, jars and Kafka on this machine: what tests, the verifier and the demo run against."""

from sparkonce.local.kafka import LocalKafka

__all__ = ["LocalKafka"]
