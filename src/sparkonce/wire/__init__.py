"""Connections and what is known of the cluster. Sockets live in `connection`, nowhere else."""

from sparkonce.wire.address import Address
from sparkonce.wire.client import Client
from sparkonce.wire.cluster import Cluster
from sparkonce.wire.connection import Connection, NotKafka
from sparkonce.wire.request import Message, Produce
from sparkonce.wire.security import Security

__all__ = [
    "Address",
    "Client",
    "Cluster",
    "Connection",
    "Message",
    "NotKafka",
    "Produce",
    "Security",
]
