"""What the specification says about jobs, as plain Python on plain objects: no lock, no SQL, no shared code with the stores.

Time comes in as an argument. Answers are what a store would say, with refusals as their codes. Where the rules leave room (a
delay with jitter) the model takes what the store chose, if it is within bounds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from interlock.domain.decide import (
    Cancel,
    CancelAck,
    Complete,
    Expire,
    Fail,
    Finish,
    Order,
    PassDeadline,
    Release,
    Revoke,
)  # fmt: skip
from interlock.domain.job import Beat, Checkpoint, Filter, HistoryRow, Job, NewJob, Pulse, Receipt
from interlock.domain.lifecycle import Status, Verb
from interlock.domain.policy import ClaimAsk

SECOND = 1_000_000
NEVER = 1 << 62
ENDED = (Status.SUCCEEDED, Status.FAILED, Status.DEAD_LETTER, Status.CANCELLED)
WAITING = (Status.QUEUED, Status.RETRY)
OUR_KINDS = ("timeout", "lease_expired", "revoked", "deadline")  # the errors that Interlock words itself

Facts = dict[str, Any]


class Line(NamedTuple):
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
    """How a grant ended; a receipt only if its worker ended it."""

    verb: Verb
    actor: str
    receipt: Receipt | None


class Replay(NamedTuple):
    """The key of an enqueue was there before, with the same body."""

    id: str


@dataclass
class Life:
    """One job."""

    born: NewJob
    created_at: int
    run_at: int
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
    run_started_at: int | None = None
    finished_at: int | None = None
    updated_at: int = 0
    cancel_requested_at: int | None = None
    cancel_reason: str | None = None
    awaiting: set[str] = field(default_factory=set)
    checkpoint: Checkpoint | None = None
    result: str | None = None
    result_summary: str | None = None
    usage: str | None = None
    error: Facts | None = None
    sanitized: bool = False
    history: list[Line] = field(default_factory=list)
    ends: dict[int, End] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return self.born.id

    def run_ends_at(self) -> int:
        if self.born.timeout_seconds is None or self.run_started_at is None:
            return NEVER
        return self.run_started_at + micros(self.born.timeout_seconds)

    def late(self, now: int) -> bool:
        return self.born.deadline is not None and self.born.deadline <= now

    def held_by(self, fence: int, worker: str) -> bool:
        return self.status == Status.RUNNING and self.fence == fence and self.worker == worker

    def record(self, tenant: str) -> Facts:
        """The job as `plain` makes it of a store's answer."""
        own = {name: getattr(self, name) for name in Job._fields if name in self.__dict__}
        saved = self.checkpoint
        return {
            "tenant": tenant, "gate_id": None,
            **{name: getattr(self.born, name) for name in Job._fields if name in NewJob._fields}, **own,
            "checkpoint": saved and saved.data, "checkpoint_seq": saved and saved.seq,
            "sanitized": self.sanitized or (saved is not None and saved.sanitized),
            "awaiting": sorted(self.awaiting), "tags": sorted(self.born.tags), "requires": sorted(self.born.requires),
        }  # fmt: skip


def micros(seconds: float) -> int:
    return round(seconds * SECOND)


def plain(job: Job) -> Facts:
    """A store's job for comparison: lists sorted, errors parsed, our own messages blanked."""
    facts = job._asdict()
    for name in ("awaiting", "tags", "requires"):
        facts[name] = sorted(facts[name])
    facts["error"] = plain_error(json.loads(job.error)) if job.error is not None else None
    return facts


def plain_line(row: HistoryRow) -> Line:
    facts = None if row.metadata is None else json.loads(row.metadata)
    if facts is not None and "error" in facts:
        facts["error"] = plain_error(facts["error"])
    return Line(*row[1:9], facts, row.at)


def plain_error(error: Facts) -> Facts:
    return {**error, "message": "…"} if error["kind"] in OUR_KINDS and error["message"] else error


