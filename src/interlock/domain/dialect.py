"""In whose words a webhook is told: our own, or those of a protocol that is served beside it."""

from __future__ import annotations

from enum import StrEnum


class Dialect(StrEnum):
    """A way to word and to sign what a receiver gets."""

    STANDARD = "standard"
    CODEQ = "codeq"

    def address(self, url: str) -> str:
        """A URL as it is kept: the dialect stands before its scheme, save for our own."""
        return url if self is Dialect.STANDARD else f"{self}+{url}"


def spoken(address: str) -> tuple[Dialect, str]:
    """The dialect that a kept address asks for, and the URL itself."""
    before, plus, url = address.partition("+")
    if plus and before in tuple(Dialect):
        return Dialect(before), url
    return Dialect.STANDARD, address
