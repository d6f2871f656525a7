"""What else the database refuses by itself: a version that does not rise, a changed payload, a rewritten history."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.domain.lifecycle import TERMINAL, Status
from interlock.domain.registry import Agent
from tests.contract.builders import Desk, cancel, complete, new_id
from tests.contract.connections import DOORS, Door, job_in, moved, refusal, update

FUNCTION = "only_interlock_may_change_jobs"
DENIED = "permission denied"


@pytest.fixture(params=DOORS)
def door_name(request: pytest.FixtureRequest) -> str:
    """Which door is tried: with our functions, a plain tool, the owner of the schema, the app role."""
    return str(request.param)


@pytest.fixture
def engine(door_name: str) -> str:
    return DOORS[door_name]


def says(adapter: Door, *, ours: str, app: str | None = None) -> str:
    """What the database is expected to say at this door."""
    if adapter.name == "plain":
        return FUNCTION
    return app if adapter.name == "app" and app is not None else ours


@pytest.mark.parametrize("door_name", ["plain"])
@pytest.mark.parametrize("origin", Status)
async def test_a_plain_tool_can_make_no_move_at_all(remote: Desk, adapter: Door, master: Door, origin: Status) -> None:
    job = await job_in(remote, master, origin)
    before = await remote.trace(job.id)
    for target in Status:
        message = await refusal(adapter, *update(job, moved(adapter, job, target, remote.clock.now)))
        assert FUNCTION in message
    assert await remote.trace(job.id) == before


# What is wrong with an otherwise legal move from queued to cancelled, or from running to retry, and what is said.
WRONG: dict[str, tuple[Status, Status, dict[str, int], str]] = {
    "the version stays": (Status.QUEUED, Status.CANCELLED, {"version": 0}, "raises version by one"),
    "the version jumps": (Status.QUEUED, Status.CANCELLED, {"version": 2}, "raises version by one"),
    "the version falls": (Status.QUEUED, Status.CANCELLED, {"version": -1}, "raises version by one"),
    "the version jumps without a move": (Status.QUEUED, Status.QUEUED, {"version": 2}, "raises version by one"),
    "a grant does not raise the fence": (
        Status.QUEUED,
        Status.RUNNING,
        {"fence": 0},
        "fence rises exactly when a lease begins",
    ),
    "a grant lowers the fence": (
        Status.RETRY,
        Status.RUNNING,
        {"fence": -1},
        "fence rises exactly when a lease begins",
    ),
    "the fence rises without a grant": (
        Status.RUNNING,
        Status.RUNNING,
        {"fence": 1},
        "fence rises exactly when a lease begins",
    ),
    "the fence rises at an end": (
        Status.RUNNING,
        Status.SUCCEEDED,
        {"fence": 1},
        "fence rises exactly when a lease begins",
    ),
    "a retry does not count": (Status.RUNNING, Status.RETRY, {"attempt": 0}, "attempt rises exactly when"),
    "a retry counts twice": (Status.RUNNING, Status.RETRY, {"attempt": 2}, "attempt rises exactly when"),
    "a release counts": (Status.RUNNING, Status.QUEUED, {"attempt": 1}, "attempt rises exactly when"),
    "an attempt is given back": (Status.RETRY, Status.RUNNING, {"attempt": -1}, "attempt rises exactly when"),
}


async def test_a_move_needs_the_right_version_fence_and_attempt(remote: Desk, adapter: Door, master: Door) -> None:
    for wrong, (origin, target, steps, given) in WRONG.items():
        job = await job_in(remote, master, origin, type=wrong)
        before = await remote.trace(job.id)
        columns = {name: getattr(job, name) + step for name, step in steps.items()}
        message = await refusal(adapter, *update(job, moved(adapter, job, target, remote.clock.now) | columns))
        assert says(adapter, ours=given) in message, wrong
        assert await remote.trace(job.id) == before, wrong


async def test_a_status_change_that_says_nothing_of_the_version_is_refused(remote: Desk, adapter: Door) -> None:
    job = await remote.job(await remote.add())
    message = await refusal(
        adapter, *update(job, {"status": "cancelled", "finished_at": remote.clock.now, "verb": "cancel"})
    )
    assert says(adapter, ours="raises version by one") in message


UNTOLD: dict[str, Any] = {
    "priority": 7, "max_attempts": 9, "releases": 0, "timeout_seconds": 5.0, "reason": "none", "run_at": None, "deadline": None,
    "cancel_requested_at": None, "started_at": None, "updated_at": None,
}  # fmt: skip


async def test_no_change_goes_without_a_version_not_even_one_that_leaves_the_status(
    remote: Desk, adapter: Door
) -> None:
    jobs = [await remote.running(type="running"), await remote.job(await remote.add())]
    remote.clock.advance(5)
    for job in jobs:
        before = await remote.trace(job.id)
        for column, value in UNTOLD.items():
            message = await refusal(adapter, *update(job, {column: remote.clock.now if value is None else value}))
            assert says(adapter, ours="raises version by one") in message, column
        assert await remote.trace(job.id) == before


@pytest.mark.parametrize("door_name", ["functions"])
@pytest.mark.parametrize("limit", [None, 1])
async def test_on_sqlite_no_edit_hides_behind_a_place_in_a_line(remote: Desk, adapter: Door, limit: int | None) -> None:
    agent: dict[str, str] = {}
    if limit is not None:
        agent = {"agent_kind": "bot", "agent_id": "1"}
        await remote.store.set_agent(remote.tenant, Agent("bot", "1", max_concurrency=limit))
    job = await remote.job(await remote.add(**agent))
    before = await remote.trace(job.id)
    remote.clock.advance(5)
    for column, value in (UNTOLD | {"releases": 1}).items():
        columns = {"blocked": 1, column: remote.clock.now if value is None else value}
        message = await refusal(adapter, *update(job, columns))
        assert "raises version by one" in message or "has_a_slot_to_run" in message, column
    assert await remote.trace(job.id) == before
    assert await remote.claimed() == [job.id]


@pytest.mark.parametrize("door_name", ["functions"])
@pytest.mark.parametrize("status", Status)
async def test_on_sqlite_only_the_operation_that_ends_a_job_writes_a_result(
    remote: Desk, adapter: Door, master: Door, status: Status
) -> None:
    job = await job_in(remote, master, status)
    result = "INSERT INTO job_result (tenant, seq, result) VALUES ($1, $2, $3)"
    assert "only the operation that ends the job" in await refusal(adapter, result, remote.tenant, job.seq, '"forged"')


@pytest.mark.parametrize("door_name", ["owner", "app"])
@pytest.mark.parametrize("target", [Status.RUNNING, Status.CANCELLED])
async def test_on_postgresql_a_job_that_stops_waiting_is_due_when_it_was(
    remote: Desk, adapter: Door, target: Status
) -> None:
    """Its row in ready is found by that, and would stay behind for good."""
    job = await remote.job(await remote.add(deadline=remote.after(60)))
    columns = moved(adapter, job, target, remote.clock.now) | {"run_at": job.run_at - 1}
    assert "change while it waits, not as it stops waiting" in await refusal(adapter, *update(job, columns))
    await remote.do(cancel(job.id))
    remote.clock.advance(100)
    assert await remote.store.due_deadlines(10) == []


async def test_a_running_job_changes_hands_only_by_a_grant(remote: Desk, adapter: Door) -> None:
    job = await remote.running()
    before = await remote.trace(job.id)
    columns = moved(adapter, job, Status.RUNNING, remote.clock.now) | {"worker": "w9"}
    message = await refusal(adapter, *update(job, columns))
    assert says(adapter, ours="changes only when a lease begins") in message
    assert await remote.trace(job.id) == before
    assert (await remote.do(complete(job))).status is Status.SUCCEEDED


@pytest.mark.parametrize("door_name", ["owner", "app"])
async def test_on_postgresql_a_move_must_name_the_status_it_leaves(remote: Desk, adapter: Door) -> None:
    job = await remote.job(await remote.add())
    columns = moved(adapter, job, Status.CANCELLED, remote.clock.now) | {"previous": "running"}
    assert "names the status it leaves" in await refusal(adapter, *update(job, columns))


IMMUTABLE: dict[str, Any] = {
    "payload": '{"other":1}', "type": "other", "created_by": "user:mallory", "idempotency_key": "k", "repository": "r",
    "affinity_key": "a", "agent_kind": "x", "agent_id": "y", "parent_id": "0193a1b2-0000-7000-8000-000000000000",
    "redrive_of": "0193a1b2-0000-7000-8000-000000000000", "headers": "{}", "created_at": 1_700_000_000_000_000,
    "requested_by": "somebody", "traceparent": "00-0-0-00", "webhook": "https://example.com", "backoff": "{}",
    "expiry_delay_seconds": 1.5, "requires": None, "body_sha256": b"x",
}  # fmt: skip


async def test_what_a_job_was_created_with_never_changes(remote: Desk, adapter: Door) -> None:
    job = await remote.job(await remote.add())
    before = await remote.trace(job.id)
    table = "job_body" if adapter.engine == "sqlite" else "job"
    extra = "" if adapter.engine == "sqlite" else ", version = version + 1, previous = status"
    for column, value in IMMUTABLE.items():
        change = f"UPDATE {table} SET {column} = $3{extra} WHERE tenant = $1 AND id = $2"
        message = await refusal(adapter, change, job.tenant, job.id, value)
        assert "created with, its payload above all, never changes" in message, column
    assert await remote.trace(job.id) == before


@pytest.mark.parametrize("column", ["tenant", "id", "seq"])
async def test_the_identity_of_a_job_never_changes(remote: Desk, adapter: Door, column: str) -> None:
    job = await remote.job(await remote.add())
    value: Any = {"tenant": "other", "id": new_id(), "seq": job.seq + 999}[column]
    columns = moved(adapter, job, Status.QUEUED, remote.clock.now) | {column: value}
    message = await refusal(adapter, *update(job, columns))
    assert says(adapter, ours="never changes") in message or "generated always" in message.lower()
    assert await remote.job(job.id) == job


HISTORY = {
    "sqlite": "tenant = $1 AND seq = (SELECT seq FROM job WHERE tenant = $1 AND id = $2)",
    "postgres": "tenant = $1 AND job_id = $2",
}


async def test_a_history_row_never_changes(remote: Desk, adapter: Door) -> None:
    job = await remote.running()
    before = await remote.trace(job.id)
    for change in ("reason = 'x'", "actor = 'user:nobody'", "version = version + 10", "metadata = NULL"):
        statement = f"UPDATE job_history SET {change} WHERE {HISTORY[adapter.engine]}"
        message = await refusal(adapter, statement, job.tenant, job.id)
        assert (DENIED if adapter.name == "app" else "history is append-only") in message, change
    assert await remote.trace(job.id) == before


async def test_a_history_row_goes_only_with_its_job(remote: Desk, adapter: Door) -> None:
    job = await remote.running()
    before = await remote.trace(job.id)
    for which in ("", " AND version = 1", " AND version = 2"):
        statement = f"DELETE FROM job_history WHERE {HISTORY[adapter.engine]}{which}"
        message = await refusal(adapter, statement, job.tenant, job.id)
        assert (DENIED if adapter.name == "app" else "history is append-only") in message, which
    assert await remote.trace(job.id) == before


@pytest.mark.parametrize("job_id", ["of a job", "of no job"])
async def test_a_history_row_is_written_only_by_the_change_it_tells_of(
    remote: Desk, adapter: Door, job_id: str
) -> None:
    """A row for the version to come would stand in the way of every later change."""
    job = await remote.running()
    before = await remote.trace(job.id)
    whose, tables = (
        ("seq", ["job_history"]) if adapter.engine == "sqlite" else ("job_id", await _history_tables(adapter))
    )
    unknown = "seq + 1000" if adapter.engine == "sqlite" else "gen_random_uuid()"
    for table in tables:
        statement = (
            f"INSERT INTO {table} SELECT tenant, {whose if job_id == 'of a job' else unknown}, version + 1, to_status, to_status, verb, "
            f"actor, attempt, fence, reason, metadata, at, hash FROM job_history WHERE {HISTORY[adapter.engine]} AND version = 2"
        )
        message = await refusal(adapter, statement, job.tenant, job.id)
        given = "history is append-only: only a transition writes a row"
        assert says(adapter, ours=given, app=DENIED) in message, table
    assert await remote.trace(job.id) == before
    await remote.do(complete(job))
    await remote.verify()


async def _history_tables(adapter: Door) -> list[str]:
    """History, and its partitions by their own names."""
    rows = await adapter.run(
        "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'job_history'::regclass"
    )
    assert bool(rows) == (adapter.name == "partitions")
    return ["job_history", *(name for (name,) in rows)]


@pytest.mark.parametrize("door_name", ["owner", "app"])
@pytest.mark.parametrize("table", ["job", "job_history"])
async def test_on_postgresql_history_and_jobs_cannot_be_truncated(remote: Desk, adapter: Door, table: str) -> None:
    job = await remote.job(await remote.add())
    message = await refusal(adapter, f"TRUNCATE {table} CASCADE")
    assert (DENIED if adapter.name == "app" else "TRUNCATE is refused") in message
    assert await remote.job(job.id) == job


async def test_a_live_job_cannot_be_deleted(remote: Desk, adapter: Door, master: Door) -> None:
    for status in set(Status) - TERMINAL:
        job = await job_in(remote, master, status, type=status)
        message = await refusal(adapter, "DELETE FROM job WHERE tenant = $1 AND id = $2", job.tenant, job.id)
        expected = DENIED if adapter.name == "app" else says(adapter, ours="only a job that has ended may be deleted")
        assert expected in message, status
        assert await remote.job(job.id) == job


@pytest.mark.parametrize("door_name", ["functions", "plain"])
async def test_on_sqlite_the_body_and_the_result_of_a_job_go_only_with_it(remote: Desk, adapter: Door) -> None:
    job = await remote.running()
    await remote.do(complete(job, result='"kept"'))
    for table in ("job_body", "job_result"):
        message = await refusal(adapter, f"DELETE FROM {table} WHERE tenant = $1 AND seq = $2", job.tenant, job.seq)
        assert "goes only with the job" in message
    message = await refusal(adapter, "UPDATE job_result SET result = NULL WHERE tenant = $1", job.tenant)
    assert "what a job ended with never changes" in message


@pytest.mark.parametrize("door_name", ["functions", "plain"])
async def test_on_sqlite_a_job_is_not_replaced_by_another(remote: Desk, adapter: Door) -> None:
    """REPLACE deletes without firing the triggers that refuse a deletion."""
    job = await remote.running()
    before = await remote.trace(job.id)
    kept = "tenant, id, seq, priority, eligibility_key, base, run_at"
    message = await refusal(
        adapter,
        f"INSERT OR REPLACE INTO job ({kept}, status, attempt, max_attempts, fence, version, releases, updated_at, verb, "
        f"actor) SELECT {kept}, 'queued', 1, 9, 0, 1, 0, 0, 'enqueue', 'user:dba' FROM job WHERE tenant = $1 AND id = $2",
        job.tenant,
        job.id,
    )
    assert says(adapter, ours="interlock: a job is not replaced by another") in message
    assert await remote.trace(job.id) == before


async def test_an_ended_job_goes_only_by_a_prune_with_all_it_owns(remote: Desk, adapter: Door, master: Door) -> None:
    for status in TERMINAL:
        job = await job_in(remote, master, status, type=status)
        message = await refusal(adapter, "DELETE FROM job WHERE tenant = $1 AND id = $2", job.tenant, job.id)
        assert (DENIED if adapter.name == "app" else says(adapter, ours="use interlock prune")) in message, status
        assert await remote.job(job.id) == job
    await remote.verify()
