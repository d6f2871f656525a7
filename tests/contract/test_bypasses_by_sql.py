"""Direct SQL through our own connections and roles leaves no approval without its job, and no job without a way out."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.domain.job import Job
from interlock.domain.lifecycle import Status
from tests.contract.approvals import approval_of, command, decided, waiting
from tests.contract.builders import NEVER, TenantQueue, cancel, complete, new_id, new_job, release, save
from tests.contract.connections import (
    CONNECTIONS,
    DatabaseError,
    PostgresConnection,
    SqlConnection,
    SQLiteConnection,
    moved,
    rejection,
    update,
)
from tests.contract.progress import keep, step, steps_of

DENIED = "permission denied"


@pytest.fixture(params=["functions", "owner", "app"])
def connection_name(request: pytest.FixtureRequest) -> str:
    """The connection to try: with our functions, the owner of the schema, the app role."""
    return str(request.param)


@pytest.fixture
def engine(connection_name: str) -> str:
    return CONNECTIONS[connection_name]


async def all_rejected(sql: SqlConnection, *statements: tuple[Any, ...]) -> str:
    """Run statements in one transaction, which cannot be committed; return why."""
    ours: Any = (
        sql.db if isinstance(sql, SQLiteConnection) else sql.connection if isinstance(sql, PostgresConnection) else None
    )
    await sql.run("BEGIN")
    try:
        for statement in statements:
            await sql.run(*statement)
        await sql.run("COMMIT")
    except DatabaseError as error:
        done = ours.execute("ROLLBACK")
        if isinstance(sql, PostgresConnection):
            await done
        return str(error)
    pytest.fail("it was committed")


async def parents_and_children(queue: TenantQueue) -> tuple[Job, list[str]]:
    """A job that waits for two children."""
    parent = await queue.running(type="parent")
    children = await queue.add_all([new_job(type="child", parent_id=parent.id) for _ in range(2)])
    await queue.do(release(parent, children=tuple(children)))
    return await queue.job(parent.id), children


@pytest.mark.parametrize("status", ["approved", "denied", "expired", "void"])
async def test_an_approval_is_not_closed_without_its_job(queue: TenantQueue, sql: SqlConnection, status: str) -> None:
    job, approval = await waiting(queue)
    by = "'user:eve'" if status in ("approved", "denied") else "NULL"
    message = await rejection(
        sql, f"UPDATE approval SET status = '{status}', closed_at = opened_at, closed_by = {by} WHERE tenant = $1 AND id = $2",
        queue.tenant, approval.id,
    )  # fmt: skip
    assert "closed by the operation that moves its job on" in message
    assert (await approval_of(queue, approval.id), await queue.job(job.id)) == (approval, job)
    await decided(queue, command(approval))
    assert (await queue.job(job.id)).status is Status.QUEUED
    await queue.verify()


async def test_an_approval_is_not_decided_in_the_transaction_that_changes_its_job_by_hand(
    queue: TenantQueue, sql: SqlConnection
) -> None:
    job, approval = await waiting(queue)
    close = "UPDATE approval SET status = 'approved', closed_at = opened_at, closed_by = 'user:eve' WHERE tenant = $1 AND id = $2"
    change = update(job, moved(sql, job, Status.QUEUED, queue.clock.now))
    for statements in ([(close, queue.tenant, approval.id), change], [change, (close, queue.tenant, approval.id)]):
        await all_rejected(sql, *statements)
    assert await approval_of(queue, approval.id) == approval
    assert await queue.job(job.id) == job


@pytest.mark.parametrize("connection_name", ["owner", "app"])
async def test_on_postgresql_half_a_decision_does_not_commit(queue: TenantQueue, sql: SqlConnection) -> None:
    job, approval = await waiting(queue)
    running = await queue.running()
    at = queue.clock.now
    flag = ("select set_config('interlock.verb', 'on', true)",)
    close = (
        "update interlock.approval set status = 'approved', closed_by = 'user:eve', closed_at = $3 where tenant = $1 and id = $2",
        queue.tenant, approval.id, at,
    )  # fmt: skip
    assert "open exactly while its job waits" in await all_rejected(sql, flag, close)
    opened = (
        "insert into interlock.approval (tenant, id, job_id, fence, status, kind, prompt, digest, required, on_deny, opened_by, "
        "opened_at, expires_at, occurrence) values ($1, $2, $3, $4, 'open', 'approval', 'p', $5, 1, 'fail', 'user:eve', $6, $7, 1)",
        queue.tenant, new_id(), running.id, running.fence, "0" * 64, at, at + 60,
    )  # fmt: skip
    assert "open exactly while its job waits" in await all_rejected(sql, flag, opened)
    assert await approval_of(queue, approval.id) == approval
    assert await queue.job(job.id) == job


async def test_no_approval_is_requested_reopened_or_deleted_by_hand(queue: TenantQueue, sql: SqlConnection) -> None:
    job, approval = await waiting(queue)
    columns = "job_id, status, prompt, digest, required, on_deny, opened_by, opened_at, expires_at"
    running = await queue.running()
    await rejection(
        sql, f"INSERT INTO approval (tenant, id, fence, {columns}) SELECT tenant, $3, {running.fence}, $4, "
        f"{columns.removeprefix('job_id, ')} FROM approval WHERE tenant = $1 AND id = $2",
        queue.tenant, approval.id, new_id(), running.id,
    )  # fmt: skip
    await rejection(sql, "DELETE FROM approval WHERE tenant = $1 AND id = $2", queue.tenant, approval.id)
    await decided(queue, command(approval))
    await rejection(
        sql, "UPDATE approval SET status = 'open', closed_at = NULL, closed_by = NULL WHERE tenant = $1 AND id = $2",
        queue.tenant, approval.id,
    )  # fmt: skip
    await rejection(
        sql, "INSERT INTO approval_vote (tenant, approval_id, job_id, voter, decision, at) "
        "SELECT tenant, id, job_id, 'user:eve', 'deny', opened_at FROM approval WHERE tenant = $1 AND id = $2",
        queue.tenant, approval.id,
    )  # fmt: skip
    assert (await queue.job(job.id)).status is Status.QUEUED
    await queue.verify()


async def test_a_job_waits_only_for_its_own_pending_approval(queue: TenantQueue, sql: SqlConnection) -> None:
    other, foreign = await waiting(queue)
    mine, own = await waiting(queue)
    await decided(queue, command(own))
    again = await queue.again(mine)
    for approval_id in (NEVER, foreign.id, own.id):
        columns = moved(sql, again, Status.WAITING_FOR_APPROVAL, queue.clock.now) | {"approval_id": approval_id}
        assert "waits only for its own open approval" in await rejection(sql, *update(again, columns))
    await queue.do(complete(again))
    assert (await queue.job(other.id)).status is Status.WAITING_FOR_APPROVAL


async def test_a_job_waits_only_for_children_that_a_release_named(queue: TenantQueue, sql: SqlConnection) -> None:
    running = await queue.running()
    for child in (NEVER, running.id):
        message = await rejection(
            sql,
            "INSERT INTO job_await (tenant, child_id, job_id) VALUES ($1, $2, $3)",
            queue.tenant,
            child,
            running.id,
        )
        assert "only a release" in message
    if sql.engine == "sqlite":
        columns = moved(sql, running, Status.QUEUED, queue.clock.now) | {"awaiting": 1}
        assert "awaiting is the number" in await rejection(sql, *update(running, columns))
    await queue.do(complete(running))


async def test_a_job_cannot_lose_its_children(queue: TenantQueue, sql: SqlConnection) -> None:
    parent, children = await parents_and_children(queue)
    for statement in (
        "DELETE FROM job_await WHERE tenant = $1 AND job_id = $2",
        "UPDATE job_await SET child_id = job_id WHERE tenant = $1 AND job_id = $2",
    ):
        message = await rejection(sql, statement, queue.tenant, parent.id)
        assert DENIED in message or "interlock: " in message
    for child in children:
        await queue.do(cancel(child))
    assert await queue.claimed(types=frozenset({"parent"})) == [parent.id]
    await queue.verify()


async def test_a_child_that_ends_by_hand_wakes_its_parent(queue: TenantQueue, sql: SqlConnection) -> None:
    parent, children = await parents_and_children(queue)
    for child in children:
        job = await queue.job(child)
        await sql.run(*update(job, moved(sql, job, Status.CANCELLED, queue.clock.now)))
    assert await queue.claimed(types=frozenset({"parent"})) == [parent.id]
    await queue.verify()


async def test_a_ready_or_leased_row_cannot_be_deleted(queue: TenantQueue, sql: SqlConnection) -> None:
    waits = await queue.add(type="waits")
    running = await queue.running()
    if sql.engine == "postgres":
        for statement in (
            "DELETE FROM ready WHERE tenant = $1", "UPDATE ready SET blocked = true WHERE tenant = $1",
            "UPDATE ready SET run_at = 'infinity' WHERE tenant = $1", "DELETE FROM lease WHERE tenant = $1",
            "UPDATE lease SET job_id = gen_random_uuid() WHERE tenant = $1", "UPDATE lease SET fence = 99 WHERE tenant = $1",
        ):  # fmt: skip
            message = await rejection(sql, statement, queue.tenant)
            assert DENIED in message or "kept by the changes of jobs" in message, statement
    else:
        for columns in (
            "eligibility_key = 99",
            "base = 99",
            "eligibility_key = eligibility_key + 1, version = version + 1",
        ):
            await rejection(sql, f"UPDATE job SET {columns} WHERE tenant = $1 AND id = $2", queue.tenant, waits)
    assert await queue.claimed(types=frozenset({"waits"})) == [waits]
    await queue.do(complete(running))
    await queue.verify()


async def test_a_job_keeps_an_eligibility_key_by_which_it_is_found(queue: TenantQueue, sql: SqlConnection) -> None:
    job = await queue.job(await queue.add())
    other = await queue.job(await queue.add(type="other", priority=5))
    ((foreign, base),) = await sql.run(
        "SELECT eligibility_key, base FROM job WHERE tenant = $1 AND id = $2", queue.tenant, other.id
    )
    for columns in ({"eligibility_key": foreign, "base": base}, {"eligibility_key": 10**9}, {"priority": 7}):
        change = moved(sql, job, Status.QUEUED, queue.clock.now) | columns
        assert "must match its type" in await rejection(sql, *update(job, change))
    for statement in (
        "DELETE FROM eligibility_key WHERE tenant = $1",
        "UPDATE eligibility_key SET type = 'x' WHERE tenant = $1",
    ):
        message = await rejection(sql, statement, queue.tenant)
        assert DENIED in message or "jobs are found by it" in message
    assert await queue.claimed(types=frozenset({"work"})) == [job.id]


async def test_progress_is_saved_by_hand_only_during_a_run(queue: TenantQueue, sql: SqlConnection) -> None:
    job = await queue.running()
    await keep(queue, step(job))
    await queue.checkpoint(save(job, 1))
    await queue.do(complete(job))
    at = queue.clock.now
    no = "0" if sql.engine == "sqlite" else "false"
    statements: list[tuple[Any, ...]] = [
        (f"INSERT INTO job_step (tenant, job_id, seq, name, occurrence, fence, at, sanitized, result) "
         f"VALUES ($1, $2, 9, 'late', 1, {job.fence}, $3, {no}, '1')", queue.tenant, job.id, at),
        ("UPDATE job_checkpoint SET data = '0' WHERE tenant = $1 AND job_id = $2", queue.tenant, job.id),
        ("DELETE FROM job_checkpoint WHERE tenant = $1 AND job_id = $2", queue.tenant, job.id),
        (f"INSERT INTO job_checkpoint (tenant, job_id, seq, data, sanitized, at) VALUES ($1, $2, 1, '1', {no}, $3)",
         queue.tenant, await queue.add(type="x"), at),
    ]  # fmt: skip
    for statement, *values in statements:
        message = await rejection(sql, statement, *values)
        assert DENIED in message or "interlock: " in message, statement
    assert len(await steps_of(queue, job.id)) == 1
    await queue.verify()


async def test_history_is_not_orphaned(queue: TenantQueue, sql: SqlConnection) -> None:
    job = await queue.running()
    await queue.do(complete(job, result="1"))
    message = await rejection(sql, "DELETE FROM job WHERE tenant = $1 AND id = $2", queue.tenant, job.id)
    assert DENIED in message or "use interlock prune" in message
    await queue.verify()


async def test_the_sequence_numbers_of_a_tenant_never_decrease(queue: TenantQueue, sql: SqlConnection) -> None:
    await queue.add()
    if sql.engine == "sqlite":
        await rejection(sql, "UPDATE tenant SET next_seq = 1 WHERE tenant = $1", queue.tenant)
    await rejection(sql, "DELETE FROM tenant WHERE tenant = $1", queue.tenant)
    await queue.add()
