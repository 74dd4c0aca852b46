"""Java, jars, Kafka and PostgreSQL on this machine: what tests, the verifier and the demo use."""

from sparkonce.local.kafka import LocalKafka
from sparkonce.local.postgres import LocalPostgres

__all__ = ["LocalKafka", "LocalPostgres"]
