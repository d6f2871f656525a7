"""All 8 by 8 moves by direct SQL: the database itself refuses what is no edge, whoever asks, and audits what is one."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.domain.lifecycle import TERMINAL, Status, is_legal
from interlock.domain.registry import Agent
from tests.contract.builders import Desk, complete, heartbeat, new_id, release
from tests.contract.connections import DOORS, DatabaseError, Door, job_in, move, moved, refusal, update


@pytest.fixture(params=["functions", "owner", "app", "partitions"])
def door_name(request: pytest.FixtureRequest) -> str:
    """Which door is tried: a connection with our functions, the owner of the schema, the app role."""
    return str(request.param)


@pytest.fixture
def engine(door_name: str) -> str:
    return DOORS[door_name]


@pytest.mark.parametrize("origin", Status)
async def test_a_move_that_is_no_edge_is_refused(remote: Desk, adapter: Door, master: Door, origin: Status) -> None:
    job = await job_in(remote, master, origin)
    before = await remote.trace(job.id)
    remote.clock.advance(1)
    for target in Status:
        if not is_legal(origin, target):
            message = await refusal(adapter, *update(job, moved(adapter, job, target, remote.clock.now)))
            assert message.startswith("interlock: "), target
            assert ("has ended" if origin in TERMINAL else "not a legal move") in message, target
            assert await remote.trace(job.id) == before, target


@pytest.mark.parametrize("origin", [status for status in Status if status not in TERMINAL])
async def test_a_move_that_is_an_edge_is_written_into_history_by_the_database(
    remote: Desk, adapter: Door, master: Door, origin: Status
) -> None:
    for target in Status:
        if (
            is_legal(origin, target) and target is not Status.WAITING_FOR_APPROVAL
        ):  # for which there must be an approval
            job = await job_in(remote, master, origin, type=target)
            before = await remote.history(job.id)
            remote.clock.advance(1)
            await move(adapter, job, target, remote.clock.now, updated_at=12345)
            now, rows = await remote.trace(job.id)
            assert rows[:-1] == before, target
            last = rows[-1]
            assert (last.version, last.from_status, last.to_status) == (job.version + 1, origin, target)
            assert (last.actor, last.reason, last.attempt) == ("user:dba", "by hand", job.attempt), target
            assert (last.fence, last.at) == (now.fence, remote.clock.now), target
            assert (now.status, now.version) == (target, job.version + 1), target
            assert now.updated_at == remote.clock.now, target  # and not what the statement said
    await remote.verify()


@pytest.mark.parametrize("target", [Status.QUEUED, Status.RETRY])
async def test_a_job_made_to_wait_by_hand_can_be_claimed(
    remote: Desk, adapter: Door, master: Door, target: Status
) -> None:
    job = await job_in(remote, master, Status.RUNNING)
    await move(adapter, job, target, remote.clock.now)
    (leased,) = await remote.claim(worker="w2")
    assert (leased.id, leased.fence) == (job.id, job.fence + 1)
    await remote.verify()


async def test_a_job_granted_by_hand_has_a_lease_that_ends(remote: Desk, adapter: Door, master: Door) -> None:
    job = await job_in(remote, master, Status.QUEUED)
    await move(adapter, job, Status.RUNNING, remote.clock.now)
    assert await remote.claim(limit=10) == []
    remote.clock.advance(60)
    await remote.sweep()
    assert (await remote.job(job.id)).status is Status.RETRY


async def test_a_job_granted_by_hand_can_be_kept_alive_beside_others(remote: Desk, adapter: Door, master: Door) -> None:
    other = await remote.running(type="other")
    job = await job_in(remote, master, Status.QUEUED)
    await move(adapter, job, Status.RUNNING, remote.clock.now)
    remote.clock.advance(30)
    replies = await remote.heartbeat(heartbeat(other), heartbeat(await remote.job(job.id)))
    assert [reply.lease_expires_at for reply in replies] == [remote.after(60), remote.after(60)]


@pytest.mark.parametrize("target", sorted(TERMINAL))
async def test_a_job_ended_by_hand_stays_ended(remote: Desk, adapter: Door, master: Door, target: Status) -> None:
    job = await job_in(remote, master, Status.RUNNING)
    await move(adapter, job, target, remote.clock.now)
    remote.clock.advance(3600)
    await remote.sweep()
    assert await remote.claim(limit=10) == []
    assert (await remote.job(job.id)).status is target


@pytest.mark.parametrize("limit", [None, 1])
async def test_a_child_ended_by_hand_is_waited_for_no_more(remote: Desk, adapter: Door, limit: int | None) -> None:
    await remote.store.set_agent(remote.tenant, Agent("bot", "1", limit))
    parent = await remote.running(agent_kind="bot", agent_id="1")
    children = [await remote.running(type="child", parent_id=parent.id) for _ in range(2)]
    await remote.do(release(parent, children=tuple(child.id for child in children)))
    await move(adapter, children[0], Status.SUCCEEDED, remote.clock.now)
    assert tuple((await remote.job(parent.id)).awaiting) == (children[1].id,)
    await move(adapter, children[1], Status.CANCELLED, remote.clock.now)
    assert await remote.claimed(limit=10) == [parent.id]
    await remote.verify()


async def test_a_parent_ended_by_hand_waits_for_nobody(remote: Desk, adapter: Door) -> None:
    parent = await remote.running()
    child = await remote.running(type="child", parent_id=parent.id)
    await remote.do(release(parent, children=(child.id,)))
    await move(adapter, await remote.job(parent.id), Status.CANCELLED, remote.clock.now)
    assert tuple((await remote.job(parent.id)).awaiting) == ()
    assert (await remote.do(complete(child))).status is Status.SUCCEEDED
    await remote.verify()


async def test_a_job_ended_by_hand_is_blocked_by_nobody(remote: Desk, adapter: Door) -> None:
    await remote.store.set_agent(remote.tenant, Agent("bot", "1", 1))
    first, second = [await remote.add(agent_kind="bot", agent_id="1") for _ in range(2)]
    await move(adapter, await remote.job(second), Status.CANCELLED, remote.clock.now)
    assert not (await remote.job(second)).blocked
    assert await remote.claimed(limit=10) == [first]


async def test_a_job_is_born_queued_and_nothing_else(remote: Desk, adapter: Door) -> None:
    like = await remote.job(await remote.add())
    for status in Status:
        created = like._replace(id=new_id(), status=Status.SUCCEEDED)  # so that the move is like one from nowhere
        columns = moved(adapter, created, status, remote.clock.now) | BIRTH
        if status is Status.QUEUED:
            await _insert(adapter, remote, created.id, columns)
            (row,) = await remote.history(created.id)
            assert (row.from_status, row.to_status, row.actor) == (None, Status.QUEUED, "user:dba")
            await remote.verify()
        else:
            with pytest.raises(DatabaseError, match="interlock: a new job is queued"):
                await _insert(adapter, remote, created.id, columns)
            assert await remote.store.get(remote.tenant, [created.id]) == [None], status


async def test_a_job_is_born_at_version_and_attempt_1_and_fence_0(remote: Desk, adapter: Door) -> None:
    like = await remote.job(await remote.add())
    created = like._replace(id=new_id(), status=Status.SUCCEEDED)
    for wrong in ({"version": 2}, {"version": 0}, {"attempt": 2}, {"fence": 1}):
        columns = moved(adapter, created, Status.QUEUED, remote.clock.now) | BIRTH | wrong
        with pytest.raises(DatabaseError, match="interlock: a new job is queued, at version 1, attempt 1 and fence 0"):
            await _insert(adapter, remote, created.id, columns)


BIRTH: dict[str, Any] = {"version": 1, "fence": 0, "attempt": 1, "verb": "enqueue"}


async def _insert(adapter: Door, remote: Desk, id: str, columns: dict[str, object]) -> None:
    """A job like the first one of this tenant, put in by hand."""
    if adapter.engine == "postgres":
        columns = columns | {"previous": None}
        copied = "priority, eligibility_key, base, run_at, max_attempts, releases, type, created_at, requires, tags, created_by, payload"
        overriding = " OVERRIDING SYSTEM VALUE"
    else:
        copied, overriding = "priority, eligibility_key, base, run_at, max_attempts, releases", ""
    names = [*columns, "updated_at"]
    values = [*columns.values(), remote.clock.now]
    casts = [f"${i}{_cast(adapter, name)}" for i, name in enumerate(names, 3)]
    if adapter.engine == "sqlite":  # what a job is created with comes first, and goes if the job is refused
        await adapter.run("BEGIN")
        await adapter.run(
            "INSERT INTO job_body (tenant, id, seq, type, created_at, created_by, requires, payload) "
            "SELECT tenant, $2, (SELECT max(seq) + 1 FROM job), type, created_at, created_by, requires, payload "
            "FROM job_body WHERE tenant = $1 ORDER BY seq LIMIT 1",
            remote.tenant, id,
        )  # fmt: skip
    try:
        await adapter.run(
            f"INSERT INTO job (tenant, id, seq, {copied}, {', '.join(names)}){overriding} "
            f"SELECT tenant, $2{_cast(adapter, 'id')}, (SELECT max(seq) + 1 FROM job), {copied}, {', '.join(casts)} "
            "FROM job WHERE tenant = $1 ORDER BY seq LIMIT 1",
            remote.tenant, id, *values,
        )  # fmt: skip
    except DatabaseError:
        if adapter.engine == "sqlite":
            await adapter.run("ROLLBACK")
        raise
    if adapter.engine == "sqlite":
        await adapter.run("COMMIT")


def _cast(adapter: Door, column: str) -> str:
    """PostgreSQL must be told the types of values that are selected rather than set."""
    if adapter.engine == "sqlite":
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
