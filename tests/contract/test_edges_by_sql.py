"""All 8 by 8 transitions by direct SQL: the database rejects illegal ones from any role, and audits legal ones."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.domain.lifecycle import EDGES, TERMINAL, Status
from interlock.domain.registry import Agent
from tests.contract.builders import TenantQueue, complete, heartbeat, new_id, release
from tests.contract.connections import CONNECTIONS, DatabaseError, SqlConnection, job_in, move, moved, rejection, update


@pytest.fixture(params=["functions", "owner", "app", "partitions"])
def connection_name(request: pytest.FixtureRequest) -> str:
    """The connection to try: with our functions, the owner of the schema, the app role."""
    return str(request.param)


@pytest.fixture
def engine(connection_name: str) -> str:
    return CONNECTIONS[connection_name]


@pytest.mark.parametrize("origin", Status)
async def test_a_transition_that_is_not_an_edge_is_rejected(
    queue: TenantQueue, sql: SqlConnection, master: SqlConnection, origin: Status
) -> None:
    job = await job_in(queue, master, origin)
    before = await queue.trace(job.id)
    queue.clock.advance(1)
    for target in Status:
        if (origin, target) not in EDGES or origin in TERMINAL:
            message = await rejection(sql, *update(job, moved(sql, job, target, queue.clock.now)))
            assert message.startswith("interlock: "), target
            assert ("has ended" if origin in TERMINAL else "not a legal move") in message, target
            assert await queue.trace(job.id) == before, target


@pytest.mark.parametrize("origin", [status for status in Status if status not in TERMINAL])
async def test_a_transition_that_is_an_edge_is_recorded_in_history_by_the_database(
    queue: TenantQueue, sql: SqlConnection, master: SqlConnection, origin: Status
) -> None:
    for target in Status:
        # An approval is needed to wait for one.
        if (origin, target) in EDGES and target is not Status.WAITING_FOR_APPROVAL:
            job = await job_in(queue, master, origin, type=target)
            before = await queue.history(job.id)
            queue.clock.advance(1)
            await move(sql, job, target, queue.clock.now, updated_at=12345)
            now, rows = await queue.trace(job.id)
            assert rows[:-1] == before, target
            last = rows[-1]
            assert (last.version, last.from_status, last.to_status) == (job.version + 1, origin, target)
            assert (last.actor, last.reason, last.attempt) == ("user:dba", "by hand", job.attempt), target
            assert (last.fence, last.at) == (now.fence, queue.clock.now), target
            assert (now.status, now.version) == (target, job.version + 1), target
            assert now.updated_at == queue.clock.now, target  # and not the value of the statement
    await queue.verify()


@pytest.mark.parametrize("target", [Status.QUEUED, Status.RETRY])
async def test_a_job_set_to_waiting_by_hand_can_be_claimed(
    queue: TenantQueue, sql: SqlConnection, master: SqlConnection, target: Status
) -> None:
    job = await job_in(queue, master, Status.RUNNING)
    await move(sql, job, target, queue.clock.now)
    (leased,) = await queue.claim(worker="w2")
    assert (leased.id, leased.fence) == (job.id, job.fence + 1)
    await queue.verify()


async def test_a_job_leased_by_hand_has_a_lease_that_expires(
    queue: TenantQueue, sql: SqlConnection, master: SqlConnection
) -> None:
    job = await job_in(queue, master, Status.QUEUED)
    await move(sql, job, Status.RUNNING, queue.clock.now)
    assert await queue.claim(limit=10) == []
    queue.clock.advance(60)
    await queue.sweep()
    assert (await queue.job(job.id)).status is Status.RETRY


async def test_a_job_leased_by_hand_accepts_heartbeats(
    queue: TenantQueue, sql: SqlConnection, master: SqlConnection
) -> None:
    other = await queue.running(type="other")
    job = await job_in(queue, master, Status.QUEUED)
    await move(sql, job, Status.RUNNING, queue.clock.now)
    queue.clock.advance(30)
    replies = await queue.heartbeat(heartbeat(other), heartbeat(await queue.job(job.id)))
    assert [reply.lease_expires_at for reply in replies] == [queue.after(60), queue.after(60)]


@pytest.mark.parametrize("target", sorted(TERMINAL))
async def test_a_job_ended_by_hand_stays_terminal(
    queue: TenantQueue, sql: SqlConnection, master: SqlConnection, target: Status
) -> None:
    job = await job_in(queue, master, Status.RUNNING)
    await move(sql, job, target, queue.clock.now)
    queue.clock.advance(3600)
    await queue.sweep()
    assert await queue.claim(limit=10) == []
    assert (await queue.job(job.id)).status is target


@pytest.mark.parametrize("limit", [None, 1])
async def test_a_parent_does_not_wait_for_a_child_ended_by_hand(
    queue: TenantQueue, sql: SqlConnection, limit: int | None
) -> None:
    await queue.store.registry.set_agent(queue.tenant, Agent("bot", "1", limit))
    parent = await queue.running(agent_kind="bot", agent_id="1")
    children = [await queue.running(type="child", parent_id=parent.id) for _ in range(2)]
    await queue.do(release(parent, children=tuple(child.id for child in children)))
    await move(sql, children[0], Status.SUCCEEDED, queue.clock.now)
    assert tuple((await queue.job(parent.id)).awaiting) == (children[1].id,)
    await move(sql, children[1], Status.CANCELLED, queue.clock.now)
    assert await queue.claimed(limit=10) == [parent.id]
    await queue.verify()


async def test_a_parent_ended_by_hand_waits_for_no_child(queue: TenantQueue, sql: SqlConnection) -> None:
    parent = await queue.running()
    child = await queue.running(type="child", parent_id=parent.id)
    await queue.do(release(parent, children=(child.id,)))
    await move(sql, await queue.job(parent.id), Status.CANCELLED, queue.clock.now)
    assert tuple((await queue.job(parent.id)).awaiting) == ()
    assert (await queue.do(complete(child))).status is Status.SUCCEEDED
    await queue.verify()


async def test_a_job_ended_by_hand_blocks_no_other(queue: TenantQueue, sql: SqlConnection) -> None:
    await queue.store.registry.set_agent(queue.tenant, Agent("bot", "1", 1))
    first, second = [await queue.add(agent_kind="bot", agent_id="1") for _ in range(2)]
    await move(sql, await queue.job(second), Status.CANCELLED, queue.clock.now)
    assert not (await queue.job(second)).blocked
    assert await queue.claimed(limit=10) == [first]


async def test_a_job_is_created_queued_and_nothing_else(queue: TenantQueue, sql: SqlConnection) -> None:
    like = await queue.job(await queue.add())
    for status in Status:
        created = like._replace(id=new_id(), status=Status.SUCCEEDED)  # so that the move is like one from nowhere
        columns = moved(sql, created, status, queue.clock.now) | CREATION
        if status is Status.QUEUED:
            await _insert(sql, queue, created.id, columns)
            (row,) = await queue.history(created.id)
            assert (row.from_status, row.to_status, row.actor) == (None, Status.QUEUED, "user:dba")
            await queue.verify()
        else:
            with pytest.raises(DatabaseError, match="interlock: a new job is queued"):
                await _insert(sql, queue, created.id, columns)
            assert await queue.store.get(queue.tenant, [created.id]) == [None], status


async def test_a_job_is_created_at_version_and_attempt_1_and_fence_0(queue: TenantQueue, sql: SqlConnection) -> None:
    like = await queue.job(await queue.add())
    created = like._replace(id=new_id(), status=Status.SUCCEEDED)
    for wrong in ({"version": 2}, {"version": 0}, {"attempt": 2}, {"fence": 1}):
        columns = moved(sql, created, Status.QUEUED, queue.clock.now) | CREATION | wrong
        with pytest.raises(DatabaseError, match="interlock: a new job is queued, at version 1, attempt 1 and fence 0"):
            await _insert(sql, queue, created.id, columns)


CREATION: dict[str, Any] = {"version": 1, "fence": 0, "attempt": 1, "verb": "enqueue"}


async def _insert(sql: SqlConnection, queue: TenantQueue, id: str, columns: dict[str, object]) -> None:
    """A job like the first one of this tenant, put in by hand."""
    if sql.engine == "postgres":
        columns = columns | {"previous": None}
        copied = "priority, eligibility_key, base, run_at, max_attempts, releases, type, created_at, requires, tags, created_by, payload"
        overriding = " OVERRIDING SYSTEM VALUE"
    else:
        copied, overriding = "priority, eligibility_key, base, run_at, max_attempts, releases", ""
    names = [*columns, "updated_at"]
    values = [*columns.values(), queue.clock.now]
    casts = [f"${i}{_cast(sql, name)}" for i, name in enumerate(names, 3)]
    if sql.engine == "sqlite":  # what a job is created with comes first, and goes if the job is refused
        await sql.run("BEGIN")
        await sql.run(
            "INSERT INTO job_body (tenant, id, seq, type, created_at, created_by, requires, payload) "
            "SELECT tenant, $2, (SELECT max(seq) + 1 FROM job), type, created_at, created_by, requires, payload "
            "FROM job_body WHERE tenant = $1 ORDER BY seq LIMIT 1",
            queue.tenant, id,
        )  # fmt: skip
    try:
        await sql.run(
            f"INSERT INTO job (tenant, id, seq, {copied}, {', '.join(names)}){overriding} "
            f"SELECT tenant, $2{_cast(sql, 'id')}, (SELECT max(seq) + 1 FROM job), {copied}, {', '.join(casts)} "
            "FROM job WHERE tenant = $1 ORDER BY seq LIMIT 1",
            queue.tenant, id, *values,
        )  # fmt: skip
    except DatabaseError:
        if sql.engine == "sqlite":
            await sql.run("ROLLBACK")
        raise
    if sql.engine == "sqlite":
        await sql.run("COMMIT")


def _cast(sql: SqlConnection, column: str) -> str:
    """PostgreSQL needs the types of values that are selected rather than set."""
    if sql.engine == "sqlite":
        return ""
    if column in ("id", "approval_id"):
        return "::uuid"
    if column in ("status", "previous"):
        return "::interlock.status"
    if column in ("version", "attempt"):
        return "::integer"
    if column == "fence":
        return "::bigint"
    if column.endswith("_at"):
        return "::timestamptz"
    return "::text"
