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
from interlock.domain.job import Job, Refused
from interlock.errors import LeaseLost, NotFound, NotRunning, TooLarge, Unavailable
from tests.contract.artifacts import due, file, holder, keys, link, listed, new_key, opened, refused, show
from tests.contract.builders import NEVER, Desk, cancel, complete, expire, fail
from tests.contract.connections import Door, refusal


async def test_a_file_is_seen_exactly_as_it_was_shown(desk: Desk) -> None:
    job = await desk.running()
    new = file(job)
    (shown,) = await show(desk, new)
    assert shown == Artifact(*new, desk.clock.now)
    assert await listed(desk, job) == [shown]
    assert await desk.store.artifact(desk.tenant, job.id, new.id) == shown


async def test_of_an_upload_that_is_not_finished_nothing_is_seen(desk: Desk) -> None:
    job = await desk.running()
    await opened(desk, file(job))
    assert await listed(desk, job) == []
    assert await desk.store.artifact_bytes(desk.tenant) == 0


async def test_a_link_has_a_url_and_nothing_else(desk: Desk) -> None:
    job = await desk.running()
    (shown,) = await show(desk, link(job))
    assert (shown.url, shown.size, shown.sha256, shown.content_type, shown.key) == (
        "https://example.org/report", None, None, None, None,
    )  # fmt: skip
    assert await listed(desk, job) == [shown]


async def test_the_same_name_replaces_and_the_old_bytes_are_collected_later(desk: Desk) -> None:
    job = await desk.running()
    (old,) = await show(desk, file(job, content=b"old"))
    (new,) = await show(desk, file(job, content=b"newer"))
    assert await listed(desk, job) == [new]
    assert await desk.store.artifact(desk.tenant, job.id, old.id) is None
    assert await due(desk) == []
    desk.clock.advance(REPLACED_KEPT_SECONDS)
    assert await due(desk) == [old.key]


async def test_a_link_replaces_a_file_and_a_file_a_link(desk: Desk) -> None:
    job = await desk.running()
    (old,) = await show(desk, file(job))
    (between,) = await show(desk, link(job))
    assert await listed(desk, job) == [between]
    assert await desk.store.artifact_bytes(desk.tenant) == 0
    (new,) = await show(desk, file(job))
    assert await listed(desk, job) == [new]
    desk.clock.advance(REPLACED_KEPT_SECONDS)
    assert await due(desk) == [old.key]


async def test_the_same_content_again_is_the_same_artifact_and_its_second_copy_is_collected(desk: Desk) -> None:
    job = await desk.running()
    (first,) = await show(desk, file(job))
    desk.clock.advance(1)
    again = file(job)
    assert await show(desk, again) == [first]
    assert await listed(desk, job) == [first]
    assert await due(desk) == [again.key]


async def test_the_very_same_call_repeated_is_answered_the_same(desk: Desk) -> None:
    job = await desk.running()
    new = file(job)
    (shown,) = await show(desk, new)
    desk.clock.advance(1)
    assert await desk.store.show_artifacts(desk.tenant, [new], quota=None) == [shown]
    assert await due(desk) == []


async def test_of_two_files_with_one_name_in_one_batch_the_last_stays(desk: Desk) -> None:
    job = await desk.running()
    first, last = file(job, content=b"first"), file(job, content=b"last!!")
    await show(desk, first, last)
    assert keys(await listed(desk, job)) == [last.key]
    assert await due(desk) == [first.key]
    assert await desk.store.artifact_bytes(desk.tenant) == 6


async def test_two_uploads_of_one_name_that_end_together_leave_one_of_them_whole(desk: Desk) -> None:
    job = await desk.running()
    news = [file(job, content=f"version {n}".encode()) for n in range(8)]
    shown = await asyncio.gather(*(show(desk, new) for new in news))
    (left,) = await listed(desk, job)
    assert [left] in shown
    assert await desk.store.artifact_bytes(desk.tenant) == left.size
    desk.clock.advance(REPLACED_KEPT_SECONDS)
    assert sorted(await due(desk)) == sorted(str(new.key) for new in news if new.key != left.key)


async def test_lists_are_newest_first_page_by_page(desk: Desk) -> None:
    job = await desk.running()
    made = []
    for second in range(3):
        made += sorted(await show(desk, *(file(job, f"{second}-{n}") for n in range(3))), key=lambda a: a.id)
        desk.clock.advance(1)
    pages: list[Artifact] = []
    while page := await listed(desk, job, limit=2, before=(pages[-1].created_at, pages[-1].id) if pages else None):
        pages += page
    assert pages == list(reversed(made))


