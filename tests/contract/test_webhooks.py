"""Subscriptions and the outbox: the deliveries that a transition writes, and how senders claim them."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.domain.approval import Decision
from interlock.domain.lifecycle import Status
from interlock.domain.registry import Agent
from interlock.domain.webhook import (
    DeliveryStatus,
    Dispatch,
    Mode,
)  # fmt: skip
from tests.contract.approvals import APPROVE, DENY, command, decided, edit, sweep_approvals, waiting
from tests.contract.builders import NEVER, TenantQueue, cancel, complete, fail, new_job, release
from tests.contract.connections import SqlConnection, job_in, move
from tests.contract.webhooks import (
    AGAIN,
    GONE,
    LEASE,
    OK,
    deliveries,
    delivery,
    heard,
    listen,
    settle,
    take,
)  # fmt: skip


async def test_without_a_subscription_nothing_is_written(queue: TenantQueue, rival: TenantQueue) -> None:
    await listen(rival)
    job = await queue.running()
    await queue.do(complete(job))
    assert await deliveries(queue) == await deliveries(rival) == []


async def test_every_transition_of_a_job_is_an_event(queue: TenantQueue) -> None:
    await listen(queue, *(f"job.{status}" for status in Status))
    job = await queue.running(tags=("a", "b"), agent_kind="planner", agent_id="7")
    await queue.do(fail(job, retry_after_seconds=1.0))
    queue.clock.advance(2)
    job = await queue.again(job)
    await queue.do(release(job))
    job = await queue.again(job)
    await queue.do(complete(job, result='{"a": "secret result"}'))
    taken = await take(queue)
    assert [(d.event, d.previous, d.status, d.attempt, d.version) for d in taken] == [
        ("job.queued", None, "queued", 1, 1),
        ("job.running", "queued", "running", 1, 2),
        ("job.retry", "running", "retry", 2, 3),
        ("job.running", "retry", "running", 2, 4),
        ("job.queued", "running", "queued", 2, 5),
        ("job.running", "queued", "running", 2, 6),
        ("job.succeeded", "running", "succeeded", 2, 7),
    ]
    assert {(d.job_id, d.type, d.agent_kind, d.agent_id, tuple(d.tags)) for d in taken} == {
        (job.id, "work", "planner", "7", ("a", "b"))
    }
    assert {(d.url, tuple(d.secrets), d.folded) for d in taken} == {
        ("https://hooks.example/in", ("whsec_c2VjcmV0",), 0)
    }


@pytest.mark.parametrize("status", [s for s in Status if s not in (Status.QUEUED, Status.RUNNING)])
async def test_reaching_a_status_notifies_its_subscribers_and_no_others(
    queue: TenantQueue, sql: SqlConnection, status: Status
) -> None:
    mine = await listen(queue, f"job.{status}")
    await listen(queue, *(f"job.{other}" for other in Status if other not in (status, Status.QUEUED, Status.RUNNING)))
    job = await job_in(queue, sql, status)
    (reported,) = await take(queue)
    assert (reported.subscription_id, reported.event, reported.job_id) == (mine.id, f"job.{status}", job.id)


async def test_a_cancel_request_is_not_a_transition(queue: TenantQueue) -> None:
    job = await queue.running()
    await listen(queue)
    await queue.do(cancel(job.id))
    assert await heard(queue) == []


async def test_an_event_is_written_with_its_transition_or_not_at_all(queue: TenantQueue) -> None:
    await listen(queue)
    jobs = [new_job(), new_job(parent_id=NEVER)]
    await queue.store.enqueue(queue.tenant, jobs, whole=True)
    assert await deliveries(queue) == []
    await queue.store.enqueue(queue.tenant, jobs)
    assert {d.job_id for d in await deliveries(queue)} == {jobs[0].id}


async def test_a_replayed_enqueue_is_sent_once(queue: TenantQueue) -> None:
    await listen(queue, "job.queued")
    for _ in range(2):
        await queue.store.enqueue(queue.tenant, [new_job(idempotency_key="k", body_sha256=b"b")])
    assert await heard(queue) == ["job.queued"]


async def test_a_change_by_direct_sql_is_sent_too(queue: TenantQueue, sql: SqlConnection) -> None:
    job = await queue.running()
    await listen(queue, "job.succeeded")
    await move(sql, job, Status.SUCCEEDED, queue.clock.now)
    assert [d.job_id for d in await take(queue)] == [job.id]


async def test_only_the_subscribed_types_are_sent(queue: TenantQueue) -> None:
    await listen(queue, "job.queued", types=("a", "b"))
    await listen(queue, "job.queued", types=())
    ids = await queue.add_all([new_job(type=type) for type in ("a", "b", "c", "A", "ab")])
    assert sorted(d.job_id for d in await take(queue)) == sorted(ids[:2])


async def test_an_expired_subscription_gets_nothing_until_renewed(queue: TenantQueue) -> None:
    mine = await listen(queue, "job.queued", expires_in_seconds=10.0)
    queue.clock.advance(10)
    await queue.add()
    assert await heard(queue) == []
    renewed = await queue.store.outbox.renew(queue.tenant, mine.id, 5.0)
    assert renewed is not None
    assert renewed.expires_at == queue.after(5)
    await queue.add()
    queue.clock.advance(6)
    assert await heard(queue) == ["job.queued"], "an event from before the end is delivered after it too"
    assert (await queue.store.outbox.renew(queue.tenant, mine.id, None)) == renewed._replace(expires_at=None)


@pytest.mark.parametrize("status", [Status.SUCCEEDED, Status.FAILED, Status.DEAD_LETTER, Status.CANCELLED])
async def test_the_webhook_of_a_job_gets_only_its_terminal_event(
    queue: TenantQueue, sql: SqlConnection, status: Status
) -> None:
    url = "https://jobs.example:8443/done?x=1"
    job = await job_in(queue, sql, status, webhook=url)
    await job_in(queue, sql, status, type="other")
    (reported,) = await take(queue)
    assert (reported.event, reported.job_id, reported.url, reported.subscription_id) == (
        f"job.{status}",
        job.id,
        url,
        None,
    )
    assert reported.channel == "host:jobs.example:8443"
    assert reported.secrets == ["whsec_ZnJlc2g="]


async def test_webhooks_of_jobs_share_a_secret_that_can_be_rotated(queue: TenantQueue) -> None:
    outbox = queue.store.outbox
    for _ in range(2):
        await queue.do(cancel(await queue.add(webhook="https://jobs.example")))
    assert {tuple(d.secrets) for d in await take(queue)} == {("whsec_ZnJlc2g=",)}
    assert await outbox.rotate(queue.tenant, None, "whsec_bmV3", 60.0)
    queue.clock.advance(LEASE)
    assert {tuple(d.secrets) for d in await take(queue)} == {("whsec_bmV3", "whsec_ZnJlc2g=")}
    queue.clock.advance(60)
    assert {tuple(d.secrets) for d in await take(queue)} == {("whsec_bmV3",)}


async def test_both_secrets_sign_during_a_rotation(queue: TenantQueue) -> None:
    mine = await listen(queue, "job.queued")
    await queue.add()
    assert await queue.store.outbox.rotate(queue.tenant, mine.id, "whsec_bmV3", 40.0)
    assert [d.secrets for d in await take(queue)] == [["whsec_bmV3", "whsec_c2VjcmV0"]]
    queue.clock.advance(40)
    assert [d.secrets for d in await take(queue)] == [["whsec_bmV3"]]


async def test_no_read_shows_a_secret(queue: TenantQueue) -> None:
    outbox = queue.store.outbox
    mine = await listen(queue)
    await outbox.rotate(queue.tenant, mine.id, "whsec_bmV3", 60.0)
    await queue.add()
    encoded = repr([
        await outbox.subscriptions(queue.tenant, limit=10), await outbox.subscription(queue.tenant, mine.id),
        await deliveries(queue), await outbox.renew(queue.tenant, mine.id, 9.0), mine,
    ])  # fmt: skip
    assert "whsec" not in encoded
    assert mine.url in encoded


@pytest.mark.parametrize(("decision", "status"), [(APPROVE, "queued"), (DENY, "failed")])
async def test_an_approval_is_sent_when_requested_and_when_decided(
    queue: TenantQueue, decision: Decision, status: str
) -> None:
    await listen(queue, "approval.requested", "approval.decided")
    _, approval = await waiting(queue)
    await decided(queue, command(approval, decision))
    assert [(d.event, d.status, d.approval_id) for d in await take(queue)] == [
        ("approval.requested", "waiting_for_approval", approval.id),
        ("approval.decided", status, approval.id),
    ]


async def test_an_undecided_approval_is_not_sent_as_decided(queue: TenantQueue) -> None:
    await listen(queue, "approval.decided")
    job, _ = await waiting(queue)
    await queue.do(cancel(job.id))
    await waiting(queue, expires_in_seconds=10.0)
    queue.clock.advance(11)
    await sweep_approvals(queue)
    assert await heard(queue) == []


class TestQueueReady:
    async def test_jobs_of_one_type_enqueued_together_are_one_event(self, queue: TenantQueue) -> None:
        await listen(queue, "queue.ready")
        await queue.add_all([new_job(type=type) for type in "aabab"])
        assert sorted(d.type for d in await take(queue)) == ["a", "b"]

    async def test_a_queue_event_is_due_when_the_job_is(self, queue: TenantQueue) -> None:
        await listen(queue, "queue.ready")
        await queue.add(run_at=queue.after(60))
        assert await heard(queue) == []
        queue.clock.advance(60)
        assert await heard(queue) == ["queue.ready"]

    async def test_a_job_made_due_earlier_is_sent_then(self, queue: TenantQueue) -> None:
        await listen(queue, "queue.ready")
        id = await queue.add(run_at=queue.after(60))
        await queue.do(edit(id, run_at=queue.after(10)))
        queue.clock.advance(10)
        assert await heard(queue) == ["queue.ready"]
        await queue.do(edit(id, priority=5, tags=("x",)))
        assert await heard(queue) == []

    async def test_a_queue_event_of_a_paused_type_is_sent_when_it_resumes(self, queue: TenantQueue) -> None:
        await listen(queue, "queue.ready")
        await queue.store.registry.pause(queue.tenant, "work", actor="user:ada", reason=None)
        for delay in (None, 60.0, 90.0):
            await queue.add(delay_seconds=delay)
        await queue.add(type="other")
        assert await heard(queue) == ["queue.ready"]  # of the other
        queue.clock.advance(60)
        assert await heard(queue) == []
        for type in ("work", "other", "unknown"):
            await queue.store.registry.pause(queue.tenant, type, actor=None, reason=None)
        assert await heard(queue) == ["queue.ready"]
        queue.clock.advance(30)
        assert [d.type for d in await take(queue)] == ["work"]

    async def test_a_call_attempted_before_the_pause_is_retried(self, queue: TenantQueue) -> None:
        await listen(queue, "queue.ready")
        await queue.add()
        (first,) = await take(queue)
        await queue.store.registry.pause(queue.tenant, "work", actor="user:ada", reason=None)
        queue.clock.advance(3600)
        assert [d.id for d in await take(queue)] == [first.id]

    async def test_a_released_job_is_ready_again(self, queue: TenantQueue) -> None:
        job = await queue.running()
        await listen(queue, "queue.ready")
        await queue.do(release(job))
        assert await heard(queue) == ["queue.ready"]
        await queue.do(fail(await queue.again(job), retry_after_seconds=5.0))
        assert await heard(queue) == []
        queue.clock.advance(5)
        assert await heard(queue) == ["queue.ready"]

    async def test_a_parent_is_ready_when_its_children_are_terminal(self, queue: TenantQueue) -> None:
        parent = await queue.running(type="parent")
        children = await queue.add_all([new_job(type="child", parent_id=parent.id) for _ in range(2)])
        await listen(queue, "queue.ready", types=("parent",))
        await queue.do(release(parent, children=tuple(children)))
        await queue.do(cancel(children[0]))
        assert await heard(queue) == []
        await queue.do(cancel(children[1]))
        assert await heard(queue) == ["queue.ready"]

    async def test_a_job_is_ready_when_it_gets_a_slot_of_its_agent(self, queue: TenantQueue) -> None:
        await queue.store.registry.set_agent(queue.tenant, Agent("planner", "7", max_concurrency=1))
        await listen(queue, "queue.ready")
        for type in ("first", "second"):
            await queue.add(type=type, agent_kind="planner", agent_id="7")
        assert [d.type for d in await take(queue)] == ["first"]
        (job,) = await queue.claim()
        queue.clock.advance(1)
        await queue.do(complete(job))
        assert [d.type for d in await take(queue)] == ["second"]


class TestBursts:
    async def test_events_of_one_kind_within_the_interval_are_coalesced(self, queue: TenantQueue) -> None:
        await listen(queue, "job.queued", min_interval_seconds=10.0)
        first = await queue.add()
        assert [(d.job_id, d.folded) for d in await take(queue)] == [(first, 0)]
        burst = []
        for _ in range(4):
            queue.clock.advance(1)
            burst.append(await queue.add())
        assert await take(queue) == []
        queue.clock.advance(6)
        (reported,) = await take(queue)
        assert (reported.job_id, reported.folded) == (burst[-1], 3)
        assert await settle(queue, reported, OK)
        assert sorted(d.folded for d in await deliveries(queue)) == [0, 3]

    async def test_other_kinds_are_not_throttled_by_it(self, queue: TenantQueue) -> None:
        await listen(queue, "job.queued", "job.cancelled", min_interval_seconds=10.0)
        first = await queue.add()
        assert await heard(queue) == ["job.queued"]
        await queue.do(cancel(first))
        await queue.add(type="other")
        assert sorted(await heard(queue)) == ["job.cancelled", "job.queued"]

    async def test_each_member_of_a_group_is_throttled_separately(self, queue: TenantQueue) -> None:
        members = [
            (await listen(queue, "job.queued", mode=Mode.GROUP, group_id="g", min_interval_seconds=10.0)).id
            for _ in range(2)
        ]
        for _ in members:
            queue.clock.advance(1)
            await queue.add()
        first = await take(queue)
        assert sorted(str(d.subscription_id) for d in first) == sorted(members)
        assert [d.folded for d in first] == [0, 0]
        for dispatch in first:
            await settle(queue, dispatch, OK)
        burst = []
        for _ in range(5):
            queue.clock.advance(1)
            burst.append(await queue.add())
        assert await take(queue) == []
        queue.clock.advance(4)
        assert await take(queue) == []
        queue.clock.advance(1)
        late = await take(queue)
        assert sorted(d.folded for d in late) == [0, 3]
        assert {d.subscription_id for d in late} == set(members)
        assert {d.job_id for d in late} == set(burst[-2:])

    async def test_a_coalesced_event_keeps_its_count_over_all_attempts(self, queue: TenantQueue) -> None:
        await listen(queue, "job.queued", min_interval_seconds=10.0)
        await queue.add_all([new_job(), new_job(), new_job()])
        (reported,) = await take(queue)
        await settle(queue, reported, AGAIN)
        queue.clock.advance(60)
        await queue.add()
        again = {d.id: d for d in await take(queue)}
        assert again[reported.id] == reported._replace(grab=again[reported.id].grab, attempts=1)
        assert len(again) == 2


class TestGroups:
    async def members(self, queue: TenantQueue, count: int, **fields: Any) -> list[str]:
        facts = {"mode": Mode.GROUP, "group_id": "g", **fields}
        return [(await listen(queue, "job.queued", url=f"https://m{n}.example/", **facts)).id for n in range(count)]

    async def reported(self, queue: TenantQueue) -> Dispatch:
        (reported,) = await take(queue)
        return reported

    async def test_the_members_of_a_group_get_events_round_robin(self, queue: TenantQueue) -> None:
        members = await self.members(queue, 3)
        await queue.add_all([new_job() for _ in range(7)])
        taken = await take(queue)
        assert len({d.job_id for d in taken}) == len(taken) == 7
        assert sorted([d.subscription_id for d in taken].count(id) for id in members) == [2, 2, 3]

    async def test_a_failing_member_is_skipped_immediately(self, queue: TenantQueue) -> None:
        members = await self.members(queue, 2)
        await queue.add()
        first = await self.reported(queue)
        await settle(queue, first, AGAIN)
        second = await self.reported(queue)
        assert (second.id, second.attempts) == (first.id, 1)
        assert {first.subscription_id, second.subscription_id} == set(members)
        await settle(queue, second, OK)
        for _ in range(3):
            await queue.add()
            again = await self.reported(queue)
            assert again.subscription_id == second.subscription_id, "the other one still rests"
            await settle(queue, again, OK)
        queue.clock.advance(5)
        await queue.add()
        assert (await self.reported(queue)).subscription_id == first.subscription_id

    async def test_when_all_members_have_failed_the_delivery_waits(self, queue: TenantQueue) -> None:
        await self.members(queue, 2)
        await queue.add()
        for _ in range(2):
            await settle(queue, await self.reported(queue), AGAIN)
        assert await take(queue) == []
        queue.clock.advance(60)
        assert (await self.reported(queue)).attempts == 2

    async def test_the_event_of_a_deleted_member_goes_to_the_next(self, queue: TenantQueue) -> None:
        await self.members(queue, 2)
        await queue.add()
        first = await self.reported(queue)
        await settle(queue, first, GONE, 410)
        second = await self.reported(queue)
        assert second.subscription_id != first.subscription_id
        await settle(queue, second, GONE, 410)
        assert (await delivery(queue, first.id)).status is DeliveryStatus.DEAD

    async def test_only_members_subscribed_to_the_event_are_tried(self, queue: TenantQueue) -> None:
        await self.members(queue, 1, types=("a",))
        (b,) = await self.members(queue, 1, types=("b",))
        await queue.add_all([new_job(type="b") for _ in range(3)])
        assert {d.subscription_id for d in await take(queue)} == {b}

    async def test_a_delivery_without_remaining_members_ends(self, queue: TenantQueue) -> None:
        await self.members(queue, 1, types=("a",))
        (b,) = await self.members(queue, 1, types=("b",))
        await queue.add(type="b")
        await queue.store.outbox.unsubscribe(queue.tenant, b)
        assert await take(queue) == []
        (left,) = await deliveries(queue)
        assert (left.status, left.last_error) == (DeliveryStatus.DEAD, "no_subscriber")

    async def test_groups_and_broadcasts_do_not_mix(self, queue: TenantQueue) -> None:
        await self.members(queue, 2)
        await self.members(queue, 2, group_id="h")
        await listen(queue, "job.queued")
        await listen(queue, "job.queued")
        await queue.add()
        assert len(await take(queue)) == 4
