"""Schedules in JSON: the request, and the response body."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import msgspec

from interlock.domain.schedule import CatchUp, Overlap, Schedule
from interlock.wire import JobRequest, responses
from interlock.wire.encode import serializer, when


class ScheduleRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A schedule: its times, and the job that each tick enqueues."""

    job: JobRequest
    cron: str | None = None
    every_seconds: float | None = None
    timezone: str = "UTC"
    overlap: Overlap = Overlap.ALLOW
    catch_up: CatchUp = CatchUp.NONE
    jitter_seconds: float = 0
    starts_at: datetime | None = None
    ends_at: datetime | None = None


class ScheduleShape(responses.Shape, frozen=True, kw_only=True):
    """A schedule, with its next tick and the result of its last tick."""

    name: str
    cron: str | None
    every_seconds: float | None
    timezone: str
    starts_at: datetime | None
    ends_at: datetime | None
    job: dict[str, Any]
    overlap: Overlap
    catch_up: CatchUp
    jitter_seconds: float
    next_at: datetime | None
    last_at: datetime | None
    last_job_id: str | None
    last_error: str | None
    paused: bool
    paused_at: datetime | None
    paused_by: str | None
    version: int
    created_at: datetime
    created_by: str
    updated_at: datetime


class Ticks(responses.Shape, frozen=True, kw_only=True):
    """Times of ticks, earliest first."""

    items: list[datetime]


schedule_to_dict: Final = serializer(
    Schedule,
    json=["job"],
    next_at=lambda kept: None if kept.paused_at is not None else when(kept.next_at),
    paused=lambda kept: kept.paused_at is not None,
)
