"""Subscriptions and the outbox: who is told of what, in the same transaction, and how deliveries are handed out."""

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
from tests.contract.approvals import APPROVE, DENY, command, decided, edit, sweep_gates, waiting
from tests.contract.builders import NEVER, Desk, cancel, complete, fail, new_job, release
from tests.contract.connections import Door, job_in, move
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


async def test_nothing_is_written_where_nobody_listens(remote: Desk, rival: Desk) -> None:
    await listen(rival)
    job = await remote.running()
    await remote.do(complete(job))
    assert await deliveries(remote) == await deliveries(rival) == []


async def test_every_move_of_a_job_is_an_event(remote: Desk) -> None:
    await listen(remote, *(f"job.{status}" for status in Status))
    job = await remote.running(tags=("a", "b"), agent_kind="planner", agent_id="7")
    await remote.do(fail(job, retry_after_seconds=1.0))
    remote.clock.advance(2)
    job = await remote.again(job)
    await remote.do(release(job))
    job = await remote.again(job)
    await remote.do(complete(job, result='{"a": "secret result"}'))
    taken = await take(remote)
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
async def test_reaching_a_status_tells_those_who_listen_to_it_and_no_others(
    remote: Desk, adapter: Door, status: Status
) -> None:
    mine = await listen(remote, f"job.{status}")
    await listen(remote, *(f"job.{other}" for other in Status if other not in (status, Status.QUEUED, Status.RUNNING)))
    job = await job_in(remote, adapter, status)
    (reported,) = await take(remote)
    assert (reported.subscription_id, reported.event, reported.job_id) == (mine.id, f"job.{status}", job.id)


async def test_a_cancel_request_is_no_move(remote: Desk) -> None:
    job = await remote.running()
    await listen(remote)
    await remote.do(cancel(job.id))
    assert await heard(remote) == []


async def test_an_event_is_written_with_its_change_or_not_at_all(remote: Desk) -> None:
    await listen(remote)
    jobs = [new_job(), new_job(parent_id=NEVER)]
    await remote.store.enqueue(remote.tenant, jobs, whole=True)
    assert await deliveries(remote) == []
    await remote.store.enqueue(remote.tenant, jobs)
    assert {d.job_id for d in await deliveries(remote)} == {jobs[0].id}


async def test_a_replayed_enqueue_is_told_once(remote: Desk) -> None:
    await listen(remote, "job.queued")
    for _ in range(2):
        await remote.store.enqueue(remote.tenant, [new_job(idempotency_key="k", body_sha256=b"b")])
    assert await heard(remote) == ["job.queued"]


async def test_a_change_by_direct_sql_is_told_too(remote: Desk, adapter: Door) -> None:
    job = await remote.running()
    await listen(remote, "job.succeeded")
    await move(adapter, job, Status.SUCCEEDED, remote.clock.now)
    assert [d.job_id for d in await take(remote)] == [job.id]


async def test_only_the_types_asked_for_are_told(remote: Desk) -> None:
    await listen(remote, "job.queued", types=("a", "b"))
    await listen(remote, "job.queued", types=())
    ids = await remote.add_all([new_job(type=type) for type in ("a", "b", "c", "A", "ab")])
    assert sorted(d.job_id for d in await take(remote)) == sorted(ids[:2])


async def test_an_expired_subscription_hears_nothing_until_it_is_renewed(remote: Desk) -> None:
    mine = await listen(remote, "job.queued", expires_in_seconds=10.0)
    remote.clock.advance(10)
    await remote.add()
    assert await heard(remote) == []
    renewed = await remote.store.outbox.renew(remote.tenant, mine.id, 5.0)
    assert renewed is not None
    assert renewed.expires_at == remote.after(5)
    await remote.add()
    remote.clock.advance(6)
    assert await heard(remote) == ["job.queued"], "what happened before the end is told after it too"
    assert (await remote.store.outbox.renew(remote.tenant, mine.id, None)) == renewed._replace(expires_at=None)


@pytest.mark.parametrize("status", [Status.SUCCEEDED, Status.FAILED, Status.DEAD_LETTER, Status.CANCELLED])
async def test_a_jobs_own_webhook_gets_its_terminal_event_alone(remote: Desk, adapter: Door, status: Status) -> None:
    url = "https://jobs.example:8443/done?x=1"
    job = await job_in(remote, adapter, status, webhook=url)
    await job_in(remote, adapter, status, type="other")
    (reported,) = await take(remote)
    assert (reported.event, reported.job_id, reported.url, reported.subscription_id) == (
        f"job.{status}",
        job.id,
        url,
        None,
    )
    assert reported.channel == "host:jobs.example:8443"
    assert reported.secrets == ["whsec_ZnJlc2g="]


