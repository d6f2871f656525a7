"""Direct SQL through our own connections and roles leaves no approval without its job, and no job without a way out."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.domain.job import Job
from interlock.domain.lifecycle import Status
from tests.contract.approvals import approval_of, command, decided, waiting
from tests.contract.builders import NEVER, Desk, cancel, complete, new_id, new_job, release, save
from tests.contract.connections import DOORS, DatabaseError, Door, PostgresDoor, SQLiteDoor, moved, refusal, update
from tests.contract.progress import keep, step, steps_of

DENIED = "permission denied"


@pytest.fixture(params=["functions", "owner", "app"])
def door_name(request: pytest.FixtureRequest) -> str:
    """Which door is tried: a connection with our functions, the owner of the schema, the app role."""
    return str(request.param)


@pytest.fixture
def engine(door_name: str) -> str:
    return DOORS[door_name]


async def all_rejected(adapter: Door, *statements: tuple[Any, ...]) -> None:
    """Run statements in one transaction, which cannot be committed."""
    ours: Any = (
        adapter.db
        if isinstance(adapter, SQLiteDoor)
        else adapter.connection
        if isinstance(adapter, PostgresDoor)
        else None
    )
    await adapter.run("BEGIN")
    try:
        for statement in statements:
            await adapter.run(*statement)
        await adapter.run("COMMIT")
    except DatabaseError:
        done = ours.execute("ROLLBACK")
        if isinstance(adapter, PostgresDoor):
            await done
    else:
        pytest.fail("it was committed")


async def parents_and_children(remote: Desk) -> tuple[Job, list[str]]:
    """A job that waits for two children."""
    parent = await remote.running(type="parent")
    children = await remote.add_all([new_job(type="child", parent_id=parent.id) for _ in range(2)])
    await remote.do(release(parent, children=tuple(children)))
    return await remote.job(parent.id), children


@pytest.mark.parametrize("status", ["approved", "denied", "expired", "void"])
async def test_an_approval_is_not_closed_without_its_job(remote: Desk, adapter: Door, status: str) -> None:
    job, approval = await waiting(remote)
    by = "'user:eve'" if status in ("approved", "denied") else "NULL"
    message = await refusal(
        adapter, f"UPDATE approval SET status = '{status}', closed_at = opened_at, closed_by = {by} WHERE tenant = $1 AND id = $2",
        remote.tenant, approval.id,
    )  # fmt: skip
    assert "closed by the operation that moves its job on" in message
    assert (await approval_of(remote, approval.id), await remote.job(job.id)) == (approval, job)
    await decided(remote, command(approval))
    assert (await remote.job(job.id)).status is Status.QUEUED
    await remote.verify()


async def test_an_approval_is_not_decided_in_the_transaction_that_moves_its_job_by_hand(
    remote: Desk, adapter: Door
) -> None:
    job, approval = await waiting(remote)
    close = "UPDATE approval SET status = 'approved', closed_at = opened_at, closed_by = 'user:eve' WHERE tenant = $1 AND id = $2"
    change = update(job, moved(adapter, job, Status.QUEUED, remote.clock.now))
    for statements in ([(close, remote.tenant, approval.id), change], [change, (close, remote.tenant, approval.id)]):
        await all_rejected(adapter, *statements)
    assert await approval_of(remote, approval.id) == approval
    assert await remote.job(job.id) == job


@pytest.mark.parametrize("door_name", ["owner", "app"])
async def test_on_postgresql_a_verb_of_half_a_decision_does_not_commit(remote: Desk, adapter: Door) -> None:
    job, approval = await waiting(remote)
    running = await remote.running()
    at = remote.clock.now
    close = "select interlock.close_approval($1, $2, 'approved', 'user:eve', $3, null, null)"
    assert "open exactly while its job waits" in await refusal(adapter, close, remote.tenant, approval.id, at)
    opened = "select interlock.request_approval($1, $2, $3, $4, 'p', null, null, null, $5, 1, 'fail', 'user:eve', 60, null, 1)"
    values = (remote.tenant, new_id(), running.id, running.fence, "0" * 64)
    assert "open exactly while its job waits" in await refusal(adapter, opened, *values)
    assert await approval_of(remote, approval.id) == approval
    assert await remote.job(job.id) == job


async def test_no_approval_is_opened_reopened_or_deleted_by_hand(remote: Desk, adapter: Door) -> None:
    job, approval = await waiting(remote)
    columns = "job_id, status, prompt, digest, required, on_deny, opened_by, opened_at, expires_at"
    running = await remote.running()
    await refusal(
        adapter, f"INSERT INTO approval (tenant, id, fence, {columns}) SELECT tenant, $3, {running.fence}, $4, "
        f"{columns.removeprefix('job_id, ')} FROM approval WHERE tenant = $1 AND id = $2",
        remote.tenant, approval.id, new_id(), running.id,
    )  # fmt: skip
    await refusal(adapter, "DELETE FROM approval WHERE tenant = $1 AND id = $2", remote.tenant, approval.id)
    await decided(remote, command(approval))
    await refusal(
        adapter, "UPDATE approval SET status = 'open', closed_at = NULL, closed_by = NULL WHERE tenant = $1 AND id = $2",
        remote.tenant, approval.id,
    )  # fmt: skip
    await refusal(
        adapter, "INSERT INTO approval_vote (tenant, approval_id, job_id, voter, decision, at) "
        "SELECT tenant, id, job_id, 'user:eve', 'deny', opened_at FROM approval WHERE tenant = $1 AND id = $2",
        remote.tenant, approval.id,
    )  # fmt: skip
    assert (await remote.job(job.id)).status is Status.QUEUED
    await remote.verify()


async def test_a_job_waits_only_for_its_own_open_approval(remote: Desk, adapter: Door) -> None:
    other, foreign = await waiting(remote)
    mine, own = await waiting(remote)
    await decided(remote, command(own))
    again = await remote.again(mine)
    for approval_id in (NEVER, foreign.id, own.id):
        columns = moved(adapter, again, Status.WAITING_FOR_APPROVAL, remote.clock.now) | {"approval_id": approval_id}
        assert "waits only for its own open approval" in await refusal(adapter, *update(again, columns))
    await remote.do(complete(again))
    assert (await remote.job(other.id)).status is Status.WAITING_FOR_APPROVAL


async def test_a_job_waits_only_for_children_that_a_release_named(remote: Desk, adapter: Door) -> None:
    running = await remote.running()
    for child in (NEVER, running.id):
        message = await refusal(
            adapter,
            "INSERT INTO job_await (tenant, child_id, job_id) VALUES ($1, $2, $3)",
            remote.tenant,
            child,
            running.id,
        )
        assert "only a release" in message
    if adapter.engine == "sqlite":
        columns = moved(adapter, running, Status.QUEUED, remote.clock.now) | {"awaiting": 1}
        assert "awaiting is the number" in await refusal(adapter, *update(running, columns))
    await remote.do(complete(running))


async def test_a_job_is_not_made_to_forget_its_children(remote: Desk, adapter: Door) -> None:
    parent, children = await parents_and_children(remote)
    for statement in (
        "DELETE FROM job_await WHERE tenant = $1 AND job_id = $2",
        "UPDATE job_await SET child_id = job_id WHERE tenant = $1 AND job_id = $2",
    ):
        message = await refusal(adapter, statement, remote.tenant, parent.id)
        assert DENIED in message or "interlock: " in message
    for child in children:
        await remote.do(cancel(child))
    assert await remote.claimed(types=frozenset({"parent"})) == [parent.id]
    await remote.verify()


async def test_a_child_that_ends_by_hand_wakes_its_parent(remote: Desk, adapter: Door) -> None:
    parent, children = await parents_and_children(remote)
    for child in children:
        job = await remote.job(child)
        await adapter.run(*update(job, moved(adapter, job, Status.CANCELLED, remote.clock.now)))
    assert await remote.claimed(types=frozenset({"parent"})) == [parent.id]
    await remote.verify()


async def test_what_may_be_claimed_or_is_leased_is_not_taken_away(remote: Desk, adapter: Door) -> None:
    waits = await remote.add(type="waits")
    running = await remote.running()
    if adapter.engine == "postgres":
        for statement in (
            "DELETE FROM ready WHERE tenant = $1", "UPDATE ready SET blocked = true WHERE tenant = $1",
            "UPDATE ready SET run_at = 'infinity' WHERE tenant = $1", "DELETE FROM lease WHERE tenant = $1",
            "UPDATE lease SET job_id = gen_random_uuid() WHERE tenant = $1", "UPDATE lease SET fence = 99 WHERE tenant = $1",
        ):  # fmt: skip
            message = await refusal(adapter, statement, remote.tenant)
            assert DENIED in message or "kept by the changes of jobs" in message, statement
    else:
        for columns in (
            "eligibility_key = 99",
            "base = 99",
            "eligibility_key = eligibility_key + 1, version = version + 1",
        ):
            await refusal(adapter, f"UPDATE job SET {columns} WHERE tenant = $1 AND id = $2", remote.tenant, waits)
    assert await remote.claimed(types=frozenset({"waits"})) == [waits]
    await remote.do(complete(running))
    await remote.verify()


async def test_a_job_keeps_a_route_by_which_it_is_found(remote: Desk, adapter: Door) -> None:
    job = await remote.job(await remote.add())
    other = await remote.job(await remote.add(type="other", priority=5))
    ((foreign, base),) = await adapter.run(
        "SELECT eligibility_key, base FROM job WHERE tenant = $1 AND id = $2", remote.tenant, other.id
    )
    for columns in ({"eligibility_key": foreign, "base": base}, {"eligibility_key": 10**9}, {"priority": 7}):
        change = moved(adapter, job, Status.QUEUED, remote.clock.now) | columns
        assert "must match its type" in await refusal(adapter, *update(job, change))
    for statement in (
        "DELETE FROM eligibility_key WHERE tenant = $1",
        "UPDATE eligibility_key SET type = 'x' WHERE tenant = $1",
    ):
        message = await refusal(adapter, statement, remote.tenant)
        assert DENIED in message or "jobs are found by it" in message
    assert await remote.claimed(types=frozenset({"work"})) == [job.id]


async def test_progress_is_saved_by_hand_only_in_a_run(remote: Desk, adapter: Door) -> None:
    job = await remote.running()
    await keep(remote, step(job))
    await remote.checkpoint(save(job, 1))
    await remote.do(complete(job))
    at = remote.clock.now
    no = "0" if adapter.engine == "sqlite" else "false"
    statements: list[tuple[Any, ...]] = [
        (f"INSERT INTO job_step (tenant, job_id, seq, name, occurrence, fence, at, sanitized, result) "
         f"VALUES ($1, $2, 9, 'late', 1, {job.fence}, $3, {no}, '1')", remote.tenant, job.id, at),
        ("UPDATE job_checkpoint SET data = '0' WHERE tenant = $1 AND job_id = $2", remote.tenant, job.id),
        ("DELETE FROM job_checkpoint WHERE tenant = $1 AND job_id = $2", remote.tenant, job.id),
        (f"INSERT INTO job_checkpoint (tenant, job_id, seq, data, sanitized, at) VALUES ($1, $2, 1, '1', {no}, $3)",
         remote.tenant, await remote.add(type="x"), at),
    ]  # fmt: skip
    for statement, *values in statements:
        message = await refusal(adapter, statement, *values)
        assert DENIED in message or "interlock: " in message, statement
    assert len(await steps_of(remote, job.id)) == 1
    await remote.verify()


async def test_history_is_not_orphaned(remote: Desk, adapter: Door) -> None:
    job = await remote.running()
    await remote.do(complete(job, result="1"))
    message = await refusal(adapter, "DELETE FROM job WHERE tenant = $1 AND id = $2", remote.tenant, job.id)
    assert DENIED in message or "use interlock prune" in message
    await remote.verify()


async def test_the_numbers_of_a_tenant_do_not_fall(remote: Desk, adapter: Door) -> None:
    await remote.add()
    if adapter.engine == "sqlite":
        await refusal(adapter, "UPDATE tenant SET next_seq = 1 WHERE tenant = $1", remote.tenant)
    await refusal(adapter, "DELETE FROM tenant WHERE tenant = $1", remote.tenant)
    await remote.add()
