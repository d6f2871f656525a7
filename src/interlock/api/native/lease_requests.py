"""What every request of a holder carries, and the parts that several of them share."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from interlock import wire
from interlock.api.native.encode import kept
from interlock.api.routes import ABSENT, Request, RequestContext
from interlock.domain import json_text
from interlock.domain.job import Checkpoint
from interlock.domain.progress import Event, Level
from interlock.errors import Invalid, TooLarge

_EVENTS = uuid.UUID("5b1f5f0e-6f0c-4f5e-9a54-0d7c3c1b8a11")

Fence = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Seq = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class LeaseRequest(Request, frozen=True, kw_only=True):
    """Proof of a lease: its fence, and the worker's name where one credential runs several instances."""

    fence: Fence
    worker: str | None = None


class LeaseRequestItem(LeaseRequest, frozen=True, kw_only=True):
    """An item of a batch, which names its job."""

    id: str


class CheckpointPart(Request, frozen=True, kw_only=True):
    """Progress that comes along."""

    seq: Seq
    data: msgspec.Raw

    def of(self, id: str, fence: int, worker: str, *, sanitized: bool) -> Checkpoint:
        return Checkpoint(id, fence, worker, self.seq, bytes(self.data).decode(), sanitized)


class EventPart(Request, frozen=True, kw_only=True):
    """A message about progress; the same id again adds nothing.

    `at` is when it was recorded, if it is sent later; a time outside the lease counts as its begin, or as now.
    """

    message: str
    level: Level = Level.INFO
    payload: msgspec.Raw = ABSENT
    id: str | None = None
    at: datetime | None = None

    def event(self, *, sanitized: bool, limit: int) -> Event:
        payload = kept(self.payload)
        if (size := len(self.message.encode()) + len((payload or "").encode())) > limit:
            raise TooLarge("event", size, limit)
        at = wire.instant(self.at, "at")
        return Event(_event_id(self.id), self.level, self.message, payload, sanitized, at)


def events_of(call: RequestContext[Any, Any], parts: Sequence[EventPart], *, sanitized: bool) -> tuple[Event, ...]:
    """The events of a request; an invalid one is named by its position."""
    events = []
    for i, part in enumerate(parts):
        try:
            events.append(part.event(sanitized=sanitized, limit=call.engine.limits.event))
        except Invalid as error:
            raise error.within(f"/events/{i}") from None
        except TooLarge as error:
            error.pointer = f"/events/{i}"
            raise
    return tuple(events)


def _event_id(given: str | None) -> str:
    """Events are kept under UUIDs; any other name of the caller's stands for one, always the same."""
    if given is None:
        return wire.new_id()
    try:
        return str(uuid.UUID(given))
    except ValueError:
        return str(uuid.uuid5(_EVENTS, wire.name(given, "id")))


def count(value: dict[str, Any] | None) -> str | None:
    """What a run has used, as kept."""
    return None if value is None else wire.encode_json(value, what="usage").decode()


def odd_items(call: RequestContext[Any, Any]) -> list[bool]:
    """Return which items of a batch contained invalid Unicode that was replaced."""
    return (
        [] if call.unsanitized is None else [not _is_sound(item) for item in json_text.loads(call.unsanitized)["items"]]
    )


def _is_sound(value: object) -> bool:
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        return False
    return True
