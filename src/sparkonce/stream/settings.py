"""What users set on a writer, whatever the sink; checked before anything starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from sparkonce.errors import ConfigError
from sparkonce.guarantees import Guarantee
from sparkonce.stream.given import Given
from sparkonce.stream.ledger import SEPARATOR

OPTIONS = (
    "guarantee",
    "checkpointLocation",
    "queryName",
    "batchAttempts",
    "ledgerLost",
    "lostState",
    "runId",
)
"""What every sink takes."""


class InCommon(TypedDict):
    """The options that every sink takes, checked."""

    guarantee: Guarantee
    attempts_max: int
    ledger_lost: str
    lost_state: str
    run_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings:
    """What every sink's settings have."""

    guarantee: Guarantee
    attempts_max: int
    ledger_lost: str
    lost_state: str
    run_id: str | None
    pipeline: str
    """Its name: the same after a restart, and no other pipeline's."""
    named_by: str
    """The option that gives the name, for messages."""

    @property
    def group(self) -> str:
        """Under what name the ledger is kept; a batch job has one for each of its runs."""
        if self.run_id is None:
            return self.pipeline
        return f"{self.pipeline}{SEPARATOR}run{SEPARATOR}{self.run_id}"

    @property
    def former_group(self) -> str | None:
        """Where version 0.1.0 kept the ledger of a batch job's run; that could be the name of
        another pipeline as well."""
        return None if self.run_id is None else f"{self.pipeline}-run-{self.run_id}"


def check_pipeline_name(name: str, named_by: str) -> str:
    """One that can't be taken for the name of another pipeline's run, or of its second group."""
    if SEPARATOR in name:
        raise ConfigError(
            f"{named_by}={name!r} has a {SEPARATOR!r} in it: that sets apart the parts of names "
            "which are made from a pipeline's, such as those of its runs. Choose a name without it"
        )
    return name


def in_common(given: Given) -> InCommon:
    guarantees = [each.value for each in Guarantee]
    return InCommon(
        guarantee=Guarantee(given.one_of("guarantee", guarantees, "exactly_once")),
        attempts_max=given.number("batchAttempts", default=3, low=1),
        ledger_lost=given.one_of("ledgerLost", ["fail", "replay", "skip"], "fail"),
        lost_state=given.one_of("lostState", ["fail", "empty"], "fail"),
        run_id=given.get("runId"),
    )
