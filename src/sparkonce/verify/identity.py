"""A record's identity is its value, padded to the record's size; shown without the padding."""

from __future__ import annotations

import re
from typing import Final

PAD: Final = "~"
_PADDED: Final = re.compile(f"({PAD}+)$")


def short(identity: str) -> str:
    """An identity without its padding, but with its length: a value that was cut is another one."""
    return _PADDED.sub(lambda found: f"{PAD}{len(found[1])}", identity)