class Model:
    """All jobs of one tenant."""

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.jobs: dict[str, Life] = {}
        self.keys: dict[str, tuple[str, bytes | None]] = {}
        self.paused: set[str] = set()
        self.claims: dict[tuple[str, str], list[tuple[str, int]]] = {}

    # Enqueue.

    def enqueue(self, batch: Sequence[NewJob], now: int, *, whole: bool) -> list[str | Replay | Life]:
        before = dict(self.jobs), dict(self.keys)
        answers = [self._enqueue(new, now) for new in batch]
        if whole and any(isinstance(answer, str) for answer in answers):
            self.jobs, self.keys = before
        return answers

    def _enqueue(self, new: NewJob, now: int) -> str | Replay | Life:
        key = new.idempotency_key
        if key is not None and key in self.keys:
            id, body = self.keys[key]
            return Replay(id) if body == new.body_sha256 else "idempotency_key_reuse"
        if new.parent_id is not None:
            parent = self.jobs.get(new.parent_id)
            if parent is None:
                return "invalid"
            if parent.status in ENDED or parent.cancel_requested_at is not None:
                return "parent_ended"
        if new.delay_seconds is not None:
            run_at = now + micros(new.delay_seconds)
        else:
            run_at = now if new.run_at is None else new.run_at
        life = self.jobs[new.id] = Life(new, now, run_at, updated_at=now)
        life.history.append(Line(1, None, Status.QUEUED, Verb.ENQUEUE, new.created_by, 1, 0, None, None, now))
        if key is not None:
            self.keys[key] = (new.id, new.body_sha256)
        return life

    # Claim.

    def claim(self, ask: ClaimAsk, now: int) -> list[Life]:
        name = (ask.worker, ask.claim_id or "")
        if ask.claim_id is not None:
            still = [
                self.jobs[id] for id, fence in self.claims.get(name, ()) if self.jobs[id].held_by(fence, ask.worker)
            ]
            if still:
                return sorted(still, key=_turn)
        for life in self.expired(now):
            self._lose_lease(life, Verb.EXPIRE, "system:sweep", None, now)
        for life in self.late(now):
            if not life.awaiting:
                self._pass_deadline(life, now)
        best = sorted((life for life in self.jobs.values() if self._fits(life, ask, now)), key=_turn)[: ask.limit]
        for life in best:
            life.fence += 1
            life.worker, life.lease_seconds = ask.worker, ask.lease_seconds
            life.run_started_at = now
            life.started_at = life.started_at or now
            life.heartbeat_at = None
            life.lease_expires_at = min(now + micros(ask.lease_seconds), life.run_ends_at())
            self._move(life, Status.RUNNING, Verb.CLAIM, f"worker:{ask.worker}", now)
        if ask.claim_id is not None:
            self.claims[name] = [(life.id, life.fence) for life in best]
        return best

    def _fits(self, life: Life, ask: ClaimAsk, now: int) -> bool:
        new = life.born
        return (
            life.status in WAITING
            and life.run_at <= now
            and not life.awaiting
            and not life.late(now)
            and new.type not in self.paused
            and (ask.types is None or new.type in ask.types)
            and set(new.requires) <= ask.capabilities
            and (new.repository is None or ask.repositories is None or new.repository in ask.repositories)
            and (new.affinity_key is None or ask.affinity_keys is None or new.affinity_key in ask.affinity_keys)
        )

    # The clock.

    def expired(self, now: int) -> list[Life]:
        return [job for job in self.jobs.values() if job.lease_expires_at is not None and job.lease_expires_at <= now]

    def late(self, now: int) -> list[Life]:
        return [job for job in self.jobs.values() if job.status in WAITING and job.late(now)]

    # Progress.

    def heartbeat(self, beats: Sequence[Beat], now: int) -> list[Pulse | str]:
        return [self._heartbeat(beat, now) for beat in beats]

    def _heartbeat(self, beat: Beat, now: int) -> Pulse | str:
        fault = self._not_held(beat)
        if fault is None and beat.checkpoint is not None:
            saved = self._checkpoint(beat.checkpoint, now)
            fault = saved if isinstance(saved, str) else None
        if fault is not None:
            return fault
        life = self.jobs[beat.id]
        life.heartbeat_at = life.updated_at = now
        life.lease_expires_at = min(now + micros(beat.lease_seconds or life.lease_seconds), life.run_ends_at())
        cancelling, paused = life.cancel_requested_at is not None, life.born.type in self.paused
        return Pulse(life.id, life.lease_expires_at, cancelling, life.cancel_reason, paused)

    def checkpoint(self, checkpoints: Sequence[Checkpoint], now: int) -> list[int | str]:
        return [self._checkpoint(checkpoint, now) for checkpoint in checkpoints]

    def _checkpoint(self, new: Checkpoint, now: int) -> int | str:
        fault = self._not_held(new)
        if fault is not None:
            return fault
        life = self.jobs[new.id]
        old = life.checkpoint
        if old is None or new.seq > old.seq:
            life.checkpoint, life.updated_at = new, now
        elif (new.seq, new.data) != (old.seq, old.data):
            return "checkpoint_conflict"
        return new.seq

    def _not_held(self, item: Beat | Checkpoint) -> str | None:
        life = self.jobs.get(item.id)
        if life is None:
            return "not_found"
        if life.held_by(item.fence, item.worker):
            return None
        end = life.ends.get(item.fence)
        mine = end is not None and end.receipt is not None and end.actor == f"worker:{item.worker}"
        return "not_running" if mine else "lease_lost"

    # Everything that has a choice in it.

    def carry_out(self, orders: Sequence[Order], now: int, chosen: Sequence[int | None]) -> list[Receipt | str]:
        """The answers; chosen are the times the store gave, taken over where the rules leave room."""
        return [self._carry_out(order, now, at) for order, at in zip(orders, chosen, strict=True)]

    def _carry_out(self, order: Order, now: int, chosen: int | None) -> Receipt | str:
        life = self.jobs.get(order.id)
        if life is None:
            return "not_found"
        match order:
            case Complete() | Fail() | Release() | CancelAck():
                return self._finish(order, life, now, chosen)
            case Cancel():
                return self._cancel(order, life, now)
            case Revoke():
                if life.status != Status.RUNNING:
                    return "already_finished"
                return self._lose_lease(life, Verb.REVOKE, order.actor, order.reason, now)
            case Expire():
                if life.lease_expires_at is None or life.lease_expires_at > now:
                    return _receipt(life)
                return self._lose_lease(life, Verb.EXPIRE, "system:sweep", None, now)
            case PassDeadline():
                if not life.late(now) or life.status not in WAITING:
                    return _receipt(life)
                return self._pass_deadline(life, now)

    def _finish(self, order: Finish, life: Life, now: int, chosen: int | None) -> Receipt | str:
        actor = f"worker:{order.worker}"
        if not life.held_by(order.fence, order.worker):
            end = life.ends.get(order.fence)
            if end is None or end.receipt is None or end.actor != actor:
                return "lease_lost"
            return end.receipt if end.verb == order.verb else "already_finished"
        match order:
            case Complete():
                life.result, life.result_summary, life.error = order.result, order.result_summary, None
                life.usage = order.usage if order.usage is not None else life.usage
                life.sanitized |= order.sanitized
                return self._move(life, Status.SUCCEEDED, order.verb, actor, now)
            case CancelAck():
                if life.cancel_requested_at is None:
                    return "no_cancel_requested"
                return self._give_in(life, order.verb, actor, now)
            case Fail(retryable=False):
                life.sanitized |= order.sanitized
                return self._end_badly(life, Status.FAILED, order.verb, actor, now, None, json.loads(order.error))
            case _ if life.cancel_requested_at is not None:
                return self._give_in(life, order.verb, actor, now)
            case Fail():
                life.sanitized |= order.sanitized
                least, most = _delay(life, order.retry_after_seconds)
                run_at = chosen if chosen is not None and now + least <= chosen <= now + most else now + least
                return self._try_again(life, order.verb, actor, now, None, json.loads(order.error), run_at)
            case Release():
                if any(self._parent_of(child) != life.id for child in order.children):
                    return "invalid"
                if order.delay_seconds is not None:
                    life.run_at = now + micros(order.delay_seconds)
                else:
                    life.run_at = max(order.run_at or now, now)
                life.releases += 1
                life.awaiting = {child for child in order.children if self.jobs[child].status not in ENDED}
                facts = {"run_at": life.run_at}
                return self._move(life, Status.QUEUED, order.verb, actor, now, order.reason, facts)

    def _parent_of(self, id: str) -> str | None:
        return self.jobs[id].born.parent_id if id in self.jobs else None

    def _cancel(self, order: Cancel, life: Life, now: int) -> Receipt | str:
        if life.status == Status.CANCELLED:
            return _receipt(life)
        if life.status in ENDED:
            return "already_finished"
        now_or_never = life.status != Status.RUNNING or order.force
        if life.cancel_requested_at is not None and not now_or_never:
            return _receipt(life)
        life.cancel_requested_at = life.cancel_requested_at or now
        life.cancel_reason = order.reason or life.cancel_reason
        target = Status.CANCELLED if now_or_never else Status.RUNNING
        return self._move(life, target, order.verb, order.actor, now, order.reason, {"why": order.reason})

    def _give_in(self, life: Life, verb: Verb, actor: str, now: int) -> Receipt:
        facts = {"why": life.cancel_reason}
        return self._move(life, Status.CANCELLED, verb, actor, now, life.cancel_reason, facts)

    def _lose_lease(self, life: Life, verb: Verb, actor: str, reason: str | None, now: int) -> Receipt:
        if life.cancel_requested_at is not None:
            return self._give_in(life, verb, actor, now)
        if verb == Verb.REVOKE:
            kind = "revoked"
        else:
            kind = reason = "timeout" if life.run_ends_at() <= now else "lease_expired"
        run_at = now + micros(life.born.expiry_delay_seconds or 0)
        return self._try_again(life, verb, actor, now, reason, {"message": "…", "kind": kind}, run_at)

    def _try_again(
        self, life: Life, verb: Verb, actor: str, now: int, reason: str | None, error: Facts, run_at: int
    ) -> Receipt:
        if life.attempt == life.born.max_attempts:
            return self._end_badly(life, Status.DEAD_LETTER, verb, actor, now, reason, error)
        life.error, life.run_at = error, run_at
        facts = {"error": error, "attempt": life.attempt + 1, "run_at": run_at}
        return self._move(life, Status.RETRY, verb, actor, now, reason, facts)

    def _end_badly(
        self, life: Life, status: Status, verb: Verb, actor: str, now: int, reason: str | None, error: Facts
    ) -> Receipt:
        life.error = error
        return self._move(life, status, verb, actor, now, reason, {"error": error})

    def _pass_deadline(self, life: Life, now: int) -> Receipt:
        if life.status == Status.RETRY:
            error = {"message": "…", "kind": "deadline"}
            return self._end_badly(life, Status.FAILED, Verb.PASS_DEADLINE, "system:sweep", now, "deadline", error)
        life.cancel_requested_at, life.cancel_reason = now, "deadline"
        facts = {"why": "deadline"}
        return self._move(life, Status.CANCELLED, Verb.PASS_DEADLINE, "system:sweep", now, "deadline", facts)

    def _move(
        self,
        life: Life,
        status: Status,
        verb: Verb,
        actor: str,
        now: int,
        reason: str | None = None,
        facts: Facts | None = None,
    ) -> Receipt:
        """Every transition: one line of history, one version, and what leaving or entering a status means."""
        origin, life.status = life.status, status
        life.version += 1
        life.updated_at = now
        line = Line(life.version, origin, status, verb, actor, life.attempt, life.fence, reason, facts, now)
        life.history.append(line)
        if status == Status.RETRY:
            life.attempt += 1
        if status in ENDED:
            life.finished_at = now
            life.awaiting.clear()
            for other in self.jobs.values():
                other.awaiting.discard(life.id)
        if origin == Status.RUNNING and status != Status.RUNNING:
            life.worker = life.lease_expires_at = life.heartbeat_at = None
            by_worker = verb in (Verb.COMPLETE, Verb.FAIL, Verb.RELEASE, Verb.CANCEL_ACK)
            life.ends[life.fence] = End(verb, actor, _receipt(life) if by_worker else None)
        return _receipt(life)

    # Reading.

    def find(self, filter: Filter) -> list[str]:
        f = filter
        found = [
            life
            for life in self.jobs.values()
            if (not f.statuses or life.status in f.statuses)
            and (f.type is None or life.born.type == f.type)
            and (f.worker is None or life.worker == f.worker)
            and (f.parent_id is None or life.born.parent_id == f.parent_id)
            and set(f.tags) <= set(life.born.tags)
            and (f.created_after is None or life.created_at >= f.created_after)
            and (f.created_before is None or life.created_at < f.created_before)
            and (f.before_seq is None or life.seq < f.before_seq)
        ]
        return [life.id for life in sorted(found, key=lambda life: -life.seq)[: f.limit]]