async def test_jobs_own_webhooks_share_a_secret_that_can_be_rotated(remote: Desk) -> None:
    outbox = remote.store.outbox
    for _ in range(2):
        await remote.do(cancel(await remote.add(webhook="https://jobs.example")))
    assert {tuple(d.secrets) for d in await take(remote)} == {("whsec_ZnJlc2g=",)}
    assert await outbox.rotate(remote.tenant, None, "whsec_bmV3", 60.0)
    remote.clock.advance(LEASE)
    assert {tuple(d.secrets) for d in await take(remote)} == {("whsec_bmV3", "whsec_ZnJlc2g=")}
    remote.clock.advance(60)
    assert {tuple(d.secrets) for d in await take(remote)} == {("whsec_bmV3",)}


async def test_both_secrets_sign_while_one_is_rotated(remote: Desk) -> None:
    mine = await listen(remote, "job.queued")
    await remote.add()
    assert await remote.store.outbox.rotate(remote.tenant, mine.id, "whsec_bmV3", 40.0)
    assert [d.secrets for d in await take(remote)] == [["whsec_bmV3", "whsec_c2VjcmV0"]]
    remote.clock.advance(40)
    assert [d.secrets for d in await take(remote)] == [["whsec_bmV3"]]


async def test_no_read_shows_a_secret(remote: Desk) -> None:
    outbox = remote.store.outbox
    mine = await listen(remote)
    await outbox.rotate(remote.tenant, mine.id, "whsec_bmV3", 60.0)
    await remote.add()
    encoded = repr([
        await outbox.subscriptions(remote.tenant, limit=10), await outbox.subscription(remote.tenant, mine.id),
        await deliveries(remote), await outbox.renew(remote.tenant, mine.id, 9.0), mine,
    ])  # fmt: skip
    assert "whsec" not in encoded
    assert mine.url in encoded


@pytest.mark.parametrize(("decision", "status"), [(APPROVE, "queued"), (DENY, "failed")])
async def test_a_gate_is_told_when_it_opens_and_when_it_is_decided(
    remote: Desk, decision: Decision, status: str
) -> None:
    await listen(remote, "approval.requested", "approval.decided")
    _, approval = await waiting(remote)
    await decided(remote, command(approval, decision))
    assert [(d.event, d.status, d.approval_id) for d in await take(remote)] == [
        ("approval.requested", "waiting_for_approval", approval.id),
        ("approval.decided", status, approval.id),
    ]


async def test_a_gate_that_nobody_decided_is_not_told_as_decided(remote: Desk) -> None:
    await listen(remote, "approval.decided")
    job, _ = await waiting(remote)
    await remote.do(cancel(job.id))
    await waiting(remote, expires_in_seconds=10.0)
    remote.clock.advance(11)
    await sweep_gates(remote)
    assert await heard(remote) == []


