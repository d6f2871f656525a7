"""What MoonMind's clients send: fields by either of their names, and lists as they are meant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Self

import msgspec
from msgspec import Meta

from interlock.api import body
from interlock.api.face import Lenient

Text = Annotated[str, Meta(min_length=1)]


class Asked(Lenient, frozen=True, kw_only=True):
    """The base of its bodies: a field is taken as `workerId` and as `worker_id`; given both ways, the first counts."""

    @classmethod
    def read(cls, raw: bytes, *, limit: int, mends: bool) -> tuple[Self, bool]:
        judged, mended = body.decode(raw, msgspec.Raw, limit=limit, mends=mends)
        try:
            return cls.of(judged), mended
        except msgspec.ValidationError as error:
            raise body.invalid(error) from None

    @classmethod
    def of(cls, raw: msgspec.Raw) -> Self:
        """From JSON that was judged before."""
        members = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        spelled = {one.name: one.encode_name for one in msgspec.structs.fields(cls) if one.name != one.encode_name}
        if members.keys().isdisjoint(spelled):
            return msgspec.json.decode(raw, type=cls)
        by_alias = {spelled[name]: value for name, value in members.items() if name in spelled}
        return msgspec.json.decode(msgspec.json.encode(by_alias | members), type=cls)


def stripped(values: Sequence[str] | None) -> list[str]:
    """Names without the space around them, each once; empty ones are none."""
    return sorted({value.strip() for value in values or ()} - {""})
