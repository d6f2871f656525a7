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
from tests.contract.builders import NEVER, Desk, cancel, complete, expire, fail
from tests.contract.connections import Door, refusal


async def test_a_file_is_seen_exactly_as_it_was_shown(remote: Desk) -> None:
    job = await remote.running()
    new = file(job)
    (encoded,) = await show(remote, new)
    assert encoded == Artifact(*new, remote.clock.now)
    assert await listed(remote, job) == [encoded]
    assert await remote.store.artifact(remote.tenant, job.id, new.id) == encoded


async def test_of_an_upload_that_is_not_finished_nothing_is_seen(remote: Desk) -> None:
    job = await remote.running()
    await opened(remote, file(job))
    assert await listed(remote, job) == []
    assert await remote.store.artifact_bytes(remote.tenant) == 0


async def test_a_link_has_a_url_and_nothing_else(remote: Desk) -> None:
    job = await remote.running()
    (encoded,) = await show(remote, link(job))
    assert (encoded.url, encoded.size, encoded.sha256, encoded.content_type, encoded.key) == (
        "https://example.org/report", None, None, None, None,
    )  # fmt: skip
    assert await listed(remote, job) == [encoded]


async def test_the_same_name_replaces_and_the_old_bytes_are_collected_later(remote: Desk) -> None:
    job = await remote.running()
    (old,) = await show(remote, file(job, content=b"old"))
    (new,) = await show(remote, file(job, content=b"newer"))
    assert await listed(remote, job) == [new]
    assert await remote.store.artifact(remote.tenant, job.id, old.id) is None
    assert await due(remote) == []
    remote.clock.advance(REPLACED_KEPT_SECONDS)
    assert await due(remote) == [old.key]


async def test_a_link_replaces_a_file_and_a_file_a_link(remote: Desk) -> None:
    job = await remote.running()
    (old,) = await show(remote, file(job))
    (between,) = await show(remote, link(job))
    assert await listed(remote, job) == [between]
    assert await remote.store.artifact_bytes(remote.tenant) == 0
    (new,) = await show(remote, file(job))
    assert await listed(remote, job) == [new]
    remote.clock.advance(REPLACED_KEPT_SECONDS)
    assert await due(remote) == [old.key]


async def test_the_same_content_again_is_the_same_artifact_and_its_second_copy_is_collected(remote: Desk) -> None:
    job = await remote.running()
    (first,) = await show(remote, file(job))
    remote.clock.advance(1)
    again = file(job)
    assert await show(remote, again) == [first]
    assert await listed(remote, job) == [first]
    assert await due(remote) == [again.key]


async def test_the_very_same_call_repeated_is_answered_the_same(remote: Desk) -> None:
    job = await remote.running()
    new = file(job)
    (encoded,) = await show(remote, new)
    remote.clock.advance(1)
    assert await remote.store.show_artifacts(remote.tenant, [new], quota=None) == [encoded]
    assert await due(remote) == []


async def test_of_two_files_with_one_name_in_one_batch_the_last_stays(remote: Desk) -> None:
    job = await remote.running()
    first, last = file(job, content=b"first"), file(job, content=b"last!!")
    await show(remote, first, last)
    assert keys(await listed(remote, job)) == [last.key]
    assert await due(remote) == [first.key]
    assert await remote.store.artifact_bytes(remote.tenant) == 6


async def test_two_uploads_of_one_name_that_end_together_leave_one_of_them_whole(remote: Desk) -> None:
    job = await remote.running()
    news = [file(job, content=f"version {n}".encode()) for n in range(8)]
    encoded = await asyncio.gather(*(show(remote, new) for new in news))
    (left,) = await listed(remote, job)
    assert [left] in encoded
    assert await remote.store.artifact_bytes(remote.tenant) == left.size
    remote.clock.advance(REPLACED_KEPT_SECONDS)
    assert sorted(await due(remote)) == sorted(str(new.key) for new in news if new.key != left.key)


async def test_lists_are_newest_first_page_by_page(remote: Desk) -> None:
    job = await remote.running()
    made = []
    for second in range(3):
        made += sorted(await show(remote, *(file(job, f"{second}-{n}") for n in range(3))), key=lambda a: a.id)
        remote.clock.advance(1)
    pages: list[Artifact] = []
    while page := await listed(remote, job, limit=2, before=(pages[-1].created_at, pages[-1].id) if pages else None):
        pages += page
    assert pages == list(reversed(made))