class TestQueueReady:
    async def test_jobs_of_one_type_that_come_together_are_one_event(self, remote: Desk) -> None:
        await listen(remote, "queue.ready")
        await remote.add_all([new_job(type=type) for type in "aabab"])
        assert sorted(d.type for d in await take(remote)) == ["a", "b"]

    async def test_it_is_due_when_the_job_is(self, remote: Desk) -> None:
        await listen(remote, "queue.ready")
        await remote.add(run_at=remote.after(60))
        assert await heard(remote) == []
        remote.clock.advance(60)
        assert await heard(remote) == ["queue.ready"]

    async def test_a_job_that_is_made_due_earlier_is_told_then(self, remote: Desk) -> None:
        await listen(remote, "queue.ready")
        id = await remote.add(run_at=remote.after(60))
        await remote.do(edit(id, run_at=remote.after(10)))
        remote.clock.advance(10)
        assert await heard(remote) == ["queue.ready"]
        await remote.do(edit(id, priority=5, tags=("x",)))
        assert await heard(remote) == []

    async def test_what_cannot_be_claimed_while_its_type_is_paused_is_told_when_it_goes_on(self, remote: Desk) -> None:
        await listen(remote, "queue.ready")
        await remote.store.pause(remote.tenant, "work", actor="user:ada", reason=None)
        for delay in (None, 60.0, 90.0):
            await remote.add(delay_seconds=delay)
        await remote.add(type="other")
        assert await heard(remote) == ["queue.ready"]  # of the other
        remote.clock.advance(60)
        assert await heard(remote) == []
        for type in ("work", "other", "unknown"):
            await remote.store.pause(remote.tenant, type, actor=None, reason=None)
        assert await heard(remote) == ["queue.ready"]
        remote.clock.advance(30)
        assert [d.type for d in await take(remote)] == ["work"]

    async def test_a_call_that_was_tried_before_the_pause_is_tried_again(self, remote: Desk) -> None:
        await listen(remote, "queue.ready")
        await remote.add()
        (first,) = await take(remote)
        await remote.store.pause(remote.tenant, "work", actor="user:ada", reason=None)
        remote.clock.advance(3600)
        assert [d.id for d in await take(remote)] == [first.id]

    async def test_a_job_that_comes_back_is_ready_again(self, remote: Desk) -> None:
        job = await remote.running()
        await listen(remote, "queue.ready")
        await remote.do(release(job))
        assert await heard(remote) == ["queue.ready"]
        await remote.do(fail(await remote.again(job), retry_after_seconds=5.0))
        assert await heard(remote) == []
        remote.clock.advance(5)
        assert await heard(remote) == ["queue.ready"]

    async def test_a_parent_is_ready_when_its_children_have_ended(self, remote: Desk) -> None:
        parent = await remote.running(type="parent")
        children = await remote.add_all([new_job(type="child", parent_id=parent.id) for _ in range(2)])
        await listen(remote, "queue.ready", types=("parent",))
        await remote.do(release(parent, children=tuple(children)))
        await remote.do(cancel(children[0]))
        assert await heard(remote) == []
        await remote.do(cancel(children[1]))
        assert await heard(remote) == ["queue.ready"]

    async def test_a_job_is_ready_when_its_turn_in_the_line_of_its_agent_has_come(self, remote: Desk) -> None:
        await remote.store.set_agent(remote.tenant, Agent("planner", "7", max_concurrency=1))
        await listen(remote, "queue.ready")
        for type in ("first", "second"):
            await remote.add(type=type, agent_kind="planner", agent_id="7")
        assert [d.type for d in await take(remote)] == ["first"]
        (job,) = await remote.claim()
        remote.clock.advance(1)
        await remote.do(complete(job))
        assert [d.type for d in await take(remote)] == ["second"]


class TestBursts:
    async def test_events_of_one_kind_within_the_interval_are_folded_into_one(self, remote: Desk) -> None:
        await listen(remote, "job.queued", min_interval_seconds=10.0)
        first = await remote.add()
        assert [(d.job_id, d.folded) for d in await take(remote)] == [(first, 0)]
        burst = []
        for _ in range(4):
            remote.clock.advance(1)
            burst.append(await remote.add())
        assert await take(remote) == []
        remote.clock.advance(6)
        (reported,) = await take(remote)
        assert (reported.job_id, reported.folded) == (burst[-1], 3)
        assert await settle(remote, reported, OK)
        assert sorted(d.folded for d in await deliveries(remote)) == [0, 3]

    async def test_other_kinds_are_not_held_back_by_it(self, remote: Desk) -> None:
        await listen(remote, "job.queued", "job.cancelled", min_interval_seconds=10.0)
        first = await remote.add()
        assert await heard(remote) == ["job.queued"]
        await remote.do(cancel(first))
        await remote.add(type="other")
        assert sorted(await heard(remote)) == ["job.cancelled", "job.queued"]

    async def test_each_member_of_a_group_is_left_alone_for_its_interval(self, remote: Desk) -> None:
        members = [
            (await listen(remote, "job.queued", mode=Mode.GROUP, group_id="g", min_interval_seconds=10.0)).id
            for _ in range(2)
        ]
        for _ in members:
            remote.clock.advance(1)
            await remote.add()
        first = await take(remote)
        assert sorted(str(d.subscription_id) for d in first) == sorted(members)
        assert [d.folded for d in first] == [0, 0]
        for dispatch in first:
            await settle(remote, dispatch, OK)
        burst = []
        for _ in range(5):
            remote.clock.advance(1)
            burst.append(await remote.add())
        assert await take(remote) == []
        remote.clock.advance(4)
        assert await take(remote) == []
        remote.clock.advance(1)
        late = await take(remote)
        assert sorted(d.folded for d in late) == [0, 3]
        assert {d.subscription_id for d in late} == set(members)
        assert {d.job_id for d in late} == set(burst[-2:])

    async def test_a_folded_event_keeps_its_count_however_often_it_is_tried(self, remote: Desk) -> None:
        await listen(remote, "job.queued", min_interval_seconds=10.0)
        await remote.add_all([new_job(), new_job(), new_job()])
        (reported,) = await take(remote)
        await settle(remote, reported, AGAIN)
        remote.clock.advance(60)
        await remote.add()
        again = {d.id: d for d in await take(remote)}
        assert again[reported.id] == reported._replace(grab=again[reported.id].grab, attempts=1)
        assert len(again) == 2