async def end_by_complete(desk: Desk, job: Job) -> None:
    await desk.do(complete(job))


async def end_by_fail(desk: Desk, job: Job) -> None:
    await desk.do(fail(job))


async def end_by_expiry(desk: Desk, job: Job) -> None:
    desk.clock.advance(61)
    await desk.do(expire(job.id))


async def end_by_force(desk: Desk, job: Job) -> None:
    await desk.do(cancel(job.id, force=True))


async def end_by_another_grant(desk: Desk, job: Job) -> None:
    await end_by_expiry(desk, job)
    await desk.again(job, worker=str(job.worker))


ENDS = {
    "complete": (end_by_complete, NotRunning),
    "fail": (end_by_fail, NotRunning),
    "expiry": (end_by_expiry, LeaseLost),
    "force": (end_by_force, LeaseLost),
    "another grant": (end_by_another_grant, LeaseLost),
}


@pytest.mark.parametrize("end", ENDS)
async def test_a_worker_whose_grant_has_ended_can_neither_begin_nor_show_nor_link(desk: Desk, end: str) -> None:
    ended, error = ENDS[end]
    job = await desk.running()
    begun = file(job)
    await opened(desk, begun)
    await ended(desk, job)
    assert type(await refused(desk, begun)) is error
    assert type(await refused(desk, link(job))) is error
    (answer,) = await desk.store.open_uploads(desk.tenant, [Opening(holder(job), "late", new_key())], quota=None)
    assert isinstance(answer, Refused)
    assert type(answer.error) is error
    assert await listed(desk, job) == []
    assert await due(desk) == [begun.key]


async def test_a_late_worker_whose_fence_is_current_may_still_add_files(desk: Desk) -> None:
    job = await desk.running(lease_seconds=1.0)
    desk.clock.advance(60)
    assert len(await show(desk, file(job))) == 1


@pytest.mark.parametrize("change", [{"fence": 99}, {"worker": "somebody"}])
async def test_only_the_worker_and_fence_that_hold_the_job_may_add_files(desk: Desk, change: dict[str, Any]) -> None:
    job = await desk.running()
    begun = file(job)
    await opened(desk, begun)
    assert isinstance(await refused(desk, begun._replace(**change)), LeaseLost)


async def test_each_item_of_a_batch_has_its_own_answer(desk: Desk) -> None:
    mine, ended = await desk.running(), await desk.running()
    await desk.do(complete(ended))
    good = [file(mine, "a"), link(mine, "b")]
    await opened(desk, *good)
    bad = [link(ended), link(mine._replace(id=NEVER))]
    answers = await desk.store.show_artifacts(desk.tenant, [bad[0], good[0], bad[1], good[1]], quota=None)
    kinds = [type(a.error) if isinstance(a, Refused) else a.name for a in answers]
    assert kinds == [NotRunning, "a", NotFound, "b"]


async def test_with_whole_one_refusal_means_that_nothing_is_shown(desk: Desk) -> None:
    job = await desk.running()
    news = [file(job, "a"), file(job, "b"), link(job, "c")]
    await opened(desk, news[0])
    answers = await desk.store.show_artifacts(desk.tenant, news, quota=None, whole=True)
    assert all(isinstance(answer, Refused) for answer in answers)
    assert await listed(desk, job) == []
    assert await due(desk) == [news[0].key]


async def test_a_file_beyond_the_quota_is_refused_before_and_after_its_upload(desk: Desk) -> None:
    job = await desk.running()
    await show(desk, file(job, "a", b"12345"))
    (before,) = await desk.store.open_uploads(desk.tenant, [Opening(holder(job), "b", new_key(), 6)], quota=10)
    assert isinstance(before, Refused)
    assert isinstance(before.error, TooLarge)
    unannounced = file(job, "b", b"123456")
    await opened(desk, unannounced)
    assert isinstance(await refused(desk, unannounced, quota=10), TooLarge)
    await show(desk, file(job, "b", b"12345"), quota=10)
    assert await desk.store.artifact_bytes(desk.tenant) == 10


