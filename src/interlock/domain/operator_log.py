"""The audit log: one hash-chained row per operator operation in a tenant. Rows contain no secrets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from interlock.domain.audit import fields
from interlock.domain.channel import NewChannel
from interlock.domain.digests import of_text
from interlock.domain.limits import Limit
from interlock.domain.operations import PruneCommand
from interlock.domain.registry import Agent, JobType
from interlock.domain.schedule import Schedule
from interlock.domain.session import NewSession
from interlock.domain.timestamps import when
from interlock.domain.token import NewToken
from interlock.domain.webhook import NewSubscription


class Entry(NamedTuple):
    """An operation to record; details are JSON text."""

    actor: str
    action: str
    object: str
    details: str | None = None


class LogRow(NamedTuple):
    """A row of the audit log, numbered from 1 without gaps."""

    seq: int
    actor: str
    action: str
    object: str
    details: str | None
    at: int
    hash: bytes


def log_hash(
    previous: bytes | None, tenant: str, seq: int, actor: str, action: str, object: str, details: str | None, at: int
) -> bytes:
    """Return the SHA-256 of the previous hash (the tenant for the first row) and every field as length:text."""
    first = fields(tenant) if previous is None else previous
    return sha256(first + fields(seq, actor, action, object, details, at)).digest()


def bad_row(tenant: str, rows: Sequence[LogRow], before: LogRow | None) -> str | None:
    """Return the first invalid row, or None; the rows follow `before`."""
    for row in rows:
        if row.seq != (1 if before is None else before.seq + 1):
            return f"{tenant} audit log row {row.seq}: a row is missing before this one"
        if bytes(row.hash) != log_hash(None if before is None else bytes(before.hash), tenant, *row[:-1]):
            return f"{tenant} audit log row {row.seq}: the hash does not match the row and the previous one"
        before = row
    return None


def pause(actor: str, type: str, reason: str | None) -> Entry:
    return _entry(actor, "queue.pause", type, reason=reason)


def resume(actor: str, type: str) -> Entry:
    return _entry(actor, "queue.resume", type)


def set_type(actor: str, type: JobType) -> Entry:
    """Record the digest of the schema, which may be long."""
    schema = None if type.schema is None else of_text(type.schema)
    defaults = json.loads(type.defaults.to_text() or "{}")
    return _entry(actor, "type.set", type.name, schema_sha256=schema, requires=list(type.requires), defaults=defaults)


def delete_type(actor: str, name: str) -> Entry:
    return _entry(actor, "type.delete", name)


def set_agent(actor: str, agent: Agent) -> Entry:
    return _entry(
        actor, "agent.set", f"{agent.kind}/{agent.id}", max_concurrency=agent.max_concurrency, strict=agent.strict,
        defaults=json.loads(agent.defaults.to_text() or "{}"),
    )  # fmt: skip


def delete_agent(actor: str, kind: str, id: str) -> Entry:
    return _entry(actor, "agent.delete", f"{kind}/{id}")


def create_token(token: NewToken) -> Entry:
    return _entry(
        token.created_by, "token.create", token.id, roles=list(token.roles), description=token.description,
        worker_id=token.worker_id, types=token.types, repositories=token.repositories,
        capabilities=list(token.capabilities), expires_in_seconds=token.expires_in_seconds,
    )  # fmt: skip


def revoke_token(actor: str, id: str) -> Entry:
    return _entry(actor, "token.revoke", id)


def begin_session(new: NewSession) -> Entry:
    """Record that a person signed in with OpenID Connect."""
    name, email = (None, None) if new.person is None else new.person[:2]
    return _entry(new.actor, "session.begin", new.actor, roles=list(new.roles or ()), name=name, email=email)


def end_session(actor: str, of_actor: str) -> Entry:
    return _entry(actor, "session.end", of_actor)


def subscribe(new: NewSubscription) -> Entry:
    """Record only the host of the URL: the rest may contain a credential."""
    return _entry(
        new.created_by, "subscription.create", new.id, host=urlsplit(new.url).hostname, events=list(new.events),
        types=new.types, mode=str(new.mode), group_id=new.group_id, expires_in_seconds=new.expires_in_seconds,
    )  # fmt: skip


def unsubscribe(actor: str, id: str) -> Entry:
    return _entry(actor, "subscription.delete", id)


def renew(actor: str, id: str, expires_in_seconds: float | None) -> Entry:
    return _entry(actor, "subscription.renew", id, expires_in_seconds=expires_in_seconds)


def rotate(actor: str, id: str | None, keep_seconds: float) -> Entry:
    """Record a new secret of a subscription, or of the webhooks of jobs if `id` is None."""
    return _entry(actor, "secret.rotate", "jobs" if id is None else id, keep_seconds=keep_seconds)


def set_schedule(actor: str, schedule: Schedule) -> Entry:
    """Record the digest of the job, whose payload may be long."""
    return _entry(
        actor, "schedule.set", schedule.name, cron=schedule.cron, every_seconds=schedule.every_seconds,
        timezone=schedule.timezone, overlap=str(schedule.overlap), catch_up=str(schedule.catch_up),
        jitter_seconds=schedule.jitter_seconds, job_sha256=of_text(schedule.job),
    )  # fmt: skip


def delete_schedule(actor: str, name: str) -> Entry:
    return _entry(actor, "schedule.delete", name)


def pause_schedule(actor: str, name: str) -> Entry:
    return _entry(actor, "schedule.pause", name)


def resume_schedule(actor: str, name: str) -> Entry:
    return _entry(actor, "schedule.resume", name)


def run_schedule(actor: str, name: str, job_id: str) -> Entry:
    return _entry(actor, "schedule.run", name, job_id=job_id)


def prune(order: PruneCommand, jobs: int, cutoff: int) -> Entry:
    return _entry(order.actor, "jobs.prune", order.id, jobs=jobs, ended_before=when(cutoff))


def _entry(actor: str, action: str, object: str, **details: Any) -> Entry:
    given = {name: value for name, value in details.items() if value is not None}
    text = json.dumps(given, separators=(",", ":"), sort_keys=True, ensure_ascii=False) if given else None
    return Entry(actor, action, object, text)


def set_limit(actor: str, limit: Limit) -> Entry:
    return _entry(actor, "limit.set", limit.name, rules=limit.to_text())


def delete_limit(actor: str, name: str) -> Entry:
    return _entry(actor, "limit.delete", name)


def hold_limit(actor: str, name: str, key: str, until: int, reason: str | None) -> Entry:
    return _entry(actor, "limit.hold", name, key=key, until=when(until), reason=reason)


def release_limit(actor: str, name: str, key: str) -> Entry:
    return _entry(actor, "limit.release", name, key=key)


def set_channel(new: NewChannel) -> Entry:
    """Record no secret: of the destination only the host."""
    return _entry(
        new.created_by, "channel.set", new.name, kind=str(new.kind), host=new.address.host, events=list(new.events),
        types=new.types, tags=new.tags, min_risk=new.min_risk, min_interval_seconds=new.min_interval_seconds,
    )  # fmt: skip


def delete_channel(actor: str, name: str) -> Entry:
    return _entry(actor, "channel.delete", name)
