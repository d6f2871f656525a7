"""What else the database refuses by itself: a version that does not rise, a changed payload, a rewritten history."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.domain.lifecycle import TERMINAL, Status
from interlock.domain.registry import Agent
from tests.contract.builders import TenantQueue, cancel, complete, new_id
from tests.contract.connections import CONNECTIONS, SqlConnection, job_in, moved, rejection, update

FUNCTION = "only_interlock_may_change_jobs"
DENIED = "permission denied"


@pytest.fixture(params=CONNECTIONS)
def connection_name(request: pytest.FixtureRequest) -> str:
    """The connection to try: with our functions, a plain tool, the owner of the schema, the app role."""
    return str(request.param)


@pytest.fixture
def engine(connection_name: str) -> str:
    return CONNECTIONS[connection_name]


def expected_error(sql: SqlConnection, *, ours: str, app: str | None = None) -> str:
    """The expected error of the database on this connection."""
    if sql.name == "plain":
        return FUNCTION
    return app if sql.name == "app" and app is not None else ours


@pytest.mark.parametrize("connection_name", ["plain"])
@pytest.mark.parametrize("origin", Status)
async def test_a_generic_sql_tool_can_make_no_transition(
    queue: TenantQueue, sql: SqlConnection, master: SqlConnection, origin: Status
) -> None:
    job = await job_in(queue, master, origin)
    before = await queue.trace(job.id)
    for target in Status:
        message = await rejection(sql, *update(job, moved(sql, job, target, queue.clock.now)))
        assert FUNCTION in message
    assert await queue.trace(job.id) == before


# What is wrong with an otherwise legal transition from queued to cancelled, or from running to retry, and the error.
WRONG: dict[str, tuple[Status, Status, dict[str, int], str]] = {
    "the version stays": (Status.QUEUED, Status.CANCELLED, {"version": 0}, "raises version by one"),
    "the version jumps": (Status.QUEUED, Status.CANCELLED, {"version": 2}, "raises version by one"),
    "the version falls": (Status.QUEUED, Status.CANCELLED, {"version": -1}, "raises version by one"),
    "the version jumps without a move": (Status.QUEUED, Status.QUEUED, {"version": 2}, "raises version by one"),
    "a claim does not raise the fence": (
        Status.QUEUED,
        Status.RUNNING,
        {"fence": 0},
        "fence rises exactly when a lease begins",
    ),
    "a claim lowers the fence": (
        Status.RETRY,
        Status.RUNNING,
        {"fence": -1},
        "fence rises exactly when a lease begins",
    ),
    "the fence rises without a claim": (
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
    "an attempt is lowered": (Status.RETRY, Status.RUNNING, {"attempt": -1}, "attempt rises exactly when"),
}


async def test_a_transition_needs_the_right_version_fence_and_attempt(
    queue: TenantQueue, sql: SqlConnection, master: SqlConnection
) -> None:
    for wrong, (origin, target, steps, given) in WRONG.items():
        job = await job_in(queue, master, origin, type=wrong)
        before = await queue.trace(job.id)
        columns = {name: getattr(job, name) + step for name, step in steps.items()}
        message = await rejection(sql, *update(job, moved(sql, job, target, queue.clock.now) | columns))
        assert expected_error(sql, ours=given) in message, wrong
        assert await queue.trace(job.id) == before, wrong


async def test_a_status_change_without_a_version_is_rejected(queue: TenantQueue, sql: SqlConnection) -> None:
    job = await queue.job(await queue.add())
    message = await rejection(
        sql, *update(job, {"status": "cancelled", "finished_at": queue.clock.now, "verb": "cancel"})
    )
    assert expected_error(sql, ours="raises version by one") in message


UNTOLD: dict[str, Any] = {
    "priority": 7, "max_attempts": 9, "releases": 0, "timeout_seconds": 5.0, "reason": "none", "run_at": None, "deadline": None,
    "cancel_requested_at": None, "started_at": None, "updated_at": None,
}  # fmt: skip


async def test_a_change_without_a_new_version_is_rejected_even_if_the_status_stays(
    queue: TenantQueue, sql: SqlConnection
) -> None:
    jobs = [await queue.running(type="running"), await queue.job(await queue.add())]
    queue.clock.advance(5)
    for job in jobs:
        before = await queue.trace(job.id)
        for column, value in UNTOLD.items():
            message = await rejection(sql, *update(job, {column: queue.clock.now if value is None else value}))
            assert expected_error(sql, ours="raises version by one") in message, column
        assert await queue.trace(job.id) == before


@pytest.mark.parametrize("connection_name", ["owner", "app"])
@pytest.mark.parametrize("target", [Status.RUNNING, Status.CANCELLED])
async def test_on_postgresql_no_setting_makes_the_database_trust_a_hash(
    queue: TenantQueue, sql: SqlConnection, master: SqlConnection, target: Status
) -> None:
    job = await job_in(queue, master, Status.QUEUED)
    for setting, value in {"verb": "on", "leasing": "claim", "leaving": "no"}.items():
        await sql.run("select set_config('interlock.' || $1, $2, false)", setting, value)
    await sql.run(*update(job, moved(sql, job, target, queue.clock.now) | {"head": b"forged" * 5}))
    row = (await queue.history(job.id))[-1]
    assert (row.version, row.to_status, row.hash != b"forged" * 5) == (job.version + 1, target, True)
    assert await queue.claim(limit=10) == []
    await queue.verify()


@pytest.mark.parametrize("connection_name", ["functions"])
@pytest.mark.parametrize("limit", [None, 1])
async def test_on_sqlite_an_edit_cannot_hide_in_a_change_of_slots(
    queue: TenantQueue, sql: SqlConnection, limit: int | None
) -> None:
    agent: dict[str, str] = {}
    if limit is not None:
        agent = {"agent_kind": "bot", "agent_id": "1"}
        await queue.store.registry.set_agent(queue.tenant, Agent("bot", "1", max_concurrency=limit))
    job = await queue.job(await queue.add(**agent))
    before = await queue.trace(job.id)
    queue.clock.advance(5)
    for column, value in (UNTOLD | {"releases": 1}).items():
        columns = {"blocked": 1, column: queue.clock.now if value is None else value}
        message = await rejection(sql, *update(job, columns))
        assert "raises version by one" in message or "has_a_slot_to_run" in message, column
    assert await queue.trace(job.id) == before
    assert await queue.claimed() == [job.id]


@pytest.mark.parametrize("connection_name", ["functions"])
@pytest.mark.parametrize("status", Status)
async def test_on_sqlite_only_the_finishing_operation_writes_a_result(
    queue: TenantQueue, sql: SqlConnection, master: SqlConnection, status: Status
) -> None:
    job = await job_in(queue, master, status)
    result = "INSERT INTO job_result (tenant, seq, result) VALUES ($1, $2, $3)"
    assert "only the operation that ends the job" in await rejection(sql, result, queue.tenant, job.seq, '"forged"')


@pytest.mark.parametrize("connection_name", ["owner", "app"])
@pytest.mark.parametrize("target", [Status.RUNNING, Status.CANCELLED])
async def test_on_postgresql_a_job_that_stops_waiting_keeps_its_due_time(
    queue: TenantQueue, sql: SqlConnection, target: Status
) -> None:
    """Its row in ready is found by that, and would stay behind permanently."""
    job = await queue.job(await queue.add(deadline=queue.after(60)))
    columns = moved(sql, job, target, queue.clock.now) | {"run_at": job.run_at - 1}
    assert "change while it waits, not as it stops waiting" in await rejection(sql, *update(job, columns))
    await queue.do(cancel(job.id))
    queue.clock.advance(100)
    assert await queue.store.due_deadlines(10) == []


async def test_a_running_job_changes_its_worker_only_by_a_lease(queue: TenantQueue, sql: SqlConnection) -> None:
    job = await queue.running()
    before = await queue.trace(job.id)
    columns = moved(sql, job, Status.RUNNING, queue.clock.now) | {"worker": "w9"}
    message = await rejection(sql, *update(job, columns))
    assert expected_error(sql, ours="changes only when a lease begins") in message
    assert await queue.trace(job.id) == before
    assert (await queue.do(complete(job))).status is Status.SUCCEEDED


@pytest.mark.parametrize("connection_name", ["owner", "app"])
async def test_on_postgresql_a_transition_must_name_the_previous_status(queue: TenantQueue, sql: SqlConnection) -> None:
    job = await queue.job(await queue.add())
    columns = moved(sql, job, Status.CANCELLED, queue.clock.now) | {"previous": "running"}
    assert "names the status it leaves" in await rejection(sql, *update(job, columns))


IMMUTABLE: dict[str, Any] = {
    "payload": '{"other":1}', "type": "other", "created_by": "user:mallory", "idempotency_key": "k", "repository": "r",
    "affinity_key": "a", "agent_kind": "x", "agent_id": "y", "parent_id": "0193a1b2-0000-7000-8000-000000000000",
    "redrive_of": "0193a1b2-0000-7000-8000-000000000000", "headers": "{}", "created_at": 1_700_000_000_000_000,
    "requested_by": "somebody", "traceparent": "00-0-0-00", "webhook": "https://example.com", "backoff": "{}",
    "expiry_delay_seconds": 1.5, "requires": None, "body_sha256": b"x",
}  # fmt: skip


async def test_the_creation_fields_of_a_job_never_change(queue: TenantQueue, sql: SqlConnection) -> None:
    job = await queue.job(await queue.add())
    before = await queue.trace(job.id)
    table = "job_body" if sql.engine == "sqlite" else "job"
    extra = "" if sql.engine == "sqlite" else ", version = version + 1, previous = status"
    for column, value in IMMUTABLE.items():
        change = f"UPDATE {table} SET {column} = $3{extra} WHERE tenant = $1 AND id = $2"
        message = await rejection(sql, change, job.tenant, job.id, value)
        assert "created with, its payload above all, never changes" in message, column
    assert await queue.trace(job.id) == before


@pytest.mark.parametrize("column", ["tenant", "id", "seq"])
async def test_the_identity_of_a_job_never_changes(queue: TenantQueue, sql: SqlConnection, column: str) -> None:
    job = await queue.job(await queue.add())
    value: Any = {"tenant": "other", "id": new_id(), "seq": job.seq + 999}[column]
    columns = moved(sql, job, Status.QUEUED, queue.clock.now) | {column: value}
    message = await rejection(sql, *update(job, columns))
    assert expected_error(sql, ours="never changes") in message or "generated always" in message.lower()
    assert await queue.job(job.id) == job


HISTORY = {
    "sqlite": "tenant = $1 AND seq = (SELECT seq FROM job WHERE tenant = $1 AND id = $2)",
    "postgres": "tenant = $1 AND job_id = $2",
}


async def test_a_history_row_never_changes(queue: TenantQueue, sql: SqlConnection) -> None:
    job = await queue.running()
    before = await queue.trace(job.id)
    for change in ("reason = 'x'", "actor = 'user:nobody'", "version = version + 10", "metadata = NULL"):
        statement = f"UPDATE job_history SET {change} WHERE {HISTORY[sql.engine]}"
        message = await rejection(sql, statement, job.tenant, job.id)
        assert (DENIED if sql.name == "app" else "history is append-only") in message, change
    assert await queue.trace(job.id) == before


async def test_a_history_row_is_deleted_only_with_its_job(queue: TenantQueue, sql: SqlConnection) -> None:
    job = await queue.running()
    before = await queue.trace(job.id)
    for which in ("", " AND version = 1", " AND version = 2"):
        statement = f"DELETE FROM job_history WHERE {HISTORY[sql.engine]}{which}"
        message = await rejection(sql, statement, job.tenant, job.id)
        assert (DENIED if sql.name == "app" else "history is append-only") in message, which
    assert await queue.trace(job.id) == before


@pytest.mark.parametrize("job_id", ["of a job", "of no job"])
async def test_a_history_row_is_written_only_by_its_transition(
    queue: TenantQueue, sql: SqlConnection, job_id: str
) -> None:
    """A row for the version to come would stand in the way of every later change."""
    job = await queue.running()
    before = await queue.trace(job.id)
    whose, tables = ("seq", ["job_history"]) if sql.engine == "sqlite" else ("job_id", await _history_tables(sql))
    unknown = "seq + 1000" if sql.engine == "sqlite" else "gen_random_uuid()"
    for table in tables:
        statement = (
            f"INSERT INTO {table} SELECT tenant, {whose if job_id == 'of a job' else unknown}, version + 1, to_status, to_status, verb, "
            f"actor, attempt, fence, reason, metadata, at, hash FROM job_history WHERE {HISTORY[sql.engine]} AND version = 2"
        )
        message = await rejection(sql, statement, job.tenant, job.id)
        given = "history is append-only: only a transition writes a row"
        assert expected_error(sql, ours=given, app=DENIED) in message, table
    assert await queue.trace(job.id) == before
    await queue.do(complete(job))
    await queue.verify()


async def _history_tables(sql: SqlConnection) -> list[str]:
    """History, and its partitions by their own names."""
    rows = await sql.run("SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'job_history'::regclass")
    assert bool(rows) == (sql.name == "partitions")
    return ["job_history", *(name for (name,) in rows)]


@pytest.mark.parametrize("connection_name", ["owner", "app"])
@pytest.mark.parametrize("table", ["job", "job_history"])
async def test_on_postgresql_history_and_jobs_cannot_be_truncated(
    queue: TenantQueue, sql: SqlConnection, table: str
) -> None:
    job = await queue.job(await queue.add())
    message = await rejection(sql, f"TRUNCATE {table} CASCADE")
    assert (DENIED if sql.name == "app" else "TRUNCATE is refused") in message
    assert await queue.job(job.id) == job


async def test_a_live_job_cannot_be_deleted(queue: TenantQueue, sql: SqlConnection, master: SqlConnection) -> None:
    for status in set(Status) - TERMINAL:
        job = await job_in(queue, master, status, type=status)
        message = await rejection(sql, "DELETE FROM job WHERE tenant = $1 AND id = $2", job.tenant, job.id)
        expected = DENIED if sql.name == "app" else expected_error(sql, ours="only a job that has ended may be deleted")
        assert expected in message, status
        assert await queue.job(job.id) == job


@pytest.mark.parametrize("connection_name", ["functions", "plain"])
async def test_on_sqlite_the_body_and_the_result_of_a_job_are_deleted_only_with_it(
    queue: TenantQueue, sql: SqlConnection
) -> None:
    job = await queue.running()
    await queue.do(complete(job, result='"kept"'))
    for table in ("job_body", "job_result"):
        message = await rejection(sql, f"DELETE FROM {table} WHERE tenant = $1 AND seq = $2", job.tenant, job.seq)
        assert "goes only with the job" in message
    message = await rejection(sql, "UPDATE job_result SET result = NULL WHERE tenant = $1", job.tenant)
    assert "what a job ended with never changes" in message


@pytest.mark.parametrize("connection_name", ["functions", "plain"])
async def test_on_sqlite_a_job_cannot_be_replaced_by_another(queue: TenantQueue, sql: SqlConnection) -> None:
    """REPLACE deletes without firing the triggers that refuse a deletion."""
    job = await queue.running()
    before = await queue.trace(job.id)
    kept = "tenant, id, seq, priority, eligibility_key, base, run_at"
    message = await rejection(
        sql,
        f"INSERT OR REPLACE INTO job ({kept}, status, attempt, max_attempts, fence, version, releases, updated_at, verb, "
        f"actor) SELECT {kept}, 'queued', 1, 9, 0, 1, 0, 0, 'enqueue', 'user:dba' FROM job WHERE tenant = $1 AND id = $2",
        job.tenant,
        job.id,
    )
    assert expected_error(sql, ours="interlock: a job is not replaced by another") in message
    assert await queue.trace(job.id) == before


async def test_a_terminal_job_is_deleted_only_by_a_prune_with_all_its_rows(
    queue: TenantQueue, sql: SqlConnection, master: SqlConnection
) -> None:
    for status in TERMINAL:
        job = await job_in(queue, master, status, type=status)
        message = await rejection(sql, "DELETE FROM job WHERE tenant = $1 AND id = $2", job.tenant, job.id)
        assert (DENIED if sql.name == "app" else expected_error(sql, ours="use interlock prune")) in message, status
        assert await queue.job(job.id) == job
    await queue.verify()
