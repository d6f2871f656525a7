"""History covers content: rows carry digests, and an audit finds every change made outside the product."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any

import apsw
import pytest

from interlock.domain.job import Job
from interlock.domain.lifecycle import Status
from interlock.domain.operations import CHECKPOINT
from interlock.storage.sqlite.connection import Connection, wall_clock
from interlock.storage.sqlite.store import SQLiteStore
from tests.contract.approvals import ADA, BOB, DENY, command, decided, edit, sweep_approvals, waiting
from tests.contract.builders import (
    ERROR,
    TenantQueue,
    cancel,
    complete,
    digests,
    fail,
    heartbeat,
    new_job,
    release,
    revoke,
    save,
)
from tests.contract.connections import SqlConnection, move, moved, update
from tests.contract.progress import keep, step
from tests.contract.test_prune import prune
from tests.contract.test_redrive import order, redrive
from tests.support.stores import ManualClock


def hexed(text: str) -> str:
    return sha256(text.encode()).hexdigest()


async def names(queue: TenantQueue, job_id: str) -> list[tuple[str, set[str]]]:
    """The verb of each row, and what it carries digests of."""
    return [(row.verb, set(digests(row))) for row in await queue.history(job_id)]


async def lived(queue: TenantQueue) -> Job:
    """A job with everything: it failed, saved progress twice, was approved by two people, and succeeded."""
    job = await queue.running(payload='{"amount": 5}', headers='{"h":"1"}', tags=("a",), requested_by="ada")
    await keep(queue, step(job, "search"))
    await queue.checkpoint(save(job, 1, '{"page":1}'))
    await queue.do(fail(job, retry_after_seconds=5.0))
    queue.clock.advance(5)
    job = await queue.again(job)
    await keep(queue, step(job, "draft"))
    _, approval = await waiting(queue, job=job, required=2, prompt="Pay?", details='{"to":"bob"}', risk="high")
    await decided(queue, command(approval, comment="fine"))
    queue.clock.advance(1)
    await decided(queue, command(approval, actor=BOB, comment="good"))
    job = await queue.again(job)
    _, approval = await waiting(queue, job=job, prompt="Really?")
    await decided(queue, command(approval, data='{"limit":9}'))
    job = await queue.again(job)
    await queue.checkpoint(save(job, 2, '{"page":2}'))
    await queue.do(complete(job, result='{"ok":true}', result_summary="paid", usage='{"tokens":7}'))
    return await queue.job(job.id)


async def test_each_row_has_the_digests_of_its_content(queue: TenantQueue) -> None:
    job = await lived(queue)
    assert await names(queue, job.id) == [
        ("enqueue", {"payload", "options"}), ("claim", set()), ("fail", {"error", "steps", "checkpoint"}),
        ("claim", set()), ("request_approval", {"request", "steps", "checkpoint"}), ("decide", {"decision"}),
        ("claim", set()), ("request_approval", {"request", "checkpoint"}), ("decide", {"decision"}),
        ("claim", set()), ("complete", {"result", "summary", "usage", "checkpoint"}),
    ]  # fmt: skip
    rows = [digests(row) for row in await queue.history(job.id)]
    assert rows[0]["payload"] == hexed('{"amount": 5}')
    assert rows[2]["error"] == hexed(ERROR)
    assert rows[2]["checkpoint"] == hexed('1:110:{"page":1}')
    assert rows[-1]["result"] == hexed('{"ok":true}')
    assert (rows[-1]["summary"], rows[-1]["usage"]) == (hexed("paid"), hexed('{"tokens":7}'))
    assert all(digest is not None and len(digest) == 64 for row in rows for digest in row.values())
    await queue.verify()


async def test_the_bytes_are_the_same_on_every_engine(queue: TenantQueue) -> None:
    """To the letter: field by field as in the documentation."""
    at = queue.clock.now
    job = await queue.running(
        type="t", payload="1", priority=3, deadline=at + 60_000_000, timeout_seconds=50.0, tags=("x", "ÿ"),
        created_by="user:ada", expiry_delay_seconds=0.25,
    )  # fmt: skip
    await keep(queue, step(job, "search", 1, '"a"'))
    order = await waiting(queue, job=job, prompt="Go?", details=None, expires_in_seconds=60.0)
    approval = order[1]
    rows = [digests(row) for row in await queue.history(job.id)]
    deadline = str(at + 60_000_000)
    options = f"1:t1:3{len(deadline)}:{deadline}8:500000001:3-6:250000--7:1:x2:ÿ----0:-----8:user:ada---"
    assert rows[0]["options"] == hexed(options)
    when = f"{len(str(at))}:{at}"
    fence = f"{len(str(job.fence))}:{job.fence}"
    assert rows[2]["steps"] == hexed(f"1:16:search1:1-{fence}{when}1:064:{hexed(chr(34) + 'a' + chr(34))}")
    asked = f"36:{approval.id}{fence}3:Go?---64:{approval.digest}1:14:fail8:approval{len(approval.opened_by)}:{approval.opened_by}{when}"
    assert rows[2]["request"] == hexed(f"{asked}{len(deadline)}:{at + 60_000_000}-1:1")
    await decided(queue, command(approval, DENY, comment="no"))
    last = digests((await queue.history(job.id))[-1])
    assert last["decision"] == hexed(f"6:denied{len(ADA)}:{ADA}2:no-{len(ADA)}:{ADA}4:deny2:no{when}")


BODY = "WHERE tenant = $1 AND seq = (SELECT seq FROM job WHERE tenant = $1 AND id = $2)"
JOB = "WHERE tenant = $1 AND id = $2"
OF_JOB = "WHERE tenant = $1 AND job_id = $2"
# What an owner might change without the guards; by the digest and the version that reveal it.
CHANGES: dict[str, tuple[str, str, int]] = {
    "payload": ("UPDATE {body} SET payload = '{{\"amount\": 500}}' {in_body}", "payload", 1),
    "headers": ("UPDATE {body} SET headers = NULL {in_body}", "options", 1),
    "requested_by": ("UPDATE {body} SET requested_by = 'mallory' {in_body}", "options", 1),
    "type": ("UPDATE {body} SET type = 'other' {in_body}", "options", 1),
    "max_attempts": (f"UPDATE job SET max_attempts = 99 {JOB}", "options", 1),
    "tags": (f"UPDATE job SET tags = {{no_tags}} {JOB}", "options", 1),
    "an early step": (f"UPDATE job_step SET result = '\"x\"' {OF_JOB} AND name = 'search'", "steps", 3),
    "a later step": (f"UPDATE job_step SET result = '\"x\"' {OF_JOB} AND name = 'draft'", "steps", 5),
    "a step gone": (f"DELETE FROM job_step {OF_JOB} AND name = 'draft'", "steps", 5),
    "prompt": (f"UPDATE approval SET prompt = 'Pay ten?' {OF_JOB} AND required = 2", "request", 5),
    "details": (f"UPDATE approval SET details = '{{{{}}}}' {OF_JOB} AND required = 2", "request", 5),
    "a vote": (f"UPDATE approval_vote SET voter = 'user:eve' {OF_JOB} AND voter = '{ADA}' AND comment = 'fine'",
               "decision", 6),
    "a vote gone": (f"DELETE FROM approval_vote {OF_JOB} AND voter = '{BOB}'", "decision", 6),
    "who decided": (f"UPDATE approval SET closed_by = 'user:eve' {OF_JOB} AND required = 2", "decision", 6),
    "comment": (f"UPDATE approval SET comment = 'bad' {OF_JOB} AND required = 2", "decision", 6),
    "data": (f"UPDATE approval SET data = '{{{{\"limit\":99}}}}' {OF_JOB} AND required = 1", "decision", 9),
    "approval gone": (f"DELETE FROM approval {OF_JOB} AND required = 1", "request", 8),
    "checkpoint": (f"UPDATE job_checkpoint SET data = '0' {OF_JOB}", "checkpoint", 11),
    "result": ("UPDATE {result} SET result = '{{\"ok\":false}}' {in_result}", "result", 11),
    "no result": ("UPDATE {result} SET result = NULL {in_result}", "result", 11),
    "summary": ("UPDATE {result} SET result_summary = 'not paid' {in_result}", "summary", 11),
    "usage": ("UPDATE {result} SET usage = '{{\"tokens\":1}}' {in_result}", "usage", 11),
}  # fmt: skip


def on(sql: SqlConnection, statement: str) -> str:
    ours = sql.engine == "sqlite"
    return statement.format(
        body="job_body" if ours else "job", in_body=BODY if ours else JOB, result="job_result" if ours else "job",
        in_result=BODY if ours else JOB, no_tags="'[]'" if ours else "'{}'",
    )  # fmt: skip


@pytest.mark.parametrize("kind", CHANGES)
async def test_an_audit_names_the_changed_content(queue: TenantQueue, sql: SqlConnection, kind: str) -> None:
    job = await lived(queue)
    other = await lived(queue)
    await queue.verify()
    await sql.without_rules()
    statement, digest, version = CHANGES[kind]
    await sql.run(on(sql, statement), queue.tenant, job.id)
    verdict = await queue.store.audit.verify(queue.tenant)
    assert verdict.first_bad is not None
    assert f"{job.id} version {version}: the digest of {digest} does not match" in verdict.first_bad
    assert other.id not in verdict.first_bad


@pytest.mark.parametrize("column", ["error", "result"])
async def test_an_audit_finds_added_content(queue: TenantQueue, sql: SqlConnection, column: str) -> None:
    job = await queue.running()
    await queue.do(fail(job, retryable=False))
    await queue.verify()
    await sql.without_rules()
    if column == "error":
        await sql.run(f'UPDATE job SET error = \'{{"message":"other"}}\' {JOB}', queue.tenant, job.id)
    elif sql.engine == "sqlite":
        await sql.run("INSERT INTO job_result VALUES ($1, $2, '1', NULL, NULL, 0)", queue.tenant, job.seq)
    else:
        await sql.run(f"UPDATE job SET result = '1' {JOB}", queue.tenant, job.id)
    verdict = await queue.store.audit.verify(queue.tenant)
    assert verdict.first_bad is not None
    assert f"the digest of {column} does not match" in verdict.first_bad


async def test_an_audit_finds_a_step_without_a_run_and_an_approval_without_a_transition(
    queue: TenantQueue, sql: SqlConnection
) -> None:
    job = await lived(queue)
    await sql.without_rules()
    await sql.run(f"UPDATE job_step SET fence = 99 {OF_JOB} AND name = 'draft'", queue.tenant, job.id)
    verdict = await queue.store.audit.verify(queue.tenant)
    assert verdict.first_bad is not None
    assert "steps" in verdict.first_bad
    await sql.run(f"UPDATE approval SET fence = 99 {OF_JOB} AND required = 1", queue.tenant, job.id)
    assert (await queue.store.audit.verify(queue.tenant)).first_bad is not None


async def test_an_audit_finds_a_truncated_history(queue: TenantQueue, sql: SqlConnection) -> None:
    """The last row deleted, and the job restored to the state of the previous row."""
    job = await queue.job(await queue.add())
    await queue.do(cancel(job.id))
    await queue.verify()
    await sql.without_rules()
    history = "seq = (SELECT seq FROM job WHERE tenant = $1 AND id = $2)" if sql.engine == "sqlite" else "job_id = $2"
    await sql.run(f"DELETE FROM job_history WHERE tenant = $1 AND version = 2 AND {history}", queue.tenant, job.id)
    await sql.run(f"UPDATE job SET version = 1, status = 'queued', finished_at = NULL {JOB}", queue.tenant, job.id)
    verdict = await queue.store.audit.verify(queue.tenant)
    assert verdict.first_bad is not None
    assert f"{job.id} version 1: the head of the job is the hash of another row" in verdict.first_bad


async def test_every_end_of_a_run_covers_what_the_run_saved(queue: TenantQueue) -> None:
    endings: dict[str, Callable[[Job], Any]] = {
        "complete": complete, "fail": fail, "release": release, "revoke": lambda job: revoke(job.id),
        "force": lambda job: cancel(job.id, force=True),
    }  # fmt: skip
    for name, ending in endings.items():
        job = await queue.running(type=name)
        await keep(queue, step(job))
        await queue.heartbeat(heartbeat(job, checkpoint=save(job, 1)))
        await queue.do(ending(job))
        assert {"steps", "checkpoint"} <= set(digests((await queue.history(job.id))[-1])), name
    job = await queue.running(type="expire")
    await keep(queue, step(job))
    queue.clock.advance(100)
    await queue.sweep()
    assert "steps" in digests((await queue.history(job.id))[-1])
    await queue.verify()


async def test_jobs_of_one_batch_are_each_covered(queue: TenantQueue) -> None:
    ids = await queue.add_all([new_job(payload=str(n)) for n in range(40)])
    jobs = {job.id: job for job in await queue.claim(limit=40)}
    for id in ids[::4]:
        await keep(queue, step(jobs[id]))
    orders = [complete(jobs[id], result=str(n) if n % 3 else None) for n, id in enumerate(ids)]
    await queue.store.carry_out(queue.tenant, orders)
    for n, id in enumerate(ids):
        last = digests((await queue.history(id))[-1])
        assert last.get("result") == (hexed(str(n)) if n % 3 else None), n
        assert ("steps" in last) is (n % 4 == 0), n
    await queue.verify()


async def test_an_undecided_approval_is_covered_too(queue: TenantQueue) -> None:
    expired, approval = await waiting(queue, required=2, expires_in_seconds=60.0)
    await decided(queue, command(approval))
    voided, _ = await waiting(queue)
    await queue.do(cancel(voided.id))
    queue.clock.advance(61)
    await sweep_approvals(queue)
    for job in (expired, voided):
        assert "decision" in digests((await queue.history(job.id))[-1])
    await queue.verify()


async def test_an_edit_covers_the_current_options(queue: TenantQueue, sql: SqlConnection) -> None:
    job = await queue.job(await queue.add(priority=1, tags=("a",)))
    await queue.do(edit(job.id, priority=7, tags=("b",)))
    first, second = await queue.history(job.id)
    assert set(digests(second)) == {"options"}
    assert digests(first)["options"] != digests(second)["options"]
    await queue.verify()
    await sql.without_rules()
    await sql.run(f"UPDATE job SET priority = 1 {JOB}", queue.tenant, job.id)
    verdict = await queue.store.audit.verify(queue.tenant)
    assert verdict.first_bad is not None
    assert "version 2: the digest of options" in verdict.first_bad


async def test_a_redriven_job_covers_its_initial_progress(queue: TenantQueue, sql: SqlConnection) -> None:
    job = await queue.running()
    await keep(queue, step(job, "search"))
    await keep(queue, step(job, "draft"))
    await queue.checkpoint(save(job, 3))
    await queue.do(fail(job, retryable=False))
    whole = await redrive(queue, order(job.id, origin=CHECKPOINT))
    some = await redrive(queue, order(job.id, origin="search"))
    assert set(digests((await queue.history(whole.id))[0])) == {"payload", "options", "steps", "checkpoint"}
    assert set(digests((await queue.history(some.id))[0])) == {"payload", "options", "steps"}
    await queue.verify()
    await sql.without_rules()
    await sql.run(f"UPDATE job_step SET result = '0' {OF_JOB}", queue.tenant, some.id)
    verdict = await queue.store.audit.verify(queue.tenant)
    assert verdict.first_bad is not None
    assert f"{some.id} version 1: the digest of steps" in verdict.first_bad


async def test_an_audit_accepts_a_pruned_job(queue: TenantQueue) -> None:
    await lived(queue)
    left = await lived(queue)
    queue.clock.advance(10)
    await prune(queue, cutoff=queue.clock.now, most=1)
    assert (await queue.store.audit.verify(queue.tenant)).jobs == 1
    assert (await queue.job(left.id)).id == left.id
    await queue.verify()


@pytest.mark.parametrize(
    ("engine", "connection_name"), [("sqlite", "functions"), ("postgres", "owner"), ("postgres", "app")]
)
async def test_a_legal_change_by_hand_is_covered(queue: TenantQueue, sql: SqlConnection) -> None:
    for target in (Status.RETRY, Status.QUEUED, Status.FAILED, Status.CANCELLED, Status.SUCCEEDED):
        job = await queue.running(type=target)
        await keep(queue, step(job))
        await queue.checkpoint(save(job, 1))
        error = {"error": ERROR} if target is Status.RETRY else {}
        await move(sql, job, target, queue.clock.now, **error)
        found = set(digests((await queue.history(job.id))[-1]))
        assert {"steps", "checkpoint"} <= found, target
        assert ("error" in found) is (target in (Status.RETRY, Status.FAILED)), target
    job, _ = await waiting(queue)
    await move(sql, job, Status.CANCELLED, queue.clock.now)
    assert "decision" in digests((await queue.history(job.id))[-1])
    job = await queue.job(await queue.add())
    columns = moved(sql, job, Status.QUEUED, queue.clock.now) | {"max_attempts": 9}
    await sql.run(*update(job, columns))
    assert "options" in digests((await queue.history(job.id))[-1])
    await queue.verify()


@pytest.mark.parametrize("metadata", ["x", "[]", '{"digests":{"payload":"00"}}'])
async def test_metadata_by_hand_has_no_digests(queue: TenantQueue, sql: SqlConnection, metadata: str) -> None:
    job = await queue.running()
    with pytest.raises(Exception, match=r"json|JSON"):
        await move(sql, job, Status.CANCELLED, queue.clock.now, metadata=metadata)
    assert (await queue.job(job.id)).version == job.version


async def test_on_sqlite_a_change_by_hand_verifies_with_the_real_clock(tmp_path: Any) -> None:
    store = await SQLiteStore.open(str(tmp_path / "real.db"))
    queue = TenantQueue(store, "t", ManualClock())
    ours = Connection(store.path, clock=wall_clock)
    try:
        for n in range(20):
            job = await queue.running(type=str(n))
            await keep(queue, step(job))
            ours.db.execute(
                "UPDATE job SET status = 'cancelled', version = version + 1, worker = NULL, lease_expires_at = NULL, "
                "finished_at = 1, verb = 'cancel', actor = 'user:dba' WHERE id = ?", (job.id,)
            )  # fmt: skip
            last = (await queue.history(job.id))[-1]
            assert (await queue.job(job.id)).updated_at == last.at
        await queue.verify()
    finally:
        ours.close()
        await store.close()


async def test_on_sqlite_the_head_of_a_job_is_not_written_by_hand(tmp_path: Any) -> None:
    store = await SQLiteStore.open(str(tmp_path / "own.db"))
    queue = TenantQueue(store, "t", ManualClock())
    ours = Connection(store.path, clock=ManualClock())
    try:
        job = await queue.job(await queue.add())
        for extra in ("", ", version = version + 1"):
            with pytest.raises(apsw.ConstraintError, match="interlock: "):
                ours.db.execute(f"UPDATE job SET head = zeroblob(32){extra} WHERE id = ?", (job.id,))
        await queue.verify()
    finally:
        ours.close()
        await store.close()