async def test_a_smaller_file_may_replace_a_larger_one_even_beyond_the_quota(desk: Desk) -> None:
    job = await desk.running()
    await show(desk, file(job, content=b"1234567890"))
    await show(desk, file(job, content=b"123456789"), quota=5)
    assert await desk.store.artifact_bytes(desk.tenant) == 9


async def test_what_a_file_replaces_makes_room_for_it(desk: Desk) -> None:
    job = await desk.running()
    await show(desk, file(job, "a", b"12345678"))
    announced = [Opening(holder(job), name, new_key(), 9) for name in ("a", "b")]
    fits, does_not = await desk.store.open_uploads(desk.tenant, announced, quota=10)
    assert fits is None
    assert isinstance(does_not, Refused)
    await show(desk, file(job, "a", b"123456789"), quota=10)
    assert await desk.store.artifact_bytes(desk.tenant) == 9


async def test_uploads_that_end_together_do_not_exceed_the_quota(desk: Desk) -> None:
    job = await desk.running()
    news = [file(job, f"file {n}", bytes(10)) for n in range(12)]
    await opened(desk, *news)
    answers = await asyncio.gather(*(desk.store.show_artifacts(desk.tenant, [new], quota=50) for new in news))
    kinds = [type(a.error) if isinstance(a, Refused) else Artifact for (a,) in answers]
    assert sorted(map(str, kinds)) == sorted(map(str, [Artifact] * 5 + [TooLarge] * 7))
    assert await desk.store.artifact_bytes(desk.tenant) == sum(a.size or 0 for a in await listed(desk, job)) == 50


async def test_the_quota_of_one_tenant_is_not_the_others(desk: Desk, rival: Desk) -> None:
    mine, theirs = await desk.running(), await rival.running()
    await show(desk, file(mine, content=bytes(10)), quota=10)
    await show(rival, file(theirs, content=bytes(10)), quota=10)
    assert await desk.store.artifact_bytes(desk.tenant) == 10


async def test_an_upload_that_never_ends_is_collected(desk: Desk) -> None:
    job = await desk.running()
    new = file(job)
    await opened(desk, new)
    desk.clock.advance(UNFINISHED_KEPT_SECONDS - 1)
    assert await due(desk) == []
    desk.clock.advance(1)
    assert await due(desk) == [new.key]


async def test_what_is_condemned_can_no_longer_be_shown(desk: Desk) -> None:
    job = await desk.running(lease_seconds=3600.0)
    new = file(job)
    await opened(desk, new)
    desk.clock.advance(UNFINISHED_KEPT_SECONDS)
    assert await desk.store.condemn_orphans(desk.tenant, [str(new.key)]) == [new.key]
    assert isinstance(await refused(desk, new), Unavailable)
    desk.clock.now -= 10 * round(UNFINISHED_KEPT_SECONDS) * 1_000_000  # whatever the clock says
    assert isinstance(await refused(desk, new), Unavailable)
    assert await listed(desk, job) == []


async def test_what_is_due_may_still_be_shown_until_it_is_condemned(desk: Desk) -> None:
    job = await desk.running()
    new = file(job)
    await opened(desk, new)
    desk.clock.advance(2 * UNFINISHED_KEPT_SECONDS)
    assert await desk.store.show_artifacts(desk.tenant, [new], quota=None) == [Artifact(*new, desk.clock.now)]
    assert await desk.store.condemn_orphans(desk.tenant, [str(new.key)]) == []


async def test_collecting_is_done_by_one_and_again_only_if_it_failed(desk: Desk) -> None:
    job = await desk.running()
    new = file(job)
    key = str(new.key)
    await opened(desk, new)
    await desk.store.abandon_objects(desk.tenant, [key])
    assert await desk.store.drop_orphans(desk.tenant, [key]) == 0
    assert await desk.store.condemn_orphans(desk.tenant, [key]) == [key]
    assert await due(desk) == []
    assert await desk.store.condemn_orphans(desk.tenant, [key]) == []
    desk.clock.advance(COLLECT_AGAIN_SECONDS)
    assert await due(desk) == [key]
    assert await desk.store.condemn_orphans(desk.tenant, [key]) == [key]
    assert await desk.store.drop_orphans(desk.tenant, [key]) == 1
    assert await desk.store.drop_orphans(desk.tenant, [key]) == 0
    desk.clock.advance(2 * COLLECT_AGAIN_SECONDS)
    assert await due(desk) == []


