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
        "deduplicate",
        "guarded",
        "read_stream",
        "session",
        "source",
        "write",
        "write_stream",
    ]
    assert all(hasattr(sparkonce, name) for name in sparkonce.__all__)


def test_the_session_is_a_function_whatever_was_imported_before() -> None:
    from sparkonce.sessions import connector_packages

    assert connector_packages()
    assert callable(sparkonce.session)