class TestGroups:
    async def members(self, remote: Desk, count: int, **fields: Any) -> list[str]:
        facts = {"mode": Mode.GROUP, "group_id": "g", **fields}
        return [(await listen(remote, "job.queued", url=f"https://m{n}.example/", **facts)).id for n in range(count)]

    async def reported(self, remote: Desk) -> Dispatch:
        (reported,) = await take(remote)
        return reported

    async def test_one_member_gets_each_event_in_turn(self, remote: Desk) -> None:
        members = await self.members(remote, 3)
        await remote.add_all([new_job() for _ in range(7)])
        taken = await take(remote)
        assert len({d.job_id for d in taken}) == len(taken) == 7
        assert sorted([d.subscription_id for d in taken].count(id) for id in members) == [2, 2, 3]

    async def test_a_member_that_fails_is_passed_over_at_once(self, remote: Desk) -> None:
        members = await self.members(remote, 2)
        await remote.add()
        first = await self.reported(remote)
        await settle(remote, first, AGAIN)
        second = await self.reported(remote)
        assert (second.id, second.attempts) == (first.id, 1)
        assert {first.subscription_id, second.subscription_id} == set(members)
        await settle(remote, second, OK)
        for _ in range(3):
            await remote.add()
            again = await self.reported(remote)
            assert again.subscription_id == second.subscription_id, "the other one still rests"
            await settle(remote, again, OK)
        remote.clock.advance(5)
        await remote.add()
        assert (await self.reported(remote)).subscription_id == first.subscription_id

    async def test_when_all_have_failed_it_waits(self, remote: Desk) -> None:
        await self.members(remote, 2)
        await remote.add()
        for _ in range(2):
            await settle(remote, await self.reported(remote), AGAIN)
        assert await take(remote) == []
        remote.clock.advance(60)
        assert (await self.reported(remote)).attempts == 2

    async def test_a_member_that_is_gone_hands_its_event_on(self, remote: Desk) -> None:
        await self.members(remote, 2)
        await remote.add()
        first = await self.reported(remote)
        await settle(remote, first, GONE, 410)
        second = await self.reported(remote)
        assert second.subscription_id != first.subscription_id
        await settle(remote, second, GONE, 410)
        assert (await delivery(remote, first.id)).status is DeliveryStatus.DEAD

    async def test_only_members_that_listen_to_it_are_asked(self, remote: Desk) -> None:
        await self.members(remote, 1, types=("a",))
        (b,) = await self.members(remote, 1, types=("b",))
        await remote.add_all([new_job(type="b") for _ in range(3)])
        assert {d.subscription_id for d in await take(remote)} == {b}

    async def test_nobody_left_to_ask_ends_a_delivery(self, remote: Desk) -> None:
        await self.members(remote, 1, types=("a",))
        (b,) = await self.members(remote, 1, types=("b",))
        await remote.add(type="b")
        await remote.store.outbox.unsubscribe(remote.tenant, b)
        assert await take(remote) == []
        (left,) = await deliveries(remote)
        assert (left.status, left.last_error) == (DeliveryStatus.DEAD, "no_subscriber")

    async def test_groups_and_broadcasts_do_not_mix(self, remote: Desk) -> None:
        await self.members(remote, 2)
        await self.members(remote, 2, group_id="h")
        await listen(remote, "job.queued")
        await listen(remote, "job.queued")
        await remote.add()
        assert len(await take(remote)) == 4
