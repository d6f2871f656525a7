"""Several processes on one database, at the same moment, with the real clock: the result is always consistent."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest

from interlock.domain.decide import (
    AcknowledgeCancel,
    CancelJob,
    Command,
    CompleteJob,
    ExpireLease,
    FailJob,
    ReleaseJob,
    RevokeLease,
)
from interlock.domain.job import Checkpoint, Enqueued, Heartbeat, HeartbeatReply, Job, NewJob, Receipt
from interlock.domain.lifecycle import TERMINAL, Status
from interlock.domain.policy import ClaimFilter
from tests.process import actions
from tests.process.actions import TENANT
from tests.process.conftest import FAST, Checker, new_id
from tests.support.workers import Failed, Place, ProcessGroup, until

ERROR = '{"message":"no","kind":"X"}'
Record = Callable[[str, object], None]


def rounds(many: int, few: int) -> range:
    return range(few if FAST else many)


def no_one_failed(answers: list[Any]) -> None:
    """No deadlock, no lock that timed out, no error of a driver reaches a caller."""
    failed = [answer for answer in answers if isinstance(answer, Failed)]
    assert not failed, failed


async def test_concurrent_claims_lease_every_job_exactly_once(checker: Checker) -> None:
    with ProcessGroup(checker.place, 8) as workers:
        for limit in (1, 7, 50):
            ids = await checker.add(150 if FAST else 600)
            answers = workers.race(
                *((actions.claim_all, ClaimFilter(f"w{i}", limit=limit, lease_seconds=3600.0)) for i in range(8))
            )
            no_one_failed(answers)
            leased = Counter(id for answer in answers for id, _ in answer)
            assert leased == Counter(ids)
            jobs = await checker.jobs(ids)
            assert {(job.status, job.fence, job.version) for job in jobs} == {(Status.RUNNING, 1, 2)}
    await checker.check()


async def test_a_claim_id_sent_concurrently_leases_once(checker: Checker) -> None:
    with ProcessGroup(checker.place, 8) as workers:
        for i in rounds(30, 8):
            await checker.add(10)
            answers = workers.race(*[(actions.claim, ClaimFilter("w", limit=5, claim_id=f"c{i}"))] * 8)
            no_one_failed(answers)
            assert len({tuple((job.id, job.fence) for job in answer) for answer in answers}) == 1
            assert len(answers[0]) == 5
    await checker.check()


async def test_a_sweep_and_a_complete_never_both_end_a_lease(checker: Checker) -> None:
    won: Counter[str] = Counter()
    with ProcessGroup(checker.place, 2) as workers:
        for _ in rounds(120, 30):
            held = await checker.running(4, lease_seconds=0.001, max_attempts=2)
            await expired(checker, held)
            completes = [CompleteJob(job.id, job.fence, "w") for job in held]
            expiries = [ExpireLease(job.id) for job in reversed(held)]
            answers = workers.race((actions.carry_out, completes), (actions.carry_out, expiries))
            no_one_failed(answers)
            done, expired_jobs = answers[0], answers[1][::-1]
            for job, finish, sweep in zip(
                await checker.jobs([job.id for job in held]), done, expired_jobs, strict=True
            ):
                if isinstance(finish, Receipt):
                    assert finish.status == job.status == Status.SUCCEEDED
                    assert sweep == finish
                    won["complete"] += 1
                else:
                    assert (finish, job.status, job.attempt) == ("lease_lost", Status.RETRY, 2)
                    assert sweep.status == Status.RETRY
                    won["sweep"] += 1
            await end_all(checker)
    await checker.check()
    print(f"won: {dict(won)}")


@pytest.mark.parametrize("how", ["request", "force", "revoke"])
async def test_a_cancel_and_a_finish_never_both_end_a_lease(checker: Checker, how: str) -> None:
    won: Counter[str] = Counter()
    with ProcessGroup(checker.place, 2) as workers:
        for i in rounds(60, 15):
            held = await checker.running(4)
            stops: list[Command] = [
                RevokeLease(job.id, "user:x") if how == "revoke" else CancelJob(job.id, "user:x", force=how == "force")
                for job in reversed(held)
            ]
            finishes: list[Command] = [
                CompleteJob(job.id, job.fence, "w") if (i + n) % 2 else FailJob(job.id, job.fence, "w", ERROR)
                for n, job in enumerate(held)
            ]
            answers = workers.race((actions.carry_out, finishes), (actions.carry_out, stops))
            no_one_failed(answers)
            jobs = await checker.jobs([job.id for job in held])
            for job, order, finish, stop in zip(jobs, finishes, answers[0], answers[1][::-1], strict=True):
                ended = [
                    row for row in await checker.store.history(TENANT, job.id) if row.from_status == Status.RUNNING
                ]
                ended = [row for row in ended if row.to_status != Status.RUNNING]
                assert len(ended) == (1 if job.fence == 1 else 2)
                if isinstance(finish, Receipt):
                    assert ended[0].verb == order.verb
                    won["finish"] += 1
                    if finish.status == Status.SUCCEEDED and how != "request":
                        assert stop == "already_finished"
                else:
                    assert finish == "lease_lost"
                    assert isinstance(stop, Receipt)
                    won[how] += 1
            await end_all(checker)
    await checker.check()
    print(f"won: {dict(won)}")


async def test_an_acknowledged_heartbeat_has_saved_the_lease_from_the_sweep(checker: Checker) -> None:
    won: Counter[str] = Counter()
    with ProcessGroup(checker.place, 2) as workers:
        for _ in rounds(120, 30):
            held = await checker.running(4, lease_seconds=0.001)
            await expired(checker, held)
            heartbeats = [Heartbeat(job.id, job.fence, "w", 60.0) for job in held]
            expiries = [ExpireLease(job.id) for job in reversed(held)]
            answers = workers.race((actions.heartbeat, heartbeats), (actions.carry_out, expiries))
            no_one_failed(answers)
            for job, heartbeat in zip(await checker.jobs([job.id for job in held]), answers[0], strict=True):
                if isinstance(heartbeat, HeartbeatReply):
                    assert (job.status, job.fence, job.lease_expires_at) == (
                        Status.RUNNING,
                        1,
                        heartbeat.lease_expires_at,
                    )
                    won["heartbeat"] += 1
                else:
                    assert (heartbeat, job.status) == ("lease_lost", Status.RETRY)
                    won["sweep"] += 1
            await end_all(checker)
    await checker.check()
    print(f"won: {dict(won)}")


async def test_no_parent_keeps_waiting_for_children_that_ended_meanwhile(checker: Checker) -> None:
    with ProcessGroup(checker.place, 4) as workers:
        for i in rounds(200, 40):
            (parent,) = await checker.running(type="parent")
            children = await checker.running(3, type="child", parent_id=parent.id)
            ids = tuple(child.id for child in children)
            ends: list[Command] = [
                CompleteJob(children[0].id, children[0].fence, "w"),
                FailJob(children[1].id, children[1].fence, "w", ERROR, retryable=False),
                CancelJob(children[2].id, "user:x", force=True),
            ]
            release = (actions.carry_out, [ReleaseJob(parent.id, parent.fence, "w", children=ids)])
            answers = workers.race(*((actions.carry_out, [end]) for end in ends[: i % 4]), release)
            no_one_failed(answers)
            answers = workers.race(*((actions.carry_out, [end]) for end in ends[i % 4 :])) if i % 4 < 3 else []
            no_one_failed(answers)
            (freed,) = await checker.jobs([parent.id])
            assert (freed.status, list(freed.awaiting)) == (Status.QUEUED, [])
            (again,) = await checker.store.claim(TENANT, ClaimFilter("w", types=frozenset({"parent"})))
            assert again.id == parent.id
            await checker.store.carry_out(TENANT, [CompleteJob(again.id, again.fence, "w")])
    await checker.check()


async def test_a_waiting_parent_may_be_cancelled_while_its_children_end(checker: Checker) -> None:
    with ProcessGroup(checker.place, 3) as workers:
        for _ in rounds(40, 10):
            (parent,) = await checker.running(type="parent")
            children = await checker.running(2, type="child", parent_id=parent.id)
            ids = tuple(child.id for child in children)
            await checker.store.carry_out(TENANT, [ReleaseJob(parent.id, parent.fence, "w", children=ids)])
            ends = [(actions.carry_out, [CompleteJob(child.id, child.fence, "w")]) for child in children]
            answers = workers.race(*ends, (actions.carry_out, [CancelJob(parent.id, "user:x")]))
            no_one_failed(answers)
            (gone,) = await checker.jobs([parent.id])
            assert gone.status == Status.CANCELLED
            assert await checker.store.claim(TENANT, ClaimFilter("w")) == []
    await checker.check()


async def test_a_child_is_never_created_under_a_terminal_parent(checker: Checker) -> None:
    won: Counter[str] = Counter()
    with ProcessGroup(checker.place, 2) as workers:
        for _ in rounds(80, 20):
            (parent,) = await checker.running()
            child = NewJob(new_id(), "child", parent_id=parent.id)
            ending = (actions.carry_out, [CompleteJob(parent.id, parent.fence, "w")])
            ((created,), (receipt,)) = answers = workers.race((actions.enqueue, [child]), ending)
            no_one_failed(answers)
            assert receipt.status == Status.SUCCEEDED
            won["child" if isinstance(created, Enqueued) else str(created)] += 1
            assert isinstance(created, Enqueued) or created == "parent_ended"
            assert (await checker.store.get(TENANT, [child.id]) == [None]) == (created == "parent_ended")
    await checker.check()
    print(f"won: {dict(won)}")


async def test_the_same_key_sent_64_times_concurrently_creates_one_job(checker: Checker) -> None:
    with ProcessGroup(checker.place, 8) as workers:
        for i in rounds(12, 4):
            body = sha256(b"same").digest()
            jobs = [NewJob(new_id(), "t", idempotency_key=f"key {i}", body_sha256=body) for _ in range(64)]
            answers = workers.race(*((actions.enqueue, [job]) for job in jobs))
            no_one_failed(answers)
            reported = [answer for (answer,) in answers]
            assert len({answer.id for answer in reported}) == 1
            assert sorted(answer.replayed for answer in reported) == [False] + [True] * 63
    assert len(await checker.everything()) == len(rounds(12, 4))
    await checker.check()


async def test_the_same_key_with_64_bodies_creates_one_job_and_63_rejections(checker: Checker) -> None:
    with ProcessGroup(checker.place, 8) as workers:
        for i in rounds(12, 4):
            jobs = [
                NewJob(new_id(), "t", idempotency_key=f"key {i}", body_sha256=sha256(bytes([n])).digest())
                for n in range(64)
            ]
            answers = workers.race(*((actions.enqueue, [job]) for job in jobs))
            no_one_failed(answers)
            reported = Counter("new" if isinstance(answer, Enqueued) else answer for (answer,) in answers)
            assert reported == {"new": 1, "idempotency_key_reuse": 63}
    await checker.check()


async def test_batches_with_the_same_keys_in_opposite_order_do_not_deadlock(checker: Checker) -> None:
    body = sha256(b"same").digest()
    with ProcessGroup(checker.place, 4) as workers:
        for i in rounds(60, 15):
            keys = [f"{i}/{n}" for n in range(20)]
            batches = [
                [NewJob(new_id(), "t", idempotency_key=key, body_sha256=body) for key in order]
                for order in (keys, keys[::-1], keys[10:] + keys[:10], keys[::-1])
            ]
            answers = workers.race(*((actions.enqueue, batch, i % 2 == 0) for batch in batches))
            no_one_failed(answers)
            new = Counter(answer.id for batch in answers for answer in batch if not answer.replayed)
            assert len(new) == 20
            assert set(new.values()) == {1}
            assert {answer.id for batch in answers for answer in batch} == set(new)
    await checker.check()


async def test_claims_beside_cancels_lease_no_cancelled_job(checker: Checker) -> None:
    with ProcessGroup(checker.place, 4) as workers:
        for _ in rounds(60, 15):
            ids = await checker.add(20)
            cancels: list[Command] = [CancelJob(id, "user:x", force=True) for id in sorted(ids)]
            answers = workers.race(
                (actions.claim, ClaimFilter("w1", limit=20)),
                (actions.carry_out, cancels),
                (actions.claim, ClaimFilter("w2", limit=7)),
                (actions.carry_out, cancels[::-1]),
            )
            no_one_failed(answers)
            leased = [job.id for answer in (answers[0], answers[2]) for job in answer]
            assert len(leased) == len(set(leased))
            assert {job.status for job in await checker.jobs(ids)} == {Status.CANCELLED}
            assert await checker.store.claim(TENANT, ClaimFilter("w", limit=100)) == []
    await checker.check()


async def test_of_two_checkpoints_with_one_number_only_one_is_stored(checker: Checker) -> None:
    with ProcessGroup(checker.place, 2) as workers:
        (job,) = await checker.running()
        for seq in rounds(80, 20):
            rivals = [Checkpoint(job.id, job.fence, "w", seq, str(n)) for n in range(2)]
            answers = workers.race(
                (actions.checkpoint, [rivals[0]]),
                (actions.heartbeat, [Heartbeat(job.id, job.fence, "w", 60.0, rivals[1])]),
            )
            no_one_failed(answers)
            lost = [n for n, (answer,) in enumerate(answers) if answer == "checkpoint_conflict"]
            assert len(lost) == 1
            (saved,) = await checker.jobs([job.id])
            assert (saved.checkpoint_seq, saved.checkpoint) == (seq, str(1 - lost[0]))
    await checker.check()


async def churn(store: Any, worker: str, times: int) -> list[tuple[str, int]]:
    """Everything a worker does, as fast as it can; the jobs of others lie around too."""
    leased: list[tuple[str, int]] = []
    for i in range(times):
        jobs: list[Job] = await store.claim(TENANT, ClaimFilter(worker, limit=1 + i % 5, lease_seconds=60.0))
        leased += [(job.id, job.fence) for job in jobs]
        await store.heartbeat(TENANT, [Heartbeat(job.id, job.fence, worker) for job in jobs])
        orders: list[Command] = []
        for n, job in enumerate(jobs):
            lease = (job.id, job.fence, worker)
            orders.append(
                FailJob(*lease, ERROR, retry_after_seconds=0.1)
                if (i + n) % 4 == 0
                else ReleaseJob(*lease, delay_seconds=0.0 if (i + n) % 3 else 0.05)
            )
        answers = actions.given(await store.carry_out(TENANT, orders))
        assert all(isinstance(answer, Receipt) for answer in answers), answers
    return leased


async def test_constantly_released_jobs_have_one_lease_holder_and_never_start_early(checker: Checker) -> None:
    ids = await checker.add(12, max_attempts=100)
    with ProcessGroup(checker.place, 6) as workers:
        for _ in rounds(4, 1):
            answers = workers.race(*((churn, f"w{i}", 60) for i in range(6)))
            no_one_failed(answers)
            leased = [lease for answer in answers for lease in answer]
            assert len(leased) == len(set(leased))
    await checker.check()
    jobs = await checker.jobs(ids)
    assert all(job.status in (Status.QUEUED, Status.RETRY) for job in jobs)
    left = set(ids)

    async def none_left() -> bool:
        left.difference_update(job.id for job in await checker.store.claim(TENANT, ClaimFilter("w", limit=100)))
        return not left

    await until(none_left, "every job can be claimed again")
    await checker.check()


async def hammer(store: Any, worker: str, times: int) -> int:
    """All verbs, reads among them, one after another."""
    done = 0
    for i in range(times):
        ids = [new_id() for _ in range(3)]
        await store.enqueue(TENANT, [NewJob(f"{worker}{id[1:]}", "t", payload=f'"{worker}"') for id in ids])
        jobs = await store.claim(TENANT, ClaimFilter(worker, limit=4))
        await store.get(TENANT, [job.id for job in jobs])
        await store.heartbeat(TENANT, [Heartbeat(job.id, job.fence, worker) for job in jobs])
        orders: list[Command] = [CompleteJob(job.id, job.fence, worker) for job in jobs[1:]]
        orders += [CancelJob(job.id, "user:x") for job in jobs[:1]]
        await store.carry_out(TENANT, orders)
        if jobs and i % 2:
            await store.carry_out(TENANT, [AcknowledgeCancel(jobs[0].id, jobs[0].fence, worker)])
            done += 1
        await store.due_leases(10)
        done += len(orders) - len(jobs[:1])
    return done


async def test_eight_concurrent_processes_never_see_a_lock_error(checker: Checker) -> None:
    with ProcessGroup(checker.place, 8) as workers:
        answers = workers.race(*((hammer, f"{i:x}", 20 if FAST else 60) for i in range(8)))
        no_one_failed(answers)
        ended = [job for job in await checker.everything() if job.status in TERMINAL]
        assert len(ended) == sum(answers)
    await checker.check(integrity=True)


async def open_and_close(_: Any, place: Place, times: int, worker: str) -> None:
    """Start over and over: the first opens the file, the last to close it cleans up after all."""
    for _ in range(times):
        store = await place.open()
        await store.enqueue(TENANT, [NewJob(f"{worker}{new_id()[1:]}", "t")])
        await store.close()


async def test_processes_may_open_and_close_a_file_at_the_same_moment(tmp_path: Any) -> None:
    """Making the file, migrating it, switching to WAL and removing the WAL all happen beside each other."""
    elsewhere = Place("sqlite", str(tmp_path / "elsewhere.db"))
    with ProcessGroup(elsewhere, 8) as workers:
        for i in rounds(20, 5):
            place = Place("sqlite", str(tmp_path / f"fresh{i}.db"))
            answers = workers.race(*((open_and_close, place, 5, f"{n:x}") for n in range(8)))
            no_one_failed(answers)
            store = await place.open()
            checker = Checker(place, store, None)
            assert len(await checker.everything()) == 40
            await checker.check(integrity=True)
            await store.close()


async def expired(checker: Checker, held: list[Job]) -> None:
    last = max(job.lease_expires_at or 0 for job in held)

    async def passed() -> bool:
        return await checker.store.now() > last

    await until(passed, "the leases have expired")


async def end_all(checker: Checker) -> None:
    """So that the next round meets only its own jobs."""
    live = [job.id for job in await checker.everything() if job.status not in TERMINAL]
    answers = await checker.store.carry_out(TENANT, [CancelJob(id, "user:end", force=True) for id in live])
    assert all(isinstance(answer, Receipt) for answer in answers)
    await asyncio.sleep(0)