async def end_by_complete(remote: Desk, job: Job) -> None:
    await remote.do(complete(job))


async def end_by_fail(remote: Desk, job: Job) -> None:
    await remote.do(fail(job))


async def end_by_expiry(remote: Desk, job: Job) -> None:
    remote.clock.advance(61)
    await remote.do(expire(job.id))


async def end_by_force(remote: Desk, job: Job) -> None:
    await remote.do(cancel(job.id, force=True))


async def end_by_another_grant(remote: Desk, job: Job) -> None:
    await end_by_expiry(remote, job)
    await remote.again(job, worker=str(job.worker))


ENDS = {
    "complete": (end_by_complete, NotRunning),
    "fail": (end_by_fail, NotRunning),
    "expiry": (end_by_expiry, LeaseLost),
    "force": (end_by_force, LeaseLost),
    "another grant": (end_by_another_grant, LeaseLost),
}


@pytest.mark.parametrize("end", ENDS)
async def test_a_worker_whose_grant_has_ended_can_neither_begin_nor_show_nor_link(remote: Desk, end: str) -> None:
    ended, error = ENDS[end]
    job = await remote.running()
    begun = file(job)
    await opened(remote, begun)
    await ended(remote, job)
    assert type(await refused(remote, begun)) is error
    assert type(await refused(remote, link(job))) is error
    (answer,) = await remote.store.open_uploads(remote.tenant, [Opening(holder(job), "late", new_key())], quota=None)
    assert isinstance(answer, Rejected)
    assert type(answer.error) is error
    assert await listed(remote, job) == []
    assert await due(remote) == [begun.key]


async def test_a_late_worker_whose_fence_is_current_may_still_add_files(remote: Desk) -> None:
    job = await remote.running(lease_seconds=1.0)
    remote.clock.advance(60)
    assert len(await show(remote, file(job))) == 1


@pytest.mark.parametrize("change", [{"fence": 99}, {"worker": "somebody"}])
async def test_only_the_worker_and_fence_that_hold_the_job_may_add_files(remote: Desk, change: dict[str, Any]) -> None:
    job = await remote.running()
    begun = file(job)
    await opened(remote, begun)
    assert isinstance(await refused(remote, begun._replace(**change)), LeaseLost)


async def test_each_item_of_a_batch_has_its_own_answer(remote: Desk) -> None:
    mine, ended = await remote.running(), await remote.running()
    await remote.do(complete(ended))
    good = [file(mine, "a"), link(mine, "b")]
    await opened(remote, *good)
    bad = [link(ended), link(mine._replace(id=NEVER))]
    answers = await remote.store.show_artifacts(remote.tenant, [bad[0], good[0], bad[1], good[1]], quota=None)
    kinds = [type(a.error) if isinstance(a, Rejected) else a.name for a in answers]
    assert kinds == [NotRunning, "a", NotFound, "b"]


async def test_with_whole_one_refusal_means_that_nothing_is_shown(remote: Desk) -> None:
    job = await remote.running()
    news = [file(job, "a"), file(job, "b"), link(job, "c")]
    await opened(remote, news[0])
    answers = await remote.store.show_artifacts(remote.tenant, news, quota=None, whole=True)
    assert all(isinstance(answer, Rejected) for answer in answers)
    assert await listed(remote, job) == []
    assert await due(remote) == [news[0].key]


async def test_a_file_beyond_the_quota_is_refused_before_and_after_its_upload(remote: Desk) -> None:
    job = await remote.running()
    await show(remote, file(job, "a", b"12345"))
    (before,) = await remote.store.open_uploads(remote.tenant, [Opening(holder(job), "b", new_key(), 6)], quota=10)
    assert isinstance(before, Rejected)
    assert isinstance(before.error, TooLarge)
    unannounced = file(job, "b", b"123456")
    await opened(remote, unannounced)
    assert isinstance(await refused(remote, unannounced, quota=10), TooLarge)
    await show(remote, file(job, "b", b"12345"), quota=10)
    assert await remote.store.artifact_bytes(remote.tenant) == 10


async def test_a_smaller_file_may_replace_a_larger_one_even_beyond_the_quota(remote: Desk) -> None:
    job = await remote.running()
    await show(remote, file(job, content=b"1234567890"))
    await show(remote, file(job, content=b"123456789"), quota=5)
    assert await remote.store.artifact_bytes(remote.tenant) == 9


