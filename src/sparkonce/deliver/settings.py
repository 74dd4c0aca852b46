"""What users set for a table as a sink, under the names of Spark's JDBC sink where it has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sparkonce.errors import ConfigError
from sparkonce.stream import settings
from sparkonce.stream.given import Given
from sparkonce.stream.settings import PipelineSettings, check_pipeline_name

OPTIONS = (
    "pipeline",
    "dbtable",
    "writeMode",
    "keyColumns",
    "deleteColumn",
    "sequenceBy",
    "createTable",
    "mergeSchema",
    "deadLetterTable",
    "ledgerTable",
    "numPartitions",
)
"""What every table takes; where it is, each names in its own way."""
LEDGER = "sparkonce_ledger"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings(PipelineSettings):
    """A writer's settings, checked."""

    place: str = field(repr=False)
    """The database's URL or path."""
    table: str
    upserts: bool
    keys: tuple[str, ...]
    """Columns that tell rows apart; needed for upserts, the primary key of a table made by us."""
    delete_column: str | None
    """True in rows that are to be deleted."""
    sequence_by: str | None
    """Which of several rows of a key in one batch is the newest."""
    creates: bool
    merges_schema: bool
    """Whether columns that the table lacks are added to it."""
    dead_letter_table: str | None
    ledger_table: str
    tasks_max: int | None
    """That write at once; None for as many as Spark has."""
    more: Mapping[str, str] = field(repr=False)
    """Options of this kind of table alone, and those handed through to the database."""

    @classmethod
    def parse(
        cls,
        options: Mapping[str, str],
        query_name: str | None,
        *,
        place: str,
        table: str = "dbtable",
        own: tuple[str, ...] = (),
        prefix: str | None = None,
        named_by: str = "pipeline",
    ) -> TableSettings:
        """`place` is the option that says where the database is, `table` the one that names the
        table in it, `own` are this kind's others."""
        given = Given.sort_out(options, (*settings.OPTIONS, *OPTIONS, place, *own), prefix=prefix)
        pipeline = given.get(named_by) or query_name or given.get("queryName")
        if pipeline is None:
            raise ConfigError(
                f"{named_by} is missing: name the pipeline, the same name after a restart and no "
                "other pipeline's (a queryName serves as well)"
            )
        check_pipeline_name(pipeline, named_by if given.get(named_by) else "queryName")
        keys = tuple(each.strip() for each in (given.get("keyColumns") or "").split(",") if each)
        upserts = given.one_of("writeMode", ["append", "upsert"], "append") == "upsert"
        _check_mode(given, keys, upserts=upserts)
        return cls(
            **settings.in_common(given),
            pipeline=pipeline,
            named_by=named_by,
            place=given.needed(place),
            table=given.needed(table),
            upserts=upserts,
            keys=keys,
            delete_column=given.get("deleteColumn"),
            sequence_by=given.get("sequenceBy"),
            creates=given.is_true("createTable"),
            merges_schema=given.is_true("mergeSchema"),
            dead_letter_table=given.get("deadLetterTable"),
            ledger_table=given.get("ledgerTable") or LEDGER,
            tasks_max=given.number("numPartitions", default=None, low=1),
            more={
                **{name: value for name in own if (value := given.get(name)) is not None},
                **{f"{prefix}{name}": value for name, value in given.prefixed.items()},
            },
        )


def _check_mode(given: Given, keys: tuple[str, ...], *, upserts: bool) -> None:
    if upserts and not keys:
        raise ConfigError(
            "writeMode=upsert needs keyColumns: the columns that tell rows apart, with commas"
        )
    for name in ("deleteColumn", "sequenceBy"):
        if given.get(name) and not upserts:
            raise ConfigError(f"{name} is for writeMode=upsert: set that, or leave {name} out")
