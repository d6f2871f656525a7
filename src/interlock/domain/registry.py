"""Registered types and agents, and statistics of queues."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from interlock.domain.limits import Limit

RATE_MINUTES: Final = 5  # of which the rates of a queue are averages


class Defaults(NamedTuple):
    """Defaults for fields that a job does not set."""

    max_attempts: int | None = None
    backoff: str | None = None  # JSON
    lease_seconds: float | None = None
    timeout_seconds: float | None = None
    priority: int | None = None
    limits: Sequence[Mapping[str, Any]] | None = None  # name, key and cost of each
    budgets: Sequence[str] | None = None

    def over(self, other: Defaults) -> Defaults:
        """Return these defaults, with unset fields from the other ones."""
        if self is NO_DEFAULTS:
            return other
        given = {name: value for name, value in self._asdict().items() if value is not None}
        return other._replace(**given)

    def to_text(self) -> str | None:
        """Serialize the fields that are set, as stored; None if no field is set."""
        given = {name: value for name, value in self._asdict().items() if value is not None}
        return json.dumps(given, separators=(",", ":")) if given else None

    @classmethod
    def from_text(cls, text: str | None) -> Defaults:
        return cls(**json.loads(text)) if text else cls()


NO_DEFAULTS = Defaults()


class JobType(NamedTuple):
    """A registered type: the schema of its payload, the required capabilities of its workers, and defaults."""

    name: str
    schema: str | None = None  # JSON Schema of the payload, as JSON
    requires: tuple[str, ...] = ()
    defaults: Defaults = NO_DEFAULTS
    created_at: int = 0
    updated_at: int = 0


class Agent(NamedTuple):
    """An entity that jobs run for, with defaults and an optional concurrency limit."""

    kind: str
    id: str
    max_concurrency: int | None = None
    strict: bool = False
    defaults: Defaults = NO_DEFAULTS
    implicit: bool = False
    created_at: int = 0
    updated_at: int = 0


class Registry(NamedTuple):
    """The types of a tenant and their version; an enqueue checks that the version is still current."""

    version: int
    types: Mapping[str, JobType]
    limits: Mapping[str, Limit] = {}


class Minute(NamedTuple):
    """Counters of one type for one minute; minute 0 is all the time before the last hour.

    `waiting` and `running` are net changes. `failed` counts failed attempts, as in the rates.
    """

    type: str
    minute: int
    waiting: int = 0
    running: int = 0
    enqueued: int = 0
    succeeded: int = 0
    failed: int = 0


class QueueStats(NamedTuple):
    """Job counts of one type by location, and rates per minute: averages of the last `RATE_MINUTES`."""

    type: str
    ready: int = 0
    delayed: int = 0
    blocked: int = 0
    in_progress: int = 0
    waiting_for_approval: int = 0
    dead_letter: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    oldest_ready_at: int | None = None
    enqueued_per_minute: float = 0.0
    started_per_minute: float = 0.0
    succeeded_per_minute: float = 0.0
    failed_per_minute: float = 0.0
    paused_at: int | None = None
    paused_by: str | None = None
    pause_reason: str | None = None
