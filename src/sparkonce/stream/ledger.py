"""The ledger: how far a pipeline has come, inside the transaction that its records are in.

It is a consumer group named like the transactional id. For each Kafka source the group has the next
offset to read, so that `kafka-consumer-groups` shows the pipeline's lag; the first of these
partitions carries, as its metadata, which batch of which checkpoint that was. Pure: what is read
and written here goes through `TransactionalProducer`. docs/spark.md has the layout for users.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from sparkonce.errors import SparkonceError
from sparkonce.guarantees import Guarantee
from sparkonce.produce import OffsetAndMetadata
from sparkonce.produce.identity import Partition

Offsets = dict[str, dict[str, int]]
"""As Spark writes a Kafka source's offsets: topic, partition (as text), next offset."""

LAYOUT = 2
_READABLE = (1, LAYOUT)
"""Layout 1 said nothing of state, and named groups in ways that another pipeline could be named."""
SEPARATOR = "~"
"""In names that are made from a pipeline's, and in no pipeline's own."""
_METADATA_BYTES_MAX = 3500
"""Brokers take 4096 by default (offset.metadata.max.bytes)."""
_CHECKPOINT_CHARS_MAX = 200
"""Of a location that is too long to keep: its end, which tells it from others."""


class LedgerError(SparkonceError):
    """Ledger and checkpoint don't fit together; nothing was started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The last batch that was recorded, and by whom."""

    query: str
    """Spark's query id: which checkpoint. For a batch job, its name."""
    batch: int
    number: int
    """Grows by one with each entry, whatever checkpoint it is from."""
    guarantee: str
    host: str
    pid: int
    checkpoint: str
    sources: tuple[str | tuple[str, ...], ...] | None
    """For each source its topics, or where it isn't Kafka its offset; None if too long to keep."""
    state: str | None = None
    """Which state belongs to the batch: the mark of a note in the checkpoint (`state`)."""
    layout: int = LAYOUT
    """In which it was read."""

    @property
    def is_a_mere_beginning(self) -> bool:
        """Whether it was signed by a new pipeline that has recorded nothing since."""
        return self.batch < 0 and self.sources == ()

    @property
    def came_first(self) -> bool:
        """Whether it was recorded before the data, which may then be missing, state and all:
        Spark runs the batch again for the sake of its state, and nothing of it is written."""
        return self.guarantee == Guarantee.AT_MOST_ONCE.value

    def __str__(self) -> str:
        return f"batch {self.batch} by process {self.pid} on {self.host}, {self.checkpoint}"


def group_name(group: str, number: int, layout: int = LAYOUT) -> str:
    """A topic that a second source of the same query reads has its own group."""
    between = "-" if layout == 1 else SEPARATOR
    return group if number == 0 else f"{group}{between}{number + 1}"


def run_query(run_id: str) -> str:
    """What the entry of a batch job has in place of Spark's query id."""
    return f"run {run_id}"


def to_commit(
    name: str, entry: Entry, sources: Sequence[Offsets | str], carrier: Partition | None
) -> dict[str, dict[Partition, OffsetAndMetadata]]:
    """What to commit, group by group, the first of them `name`; `carrier` bears the entry where no
    source is Kafka."""
    groups: list[dict[Partition, int]] = [{}]
    for source in sources:
        if isinstance(source, str):
            continue
        for topic, offsets in source.items():
            group = next((g for g in groups if not any(t == topic for t, _ in g)), None)
            if group is None:
                groups.append(group := {})
            group.update({(topic, int(index)): offset for index, offset in offsets.items()})
    if not groups[0]:
        if carrier is None:
            raise LedgerError("there is no topic to keep the ledger at: set the option topic")
        # One below zero, of a checkpoint that has just begun, would be no offset at all.
        groups[0] = {carrier: max(0, entry.batch)}
    note = _packed(replace(entry, sources=kept_sources(sources)))
    bearer = min(groups[0])
    return {
        group_name(name, number): {
            where: OffsetAndMetadata(offset, note if number == 0 and where == bearer else "")
            for where, offset in group.items()
        }
        for number, group in enumerate(groups)
    }


def kept_sources(sources: Sequence[Offsets | str]) -> tuple[str | tuple[str, ...], ...]:
    """As an entry has them: the topics of each, or the offset of one that isn't Kafka."""
    return tuple(each if isinstance(each, str) else tuple(sorted(each)) for each in sources)


def last_entry(committed: Mapping[Partition, OffsetAndMetadata]) -> Entry | None:
    """The newest entry; partitions that bore older ones may still have them."""
    entries = [entry for at in committed.values() if (entry := _unpacked(at.metadata))]
    return max(entries, key=lambda entry: entry.number, default=None)


def source_offsets(
    entry: Entry, groups: Sequence[Mapping[Partition, OffsetAndMetadata]]
) -> list[Offsets | str] | None:
    """The offsets of each source at the entry, put together again; None where too long to keep."""
    if entry.sources is None:
        return None
    seen: dict[str, int] = {}
    found: list[Offsets | str] = []
    for source in entry.sources:
        if isinstance(source, str):
            found.append(source)
            continue
        offsets: Offsets = {}
        for topic in source:
            group = groups[seen.get(topic, 0)]
            seen[topic] = seen.get(topic, 0) + 1
            offsets[topic] = {str(p): at.offset for (t, p), at in group.items() if t == topic}
        found.append(offsets)
    return found


def groups_needed(entry: Entry) -> int:
    topics = [t for source in entry.sources or () if not isinstance(source, str) for t in source]
    return max((topics.count(topic) for topic in topics), default=1)


def _packed(entry: Entry) -> str:
    """Where it is too long, what is only shown goes first, then what a lost checkpoint needs."""
    shorter = replace(entry, checkpoint=entry.checkpoint[-_CHECKPOINT_CHARS_MAX:])
    notes = []
    for each in (entry, shorter, replace(shorter, sources=None)):
        fields = asdict(each)
        del fields["layout"]
        notes.append(json.dumps({"sparkonce": LAYOUT, **fields}, separators=(",", ":")))
    return next((note for note in notes if len(note) <= _METADATA_BYTES_MAX), notes[-1])


def _unpacked(note: str) -> Entry | None:
    try:
        fields = json.loads(note)
    except ValueError:
        return None  # somebody else's note
    if not isinstance(fields, dict) or "sparkonce" not in fields:
        return None
    if (layout := fields.pop("sparkonce")) not in _READABLE:
        raise LedgerError(
            f"the ledger is written in layout {layout}, this version knows {LAYOUT}: "
            "run the pipeline with the version of sparkonce that it was last run with, or newer"
        )
    sources = fields.pop("sources")
    kept = (
        None if sources is None else tuple(s if isinstance(s, str) else tuple(s) for s in sources)
    )
    return Entry(**fields, sources=kept, layout=layout)