async def test_what_a_file_replaces_makes_room_for_it(remote: Desk) -> None:
    job = await remote.running()
    await show(remote, file(job, "a", b"12345678"))
    announced = [Opening(holder(job), name, new_key(), 9) for name in ("a", "b")]
    fits, does_not = await remote.store.open_uploads(remote.tenant, announced, quota=10)
    assert fits is None
    assert isinstance(does_not, Rejected)
    await show(remote, file(job, "a", b"123456789"), quota=10)
    assert await remote.store.artifact_bytes(remote.tenant) == 9


async def test_uploads_that_end_together_do_not_exceed_the_quota(remote: Desk) -> None:
    job = await remote.running()
    news = [file(job, f"file {n}", bytes(10)) for n in range(12)]
    await opened(remote, *news)
    answers = await asyncio.gather(*(remote.store.show_artifacts(remote.tenant, [new], quota=50) for new in news))
    kinds = [type(a.error) if isinstance(a, Rejected) else Artifact for (a,) in answers]
    assert sorted(map(str, kinds)) == sorted(map(str, [Artifact] * 5 + [TooLarge] * 7))
    assert await remote.store.artifact_bytes(remote.tenant) == sum(a.size or 0 for a in await listed(remote, job)) == 50


async def test_the_quota_of_one_tenant_is_not_the_others(remote: Desk, rival: Desk) -> None:
    mine, theirs = await remote.running(), await rival.running()
    await show(remote, file(mine, content=bytes(10)), quota=10)
    await show(rival, file(theirs, content=bytes(10)), quota=10)
    assert await remote.store.artifact_bytes(remote.tenant) == 10


async def test_an_upload_that_never_ends_is_collected(remote: Desk) -> None:
    job = await remote.running()
    new = file(job)
    await opened(remote, new)
    remote.clock.advance(UNFINISHED_KEPT_SECONDS - 1)
    assert await due(remote) == []
    remote.clock.advance(1)
    assert await due(remote) == [new.key]


async def test_what_is_condemned_can_no_longer_be_shown(remote: Desk) -> None:
    job = await remote.running(lease_seconds=3600.0)
    new = file(job)
    await opened(remote, new)
    remote.clock.advance(UNFINISHED_KEPT_SECONDS)
    assert await remote.store.condemn_orphans(remote.tenant, [str(new.key)]) == [new.key]
    assert isinstance(await refused(remote, new), Unavailable)
    remote.clock.now -= 10 * round(UNFINISHED_KEPT_SECONDS) * 1_000_000  # whatever the clock says
    assert isinstance(await refused(remote, new), Unavailable)
    assert await listed(remote, job) == []


async def test_what_is_due_may_still_be_shown_until_it_is_condemned(remote: Desk) -> None:
    job = await remote.running()
    new = file(job)
    await opened(remote, new)
    remote.clock.advance(2 * UNFINISHED_KEPT_SECONDS)
    assert await remote.store.show_artifacts(remote.tenant, [new], quota=None) == [Artifact(*new, remote.clock.now)]
    assert await remote.store.condemn_orphans(remote.tenant, [str(new.key)]) == []


async def test_collecting_is_done_by_one_and_again_only_if_it_failed(remote: Desk) -> None:
    job = await remote.running()
    new = file(job)
    key = str(new.key)
    await opened(remote, new)
    await remote.store.abandon_objects(remote.tenant, [key])
    assert await remote.store.drop_orphans(remote.tenant, [key]) == 0
    assert await remote.store.condemn_orphans(remote.tenant, [key]) == [key]
    assert await due(remote) == []
    assert await remote.store.condemn_orphans(remote.tenant, [key]) == []
    remote.clock.advance(COLLECT_AGAIN_SECONDS)
    assert await due(remote) == [key]
    assert await remote.store.condemn_orphans(remote.tenant, [key]) == [key]
    assert await remote.store.drop_orphans(remote.tenant, [key]) == 1
    assert await remote.store.drop_orphans(remote.tenant, [key]) == 0
    remote.clock.advance(2 * COLLECT_AGAIN_SECONDS)
    assert await due(remote) == []


