"""What users import is what is meant to be imported."""

from __future__ import annotations

import sparkonce


def test_the_public_names_are_exact() -> None:
    assert sorted(sparkonce.__all__) == [
        "Delivery",
        "OffsetAndMetadata",
        "Producer",
        "ProducerIdentity",
        "TransactionalProducer",
    ]
    assert all(hasattr(sparkonce, name) for name in sparkonce.__all__)
