"""Webhook formats: the standard one, or that of a protocol adapter, stored as a prefix of the URL scheme."""

from __future__ import annotations

import re
from typing import Final

STANDARD: Final = "standard"
_NAMED: Final = re.compile(r"([a-z]+)\+(https?://.*)", re.DOTALL)


def address(dialect: str, url: str) -> str:
    """Return the stored form of a URL."""
    return url if dialect == STANDARD else f"{dialect}+{url}"


def format_of(address: str) -> tuple[str, str]:
    """Return the format and the URL of a stored address."""
    named = _NAMED.fullmatch(address)
    return (STANDARD, address) if named is None else (named[1], named[2])