async def test_giving_up_a_key_that_became_an_artifact_changes_nothing(remote: Desk) -> None:
    job = await remote.running()
    (encoded,) = await show(remote, file(job))
    await remote.store.abandon_objects(remote.tenant, [str(encoded.key)])
    assert await remote.store.condemn_orphans(remote.tenant, [str(encoded.key)]) == []
    assert await due(remote) == []
    assert await listed(remote, job) == [encoded]


async def test_the_due_are_bounded_and_the_oldest_come_first(remote: Desk) -> None:
    job = await remote.running()
    news = [file(job, str(n)) for n in range(5)]
    for new in news:
        await opened(remote, new)
        remote.clock.advance(1)
    remote.clock.advance(UNFINISHED_KEPT_SECONDS)
    assert await due(remote) == keys(news)
    assert len(await remote.store.due_orphans(2)) == 2


async def test_forgetting_jobs_takes_their_artifacts_and_leaves_their_bytes_to_be_collected(remote: Desk) -> None:
    gone, kept = await remote.running(), await remote.running()
    old = await show(remote, file(gone, "a", b"123"), file(gone, "b", b"4567"), link(gone, "c"))
    (stays,) = await show(remote, file(kept, "a", b"12"))
    assert await remote.store.forget_artifacts(remote.tenant, [gone.id, NEVER]) == 3
    assert await listed(remote, gone) == []
    assert await listed(remote, kept) == [stays]
    assert await remote.store.artifact_bytes(remote.tenant) == 2
    remote.clock.advance(REPLACED_KEPT_SECONDS)
    assert sorted(await due(remote)) == sorted(str(a.key) for a in old if a.key is not None)
    assert await remote.store.forget_artifacts(remote.tenant, [gone.id]) == 0


async def test_no_verb_reaches_the_artifacts_of_another_tenant(remote: Desk, rival: Desk) -> None:
    theirs = await rival.running()
    begun = file(theirs, "begun")
    await opened(rival, begun)
    (encoded,) = await show(rival, file(theirs))
    assert await remote.store.artifact(remote.tenant, theirs.id, encoded.id) is None
    assert await remote.store.artifact_home(remote.tenant, encoded.id) is None
    assert await rival.store.artifact_home(rival.tenant, encoded.id) == theirs.id
    assert await listed(remote, theirs) == []
    assert await remote.store.forget_artifacts(remote.tenant, [theirs.id]) == 0
    assert isinstance(await refused(remote, begun), NotFound)
    assert isinstance(await refused(remote, link(theirs)), NotFound)
    await remote.store.abandon_objects(remote.tenant, [str(begun.key)])
    rival.clock.advance(UNFINISHED_KEPT_SECONDS)
    assert await remote.store.condemn_orphans(remote.tenant, [str(begun.key)]) == []
    assert await remote.store.drop_orphans(remote.tenant, [str(begun.key)]) == 0
    assert await due(rival) == [begun.key]
    assert await listed(rival, theirs) == [encoded]


async def test_the_bytes_behind_one_tenants_upload_cannot_become_anothers_artifact(remote: Desk, rival: Desk) -> None:
    mine, theirs = await remote.running(), await rival.running()
    begun = file(theirs)
    await opened(rival, begun)
    assert isinstance(await refused(remote, file(mine, key=begun.key)), Unavailable)


async def test_the_same_name_belongs_to_each_job_alone(remote: Desk) -> None:
    one, two = await remote.running(), await remote.running()
    (first,), (second,) = await show(remote, file(one)), await show(remote, file(two))
    assert (await listed(remote, one), await listed(remote, two)) == ([first], [second])
    assert await remote.store.artifact(remote.tenant, one.id, second.id) is None


HALF = {
    "a file without a key": ("object_key = NULL", "file_or_link"),
    "a file without a hash": ("sha256 = NULL", "file_or_link"),
    "a file and a link in one": ("url = 'https://example.org'", "file_or_link"),
    "a short hash": ("sha256 = substr(sha256, 1, 31)", "whole_hash"),
    "a negative size": ("size = -1", "size_not_negative"),
}


@pytest.mark.parametrize("half", HALF)
async def test_the_database_refuses_half_an_artifact(remote: Desk, adapter: Door, half: str) -> None:
    job = await remote.running()
    await show(remote, file(job))
    change, constraint = HALF[half]
    assert constraint in await refusal(adapter, f"UPDATE artifact SET {change} WHERE tenant = $1", remote.tenant)
