"""Arrow columns become Kafka record batches: pure code, no clock, no network, no randomness."""

from sparkonce.encode.batch import HEADER_BYTES, EncodedBatch, seal
from sparkonce.encode.columns import check_columns, highest_partitions, topics_in
from sparkonce.encode.compress import Codec
from sparkonce.encode.encoder import Encoder
from sparkonce.encode.partition import NoShare, NotOwned, Partitioner
from sparkonce.encode.reject import Rejected

__all__ = [
    "HEADER_BYTES",
    "Codec",
    "EncodedBatch",
    "Encoder",
    "NoShare",
    "NotOwned",
    "Partitioner",
    "Rejected",
    "check_columns",
    "highest_partitions",
    "seal",
    "topics_in",
]
