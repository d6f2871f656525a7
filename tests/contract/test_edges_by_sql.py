"""All 8 by 8 moves by direct SQL: the database itself refuses what is no edge, whoever asks, and audits what is one."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.domain.lifecycle import TERMINAL, Status, is_legal
from interlock.domain.registry import Agent
from tests.contract.builders import Desk, beat, complete, new_id, release
from tests.contract.connections import DOORS, DatabaseError, Door, job_in, move, moved, refusal, update


@pytest.fixture(params=["functions", "owner", "app", "partitions"])
def door_name(request: pytest.FixtureRequest) -> str:
    """Which door is tried: a connection with our functions, the owner of the schema, the app role."""
    return str(request.param)


@pytest.fixture
def engine(door_name: str) -> str:
    return DOORS[door_name]


@pytest.mark.parametrize("origin", Status)
async def test_a_move_that_is_no_edge_is_refused(desk: Desk, door: Door, master: Door, origin: Status) -> None:
    job = await job_in(desk, master, origin)
    before = await desk.trace(job.id)
    desk.clock.advance(1)
    for target in Status:
        if not is_legal(origin, target):
            message = await refusal(door, *update(job, moved(door, job, target, desk.clock.now)))
            assert message.startswith("interlock: "), target
            assert ("has ended" if origin in TERMINAL else "not a legal move") in message, target
            assert await desk.trace(job.id) == before, target


@pytest.mark.parametrize("origin", [status for status in Status if status not in TERMINAL])
async def test_a_move_that_is_an_edge_is_written_into_history_by_the_database(
    desk: Desk, door: Door, master: Door, origin: Status
) -> None:
    for target in Status:
        if (
            is_legal(origin, target) and target is not Status.WAITING_FOR_APPROVAL
        ):  # for which there must be an approval
            job = await job_in(desk, master, origin, type=target)
            before = await desk.history(job.id)
            desk.clock.advance(1)
            await move(door, job, target, desk.clock.now, updated_at=12345)
            now, rows = await desk.trace(job.id)
            assert rows[:-1] == before, target
            last = rows[-1]
            assert (last.version, last.from_status, last.to_status) == (job.version + 1, origin, target)
            assert (last.actor, last.reason, last.attempt) == ("user:dba", "by hand", job.attempt), target
            assert (last.fence, last.at) == (now.fence, desk.clock.now), target
            assert (now.status, now.version) == (target, job.version + 1), target
            assert now.updated_at == desk.clock.now, target  # and not what the statement said
    await desk.verify()


@pytest.mark.parametrize("target", [Status.QUEUED, Status.RETRY])
async def test_a_job_made_to_wait_by_hand_can_be_claimed(desk: Desk, door: Door, master: Door, target: Status) -> None:
    job = await job_in(desk, master, Status.RUNNING)
    await move(door, job, target, desk.clock.now)
    (granted,) = await desk.claim(worker="w2")
    assert (granted.id, granted.fence) == (job.id, job.fence + 1)
    await desk.verify()


async def test_a_job_granted_by_hand_has_a_lease_that_ends(desk: Desk, door: Door, master: Door) -> None:
    job = await job_in(desk, master, Status.QUEUED)
    await move(door, job, Status.RUNNING, desk.clock.now)
    assert await desk.claim(limit=10) == []
    desk.clock.advance(60)
    await desk.sweep()
    assert (await desk.job(job.id)).status is Status.RETRY


async def test_a_job_granted_by_hand_can_be_kept_alive_beside_others(desk: Desk, door: Door, master: Door) -> None:
    other = await desk.running(type="other")
    job = await job_in(desk, master, Status.QUEUED)
    await move(door, job, Status.RUNNING, desk.clock.now)
    desk.clock.advance(30)
    pulses = await desk.heartbeat(beat(other), beat(await desk.job(job.id)))
    assert [pulse.lease_expires_at for pulse in pulses] == [desk.after(60), desk.after(60)]


@pytest.mark.parametrize("target", sorted(TERMINAL))
async def test_a_job_ended_by_hand_stays_ended(desk: Desk, door: Door, master: Door, target: Status) -> None:
    job = await job_in(desk, master, Status.RUNNING)
    await move(door, job, target, desk.clock.now)
    desk.clock.advance(3600)
    await desk.sweep()
    assert await desk.claim(limit=10) == []
    assert (await desk.job(job.id)).status is target


@pytest.mark.parametrize("limit", [None, 1])
async def test_a_child_ended_by_hand_is_waited_for_no_more(desk: Desk, door: Door, limit: int | None) -> None:
    await desk.store.set_agent(desk.tenant, Agent("bot", "1", limit))
    parent = await desk.running(agent_kind="bot", agent_id="1")
    children = [await desk.running(type="child", parent_id=parent.id) for _ in range(2)]
    await desk.do(release(parent, children=tuple(child.id for child in children)))
    await move(door, children[0], Status.SUCCEEDED, desk.clock.now)
    assert tuple((await desk.job(parent.id)).awaiting) == (children[1].id,)
    await move(door, children[1], Status.CANCELLED, desk.clock.now)
    assert await desk.claimed(limit=10) == [parent.id]
    await desk.verify()


async def test_a_parent_ended_by_hand_waits_for_nobody(desk: Desk, door: Door) -> None:
    parent = await desk.running()
    child = await desk.running(type="child", parent_id=parent.id)
    await desk.do(release(parent, children=(child.id,)))
    await move(door, await desk.job(parent.id), Status.CANCELLED, desk.clock.now)
    assert tuple((await desk.job(parent.id)).awaiting) == ()
    assert (await desk.do(complete(child))).status is Status.SUCCEEDED
    await desk.verify()


async def test_a_job_ended_by_hand_is_blocked_by_nobody(desk: Desk, door: Door) -> None:
    await desk.store.set_agent(desk.tenant, Agent("bot", "1", 1))
    first, second = [await desk.add(agent_kind="bot", agent_id="1") for _ in range(2)]
    await move(door, await desk.job(second), Status.CANCELLED, desk.clock.now)
    assert not (await desk.job(second)).blocked
    assert await desk.claimed(limit=10) == [first]


async def test_a_job_is_born_queued_and_nothing_else(desk: Desk, door: Door) -> None:
    like = await desk.job(await desk.add())
    for status in Status:
        born = like._replace(id=new_id(), status=Status.SUCCEEDED)  # so that the move is like one from nowhere
        columns = moved(door, born, status, desk.clock.now) | BIRTH
        if status is Status.QUEUED:
            await _insert(door, desk, born.id, columns)
            (row,) = await desk.history(born.id)
            assert (row.from_status, row.to_status, row.actor) == (None, Status.QUEUED, "user:dba")
            await desk.verify()
        else:
            with pytest.raises(DatabaseError, match="interlock: a new job is queued"):
                await _insert(door, desk, born.id, columns)
            assert await desk.store.get(desk.tenant, [born.id]) == [None], status


async def test_a_job_is_born_at_version_and_attempt_1_and_fence_0(desk: Desk, door: Door) -> None:
    like = await desk.job(await desk.add())
    born = like._replace(id=new_id(), status=Status.SUCCEEDED)
    for wrong in ({"version": 2}, {"version": 0}, {"attempt": 2}, {"fence": 1}):
        columns = moved(door, born, Status.QUEUED, desk.clock.now) | BIRTH | wrong
        with pytest.raises(DatabaseError, match="interlock: a new job is queued, at version 1, attempt 1 and fence 0"):
            await _insert(door, desk, born.id, columns)


BIRTH: dict[str, Any] = {"version": 1, "fence": 0, "attempt": 1, "verb": "enqueue"}


async def _insert(door: Door, desk: Desk, id: str, columns: dict[str, object]) -> None:
    """A job like the first one of this tenant, put in by hand."""
    if door.engine == "postgres":
        columns = columns | {"previous": None}
        copied = "priority, route, base, run_at, max_attempts, releases, type, created_at, requires, tags, created_by, payload"
        overriding = " OVERRIDING SYSTEM VALUE"
    else:
        copied, overriding = "priority, route, base, run_at, max_attempts, releases", ""
    names = [*columns, "updated_at"]
    values = [*columns.values(), desk.clock.now]
    casts = [f"${i}{_cast(door, name)}" for i, name in enumerate(names, 3)]
    if door.engine == "sqlite":  # what a job is created with comes first, and goes if the job is refused
        await door.run("BEGIN")
        await door.run(
            "INSERT INTO job_body (tenant, id, seq, type, created_at, created_by, requires, payload) "
            "SELECT tenant, $2, (SELECT max(seq) + 1 FROM job), type, created_at, created_by, requires, payload "
            "FROM job_body WHERE tenant = $1 ORDER BY seq LIMIT 1",
            desk.tenant, id,
        )  # fmt: skip
    try:
        await door.run(
            f"INSERT INTO job (tenant, id, seq, {copied}, {', '.join(names)}){overriding} "
            f"SELECT tenant, $2{_cast(door, 'id')}, (SELECT max(seq) + 1 FROM job), {copied}, {', '.join(casts)} "
            "FROM job WHERE tenant = $1 ORDER BY seq LIMIT 1",
            desk.tenant, id, *values,
        )  # fmt: skip
    except DatabaseError:
        if door.engine == "sqlite":
            await door.run("ROLLBACK")
        raise
    if door.engine == "sqlite":
        await door.run("COMMIT")


def _cast(door: Door, column: str) -> str:
    """PostgreSQL must be told the types of values that are selected rather than set."""
    if door.engine == "sqlite":
        return ""
    if column in ("id", "gate_id"):
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
