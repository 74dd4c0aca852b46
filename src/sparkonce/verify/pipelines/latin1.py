"""A database that is not in UTF-8, beside the one that pipelines use otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import psycopg

from sparkonce.verify.contract import Job

TEXT: Final = "é"
"""Its bytes in UTF-8 are two other letters in LATIN1."""
OTHER_TEXT: Final = "Ã©"
"""Its bytes in LATIN1 are another letter in UTF-8: no error tells who takes them for that."""
_DATABASE: Final = "verify_latin1"


def create(connection: psycopg.Connection) -> None:
    """Unless it is there."""
    connection.autocommit = True
    # Others of this round do the same.
    connection.execute("SELECT pg_advisory_lock(hashtext('verify'))")
    known = "SELECT FROM pg_database WHERE datname = %s"
    if not connection.execute(known, [_DATABASE]).fetchall():
        connection.execute(
            f"CREATE DATABASE {_DATABASE} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0"
        )


def within(job: Job) -> Job:
    """The same job, in that database."""
    server, _, _ = job.services["postgres"].rpartition("/")
    return replace(job, services={"postgres": f"{server}/{_DATABASE}"})
