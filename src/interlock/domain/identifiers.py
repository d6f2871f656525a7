"""Shortened IDs. IDs are time-ordered, so only their ends distinguish them."""

from __future__ import annotations

from typing import Final

MIN_END: Final = 8
_LENGTH: Final = 32
_GROUPS: Final = (12, 4, 4, 4, 8)  # of hexadecimal digits, from the end
_DIGITS: Final = frozenset("0123456789abcdef")


def id_end(text: str) -> str | None:
    """Return the canonical end of an ID, or None if the text has fewer than 8 digits or cannot be one."""
    digits = text.strip().lower().replace("-", "")
    if not MIN_END <= len(digits) <= _LENGTH or not _DIGITS.issuperset(digits):
        return None
    parts: list[str] = []
    for size in _GROUPS:
        if digits:
            parts.append(digits[-size:])
            digits = digits[:-size]
    return "-".join(reversed(parts))


def is_shortened(text: str) -> bool:
    """Return whether the text can be the end of an ID, but not a complete ID."""
    end = id_end(text)
    return end is not None and len(end.replace("-", "")) < _LENGTH
