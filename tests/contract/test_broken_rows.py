"""A row that was changed with the rules switched off: it stops no other job, the doctor names it, and can end it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import pytest
import pytest_asyncio

from interlock.domain.job import Receipt, Rejected
from interlock.domain.lifecycle import TERMINAL, Status
from interlock.domain.limits import Limit
from interlock.domain.operations import PruneCommand
from interlock.domain.registry import Agent
from interlock.engine.maintenance import Maintenance
from interlock.errors import BrokenJob
from interlock.storage.contract import Store, Terms
from interlock.storage.contract.doctor import RULES, Fault
from tests.contract.approvals import waiting
from tests.contract.builders import OPERATOR, TenantQueue, cancel, complete, heartbeat, new_id, new_job, release
from tests.contract.connections import MASTER, SqlConnection, open_connection
from tests.support.eventually import RETRY_SECONDS
from tests.support.postgres import Postgres
from tests.support.stores import ManualClock

Breaker = Callable[..., Awaitable[None]]


@pytest.fixture(params=["sqlite", "postgres"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture(loop_scope="module")
async def broken(
    engine: str, place: str, store: Store, tenant: str, clock: ManualClock, postgres: Postgres
) -> AsyncIterator[Breaker]:
    """Runs a statement without triggers and checks, which are there again afterwards."""
    async with open_connection(MASTER[engine], place=place, tenant=tenant, clock=clock, postgres=postgres) as sql:

        async def run(statement: str, *values: Any) -> None:
            await sql.run("BEGIN")
            await (_without_rules if engine == "postgres" else _without_triggers)(sql, statement, *values)
            await sql.run("COMMIT")

        yield run


async def _without_rules(sql: SqlConnection, statement: str, *values: Any) -> None:
    checks = await sql.run(
        """select conrelid::regclass::text, conname, pg_get_constraintdef(oid) from pg_constraint
           where contype = 'c' and connamespace = 'interlock'::regnamespace and conrelid <> 0"""
    )
    for table, name, _ in checks:
        await sql.run(f"alter table {table} drop constraint {name}")
    await sql.run("set local session_replication_role = replica")
    await sql.run(statement, *values)
    for table, name, check in checks:
        await sql.run(f"alter table {table} add constraint {name} {check.removesuffix(' NOT VALID')} not valid")


async def _without_triggers(sql: SqlConnection, statement: str, *values: Any) -> None:
    triggers = await sql.run("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'")
    for name, _ in triggers:
        await sql.run(f"DROP TRIGGER {name}")
    await sql.run("PRAGMA ignore_check_constraints = ON")
    await sql.run(statement, *values)
    await sql.run("PRAGMA ignore_check_constraints = OFF")
    for _, definition in triggers:
        await sql.run(definition)


# How a job is broken, and which rule that breaks: the job as it is before, and the statement; %s is its id.
JOBS: Final = {
    "running, attempt above max": ("running", "UPDATE job SET attempt = 7, max_attempts = 5", "attempt_within_max"),
    "running, attempt above all": ("running", "UPDATE job SET attempt = 700", "attempt_within_max"),
    "running, no attempt": ("running", "UPDATE job SET attempt = 0", "attempt_within_max"),
    "running, no start": ("running", "UPDATE job SET run_started_at = NULL", "running_has_started"),
    "queued, attempt above max": ("queued", "UPDATE job SET attempt = 7, max_attempts = 5", "attempt_within_max"),
    "queued, with an end": ("queued", "UPDATE job SET finished_at = created_at", "finished_exactly_when_ended"),
    "queued, with a worker": ("queued", "UPDATE job SET worker = 'w9'", "leased_exactly_when_running"),
    "queued, with an approval": (
        "queued",
        f"UPDATE job SET approval_id = '{new_id()}'",
        "approval_exactly_when_waiting",
    ),
    "late, attempt above max": ("late", "UPDATE job SET attempt = 7, max_attempts = 5", "attempt_within_max"),
    "waiting, approval closed": (
        "waiting",
        "UPDATE approval SET status = 'void', closed_at = opened_at WHERE job_id = $1",
        "waits_for_an_open_approval",
    ),
    "waiting, approval gone": ("waiting", "DELETE FROM approval WHERE job_id = $1", "waits_for_an_open_approval"),
}
POSTGRES: Final = {
    "no lease": ("running", "DELETE FROM lease WHERE job_id = $1", "running_has_a_lease"),
    "lease of another": ("running", "UPDATE lease SET fence = 99 WHERE job_id = $1", "running_has_a_lease"),
    "not ready": ("queued", "DELETE FROM ready WHERE job_id = $1", "ready_when_it_waits"),
    "ready twice": ("queued", "INSERT INTO ready SELECT * FROM ready WHERE job_id = $1", "ready_only_when_it_waits"),
    "ready elsewhere": ("queued", "UPDATE ready SET run_at = 'epoch' WHERE job_id = $1", "ready_only_when_it_waits"),
    "ready and running": (
        "running",
        "INSERT INTO ready (tenant, eligibility_key, base, run_at, seq, job_id) "
        "SELECT tenant, eligibility_key, base, run_at, seq, id FROM job WHERE id = $1",
        "ready_only_when_it_waits",
    ),
    "leased and queued": (
        "queued",
        "INSERT INTO lease (tenant, job_id, fence, worker, seconds, expires_at) "
        "SELECT tenant, id, 1, 'w9', 5, run_at FROM job WHERE id = $1",
        "lease_has_a_running_job",
    ),
    "leased and gone": (
        "queued",
        "INSERT INTO lease (tenant, job_id, fence, worker, seconds, expires_at) "
        f"SELECT tenant, '{(GONE := new_id())}', 1, 'w9', 5, run_at FROM job WHERE id = $1",
        "lease_has_a_running_job",
    ),
}


async def made(queue: TenantQueue, how: str) -> str:
    """A job that others are behind, by priority, time and arrival."""
    if how == "running":
        return (await queue.running(lease_seconds=5.0)).id
    if how == "waiting":
        return (await waiting(queue, expires_in_seconds=5.0))[0].id
    if how == "late":
        return await queue.add(deadline=queue.after(5), run_at=queue.after(1))
    return await queue.add()


def at(engine: str, statement: str) -> str:
    if " WHERE " not in statement:
        statement += " WHERE id = $1"
    if engine == "sqlite":
        return statement.replace("finished_at = created_at", "finished_at = run_at")
    return statement.replace("= created_at", "= run_at")


def cases() -> list[Any]:
    both = [pytest.param(engine, *case, id=f"{engine}-{name}") for name, case in JOBS.items() for engine in MASTER
            if engine in ("sqlite", "postgres")]  # fmt: skip
    return both + [pytest.param("postgres", *case, id=f"postgres-{name}") for name, case in POSTGRES.items()]


@pytest.mark.parametrize(("engine", "how", "statement", "rule"), cases())
async def test_a_corrupt_row_blocks_nothing_is_named_and_can_be_ended(
    queue: TenantQueue, broken: Breaker, engine: str, how: str, statement: str, rule: str
) -> None:
    victim = await made(queue, how)
    held = await queue.running(type="held", lease_seconds=5.0)
    late = await queue.add(type="late", deadline=queue.after(5))
    await broken(at(engine, statement), victim)
    named = GONE if GONE in statement else victim
    assert rule in {fault.rule for fault in await queue.store.faults(queue.tenant, 100) if fault.name == named}
    queue.clock.advance(6)
    waits = [await queue.add() for _ in range(3)]
    async with asyncio.timeout(RETRY_SECONDS):
        got = [*await queue.claimed(limit=1), *await queue.claimed(limit=10)]
        for task in Maintenance(queue.store).tasks:
            await task.run()
    assert {held.id, *waits} <= set(got)  # one lease had expired, and the claim processed it
    assert (await queue.job(late)).status in TERMINAL
    for fault in await queue.store.faults(queue.tenant, 100):
        assert (fault.name, fault.rule in RULES) == (named, True)
        await queue.store.repair(fault, OPERATOR)
    assert await queue.store.faults(queue.tenant, 100) == []
    await queue.sweep()
    if named == victim:
        job = await queue.job(victim)
        (*_, last) = await queue.history(victim)
        if job.status is Status.CANCELLED:
            reason = f"doctor: broke the rule {rule}"
            assert (last.version, last.actor, last.reason) == (job.version, OPERATOR, reason)
        else:
            assert victim in (got + await queue.claimed(limit=10))
    first_bad = (await queue.store.audit.verify(queue.tenant)).first_bad
    if statement.startswith("DELETE FROM approval "):  # which no repair brings back
        assert first_bad is not None
        assert "the digest of request" in first_bad
    else:
        assert first_bad is None
    await queue.do(complete(await queue.job(waits[0])))


async def test_a_corrupt_job_is_rejected_by_name_and_others_of_the_same_call_succeed(
    queue: TenantQueue, broken: Breaker, engine: str
) -> None:
    jobs = [await queue.running() for _ in range(3)]
    await broken(at(engine, "UPDATE job SET attempt = 7, max_attempts = 5"), jobs[1].id)
    answers = await queue.store.carry_out(queue.tenant, [release(job) for job in jobs])
    assert [type(answer) for answer in answers] == [Receipt, Rejected, Receipt]
    assert isinstance(answers[1], Rejected)
    assert isinstance(answers[1].error, BrokenJob)
    assert f"{jobs[1].id}: its row violates a database constraint" in str(answers[1].error)


async def test_many_corrupt_jobs_do_not_keep_a_sweep_from_the_others(
    queue: TenantQueue, broken: Breaker, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.engine.maintenance.BATCH_SIZE", 2)
    corrupt = [await queue.running(lease_seconds=5.0) for _ in range(5)]
    held = [await queue.running(lease_seconds=6.0) for _ in range(5)]
    late = [await queue.add(type="late", deadline=queue.after(6)) for _ in range(3)]
    for job in corrupt:
        await broken(at(engine, "UPDATE job SET attempt = 7, max_attempts = 5"), job.id)
    queue.clock.advance(7)
    async with asyncio.timeout(RETRY_SECONDS):
        await Maintenance(queue.store).sweep()
    assert {(await queue.job(job.id)).status for job in held} == {Status.RETRY}
    assert {(await queue.job(id)).status for id in late} == {Status.CANCELLED}
    assert {(await queue.job(job.id)).status for job in corrupt} == {Status.RUNNING}


async def test_heartbeats_of_other_jobs_succeed(queue: TenantQueue, broken: Breaker, engine: str) -> None:
    jobs = [await queue.running(lease_seconds=5.0) for _ in range(3)]
    await broken(at(engine, "UPDATE job SET attempt = 7, max_attempts = 5"), jobs[1].id)
    queue.clock.advance(4)
    await queue.store.heartbeat(queue.tenant, [heartbeat(job) for job in jobs])
    queue.clock.advance(4)
    await queue.sweep()
    assert [(await queue.job(job.id)).status for job in (jobs[0], jobs[2])] == [Status.RUNNING] * 2


async def test_wrong_slot_counts_block_no_job_that_has_a_slot_and_are_recounted(
    queue: TenantQueue, broken: Breaker
) -> None:
    await queue.store.registry.set_agent(queue.tenant, Agent("bot", "1", max_concurrency=2))
    ids = [await queue.add(agent_kind="bot", agent_id="1") for _ in range(4)]
    running = await queue.claim(limit=5)
    assert [job.id for job in running] == ids[:2]
    await broken("UPDATE agent SET used = 0 WHERE tenant = $1", queue.tenant)
    await queue.do(complete(running[0]))
    await broken("UPDATE agent SET used = 9 WHERE tenant = $1", queue.tenant)
    (fault,) = await queue.store.faults(queue.tenant, 100)
    assert fault == Fault(queue.tenant, "slots_are_counted", "bot/1")
    assert "counted anew" in await queue.store.repair(fault, OPERATOR)
    assert await queue.store.faults(queue.tenant, 100) == []
    for job in [running[1], *await queue.claim(limit=5)]:
        await queue.do(complete(job))
    for job in await queue.claim(limit=5):
        await queue.do(complete(job))
    assert {(await queue.job(id)).status for id in ids} == {Status.SUCCEEDED}


@pytest.mark.parametrize(("key", "name"), [(None, "llm"), ("acme", "llm/acme")])
async def test_wrong_counts_of_a_limit_are_recounted(
    queue: TenantQueue, broken: Breaker, key: str | None, name: str
) -> None:
    await queue.store.limits.set(queue.tenant, Limit("llm", 2, keyed=key is not None), actor=OPERATOR)
    terms = Terms((await queue.store.registry.read(queue.tenant)).version)
    named = json.dumps([{"name": "llm", "key": key, "cost": {}}])
    jobs = [new_job(limits=named) for _ in range(3)]
    await queue.store.enqueue(queue.tenant, jobs, terms=terms)
    first, second = await queue.claim(limit=5)
    assert await queue.store.faults(queue.tenant, 100) == []
    await broken("UPDATE flow_bucket SET used = 7 WHERE tenant = $1", queue.tenant)
    await queue.do(complete(first))
    assert await queue.claim(limit=5) == []
    (fault,) = await queue.store.faults(queue.tenant, 100)
    assert fault == Fault(queue.tenant, "limits_are_counted", name)
    assert "counted anew" in await queue.store.repair(fault, OPERATOR)
    assert await queue.store.faults(queue.tenant, 100) == []
    assert [job.id for job in await queue.claim(limit=5)] == [jobs[2].id]
    await queue.do(complete(second))


async def test_a_running_job_that_is_ended_by_a_repair_leaves_its_limit(
    queue: TenantQueue, broken: Breaker, engine: str
) -> None:
    await queue.store.limits.set(queue.tenant, Limit("llm", 1), actor=OPERATOR)
    terms = Terms((await queue.store.registry.read(queue.tenant)).version)
    jobs = [new_job(limits='[{"name":"llm","key":null,"cost":{}}]') for _ in range(2)]
    await queue.store.enqueue(queue.tenant, jobs, terms=terms)
    (running,) = await queue.claim(limit=5)
    await broken(at(engine, "UPDATE job SET attempt = 7, max_attempts = 5"), running.id)
    for fault in await queue.store.faults(queue.tenant, 100):
        await queue.store.repair(fault, OPERATOR)
    assert await queue.store.faults(queue.tenant, 100) == []
    assert [job.id for job in await queue.claim(limit=5)] == [jobs[1].id]


async def test_a_parent_waiting_for_a_terminal_child_resumes_when_repaired(
    queue: TenantQueue, broken: Breaker, engine: str
) -> None:
    parent = await queue.running()
    child = await queue.add(type="child", parent_id=parent.id)
    await queue.do(release(parent, children=(child,)))
    await queue.do(cancel(child))
    await broken("INSERT INTO job_await (tenant, child_id, job_id) VALUES ($1, $2, $3)", queue.tenant, child, parent.id)
    if engine == "sqlite":
        await broken("UPDATE job SET awaiting = 1 WHERE id = $1", parent.id)
    else:
        await broken("DELETE FROM ready WHERE job_id = $1", parent.id)
    assert await queue.claimed() == []
    faults = await queue.store.faults(queue.tenant, 100)
    assert {fault.rule for fault in faults} == {"waits_for_living_children"}
    for fault in faults:
        await queue.store.repair(fault, OPERATOR)
    assert await queue.store.faults(queue.tenant, 100) == []
    assert await queue.claimed() == [parent.id]


async def test_a_pending_approval_without_a_waiting_job_is_closed(queue: TenantQueue, broken: Breaker) -> None:
    job, approval = await waiting(queue)
    await queue.do(cancel(job.id))
    await broken("UPDATE approval SET status = 'open', closed_at = NULL WHERE id = $1", approval.id)
    (fault,) = await queue.store.faults(queue.tenant, 100)
    assert (fault.rule, fault.name) == ("open_approval_has_a_waiting_job", job.id)
    assert "void" in await queue.store.repair(fault, OPERATOR)
    assert await queue.store.faults(queue.tenant, 100) == []


async def test_an_invalid_history_is_named_and_left_as_evidence(
    queue: TenantQueue, broken: Breaker, engine: str
) -> None:
    job = await queue.running()
    await queue.do(complete(job))
    where = "job_id = $1" if engine == "postgres" else "seq = (SELECT seq FROM job WHERE id = $1)"
    await broken(f"DELETE FROM job_history WHERE {where} AND version = 3", job.id)
    (fault,) = await queue.store.faults(queue.tenant, 100)
    assert (fault.rule, fault.name) == ("head_is_its_last_history", job.id)
    assert "evidence" in await queue.store.repair(fault, OPERATOR)


async def test_a_corrupt_terminal_job_does_not_block_a_prune(queue: TenantQueue, broken: Breaker, engine: str) -> None:
    jobs = [await queue.running() for _ in range(3)]
    for job in jobs:
        await queue.do(complete(job))
    await broken(at(engine, "UPDATE job SET attempt = 7, max_attempts = 5"), jobs[1].id)
    queue.clock.advance(10)
    await queue.store.prune(queue.tenant, PruneCommand(new_id(), OPERATOR, queue.clock.now - 1, 0, 100))
    found = await queue.store.get(queue.tenant, [job.id for job in jobs])
    assert (found[0], found[2]) == (None, None)


async def test_a_healthy_store_has_no_faults_and_passes_the_rehearsal(queue: TenantQueue) -> None:
    await queue.store.registry.set_agent(queue.tenant, Agent("bot", "1", max_concurrency=1))
    parent = await queue.running(type="parent")
    child = await queue.add(parent_id=parent.id, agent_kind="bot", agent_id="1")
    await queue.do(release(parent, children=(child,)))
    await waiting(queue, job=await queue.running(type="gated"))
    await queue.running(type="busy")
    await queue.do(complete(await queue.running(type="done")))
    before = await queue.store.audit.tenants()
    assert await queue.store.faults(queue.tenant, 100) == []
    assert await queue.store.rehearse() == "ok"
    assert await queue.store.audit.tenants() == before
