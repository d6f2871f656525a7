"""The audit log: what operators did, chained, written with the change, never changed, and covered by an audit."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import pytest

from interlock.domain.audit import fields
from interlock.domain.operator_log import LogRow, log_hash
from interlock.domain.registry import Agent, Defaults, JobType
from interlock.domain.token import NewToken
from interlock.domain.webhook import NewSubscription
from interlock.errors import AgentInUse
from tests.contract.builders import OPERATOR, TenantQueue, complete, new_id
from tests.contract.connections import SqlConnection, rejection
from tests.contract.test_prune import prune
from tests.contract.webhooks import channel

SECRET = "whsec_verysecret"


async def everything(queue: TenantQueue) -> list[LogRow]:
    """Every operation once, and what the log has of them."""
    store, tenant = queue.store, queue.tenant
    await queue.do(complete(await queue.running()))
    queue.clock.advance(10)
    await prune(queue, cutoff=queue.clock.now)
    await store.registry.pause(tenant, "mail", actor=OPERATOR, reason="too much")
    await store.registry.pause(tenant, "mail", actor=None, reason=None, resumed_by="user:bob")
    kind = JobType("mail", '{"type":"object"}', ("gpu",), Defaults(priority=5))
    await store.registry.set_type(tenant, kind, actor=OPERATOR)
    await store.registry.delete_type(tenant, "mail", actor=OPERATOR)
    await store.registry.set_agent(tenant, Agent("worker", "reader", 2, False, Defaults()), actor=OPERATOR)
    await store.registry.delete_agent(tenant, "worker", "reader", actor=OPERATOR)
    token = NewToken(new_id(), sha256(tenant.encode()).digest(), ("read",), OPERATOR, description="for tests")
    await store.tokens.create(tenant, [token])
    await store.tokens.revoke(tenant, [token.id], actor="user:bob")
    await store.tokens.revoke(tenant, [token.id], actor="user:eve")  # changes nothing
    new = NewSubscription(new_id(), "https://u:pw@example.com/hook?key=verysecret", ("job.failed",), SECRET)
    await store.outbox.subscribe(tenant, new)
    await store.outbox.renew(tenant, new.id, 60.0, actor=OPERATOR)
    await store.outbox.rotate(tenant, new.id, SECRET, 9.0, actor=OPERATOR)
    await store.outbox.rotate(tenant, None, SECRET, 0.0, actor=OPERATOR)
    await store.outbox.unsubscribe(tenant, new.id, actor=OPERATOR)
    await store.channels.set(tenant, channel())
    await store.channels.delete(tenant, "ops", actor=OPERATOR)
    return await store.audit.log(tenant, limit=100)


async def test_every_operation_adds_a_row(queue: TenantQueue) -> None:
    rows = await everything(queue)
    assert [(row.seq, row.actor, row.action) for row in rows] == [*(
        (seq, actor, action) for seq, (actor, action) in enumerate([
            (OPERATOR, "jobs.prune"), (OPERATOR, "queue.pause"), ("user:bob", "queue.resume"), (OPERATOR, "type.set"), (OPERATOR, "type.delete"),
            (OPERATOR, "agent.set"), (OPERATOR, "agent.delete"), (OPERATOR, "token.create"), ("user:bob", "token.revoke"),
            ("user:local", "subscription.create"), (OPERATOR, "subscription.renew"), (OPERATOR, "secret.rotate"),
            (OPERATOR, "secret.rotate"), (OPERATOR, "subscription.delete"),
            (OPERATOR, "channel.set"), (OPERATOR, "channel.delete"),
        ], 1)
    )]  # fmt: skip
    details = {row.action: json.loads(row.details or "null") for row in rows}
    assert details["queue.pause"] == {"reason": "too much"}
    assert details["type.set"]["schema_sha256"] == sha256(b'{"type":"object"}').hexdigest()
    assert details["agent.set"] == {"defaults": {}, "max_concurrency": 2, "strict": False}
    assert details["subscription.create"]["host"] == "example.com"
    assert details["jobs.prune"]["jobs"] == 1
    assert details["channel.set"]["host"] == "hooks.example"
    assert {row.object for row in rows if row.action.startswith("agent")} == {"worker/reader"}
    assert await queue.store.audit.log(queue.tenant, after=13, limit=5) == rows[13:]
    assert await queue.store.audit.log(queue.tenant, limit=2) == rows[:2]
    await queue.verify()


async def test_rows_are_chained_and_equal_on_every_engine(queue: TenantQueue) -> None:
    before: bytes | None = None
    for row in await everything(queue):
        covered = fields(row.seq, row.actor, row.action, row.object, row.details, row.at)
        assert row.hash == sha256((fields(queue.tenant) if before is None else before) + covered).digest()
        assert row.hash == log_hash(before, queue.tenant, *row[:-1])
        before = row.hash


async def test_no_secret_is_recorded(queue: TenantQueue) -> None:
    text = repr(await everything(queue))
    for secret in ("verysecret", "pw@", sha256(queue.tenant.encode()).hexdigest()):
        assert secret not in text


async def test_a_failed_operation_is_not_recorded(queue: TenantQueue) -> None:
    await queue.add(agent_kind="worker", agent_id="busy")
    assert not await queue.store.registry.delete_type(queue.tenant, "nosuch", actor=OPERATOR)
    assert not await queue.store.registry.delete_agent(queue.tenant, "no", "such", actor=OPERATOR)
    assert not await queue.store.outbox.unsubscribe(queue.tenant, new_id(), actor=OPERATOR)
    with pytest.raises(AgentInUse):
        await queue.store.registry.delete_agent(queue.tenant, "worker", "busy", actor=OPERATOR)
    await prune(queue)
    assert await queue.store.audit.log(queue.tenant, limit=10) == []


async def test_each_tenant_has_its_own_log(queue: TenantQueue, rival: TenantQueue) -> None:
    for one in (queue, rival, queue):
        await one.store.registry.pause(one.tenant, "a", actor=OPERATOR, reason=None)
    assert [row.seq for row in await queue.store.audit.log(queue.tenant, limit=9)] == [1, 2]
    assert [row.seq for row in await rival.store.audit.log(rival.tenant, limit=9)] == [1]


async def test_the_head_changes_with_the_log(queue: TenantQueue) -> None:
    before = await queue.store.audit.head(queue.tenant)
    await queue.store.registry.pause(queue.tenant, "a", actor=OPERATOR, reason=None)
    assert await queue.store.audit.head(queue.tenant) != before


TAMPERINGS: dict[str, tuple[str, int]] = {
    "another actor": ("UPDATE audit_log SET actor = 'user:mallory' WHERE tenant = $1 AND seq = 2", 2),
    "other details": ("UPDATE audit_log SET details = NULL WHERE tenant = $1 AND seq = 1", 1),
    "another object": ("UPDATE audit_log SET object = 'x' WHERE tenant = $1 AND seq = 3", 3),
    "a row gone": ("DELETE FROM audit_log WHERE tenant = $1 AND seq = 2", 3),
}


@pytest.mark.parametrize("kind", TAMPERINGS)
async def test_an_audit_finds_a_changed_row(queue: TenantQueue, sql: SqlConnection, kind: str) -> None:
    await everything(queue)
    await queue.verify()
    await sql.without_rules()
    statement, seq = TAMPERINGS[kind]
    await sql.run(statement, queue.tenant)
    verdict = await queue.store.audit.verify(queue.tenant)
    assert verdict.first_bad is not None
    assert f"{queue.tenant} audit log row {seq}: " in verdict.first_bad


@pytest.mark.parametrize(
    ("engine", "connection_name"), [("sqlite", "functions"), ("postgres", "owner"), ("postgres", "app")]
)
async def test_the_log_is_append_only(queue: TenantQueue, sql: SqlConnection) -> None:
    rows = await everything(queue)
    values: tuple[Any, ...] = (queue.tenant, bytes(32))
    columns = "tenant, seq, actor, action, object, details, at, hash"
    for statement, given in (
        ("UPDATE audit_log SET actor = 'x' WHERE tenant = $1", values[:1]),
        ("DELETE FROM audit_log WHERE tenant = $1", values[:1]),
        (f"INSERT INTO audit_log ({columns}) SELECT tenant, 99, actor, action, object, details, at, $2 FROM audit_log "
         "WHERE tenant = $1 AND seq = 1", values),
    ):  # fmt: skip
        message = await rejection(sql, statement, *given)
        assert "append-only" in message or "permission denied" in message
    if sql.engine == "sqlite":
        same = f"INSERT OR REPLACE INTO audit_log ({columns}) SELECT {columns} FROM audit_log WHERE tenant = $1"
        assert "append-only" in await rejection(sql, same, queue.tenant)
    assert await queue.store.audit.log(queue.tenant, limit=100) == rows
