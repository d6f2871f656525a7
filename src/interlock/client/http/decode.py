"""Decoding of responses of the native API into domain values; JSON of jobs keeps its exact bytes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct

from interlock import wire
from interlock.client.protocol import LeasedJob
from interlock.domain.approval import Approval, OnDeny
from interlock.domain.job import HeartbeatReply, HistoryRow, Job, Receipt
from interlock.domain.progress import EventRow, StepRow
from interlock.domain.registry import QueueStats
from interlock.errors import Error
from interlock.wire import responses
from interlock.wire.job import job_of, listed_job_of, text

T = TypeVar("T")


class EnqueuedShape(Struct):
    id: str
    seq: int
    replayed: bool = False


class EnqueuedShapes(Struct):
    jobs: list[EnqueuedShape]


class OpenedShape(Struct):
    receipt: responses.Receipt


class QueueShape(Struct):
    type: str
    ready: int
    delayed: int
    blocked: int
    in_progress: int
    waiting_for_approval: int
    dead_letter: int
    succeeded: int
    failed: int
    cancelled: int
    enqueued_per_minute: float
    started_per_minute: float
    succeeded_per_minute: float
    failed_per_minute: float
    paused_at: datetime | None
    paused_by: str | None
    pause_reason: str | None
    oldest_ready_seconds: float | None = None


class MeShape(Struct):
    worker: str | None = None
    roles: tuple[str, ...] = ()


class InterruptedShape(Struct):
    ids: list[str]


class SavedShape(Struct):
    seq: int


class EmittedShape(Struct):
    seqs: tuple[int, ...]


class NamedShape(Struct):
    id: str


class PageShape(Struct):
    items: list[Raw]
    next_cursor: str | None = None


class ItemsShape(Struct):
    items: list[Raw]


class RefusedShape(Struct):
    error: dict[str, Any] | None = None


def read(body: bytes | Raw, kind: type[T]) -> T:
    """Decode a response; another format means that it does not come from an Interlock server."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise Error(f"cannot decode the response of the server: {error}") from None


def job(body: bytes | Raw) -> Job:
    return job_of(read(body, responses.Job))


def listed_job(body: bytes | Raw) -> Job:
    """Decode an item of a list; fields that lists omit are None."""
    return listed_job_of(read(body, responses.ListedJob))


def leased_jobs(body: bytes) -> list[LeasedJob]:
    return [
        LeasedJob(job_of(one), [step(row, one.id) for row in one.steps], [_decided(row, one) for row in one.approvals])
        for one in read(body, responses.Claimed).jobs
    ]


def step(shape: responses.Step, job_id: str) -> StepRow:
    return _filled(StepRow, shape, {"job_id": job_id, "result": bytes(shape.result).decode()})


def event(shape: responses.Event) -> EventRow:
    return _filled(EventRow, shape, {})


def receipt(shape: responses.Receipt) -> Receipt:
    return _filled(Receipt, shape, {})


def heartbeat_reply(shape: responses.HeartbeatReply) -> HeartbeatReply:
    return _filled(HeartbeatReply, shape, {})


def history(shape: responses.HistoryRow, job_id: str) -> HistoryRow:
    given = {"job_id": job_id, "from_status": shape.from_, "to_status": shape.to, "hash": bytes.fromhex(shape.hash)}
    return _filled(HistoryRow, shape, given)


def queue(shape: QueueShape) -> QueueStats:
    """Convert queue statistics. The server reports an age, which becomes a time by the clock of this machine."""
    age = shape.oldest_ready_seconds
    oldest = None if age is None else round((time.time() - age) * 1_000_000)
    return _filled(QueueStats, shape, {"oldest_ready_at": oldest})


def micros(value: datetime) -> int:
    found = wire.instant(value, "at")
    assert found is not None
    return found


def _decided(shape: responses.Decided, of: Any) -> Approval:
    """Convert a decision. Voters and other members that a worker does not receive stay empty."""
    return Approval(
        tenant=of.tenant, id=shape.id, job_id=of.id, fence=0, status=shape.status, prompt=shape.prompt,
        details=text(shape.details), risk=None, schema=text(shape.schema), digest=shape.digest, required=1,
        name=shape.name, occurrence=shape.occurrence, on_deny=OnDeny.FAIL, opened_by="", opened_at=0, expires_at=0,
        closed_by=None, closed_at=micros(shape.decided_at),
        comment=shape.comment, data=text(shape.data),
        token_sha256=None, link_created_by=None, link_created_at=None,
        votes=(),
    )  # fmt: skip


def _filled(kind: Callable[..., T], shape: Struct, given: Mapping[str, object]) -> T:
    fields: tuple[str, ...] = kind._fields  # type: ignore[attr-defined]
    return kind(**{name: given[name] if name in given else _plain(getattr(shape, name)) for name in fields})


def _plain(value: Any) -> Any:
    if isinstance(value, Raw):
        return text(value)
    return micros(value) if isinstance(value, datetime) else value
