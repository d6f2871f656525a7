"""Formats of webhooks: ours, or one of a protocol adapter, which is named before the scheme of a stored URL."""

from __future__ import annotations

import re
from typing import Final

STANDARD: Final = "standard"
_NAMED: Final = re.compile(r"([a-z]+)\+(https?://.*)", re.DOTALL)


def address(dialect: str, url: str) -> str:
    """A URL as it is stored."""
    return url if dialect == STANDARD else f"{dialect}+{url}"


def format_of(address: str) -> tuple[str, str]:
    """The format that a stored address names, and the URL itself."""
    named = _NAMED.fullmatch(address)
    return (STANDARD, address) if named is None else (named[1], named[2])
