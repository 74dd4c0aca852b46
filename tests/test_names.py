"""What users import is what is meant to be imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

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


@pytest.mark.parametrize(
    ("statement", "left_out"),
    [
        ("from sparkonce import TransactionalProducer", {"pyspark", "pandas"}),
        ("from sparkonce.ingest.source import TableSource", {"kafka", "pandas"}),
    ],
)
def test_nobody_waits_for_imports_of_others(statement: str, left_out: set[str]) -> None:
    program = f"import sys\n{statement}\nprint(*sys.modules)"
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert not left_out & set(said.stdout.split())
