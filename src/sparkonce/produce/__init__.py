"""The producer: numbering, sending, the transaction's states, and the names users import."""

from sparkonce.produce.coordinator import OffsetAndMetadata
from sparkonce.produce.delivery import Delivery
from sparkonce.produce.identity import ProducerIdentity
from sparkonce.produce.producer import Producer
from sparkonce.produce.states import State
from sparkonce.produce.transactional import TransactionalProducer

__all__ = [
    "Delivery",
    "OffsetAndMetadata",
    "Producer",
    "ProducerIdentity",
    "State",
    "TransactionalProducer",
]
