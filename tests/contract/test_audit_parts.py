"""History in bounded pieces: verified part by part, and exported completely, in the order of arrival."""

from __future__ import annotations

import pytest

from interlock.domain.audit import HistoryExport
from interlock.engine.audit import Audit
from interlock.errors import Invalid
from tests.contract.builders import TenantQueue, complete, fail
from tests.contract.connections import SqlConnection


async def all_parts(queue: TenantQueue, jobs: int) -> tuple[int, int, list[str], int]:
    """Jobs, rows, everything bad, and in how many parts."""
    audit = Audit(queue.store)
    count = rows = parts = 0
    bad: list[str] = []
    after: str | None = None
    while True:
        part = await audit.verify_part(queue.tenant, after=after, jobs=jobs)
        count, rows, parts = count + part.jobs, rows + part.rows, parts + 1
        bad += [part.first_bad] if part.first_bad else []
        if part.next is None:
            return count, rows, bad, parts
        after = part.next


async def some_lives(queue: TenantQueue) -> list[str]:
    ids = []
    for _ in range(3):
        job = await queue.running()
        await queue.do(complete(job))
        ids.append(job.id)
    job = await queue.running()
    await queue.do(fail(job, retry_after_seconds=1.0))
    return [*ids, job.id, await queue.add(type="later")]


@pytest.mark.parametrize("jobs", [1, 2, 5, 100])
async def test_parts_of_any_size_read_every_chain_once(queue: TenantQueue, rival: TenantQueue, jobs: int) -> None:
    await some_lives(queue)
    await some_lives(rival)
    count, rows, bad, parts = await all_parts(queue, jobs)
    whole = await queue.store.audit.verify(queue.tenant)
    assert (count, rows, bad) == (whole.jobs, whole.rows, []) == (5, 13, [])
    assert parts == {1: 6, 2: 3, 5: 2, 100: 1}[jobs]


async def test_a_tenant_without_jobs_is_verified_in_one_part(queue: TenantQueue) -> None:
    assert await all_parts(queue, 10) == (0, 0, [], 1)


async def test_a_changed_row_is_found_in_its_part(queue: TenantQueue, sql: SqlConnection) -> None:
    ids = await some_lives(queue)
    await sql.without_rules()
    where = "job_id = $1" if sql.engine == "postgres" else "seq = (SELECT seq FROM job WHERE id = $1)"
    await sql.run(f"UPDATE job_history SET reason = 'forged' WHERE {where} AND version = 2", ids[1])
    for jobs in (1, 2, 100):
        _, _, bad, _ = await all_parts(queue, jobs)
        assert len(bad) == 1
        assert f"{ids[1]} version 2: the hash does not match" in bad[0]


async def test_a_job_without_history_is_found_in_its_part(queue: TenantQueue, sql: SqlConnection) -> None:
    ids = await some_lives(queue)
    await sql.without_rules()
    where = "job_id = $1" if sql.engine == "postgres" else "seq = (SELECT seq FROM job WHERE id = $1)"
    await sql.run(f"DELETE FROM job_history WHERE {where}", ids[2])
    for jobs in (1, 2, 100):
        _, _, bad, _ = await all_parts(queue, jobs)
        assert len(bad) == 1
        assert bad[0].endswith(f"{ids[2]}: the job has no history")


async def test_a_part_size_of_zero_is_rejected(queue: TenantQueue) -> None:
    for jobs in (0, 10_001):
        with pytest.raises(Invalid):
            await Audit(queue.store).verify_part(queue.tenant, jobs=jobs)


async def test_an_invalid_cursor_is_rejected(queue: TenantQueue) -> None:
    for cursor in ("", "nonsense", "-1", "9" * 40, "٣"):
        with pytest.raises(Invalid, match="is not where a verification has stopped"):
            await Audit(queue.store).verify_part(queue.tenant, after=cursor)


async def test_an_export_has_every_row_in_the_order_of_arrival(
    queue: TenantQueue, rival: TenantQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.engine.audit.EXPORT_BATCH_SIZE", 2)
    ids = await some_lives(queue)
    await some_lives(rival)
    pages = [page async for page in Audit(queue.store).export(queue.tenant)]
    assert [len(page) for page in pages] == [2, 2, 1]
    chronicles: list[HistoryExport] = [one for page in pages for one in page]
    assert [one.rows[0].job_id for one in chronicles] == ids
    assert [one.seq for one in chronicles] == sorted(one.seq for one in chronicles)
    for one in chronicles:
        assert list(one.rows) == await queue.store.history(queue.tenant, one.rows[0].job_id)
    rest = [page async for page in Audit(queue.store).export(queue.tenant, after=chronicles[3].seq)]
    assert rest == [[chronicles[4]]]
