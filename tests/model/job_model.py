"""One job of the model: its fields, its history, and the comparison with the job of a store."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from interlock.domain.job import Checkpoint, HistoryRow, Job, NewJob, Receipt
from interlock.domain.lifecycle import Status, Verb
from interlock.domain.message import SendMessage
from interlock.wire import instant

SECOND = 1_000_000
NEVER = 1 << 62
ENDED = (Status.SUCCEEDED, Status.FAILED, Status.DEAD_LETTER, Status.CANCELLED)
WAITING = (Status.QUEUED, Status.RETRY)
# The errors that Interlock words itself.
OUR_KINDS = ("timeout", "lease_expired", "revoked", "deadline", "approval_denied", "approval_expired")

Facts = dict[str, Any]


class HistoryLine(NamedTuple):
    """A row of history without its hash; metadata is parsed."""

    version: int
    origin: Status | None
    target: Status
    verb: Verb
    actor: str
    attempt: int
    fence: int
    reason: str | None
    metadata: Facts | None
    at: int


class End(NamedTuple):
    """How a lease ended; a receipt only if its worker ended it."""

    verb: Verb
    actor: str
    receipt: Receipt | None


class Replay(NamedTuple):
    """The key of an enqueue was there before, with the same body."""

    id: str


@dataclass
class JobModel:
    """One job."""

    created: NewJob
    created_at: int
    run_at: int
    priority: int
    deadline: int | None
    max_attempts: int
    seq: int = 0
    status: Status = Status.QUEUED
    attempt: int = 1
    version: int = 1
    fence: int = 0
    releases: int = 0
    worker: str | None = None
    lease_seconds: float = 0.0
    lease_expires_at: int | None = None
    heartbeat_at: int | None = None
    started_at: int | None = None
    kept_place: bool = False  # when it last stopped running
    run_started_at: int | None = None
    finished_at: int | None = None
    updated_at: int = 0
    cancel_requested_at: int | None = None
    cancel_reason: str | None = None
    approval_id: str | None = None
    awaiting: set[str] = field(default_factory=set)
    checkpoint: Checkpoint | None = None
    result: str | None = None
    result_summary: str | None = None
    usage: str | None = None
    error: Facts | None = None
    acknowledged_at: int | None = None
    acknowledged_by: str | None = None
    sanitized: bool = False
    history: list[HistoryLine] = field(default_factory=list)
    ends: dict[int, End] = field(default_factory=dict)

    @classmethod
    def begin(cls, new: NewJob, now: int) -> JobModel:
        if new.delay_seconds is not None:
            run_at = now + micros(new.delay_seconds)
        else:
            run_at = now if new.run_at is None else new.run_at
        life = cls(new, now, run_at, new.priority, new.deadline, new.max_attempts, updated_at=now)
        life.history.append(HistoryLine(1, None, Status.QUEUED, Verb.ENQUEUE, new.created_by, 1, 0, None, None, now))
        return life

    @property
    def id(self) -> str:
        return self.created.id

    @property
    def agent(self) -> str | None:
        return self.created.agent_id

    def run_ends_at(self) -> int:
        if self.created.timeout_seconds is None or self.run_started_at is None:
            return NEVER
        return self.run_started_at + micros(self.created.timeout_seconds)

    def late(self, now: int) -> bool:
        return self.deadline is not None and self.deadline <= now

    def leased_by(self, fence: int, worker: str) -> bool:
        return self.status == Status.RUNNING and self.fence == fence and self.worker == worker

    def record(self, tenant: str) -> Facts:
        """The job as `plain` makes it of a store's answer."""
        own = {name: getattr(self, name) for name in Job._fields if name in self.__dict__}
        saved = self.checkpoint
        return {
            "tenant": tenant,
            **{name: getattr(self.created, name) for name in Job._fields if name in NewJob._fields}, **own,
            "checkpoint": saved and saved.data, "checkpoint_seq": saved and saved.seq,
            "sanitized": self.sanitized or (saved is not None and saved.sanitized),
            "awaiting": sorted(self.awaiting), "awaiting_message": None, "tags": sorted(self.created.tags), "requires": sorted(self.created.requires),
        }  # fmt: skip


def micros(seconds: float) -> int:
    return round(seconds * SECOND)


def plain(job: Job) -> Facts:
    """A store's job for comparison: lists sorted, errors parsed, our messages blanked; the location shows blocking."""
    facts = job._asdict()
    del facts["blocked"]
    for name in ("awaiting", "tags", "requires"):
        facts[name] = sorted(facts[name])
    facts["error"] = plain_error(json.loads(job.error)) if job.error is not None else None
    return facts


def plain_line(row: HistoryRow) -> HistoryLine:
    facts = {} if row.metadata is None else json.loads(row.metadata)
    facts.pop("digests", None)  # tests of contents are in tests/contract/test_digests.py
    return HistoryLine(
        *row[1:9], None if not facts else {name: plain_fact(name, fact) for name, fact in facts.items()}, row.at
    )


def plain_fact(name: str, fact: Any) -> Any:
    if name == "error":
        return plain_error(fact)
    return instant(datetime.fromisoformat(fact), name) if name in ("run_at", "deadline") and fact is not None else fact


def plain_error(error: Facts) -> Facts:
    return {**error, "message": "…"} if error["kind"] in OUR_KINDS and error["message"] else error


def commit_seq(life: JobModel) -> tuple[int, int, int]:
    return -life.priority, life.run_at, life.seq


def receipt(life: JobModel) -> Receipt:
    """The newest row of history."""
    line = life.history[-1]
    facts = line.metadata or {}
    ended = line.at if line.target in ENDED and line.origin != line.target else None
    attempt = facts.get("attempt", line.attempt)
    return Receipt(life.id, line.fence, line.target, attempt, line.version, facts.get("run_at"), ended)


def retry_delay(life: JobModel, retry_after_seconds: float | None) -> tuple[int, int]:
    """The least and the most to wait after the attempt that just failed."""
    if retry_after_seconds is not None:
        least = most = retry_after_seconds
    else:
        policy: Facts = json.loads(life.created.backoff) if life.created.backoff else {}
        kind, base = policy.get("kind", "full_jitter"), policy.get("base_seconds", 1.0)
        growth = {"fixed": 1, "linear": life.attempt}.get(kind, policy.get("multiplier", 2.0) ** (life.attempt - 1))
        most = min(policy.get("max_seconds", 300.0), base * growth)
        least = most * {"full_jitter": 0.0, "equal_jitter": 0.5}.get(kind, 1.0)
    return max(micros(least), SECOND // 10), max(micros(most), SECOND // 10)


def by_seq(lives: Iterable[JobModel]) -> list[JobModel]:
    return sorted(lives, key=lambda life: life.seq)


class Jobs:
    """The jobs of one tenant, their messages, and which types are paused: what every part of the model looks at."""

    def __init__(self) -> None:
        self.jobs: dict[str, JobModel] = {}
        self.paused: set[str] = set()
        self.inbox: dict[str, list[SendMessage]] = defaultdict(list)