def _turn(life: Life) -> tuple[int, int, int]:
    return -life.born.priority, life.run_at, life.seq


def _receipt(life: Life) -> Receipt:
    """What the newest line of history says."""
    line = life.history[-1]
    facts = line.metadata or {}
    ended = line.at if line.target in ENDED else None
    attempt = facts.get("attempt", line.attempt)
    return Receipt(life.id, line.fence, line.target, attempt, line.version, facts.get("run_at"), ended)


def _delay(life: Life, retry_after_seconds: float | None) -> tuple[int, int]:
    """The least and the most to wait after the attempt that just failed."""
    if retry_after_seconds is not None:
        least = most = retry_after_seconds
    else:
        policy: Facts = json.loads(life.born.backoff) if life.born.backoff else {}
        kind, base = policy.get("kind", "full_jitter"), policy.get("base_seconds", 1.0)
        growth = {"fixed": 1, "linear": life.attempt}.get(kind, policy.get("multiplier", 2.0) ** (life.attempt - 1))
        most = min(policy.get("max_seconds", 300.0), base * growth)
        least = most * {"full_jitter": 0.0, "equal_jitter": 0.5}.get(kind, 1.0)
    return max(micros(least), SECOND // 10), max(micros(most), SECOND // 10)


def by_seq(lives: Iterable[Life]) -> list[Life]:
    return sorted(lives, key=lambda life: life.seq)
