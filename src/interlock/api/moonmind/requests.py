"""Request bodies of MoonMind clients: field names in both spellings, and lists and texts without padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Self

import msgspec
from msgspec import Meta

from interlock.api import body
from interlock.api.adapter import Lenient

Text = Annotated[str, Meta(min_length=1)]


class MoonmindRequest(Lenient, frozen=True, kw_only=True):
    """The base of the bodies: a field is accepted as `workerId` and as `worker_id`; of both the first counts."""

    @classmethod
    def read(cls, raw: bytes, *, limit: int, sanitizes: bool) -> tuple[Self, bool]:
        checked, replaced = body.decode(raw, msgspec.Raw, limit=limit, sanitizes=sanitizes)
        try:
            return cls.of(checked), replaced
        except msgspec.ValidationError as error:
            raise body.invalid(error) from None

    @classmethod
    def of(cls, raw: msgspec.Raw) -> Self:
        """Decode JSON that was checked before; numbers and flags may be strings, as its server allows."""
        members = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        spelled = {one.name: one.encode_name for one in msgspec.structs.fields(cls) if one.name != one.encode_name}
        if not members.keys().isdisjoint(spelled):
            by_alias = {spelled[name]: value for name, value in members.items() if name in spelled}
            raw = msgspec.Raw(msgspec.json.encode(by_alias | members))
        return msgspec.json.decode(raw, type=cls, strict=False)


def stripped(values: Sequence[str] | None) -> list[str]:
    """Distinct names without the space around them, in order of their spelling; empty ones are dropped."""
    return sorted({value.strip() for value in values or ()} - {""})


def trimmed(value: str | None) -> str | None:
    """A text without the space around it, or None if nothing is left."""
    return (value or "").strip() or None
