"""Requests that prove a lease, and the check that the caller is the lease holder."""

from __future__ import annotations

import json
import uuid
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Annotated, Any, Protocol, TypeVar

import msgspec
from msgspec import Meta

from interlock import wire
from interlock.api import auth
from interlock.api.native.encode import kept
from interlock.api.routes import ABSENT, Request, RequestContext
from interlock.domain import json_text
from interlock.domain.job import Checkpoint, Rejected
from interlock.domain.progress import Event, Level
from interlock.errors import Error, Invalid, LeaseLost, TooLarge

_EVENTS = uuid.UUID("5b1f5f0e-6f0c-4f5e-9a54-0d7c3c1b8a11")

Fence = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Seq = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class LeaseRequest(Request, frozen=True, kw_only=True):
    """Proof of a lease: its fence, and the worker name if several instances share one credential."""

    fence: Fence
    worker: str | None = None


class LeaseRequestItem(LeaseRequest, frozen=True, kw_only=True):
    """An item of a batch, with its job ID."""

    id: str


class CheckpointPart(Request, frozen=True, kw_only=True):
    """A checkpoint to save."""

    seq: Seq
    data: msgspec.Raw

    def of(self, id: str, fence: int, worker: str, *, sanitized: bool) -> Checkpoint:
        return Checkpoint(id, fence, worker, self.seq, bytes(self.data).decode(), sanitized)


class EventPart(Request, frozen=True, kw_only=True):
    """A progress event. An event with a known ID is not added again.

    `at` is the time of recording, for events sent later. A time outside the lease becomes its start, or now.
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
    """Return the events of a request. The error for an invalid event points to its position."""
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
    """Return the UUID of an event. Any other ID of the caller is mapped to a UUID, always the same one."""
    if given is None:
        return wire.new_id()
    try:
        return str(uuid.UUID(given))
    except ValueError:
        return str(uuid.uuid5(_EVENTS, wire.name(given, "id")))


def count(value: dict[str, Any] | None) -> str | None:
    """Return the usage of a run as stored."""
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


T = TypeVar("T")
O = TypeVar("O")  # noqa: E741 - an order


class LeaseProof(Protocol):
    """The lease that a request refers to."""

    @property
    def fence(self) -> int: ...
    @property
    def worker(self) -> str | None: ...


class LeaseProofItem(LeaseProof, Protocol):
    """A lease in a batch, with its job ID."""

    @property
    def id(self) -> str: ...


async def as_holder(
    call: RequestContext[Any, Any],
    lease: LeaseProof,
    act: Callable[[str, str], Awaitable[T]],
    *,
    job_id: str | None = None,
) -> T:
    """Act on the job of the path as its lease holder. The caller may omit the name of its worker instance."""
    job_id = call.job_id if job_id is None else job_id
    name = auth.worker_name(call.who, lease.worker)
    try:
        return await act(job_id, name)
    except LeaseLost:
        holder = await _other_holder(call, job_id, lease, name)
        if holder is None:
            raise
    return await act(job_id, holder)


async def as_holders(
    call: RequestContext[Any, Any],
    items: Sequence[LeaseProofItem],
    order: Callable[[int, str], O],
    act: Callable[[str, Sequence[O]], Awaitable[list[T | Rejected]]],
) -> list[T | Rejected]:
    """Act on a batch; each command is built from the index of its item and a worker name.

    Items whose lease holder must be looked up go into a second batch.
    """
    made = [_made(call, order, i, item) for i, item in enumerate(items)]
    good = [one for one in made if not isinstance(one, Rejected)]
    results = iter(await act(call.who.tenant, good) if good else ())
    answers = [one if isinstance(one, Rejected) else next(results) for one in made]
    again: dict[int, str] = {}
    for i, given in enumerate(answers):
        if isinstance(given, Rejected) and isinstance(given.error, LeaseLost):
            holder = await _other_holder(call, items[i].id, items[i], auth.worker_name(call.who, items[i].worker))
            if holder is not None:
                again[i] = holder
    if again:
        orders = [order(i, holder) for i, holder in again.items()]
        for i, given in zip(again, await act(call.who.tenant, orders), strict=True):
            answers[i] = given
    return answers


def _made(call: RequestContext[Any, Any], order: Callable[[int, str], O], i: int, item: LeaseProofItem) -> O | Rejected:
    """Build the command for one item; an invalid item, or one with another caller's worker, is rejected alone."""
    try:
        return order(i, auth.worker_name(call.who, item.worker))
    except Error as error:
        return Rejected(error)


async def _other_holder(call: RequestContext[Any, Any], job_id: str, lease: LeaseProof, tried: str) -> str | None:
    """Return the worker instance that holds the lease, if the caller named none and it is one of the caller's."""
    if lease.worker is not None:
        return None
    holder = await call.engine.holders.of(call.who.tenant, job_id, lease.fence)
    return holder if holder != tried and auth.is_own_worker(call.who, holder) else None
