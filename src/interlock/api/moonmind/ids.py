"""Ids as MoonMind clients see them.

Its workers name branches by the first eight characters of a job id. Ours begin with the time, so that jobs of one
minute share them. Here the random last digits come first: TTTTTTTT-TTTT-7AAA-VVVV-CCCCRRRRRRRR is written as
RRRRRRRR-CCCC-4AAA-VVVV-TTTTTTTTTTTT. The version digit marks the form, so that ids of both forms are accepted.
"""

from __future__ import annotations

import re
from typing import Final
from uuid import UUID

_OURS: Final = re.compile(
    r"\b([0-9a-f]{8})-([0-9a-f]{4})-7([0-9a-f]{3})-([89ab][0-9a-f]{3})-([0-9a-f]{4})([0-9a-f]{8})\b"
)
_THEIRS: Final = re.compile(
    r"([0-9a-f]{8})-([0-9a-f]{4})-4([0-9a-f]{3})-([89ab][0-9a-f]{3})-([0-9a-f]{8})([0-9a-f]{4})"
)


def encode(text: str) -> str:
    """Write every id in a text in the form of MoonMind clients."""
    return _OURS.sub(r"\6-\5-4\3-\4-\1\2", text)


def decode(text: str) -> str:
    """Return our form of an id that a client sent; other text is returned as it is."""
    try:
        plain = str(UUID(text.removeprefix("mm:")))
    except ValueError:
        return text
    return _THEIRS.sub(r"\5-\6-7\3-\4-\2\1", plain)
