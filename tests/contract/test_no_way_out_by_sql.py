"""Direct SQL through our own connections and roles leaves no approval without its job, and no job without a way out."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.domain.job import Job
from interlock.domain.lifecycle import Status
from tests.contract.approvals import ballot, decided, gate_of, waiting
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


async def all_rejected(door: Door, *statements: tuple[Any, ...]) -> None:
    """Run statements in one transaction, which cannot be committed."""
    ours: Any = door.db if isinstance(door, SQLiteDoor) else door.connection if isinstance(door, PostgresDoor) else None
    await door.run("BEGIN")
    try:
        for statement in statements:
            await door.run(*statement)
        await door.run("COMMIT")
    except DatabaseError:
        done = ours.execute("ROLLBACK")
        if isinstance(door, PostgresDoor):
            await done
    else:
        pytest.fail("it was committed")


async def parents_and_children(desk: Desk) -> tuple[Job, list[str]]:
    """A job that waits for two children."""
    parent = await desk.running(type="parent")
    children = await desk.add_all([new_job(type="child", parent_id=parent.id) for _ in range(2)])
    await desk.do(release(parent, children=tuple(children)))
    return await desk.job(parent.id), children


@pytest.mark.parametrize("status", ["approved", "denied", "expired", "void"])
async def test_an_approval_is_not_closed_without_its_job(desk: Desk, door: Door, status: str) -> None:
    job, gate = await waiting(desk)
    by = "'user:eve'" if status in ("approved", "denied") else "NULL"
    message = await refusal(
        door, f"UPDATE approval SET status = '{status}', closed_at = opened_at, closed_by = {by} WHERE tenant = $1 AND id = $2",
        desk.tenant, gate.id,
    )  # fmt: skip
    assert "closed by the operation that moves its job on" in message
    assert (await gate_of(desk, gate.id), await desk.job(job.id)) == (gate, job)
    await decided(desk, ballot(gate))
    assert (await desk.job(job.id)).status is Status.QUEUED
    await desk.verify()


async def test_an_approval_is_not_decided_in_the_transaction_that_moves_its_job_by_hand(desk: Desk, door: Door) -> None:
    job, gate = await waiting(desk)
    close = "UPDATE approval SET status = 'approved', closed_at = opened_at, closed_by = 'user:eve' WHERE tenant = $1 AND id = $2"
    change = update(job, moved(door, job, Status.QUEUED, desk.clock.now))
    for statements in ([(close, desk.tenant, gate.id), change], [change, (close, desk.tenant, gate.id)]):
        await all_rejected(door, *statements)
    assert await gate_of(desk, gate.id) == gate
    assert await desk.job(job.id) == job


@pytest.mark.parametrize("door_name", ["owner", "app"])
async def test_on_postgresql_a_verb_of_half_a_decision_does_not_commit(desk: Desk, door: Door) -> None:
    job, gate = await waiting(desk)
    running = await desk.running()
    at = desk.clock.now
    close = "select interlock.close_approval($1, $2, 'approved', 'user:eve', $3, null, null)"
    assert "open exactly while its job waits" in await refusal(door, close, desk.tenant, gate.id, at)
    opened = "select interlock.open_gate($1, $2, $3, $4, 'p', null, null, null, $5, 1, 'fail', 'user:eve', 60, null, 1)"
    values = (desk.tenant, new_id(), running.id, running.fence, "0" * 64)
    assert "open exactly while its job waits" in await refusal(door, opened, *values)
    assert await gate_of(desk, gate.id) == gate
    assert await desk.job(job.id) == job


async def test_no_approval_is_opened_reopened_or_deleted_by_hand(desk: Desk, door: Door) -> None:
    job, gate = await waiting(desk)
    columns = "job_id, status, prompt, digest, required, on_deny, opened_by, opened_at, expires_at"
    running = await desk.running()
    await refusal(
        door, f"INSERT INTO approval (tenant, id, fence, {columns}) SELECT tenant, $3, {running.fence}, $4, "
        f"{columns.removeprefix('job_id, ')} FROM approval WHERE tenant = $1 AND id = $2",
        desk.tenant, gate.id, new_id(), running.id,
    )  # fmt: skip
    await refusal(door, "DELETE FROM approval WHERE tenant = $1 AND id = $2", desk.tenant, gate.id)
    await decided(desk, ballot(gate))
    await refusal(
        door, "UPDATE approval SET status = 'open', closed_at = NULL, closed_by = NULL WHERE tenant = $1 AND id = $2",
        desk.tenant, gate.id,
    )  # fmt: skip
    await refusal(
        door, "INSERT INTO approval_vote (tenant, approval_id, job_id, voter, decision, at) "
        "SELECT tenant, id, job_id, 'user:eve', 'deny', opened_at FROM approval WHERE tenant = $1 AND id = $2",
        desk.tenant, gate.id,
    )  # fmt: skip
    assert (await desk.job(job.id)).status is Status.QUEUED
    await desk.verify()


async def test_a_job_waits_only_for_its_own_open_approval(desk: Desk, door: Door) -> None:
    other, foreign = await waiting(desk)
    mine, own = await waiting(desk)
    await decided(desk, ballot(own))
    again = await desk.again(mine)
    for gate_id in (NEVER, foreign.id, own.id):
        columns = moved(door, again, Status.WAITING_FOR_APPROVAL, desk.clock.now) | {"gate_id": gate_id}
        assert "waits only for its own open approval" in await refusal(door, *update(again, columns))
    await desk.do(complete(again))
    assert (await desk.job(other.id)).status is Status.WAITING_FOR_APPROVAL


async def test_a_job_waits_only_for_children_that_a_release_named(desk: Desk, door: Door) -> None:
    running = await desk.running()
    for child in (NEVER, running.id):
        message = await refusal(
            door, "INSERT INTO job_await (tenant, child_id, job_id) VALUES ($1, $2, $3)", desk.tenant, child, running.id
        )
        assert "only a release" in message
    if door.engine == "sqlite":
        columns = moved(door, running, Status.QUEUED, desk.clock.now) | {"awaiting": 1}
        assert "awaiting is the number" in await refusal(door, *update(running, columns))
    await desk.do(complete(running))


async def test_a_job_is_not_made_to_forget_its_children(desk: Desk, door: Door) -> None:
    parent, children = await parents_and_children(desk)
    for statement in (
        "DELETE FROM job_await WHERE tenant = $1 AND job_id = $2",
        "UPDATE job_await SET child_id = job_id WHERE tenant = $1 AND job_id = $2",
    ):
        message = await refusal(door, statement, desk.tenant, parent.id)
        assert DENIED in message or "interlock: " in message
    for child in children:
        await desk.do(cancel(child))
    assert await desk.claimed(types=frozenset({"parent"})) == [parent.id]
    await desk.verify()


async def test_a_child_that_ends_by_hand_wakes_its_parent(desk: Desk, door: Door) -> None:
    parent, children = await parents_and_children(desk)
    for child in children:
        job = await desk.job(child)
        await door.run(*update(job, moved(door, job, Status.CANCELLED, desk.clock.now)))
    assert await desk.claimed(types=frozenset({"parent"})) == [parent.id]
    await desk.verify()


async def test_what_may_be_claimed_or_is_leased_is_not_taken_away(desk: Desk, door: Door) -> None:
    waits = await desk.add(type="waits")
    running = await desk.running()
    if door.engine == "postgres":
        for statement in (
            "DELETE FROM ready WHERE tenant = $1", "UPDATE ready SET blocked = true WHERE tenant = $1",
            "UPDATE ready SET run_at = 'infinity' WHERE tenant = $1", "DELETE FROM lease WHERE tenant = $1",
            "UPDATE lease SET job_id = gen_random_uuid() WHERE tenant = $1", "UPDATE lease SET fence = 99 WHERE tenant = $1",
        ):  # fmt: skip
            message = await refusal(door, statement, desk.tenant)
            assert DENIED in message or "kept by the changes of jobs" in message, statement
    else:
        for columns in ("route = 99", "base = 99", "route = route + 1, version = version + 1"):
            await refusal(door, f"UPDATE job SET {columns} WHERE tenant = $1 AND id = $2", desk.tenant, waits)
    assert await desk.claimed(types=frozenset({"waits"})) == [waits]
    await desk.do(complete(running))
    await desk.verify()


async def test_a_job_keeps_a_route_by_which_it_is_found(desk: Desk, door: Door) -> None:
    job = await desk.job(await desk.add())
    other = await desk.job(await desk.add(type="other", priority=5))
    ((foreign, base),) = await door.run(
        "SELECT route, base FROM job WHERE tenant = $1 AND id = $2", desk.tenant, other.id
    )
    for columns in ({"route": foreign, "base": base}, {"route": 10**9}, {"priority": 7}):
        change = moved(door, job, Status.QUEUED, desk.clock.now) | columns
        assert "its route is the one" in (await refusal(door, *update(job, change))).replace(
            "the route of a job", "its route"
        )
    for statement in ("DELETE FROM route WHERE tenant = $1", "UPDATE route SET type = 'x' WHERE tenant = $1"):
        message = await refusal(door, statement, desk.tenant)
        assert DENIED in message or "jobs are found by it" in message
    assert await desk.claimed(types=frozenset({"work"})) == [job.id]


async def test_progress_is_saved_by_hand_only_in_a_run(desk: Desk, door: Door) -> None:
    job = await desk.running()
    await keep(desk, step(job))
    await desk.checkpoint(save(job, 1))
    await desk.do(complete(job))
    at = desk.clock.now
    no = "0" if door.engine == "sqlite" else "false"
    statements: list[tuple[Any, ...]] = [
        (f"INSERT INTO job_step (tenant, job_id, seq, name, occurrence, fence, at, sanitized, result) "
         f"VALUES ($1, $2, 9, 'late', 1, {job.fence}, $3, {no}, '1')", desk.tenant, job.id, at),
        ("UPDATE job_checkpoint SET data = '0' WHERE tenant = $1 AND job_id = $2", desk.tenant, job.id),
        ("DELETE FROM job_checkpoint WHERE tenant = $1 AND job_id = $2", desk.tenant, job.id),
        (f"INSERT INTO job_checkpoint (tenant, job_id, seq, data, sanitized, at) VALUES ($1, $2, 1, '1', {no}, $3)",
         desk.tenant, await desk.add(type="x"), at),
    ]  # fmt: skip
    for statement, *values in statements:
        message = await refusal(door, statement, *values)
        assert DENIED in message or "interlock: " in message, statement
    assert len(await steps_of(desk, job.id)) == 1
    await desk.verify()


async def test_history_is_not_orphaned(desk: Desk, door: Door) -> None:
    job = await desk.running()
    await desk.do(complete(job, result="1"))
    message = await refusal(door, "DELETE FROM job WHERE tenant = $1 AND id = $2", desk.tenant, job.id)
    assert DENIED in message or "use interlock prune" in message
    await desk.verify()


async def test_the_numbers_of_a_tenant_do_not_fall(desk: Desk, door: Door) -> None:
    await desk.add()
    if door.engine == "sqlite":
        await refusal(door, "UPDATE tenant SET next_seq = 1 WHERE tenant = $1", desk.tenant)
    await refusal(door, "DELETE FROM tenant WHERE tenant = $1", desk.tenant)
    await desk.add()
