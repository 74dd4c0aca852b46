"""The words of the matrix and the page, explained for somebody who sees them first."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from sparkonce.verify.outcome import Defect, Verdict

DEFECTS: Mapping[Defect, str] = MappingProxyType(
    {
        Defect.LOST: "Went in, was confirmed, and never came out.",
        Defect.REPEATED: "Went in once and came out more than once.",
        Defect.REORDERED: "Came out after a record that it had gone in before.",
        Defect.UNKNOWN: "Came out, and never went in.",
        Defect.DIRTY: (
            "Seen by a reader of committed records only, and gone afterwards: it was part of an "
            "aborted transaction."
        ),
        Defect.ABORTED: (
            "Came out, and was part of an aborted transaction in the input: the pipeline has read "
            "what was never committed."
        ),
        Defect.TORN: "A transaction of which one part is visible and another is not.",
        Defect.SPLIT: (
            "Records of one key that were written in one transaction, and are in two partitions of "
            "a topic."
        ),
        Defect.OFFSETS: (
            "While the pipeline stood still, the source offsets it had committed and the records "
            "it had written did not agree."
        ),
        Defect.STATE: "What a stateful step has counted disagrees with what it wrote about it.",
        Defect.BACKWARDS: "A reader was handed an offset that it had been handed or passed before.",
        Defect.HANGING: "A transaction was left open: readers of committed records wait behind it.",
        Defect.UNMARKED: (
            "The pipeline claims transactions, and the log has batches without their mark, or no "
            "commit and abort markers."
        ),
        Defect.INTERFERENCE: (
            "The pipeline stood in the way of others in its database: a pg_dump beside it failed, "
            "or it was part of a deadlock."
        ),
    }
)

VERDICTS: Mapping[Verdict, str] = MappingProxyType(
    {
        Verdict.KEPT: "Nothing was found that the guarantee excludes.",
        Verdict.BROKEN: "Something was found that the guarantee excludes.",
        Verdict.SHOWN: "A control, meant to go wrong, and the verifier saw it go wrong.",
        Verdict.WEAK: "A control that did not show what it had to: the faults didn't bite.",
        Verdict.FAILED: "The trial itself could not be run to its end; it says nothing.",
    }
)