async def test_giving_up_a_key_that_became_an_artifact_changes_nothing(desk: Desk) -> None:
    job = await desk.running()
    (shown,) = await show(desk, file(job))
    await desk.store.abandon_objects(desk.tenant, [str(shown.key)])
    assert await desk.store.condemn_orphans(desk.tenant, [str(shown.key)]) == []
    assert await due(desk) == []
    assert await listed(desk, job) == [shown]


async def test_the_due_are_bounded_and_the_oldest_come_first(desk: Desk) -> None:
    job = await desk.running()
    news = [file(job, str(n)) for n in range(5)]
    for new in news:
        await opened(desk, new)
        desk.clock.advance(1)
    desk.clock.advance(UNFINISHED_KEPT_SECONDS)
    assert await due(desk) == keys(news)
    assert len(await desk.store.due_orphans(2)) == 2


async def test_forgetting_jobs_takes_their_artifacts_and_leaves_their_bytes_to_be_collected(desk: Desk) -> None:
    gone, kept = await desk.running(), await desk.running()
    old = await show(desk, file(gone, "a", b"123"), file(gone, "b", b"4567"), link(gone, "c"))
    (stays,) = await show(desk, file(kept, "a", b"12"))
    assert await desk.store.forget_artifacts(desk.tenant, [gone.id, NEVER]) == 3
    assert await listed(desk, gone) == []
    assert await listed(desk, kept) == [stays]
    assert await desk.store.artifact_bytes(desk.tenant) == 2
    desk.clock.advance(REPLACED_KEPT_SECONDS)
    assert sorted(await due(desk)) == sorted(str(a.key) for a in old if a.key is not None)
    assert await desk.store.forget_artifacts(desk.tenant, [gone.id]) == 0


async def test_no_verb_reaches_the_artifacts_of_another_tenant(desk: Desk, rival: Desk) -> None:
    theirs = await rival.running()
    begun = file(theirs, "begun")
    await opened(rival, begun)
    (shown,) = await show(rival, file(theirs))
    assert await desk.store.artifact(desk.tenant, theirs.id, shown.id) is None
    assert await desk.store.artifact_home(desk.tenant, shown.id) is None
    assert await rival.store.artifact_home(rival.tenant, shown.id) == theirs.id
    assert await listed(desk, theirs) == []
    assert await desk.store.forget_artifacts(desk.tenant, [theirs.id]) == 0
    assert isinstance(await refused(desk, begun), NotFound)
    assert isinstance(await refused(desk, link(theirs)), NotFound)
    await desk.store.abandon_objects(desk.tenant, [str(begun.key)])
    rival.clock.advance(UNFINISHED_KEPT_SECONDS)
    assert await desk.store.condemn_orphans(desk.tenant, [str(begun.key)]) == []
    assert await desk.store.drop_orphans(desk.tenant, [str(begun.key)]) == 0
    assert await due(rival) == [begun.key]
    assert await listed(rival, theirs) == [shown]


async def test_the_bytes_behind_one_tenants_upload_cannot_become_anothers_artifact(desk: Desk, rival: Desk) -> None:
    mine, theirs = await desk.running(), await rival.running()
    begun = file(theirs)
    await opened(rival, begun)
    assert isinstance(await refused(desk, file(mine, key=begun.key)), Unavailable)


async def test_the_same_name_belongs_to_each_job_alone(desk: Desk) -> None:
    one, two = await desk.running(), await desk.running()
    (first,), (second,) = await show(desk, file(one)), await show(desk, file(two))
    assert (await listed(desk, one), await listed(desk, two)) == ([first], [second])
    assert await desk.store.artifact(desk.tenant, one.id, second.id) is None


HALF = {
    "a file without a key": ("object_key = NULL", "file_or_link"),
    "a file without a hash": ("sha256 = NULL", "file_or_link"),
    "a file and a link in one": ("url = 'https://example.org'", "file_or_link"),
    "a short hash": ("sha256 = substr(sha256, 1, 31)", "whole_hash"),
    "a negative size": ("size = -1", "size_not_negative"),
}


@pytest.mark.parametrize("half", HALF)
async def test_the_database_refuses_half_an_artifact(desk: Desk, door: Door, half: str) -> None:
    job = await desk.running()
    await show(desk, file(job))
    change, constraint = HALF[half]
    assert constraint in await refusal(door, f"UPDATE artifact SET {change} WHERE tenant = $1", desk.tenant)
