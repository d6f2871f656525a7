"""Artifacts in the store: shown whole and under the fence, replaced by name, counted, and never forgotten half-way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from interlock.domain.artifact import (
    COLLECT_AGAIN_SECONDS,
    REPLACED_KEPT_SECONDS,
    UNFINISHED_KEPT_SECONDS,
    Artifact,
    Opening,
)  # fmt: skip
from interlock.domain.job import Job, Rejected
from interlock.errors import LeaseLost, NotFound, NotRunning, TooLarge, Unavailable
from tests.contract.artifacts import due, file, holder, keys, link, listed, new_key, opened, refused, show
from tests.contract.builders import NEVER, TenantQueue, cancel, complete, expire, fail
from tests.contract.connections import SqlConnection, rejection


async def test_a_file_is_read_exactly_as_it_was_published(queue: TenantQueue) -> None:
    job = await queue.running()
    new = file(job)
    (encoded,) = await show(queue, new)
    assert encoded == Artifact(*new, queue.clock.now)
    assert await listed(queue, job) == [encoded]
    assert await queue.store.artifacts.get(queue.tenant, job.id, new.id) == encoded


async def test_nothing_of_an_unfinished_upload_is_visible(queue: TenantQueue) -> None:
    job = await queue.running()
    await opened(queue, file(job))
    assert await listed(queue, job) == []
    assert await queue.store.artifacts.total_bytes(queue.tenant) == 0


async def test_a_link_has_a_url_and_nothing_else(queue: TenantQueue) -> None:
    job = await queue.running()
    (encoded,) = await show(queue, link(job))
    assert (encoded.url, encoded.size, encoded.sha256, encoded.content_type, encoded.key) == (
        "https://example.org/report", None, None, None, None,
    )  # fmt: skip
    assert await listed(queue, job) == [encoded]


async def test_a_file_of_the_same_name_replaces_the_old_one_whose_bytes_are_collected_later(queue: TenantQueue) -> None:
    job = await queue.running()
    (old,) = await show(queue, file(job, content=b"old"))
    (new,) = await show(queue, file(job, content=b"newer"))
    assert await listed(queue, job) == [new]
    assert await queue.store.artifacts.get(queue.tenant, job.id, old.id) is None
    assert await due(queue) == []
    queue.clock.advance(REPLACED_KEPT_SECONDS)
    assert await due(queue) == [old.key]


async def test_a_link_replaces_a_file_and_a_file_replaces_a_link(queue: TenantQueue) -> None:
    job = await queue.running()
    (old,) = await show(queue, file(job))
    (between,) = await show(queue, link(job))
    assert await listed(queue, job) == [between]
    assert await queue.store.artifacts.total_bytes(queue.tenant) == 0
    (new,) = await show(queue, file(job))
    assert await listed(queue, job) == [new]
    queue.clock.advance(REPLACED_KEPT_SECONDS)
    assert await due(queue) == [old.key]


async def test_identical_content_is_the_same_artifact_and_its_second_copy_is_collected(queue: TenantQueue) -> None:
    job = await queue.running()
    (first,) = await show(queue, file(job))
    queue.clock.advance(1)
    again = file(job)
    assert await show(queue, again) == [first]
    assert await listed(queue, job) == [first]
    assert await due(queue) == [again.key]


async def test_a_repeated_call_gets_the_same_result(queue: TenantQueue) -> None:
    job = await queue.running()
    new = file(job)
    (encoded,) = await show(queue, new)
    queue.clock.advance(1)
    assert await queue.store.artifacts.publish(queue.tenant, [new], quota=None) == [encoded]
    assert await due(queue) == []


async def test_the_last_of_two_files_with_one_name_in_a_batch_wins(queue: TenantQueue) -> None:
    job = await queue.running()
    first, last = file(job, content=b"first"), file(job, content=b"last!!")
    await show(queue, first, last)
    assert keys(await listed(queue, job)) == [last.key]
    assert await due(queue) == [first.key]
    assert await queue.store.artifacts.total_bytes(queue.tenant) == 6


async def test_two_concurrent_uploads_of_one_name_leave_one_complete_file(queue: TenantQueue) -> None:
    job = await queue.running()
    news = [file(job, content=f"version {n}".encode()) for n in range(8)]
    encoded = await asyncio.gather(*(show(queue, new) for new in news))
    (left,) = await listed(queue, job)
    assert [left] in encoded
    assert await queue.store.artifacts.total_bytes(queue.tenant) == left.size
    queue.clock.advance(REPLACED_KEPT_SECONDS)
    assert sorted(await due(queue)) == sorted(str(new.key) for new in news if new.key != left.key)


async def test_lists_are_newest_first_and_paged(queue: TenantQueue) -> None:
    job = await queue.running()
    made = []
    for second in range(3):
        made += sorted(await show(queue, *(file(job, f"{second}-{n}") for n in range(3))), key=lambda a: a.id)
        queue.clock.advance(1)
    pages: list[Artifact] = []
    while page := await listed(queue, job, limit=2, before=(pages[-1].created_at, pages[-1].id) if pages else None):
        pages += page
    assert pages == list(reversed(made))


async def end_by_complete(queue: TenantQueue, job: Job) -> None:
    await queue.do(complete(job))


async def end_by_fail(queue: TenantQueue, job: Job) -> None:
    await queue.do(fail(job))


async def end_by_expiry(queue: TenantQueue, job: Job) -> None:
    queue.clock.advance(61)
    await queue.do(expire(job.id))


async def end_by_force(queue: TenantQueue, job: Job) -> None:
    await queue.do(cancel(job.id, force=True))


async def end_by_another_lease(queue: TenantQueue, job: Job) -> None:
    await end_by_expiry(queue, job)
    await queue.again(job, worker=str(job.worker))


ENDS = {
    "complete": (end_by_complete, NotRunning),
    "fail": (end_by_fail, NotRunning),
    "expiry": (end_by_expiry, LeaseLost),
    "force": (end_by_force, LeaseLost),
    "another lease": (end_by_another_lease, LeaseLost),
}


@pytest.mark.parametrize("end", ENDS)
async def test_a_worker_whose_lease_ended_can_neither_upload_publish_nor_link(queue: TenantQueue, end: str) -> None:
    ended, error = ENDS[end]
    job = await queue.running()
    begun = file(job)
    await opened(queue, begun)
    await ended(queue, job)
    assert type(await refused(queue, begun)) is error
    assert type(await refused(queue, link(job))) is error
    (answer,) = await queue.store.artifacts.open_uploads(
        queue.tenant, [Opening(holder(job), "late", new_key())], quota=None
    )
    assert isinstance(answer, Rejected)
    assert type(answer.error) is error
    assert await listed(queue, job) == []
    assert await due(queue) == [begun.key]


async def test_a_late_worker_with_the_current_fence_may_still_add_files(queue: TenantQueue) -> None:
    job = await queue.running(lease_seconds=1.0)
    queue.clock.advance(60)
    assert len(await show(queue, file(job))) == 1


@pytest.mark.parametrize("change", [{"fence": 99}, {"worker": "somebody"}])
async def test_only_the_worker_and_fence_of_the_lease_may_add_files(queue: TenantQueue, change: dict[str, Any]) -> None:
    job = await queue.running()
    begun = file(job)
    await opened(queue, begun)
    assert isinstance(await refused(queue, begun._replace(**change)), LeaseLost)


async def test_each_item_of_a_batch_has_its_own_result(queue: TenantQueue) -> None:
    mine, ended = await queue.running(), await queue.running()
    await queue.do(complete(ended))
    good = [file(mine, "a"), link(mine, "b")]
    await opened(queue, *good)
    bad = [link(ended), link(mine._replace(id=NEVER))]
    answers = await queue.store.artifacts.publish(queue.tenant, [bad[0], good[0], bad[1], good[1]], quota=None)
    kinds = [type(a.error) if isinstance(a, Rejected) else a.name for a in answers]
    assert kinds == [NotRunning, "a", NotFound, "b"]


async def test_an_atomic_batch_with_one_rejection_publishes_nothing(queue: TenantQueue) -> None:
    job = await queue.running()
    news = [file(job, "a"), file(job, "b"), link(job, "c")]
    await opened(queue, news[0])
    answers = await queue.store.artifacts.publish(queue.tenant, news, quota=None, whole=True)
    assert all(isinstance(answer, Rejected) for answer in answers)
    assert await listed(queue, job) == []
    assert await due(queue) == [news[0].key]


async def test_a_file_beyond_the_quota_is_rejected_before_and_after_its_upload(queue: TenantQueue) -> None:
    job = await queue.running()
    await show(queue, file(job, "a", b"12345"))
    (before,) = await queue.store.artifacts.open_uploads(
        queue.tenant, [Opening(holder(job), "b", new_key(), 6)], quota=10
    )
    assert isinstance(before, Rejected)
    assert isinstance(before.error, TooLarge)
    unannounced = file(job, "b", b"123456")
    await opened(queue, unannounced)
    assert isinstance(await refused(queue, unannounced, quota=10), TooLarge)
    await show(queue, file(job, "b", b"12345"), quota=10)
    assert await queue.store.artifacts.total_bytes(queue.tenant) == 10


async def test_a_smaller_file_may_replace_a_larger_one_even_beyond_the_quota(queue: TenantQueue) -> None:
    job = await queue.running()
    await show(queue, file(job, content=b"1234567890"))
    await show(queue, file(job, content=b"123456789"), quota=5)
    assert await queue.store.artifacts.total_bytes(queue.tenant) == 9


async def test_a_replaced_file_frees_its_quota(queue: TenantQueue) -> None:
    job = await queue.running()
    await show(queue, file(job, "a", b"12345678"))
    announced = [Opening(holder(job), name, new_key(), 9) for name in ("a", "b")]
    fits, does_not = await queue.store.artifacts.open_uploads(queue.tenant, announced, quota=10)
    assert fits is None
    assert isinstance(does_not, Rejected)
    await show(queue, file(job, "a", b"123456789"), quota=10)
    assert await queue.store.artifacts.total_bytes(queue.tenant) == 9


async def test_concurrent_uploads_do_not_exceed_the_quota(queue: TenantQueue) -> None:
    job = await queue.running()
    news = [file(job, f"file {n}", bytes(10)) for n in range(12)]
    await opened(queue, *news)
    answers = await asyncio.gather(*(queue.store.artifacts.publish(queue.tenant, [new], quota=50) for new in news))
    kinds = [type(a.error) if isinstance(a, Rejected) else Artifact for (a,) in answers]
    assert sorted(map(str, kinds)) == sorted(map(str, [Artifact] * 5 + [TooLarge] * 7))
    assert (
        await queue.store.artifacts.total_bytes(queue.tenant)
        == sum(a.size or 0 for a in await listed(queue, job))
        == 50
    )


async def test_the_quota_of_one_tenant_does_not_affect_others(queue: TenantQueue, rival: TenantQueue) -> None:
    mine, theirs = await queue.running(), await rival.running()
    await show(queue, file(mine, content=bytes(10)), quota=10)
    await show(rival, file(theirs, content=bytes(10)), quota=10)
    assert await queue.store.artifacts.total_bytes(queue.tenant) == 10


async def test_an_abandoned_upload_is_collected(queue: TenantQueue) -> None:
    job = await queue.running()
    new = file(job)
    await opened(queue, new)
    queue.clock.advance(UNFINISHED_KEPT_SECONDS - 1)
    assert await due(queue) == []
    queue.clock.advance(1)
    assert await due(queue) == [new.key]


async def test_bytes_marked_for_deletion_cannot_be_published(queue: TenantQueue) -> None:
    job = await queue.running(lease_seconds=3600.0)
    new = file(job)
    await opened(queue, new)
    queue.clock.advance(UNFINISHED_KEPT_SECONDS)
    assert await queue.store.artifacts.condemn_orphans(queue.tenant, [str(new.key)]) == [new.key]
    assert isinstance(await refused(queue, new), Unavailable)
    queue.clock.now -= 10 * round(UNFINISHED_KEPT_SECONDS) * 1_000_000  # the clock does not matter
    assert isinstance(await refused(queue, new), Unavailable)
    assert await listed(queue, job) == []


async def test_bytes_due_for_collection_may_be_published_until_marked(queue: TenantQueue) -> None:
    job = await queue.running()
    new = file(job)
    await opened(queue, new)
    queue.clock.advance(2 * UNFINISHED_KEPT_SECONDS)
    assert await queue.store.artifacts.publish(queue.tenant, [new], quota=None) == [Artifact(*new, queue.clock.now)]
    assert await queue.store.artifacts.condemn_orphans(queue.tenant, [str(new.key)]) == []


async def test_bytes_are_collected_once_and_again_only_after_a_failure(queue: TenantQueue) -> None:
    job = await queue.running()
    new = file(job)
    key = str(new.key)
    await opened(queue, new)
    await queue.store.artifacts.abandon(queue.tenant, [key])
    assert await queue.store.artifacts.drop_orphans(queue.tenant, [key]) == 0
    assert await queue.store.artifacts.condemn_orphans(queue.tenant, [key]) == [key]
    assert await due(queue) == []
    assert await queue.store.artifacts.condemn_orphans(queue.tenant, [key]) == []
    queue.clock.advance(COLLECT_AGAIN_SECONDS)
    assert await due(queue) == [key]
    assert await queue.store.artifacts.condemn_orphans(queue.tenant, [key]) == [key]
    assert await queue.store.artifacts.drop_orphans(queue.tenant, [key]) == 1
    assert await queue.store.artifacts.drop_orphans(queue.tenant, [key]) == 0
    queue.clock.advance(2 * COLLECT_AGAIN_SECONDS)
    assert await due(queue) == []


async def test_discarding_a_key_that_became_an_artifact_changes_nothing(queue: TenantQueue) -> None:
    job = await queue.running()
    (encoded,) = await show(queue, file(job))
    await queue.store.artifacts.abandon(queue.tenant, [str(encoded.key)])
    assert await queue.store.artifacts.condemn_orphans(queue.tenant, [str(encoded.key)]) == []
    assert await due(queue) == []
    assert await listed(queue, job) == [encoded]


async def test_due_keys_are_bounded_and_oldest_first(queue: TenantQueue) -> None:
    job = await queue.running()
    news = [file(job, str(n)) for n in range(5)]
    for new in news:
        await opened(queue, new)
        queue.clock.advance(1)
    queue.clock.advance(UNFINISHED_KEPT_SECONDS)
    assert await due(queue) == keys(news)
    assert len(await queue.store.artifacts.due_orphans(2)) == 2


async def test_pruning_jobs_deletes_their_artifacts_and_leaves_their_bytes_to_be_collected(queue: TenantQueue) -> None:
    gone, kept = await queue.running(), await queue.running()
    old = await show(queue, file(gone, "a", b"123"), file(gone, "b", b"4567"), link(gone, "c"))
    (stays,) = await show(queue, file(kept, "a", b"12"))
    assert await queue.store.artifacts.forget(queue.tenant, [gone.id, NEVER]) == 3
    assert await listed(queue, gone) == []
    assert await listed(queue, kept) == [stays]
    assert await queue.store.artifacts.total_bytes(queue.tenant) == 2
    queue.clock.advance(REPLACED_KEPT_SECONDS)
    assert sorted(await due(queue)) == sorted(str(a.key) for a in old if a.key is not None)
    assert await queue.store.artifacts.forget(queue.tenant, [gone.id]) == 0


async def test_no_operation_reaches_the_artifacts_of_another_tenant(queue: TenantQueue, rival: TenantQueue) -> None:
    theirs = await rival.running()
    begun = file(theirs, "begun")
    await opened(rival, begun)
    (encoded,) = await show(rival, file(theirs))
    assert await queue.store.artifacts.get(queue.tenant, theirs.id, encoded.id) is None
    assert await queue.store.artifacts.job_of(queue.tenant, encoded.id) is None
    assert await rival.store.artifacts.job_of(rival.tenant, encoded.id) == theirs.id
    assert await listed(queue, theirs) == []
    assert await queue.store.artifacts.forget(queue.tenant, [theirs.id]) == 0
    assert isinstance(await refused(queue, begun), NotFound)
    assert isinstance(await refused(queue, link(theirs)), NotFound)
    await queue.store.artifacts.abandon(queue.tenant, [str(begun.key)])
    rival.clock.advance(UNFINISHED_KEPT_SECONDS)
    assert await queue.store.artifacts.condemn_orphans(queue.tenant, [str(begun.key)]) == []
    assert await queue.store.artifacts.drop_orphans(queue.tenant, [str(begun.key)]) == 0
    assert await due(rival) == [begun.key]
    assert await listed(rival, theirs) == [encoded]


async def test_the_bytes_behind_one_tenants_upload_cannot_become_anothers_artifact(
    queue: TenantQueue, rival: TenantQueue
) -> None:
    mine, theirs = await queue.running(), await rival.running()
    begun = file(theirs)
    await opened(rival, begun)
    assert isinstance(await refused(queue, file(mine, key=begun.key)), Unavailable)


async def test_each_job_has_its_own_artifact_names(queue: TenantQueue) -> None:
    one, two = await queue.running(), await queue.running()
    (first,), (second,) = await show(queue, file(one)), await show(queue, file(two))
    assert (await listed(queue, one), await listed(queue, two)) == ([first], [second])
    assert await queue.store.artifacts.get(queue.tenant, one.id, second.id) is None


HALF = {
    "a file without a key": ("object_key = NULL", "file_or_link"),
    "a file without a hash": ("sha256 = NULL", "file_or_link"),
    "a file and a link in one": ("url = 'https://example.org'", "file_or_link"),
    "a short hash": ("sha256 = substr(sha256, 1, 31)", "whole_hash"),
    "a negative size": ("size = -1", "size_not_negative"),
}


@pytest.mark.parametrize("half", HALF)
async def test_the_database_rejects_an_incomplete_artifact(queue: TenantQueue, sql: SqlConnection, half: str) -> None:
    job = await queue.running()
    await show(queue, file(job))
    change, constraint = HALF[half]
    assert constraint in await rejection(sql, f"UPDATE artifact SET {change} WHERE tenant = $1", queue.tenant)
