"""What is known beforehand of types and agents, and how many jobs of a type are where."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple


class Defaults(NamedTuple):
    """Defaults for fields that a job does not set."""

    max_attempts: int | None = None
    backoff: str | None = None  # JSON
    lease_seconds: float | None = None
    timeout_seconds: float | None = None
    priority: int | None = None

    def over(self, other: Defaults) -> Defaults:
        """These, and where they say nothing the others."""
        if self is NO_DEFAULTS:
            return other
        given = {name: value for name, value in self._asdict().items() if value is not None}
        return other._replace(**given)

    def to_text(self) -> str | None:
        """What is said, as the JSON text that is stored; None where nothing is."""
        given = {name: value for name, value in self._asdict().items() if value is not None}
        return json.dumps(given, separators=(",", ":")) if given else None

    @classmethod
    def from_text(cls, text: str | None) -> Defaults:
        return cls(**json.loads(text)) if text else cls()


NO_DEFAULTS = Defaults()


class JobType(NamedTuple):
    """A registered type: what its payload must look like, what its workers must be able to do, and defaults."""

    name: str
    schema: str | None = None  # JSON Schema of the payload, as JSON
    requires: tuple[str, ...] = ()
    defaults: Defaults = NO_DEFAULTS
    created_at: int = 0
    updated_at: int = 0


class Agent(NamedTuple):
    """Whom jobs are for; with a limit its jobs stand in a line."""

    kind: str
    id: str
    max_concurrency: int | None = None
    strict: bool = False
    defaults: Defaults = NO_DEFAULTS
    implicit: bool = False
    created_at: int = 0
    updated_at: int = 0


class Registry(NamedTuple):
    """The types of a tenant, as of a version that an enqueue is held against."""

    version: int
    types: Mapping[str, JobType]


class Minute(NamedTuple):
    """How the jobs of one type moved within a minute; minute 0 is all the time before the last hour.

    `waiting` and `running` are by how many they became more or fewer; a failed try counts as failed, as in the rates.
    """

    type: str
    minute: int
    waiting: int = 0
    running: int = 0
    enqueued: int = 0
    succeeded: int = 0
    failed: int = 0


class QueueStats(NamedTuple):
    """How many jobs of one type are where, and how they move."""

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
