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
from tests.contract.approvals import APPROVE, DENY, ballot, decided, edit, sweep_gates, waiting
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


async def test_nothing_is_written_where_nobody_listens(desk: Desk, rival: Desk) -> None:
    await listen(rival)
    job = await desk.running()
    await desk.do(complete(job))
    assert await deliveries(desk) == await deliveries(rival) == []


async def test_every_move_of_a_job_is_an_event(desk: Desk) -> None:
    await listen(desk, *(f"job.{status}" for status in Status))
    job = await desk.running(tags=("a", "b"), agent_kind="planner", agent_id="7")
    await desk.do(fail(job, retry_after_seconds=1.0))
    desk.clock.advance(2)
    job = await desk.again(job)
    await desk.do(release(job))
    job = await desk.again(job)
    await desk.do(complete(job, result='{"a": "secret result"}'))
    taken = await take(desk)
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
    desk: Desk, door: Door, status: Status
) -> None:
    mine = await listen(desk, f"job.{status}")
    await listen(desk, *(f"job.{other}" for other in Status if other not in (status, Status.QUEUED, Status.RUNNING)))
    job = await job_in(desk, door, status)
    (told,) = await take(desk)
    assert (told.subscription_id, told.event, told.job_id) == (mine.id, f"job.{status}", job.id)


async def test_a_cancel_request_is_no_move(desk: Desk) -> None:
    job = await desk.running()
    await listen(desk)
    await desk.do(cancel(job.id))
    assert await heard(desk) == []


async def test_an_event_is_written_with_its_change_or_not_at_all(desk: Desk) -> None:
    await listen(desk)
    jobs = [new_job(), new_job(parent_id=NEVER)]
    await desk.store.enqueue(desk.tenant, jobs, whole=True)
    assert await deliveries(desk) == []
    await desk.store.enqueue(desk.tenant, jobs)
    assert {d.job_id for d in await deliveries(desk)} == {jobs[0].id}


async def test_a_replayed_enqueue_is_told_once(desk: Desk) -> None:
    await listen(desk, "job.queued")
    for _ in range(2):
        await desk.store.enqueue(desk.tenant, [new_job(idempotency_key="k", body_sha256=b"b")])
    assert await heard(desk) == ["job.queued"]


async def test_a_change_by_direct_sql_is_told_too(desk: Desk, door: Door) -> None:
    job = await desk.running()
    await listen(desk, "job.succeeded")
    await move(door, job, Status.SUCCEEDED, desk.clock.now)
    assert [d.job_id for d in await take(desk)] == [job.id]


async def test_only_the_types_asked_for_are_told(desk: Desk) -> None:
    await listen(desk, "job.queued", types=("a", "b"))
    await listen(desk, "job.queued", types=())
    ids = await desk.add_all([new_job(type=type) for type in ("a", "b", "c", "A", "ab")])
    assert sorted(d.job_id for d in await take(desk)) == sorted(ids[:2])


async def test_an_expired_subscription_hears_nothing_until_it_is_renewed(desk: Desk) -> None:
    mine = await listen(desk, "job.queued", expires_in_seconds=10.0)
    desk.clock.advance(10)
    await desk.add()
    assert await heard(desk) == []
    renewed = await desk.store.outbox.renew(desk.tenant, mine.id, 5.0)
    assert renewed is not None
    assert renewed.expires_at == desk.after(5)
    await desk.add()
    desk.clock.advance(6)
    assert await heard(desk) == ["job.queued"], "what happened before the end is told after it too"
    assert (await desk.store.outbox.renew(desk.tenant, mine.id, None)) == renewed._replace(expires_at=None)


@pytest.mark.parametrize("status", [Status.SUCCEEDED, Status.FAILED, Status.DEAD_LETTER, Status.CANCELLED])
async def test_a_jobs_own_webhook_gets_its_terminal_event_alone(desk: Desk, door: Door, status: Status) -> None:
    url = "https://jobs.example:8443/done?x=1"
    job = await job_in(desk, door, status, webhook=url)
    await job_in(desk, door, status, type="other")
    (told,) = await take(desk)
    assert (told.event, told.job_id, told.url, told.subscription_id) == (f"job.{status}", job.id, url, None)
    assert told.channel == "host:jobs.example:8443"
    assert told.secrets == ["whsec_ZnJlc2g="]


async def test_jobs_own_webhooks_share_a_secret_that_can_be_rotated(desk: Desk) -> None:
    outbox = desk.store.outbox
    for _ in range(2):
        await desk.do(cancel(await desk.add(webhook="https://jobs.example")))
    assert {tuple(d.secrets) for d in await take(desk)} == {("whsec_ZnJlc2g=",)}
    assert await outbox.rotate(desk.tenant, None, "whsec_bmV3", 60.0)
    desk.clock.advance(LEASE)
    assert {tuple(d.secrets) for d in await take(desk)} == {("whsec_bmV3", "whsec_ZnJlc2g=")}
    desk.clock.advance(60)
    assert {tuple(d.secrets) for d in await take(desk)} == {("whsec_bmV3",)}


async def test_both_secrets_sign_while_one_is_rotated(desk: Desk) -> None:
    mine = await listen(desk, "job.queued")
    await desk.add()
    assert await desk.store.outbox.rotate(desk.tenant, mine.id, "whsec_bmV3", 40.0)
    assert [d.secrets for d in await take(desk)] == [["whsec_bmV3", "whsec_c2VjcmV0"]]
    desk.clock.advance(40)
    assert [d.secrets for d in await take(desk)] == [["whsec_bmV3"]]


async def test_no_read_shows_a_secret(desk: Desk) -> None:
    outbox = desk.store.outbox
    mine = await listen(desk)
    await outbox.rotate(desk.tenant, mine.id, "whsec_bmV3", 60.0)
    await desk.add()
    shown = repr([
        await outbox.subscriptions(desk.tenant, limit=10), await outbox.subscription(desk.tenant, mine.id),
        await deliveries(desk), await outbox.renew(desk.tenant, mine.id, 9.0), mine,
    ])  # fmt: skip
    assert "whsec" not in shown
    assert mine.url in shown


@pytest.mark.parametrize(("decision", "status"), [(APPROVE, "queued"), (DENY, "failed")])
async def test_a_gate_is_told_when_it_opens_and_when_it_is_decided(desk: Desk, decision: Decision, status: str) -> None:
    await listen(desk, "approval.requested", "approval.decided")
    _, gate = await waiting(desk)
    await decided(desk, ballot(gate, decision))
    assert [(d.event, d.status, d.approval_id) for d in await take(desk)] == [
        ("approval.requested", "waiting_for_approval", gate.id),
        ("approval.decided", status, gate.id),
    ]


async def test_a_gate_that_nobody_decided_is_not_told_as_decided(desk: Desk) -> None:
    await listen(desk, "approval.decided")
    job, _ = await waiting(desk)
    await desk.do(cancel(job.id))
    await waiting(desk, expires_in_seconds=10.0)
    desk.clock.advance(11)
    await sweep_gates(desk)
    assert await heard(desk) == []


class TestQueueReady:
    async def test_jobs_of_one_type_that_come_together_are_one_event(self, desk: Desk) -> None:
        await listen(desk, "queue.ready")
        await desk.add_all([new_job(type=type) for type in "aabab"])
        assert sorted(d.type for d in await take(desk)) == ["a", "b"]

    async def test_it_is_due_when_the_job_is(self, desk: Desk) -> None:
        await listen(desk, "queue.ready")
        await desk.add(run_at=desk.after(60))
        assert await heard(desk) == []
        desk.clock.advance(60)
        assert await heard(desk) == ["queue.ready"]

    async def test_a_job_that_is_made_due_earlier_is_told_then(self, desk: Desk) -> None:
        await listen(desk, "queue.ready")
        id = await desk.add(run_at=desk.after(60))
        await desk.do(edit(id, run_at=desk.after(10)))
        desk.clock.advance(10)
        assert await heard(desk) == ["queue.ready"]
        await desk.do(edit(id, priority=5, tags=("x",)))
        assert await heard(desk) == []

    async def test_what_cannot_be_claimed_while_its_type_is_paused_is_told_when_it_goes_on(self, desk: Desk) -> None:
        await listen(desk, "queue.ready")
        await desk.store.pause(desk.tenant, "work", actor="user:ada", reason=None)
        for delay in (None, 60.0, 90.0):
            await desk.add(delay_seconds=delay)
        await desk.add(type="other")
        assert await heard(desk) == ["queue.ready"]  # of the other
        desk.clock.advance(60)
        assert await heard(desk) == []
        for type in ("work", "other", "unknown"):
            await desk.store.pause(desk.tenant, type, actor=None, reason=None)
        assert await heard(desk) == ["queue.ready"]
        desk.clock.advance(30)
        assert [d.type for d in await take(desk)] == ["work"]

    async def test_a_call_that_was_tried_before_the_pause_is_tried_again(self, desk: Desk) -> None:
        await listen(desk, "queue.ready")
        await desk.add()
        (first,) = await take(desk)
        await desk.store.pause(desk.tenant, "work", actor="user:ada", reason=None)
        desk.clock.advance(3600)
        assert [d.id for d in await take(desk)] == [first.id]

    async def test_a_job_that_comes_back_is_ready_again(self, desk: Desk) -> None:
        job = await desk.running()
        await listen(desk, "queue.ready")
        await desk.do(release(job))
        assert await heard(desk) == ["queue.ready"]
        await desk.do(fail(await desk.again(job), retry_after_seconds=5.0))
        assert await heard(desk) == []
        desk.clock.advance(5)
        assert await heard(desk) == ["queue.ready"]

    async def test_a_parent_is_ready_when_its_children_have_ended(self, desk: Desk) -> None:
        parent = await desk.running(type="parent")
        children = await desk.add_all([new_job(type="child", parent_id=parent.id) for _ in range(2)])
        await listen(desk, "queue.ready", types=("parent",))
        await desk.do(release(parent, children=tuple(children)))
        await desk.do(cancel(children[0]))
        assert await heard(desk) == []
        await desk.do(cancel(children[1]))
        assert await heard(desk) == ["queue.ready"]

    async def test_a_job_is_ready_when_its_turn_in_the_line_of_its_agent_has_come(self, desk: Desk) -> None:
        await desk.store.set_agent(desk.tenant, Agent("planner", "7", max_concurrency=1))
        await listen(desk, "queue.ready")
        for type in ("first", "second"):
            await desk.add(type=type, agent_kind="planner", agent_id="7")
        assert [d.type for d in await take(desk)] == ["first"]
        (job,) = await desk.claim()
        desk.clock.advance(1)
        await desk.do(complete(job))
        assert [d.type for d in await take(desk)] == ["second"]


class TestBursts:
    async def test_events_of_one_kind_within_the_interval_are_folded_into_one(self, desk: Desk) -> None:
        await listen(desk, "job.queued", min_interval_seconds=10.0)
        first = await desk.add()
        assert [(d.job_id, d.folded) for d in await take(desk)] == [(first, 0)]
        burst = []
        for _ in range(4):
            desk.clock.advance(1)
            burst.append(await desk.add())
        assert await take(desk) == []
        desk.clock.advance(6)
        (told,) = await take(desk)
        assert (told.job_id, told.folded) == (burst[-1], 3)
        assert await settle(desk, told, OK)
        assert sorted(d.folded for d in await deliveries(desk)) == [0, 3]

    async def test_other_kinds_are_not_held_back_by_it(self, desk: Desk) -> None:
        await listen(desk, "job.queued", "job.cancelled", min_interval_seconds=10.0)
        first = await desk.add()
        assert await heard(desk) == ["job.queued"]
        await desk.do(cancel(first))
        await desk.add(type="other")
        assert sorted(await heard(desk)) == ["job.cancelled", "job.queued"]

    async def test_each_member_of_a_group_is_left_alone_for_its_interval(self, desk: Desk) -> None:
        members = [
            (await listen(desk, "job.queued", mode=Mode.GROUP, group_id="g", min_interval_seconds=10.0)).id
            for _ in range(2)
        ]
        for _ in members:
            desk.clock.advance(1)
            await desk.add()
        first = await take(desk)
        assert sorted(str(d.subscription_id) for d in first) == sorted(members)
        assert [d.folded for d in first] == [0, 0]
        for dispatch in first:
            await settle(desk, dispatch, OK)
        burst = []
        for _ in range(5):
            desk.clock.advance(1)
            burst.append(await desk.add())
        assert await take(desk) == []
        desk.clock.advance(4)
        assert await take(desk) == []
        desk.clock.advance(1)
        late = await take(desk)
        assert sorted(d.folded for d in late) == [0, 3]
        assert {d.subscription_id for d in late} == set(members)
        assert {d.job_id for d in late} == set(burst[-2:])

    async def test_a_folded_event_keeps_its_count_however_often_it_is_tried(self, desk: Desk) -> None:
        await listen(desk, "job.queued", min_interval_seconds=10.0)
        await desk.add_all([new_job(), new_job(), new_job()])
        (told,) = await take(desk)
        await settle(desk, told, AGAIN)
        desk.clock.advance(60)
        await desk.add()
        again = {d.id: d for d in await take(desk)}
        assert again[told.id] == told._replace(grab=again[told.id].grab, attempts=1)
        assert len(again) == 2


class TestGroups:
    async def members(self, desk: Desk, count: int, **fields: Any) -> list[str]:
        facts = {"mode": Mode.GROUP, "group_id": "g", **fields}
        return [(await listen(desk, "job.queued", url=f"https://m{n}.example/", **facts)).id for n in range(count)]

    async def told(self, desk: Desk) -> Dispatch:
        (told,) = await take(desk)
        return told

    async def test_one_member_gets_each_event_in_turn(self, desk: Desk) -> None:
        members = await self.members(desk, 3)
        await desk.add_all([new_job() for _ in range(7)])
        taken = await take(desk)
        assert len({d.job_id for d in taken}) == len(taken) == 7
        assert sorted([d.subscription_id for d in taken].count(id) for id in members) == [2, 2, 3]

    async def test_a_member_that_fails_is_passed_over_at_once(self, desk: Desk) -> None:
        members = await self.members(desk, 2)
        await desk.add()
        first = await self.told(desk)
        await settle(desk, first, AGAIN)
        second = await self.told(desk)
        assert (second.id, second.attempts) == (first.id, 1)
        assert {first.subscription_id, second.subscription_id} == set(members)
        await settle(desk, second, OK)
        for _ in range(3):
            await desk.add()
            again = await self.told(desk)
            assert again.subscription_id == second.subscription_id, "the other one still rests"
            await settle(desk, again, OK)
        desk.clock.advance(5)
        await desk.add()
        assert (await self.told(desk)).subscription_id == first.subscription_id

    async def test_when_all_have_failed_it_waits(self, desk: Desk) -> None:
        await self.members(desk, 2)
        await desk.add()
        for _ in range(2):
            await settle(desk, await self.told(desk), AGAIN)
        assert await take(desk) == []
        desk.clock.advance(60)
        assert (await self.told(desk)).attempts == 2

    async def test_a_member_that_is_gone_hands_its_event_on(self, desk: Desk) -> None:
        await self.members(desk, 2)
        await desk.add()
        first = await self.told(desk)
        await settle(desk, first, GONE, 410)
        second = await self.told(desk)
        assert second.subscription_id != first.subscription_id
        await settle(desk, second, GONE, 410)
        assert (await delivery(desk, first.id)).status is DeliveryStatus.DEAD

    async def test_only_members_that_listen_to_it_are_asked(self, desk: Desk) -> None:
        await self.members(desk, 1, types=("a",))
        (b,) = await self.members(desk, 1, types=("b",))
        await desk.add_all([new_job(type="b") for _ in range(3)])
        assert {d.subscription_id for d in await take(desk)} == {b}

    async def test_nobody_left_to_ask_ends_a_delivery(self, desk: Desk) -> None:
        await self.members(desk, 1, types=("a",))
        (b,) = await self.members(desk, 1, types=("b",))
        await desk.add(type="b")
        await desk.store.outbox.unsubscribe(desk.tenant, b)
        assert await take(desk) == []
        (left,) = await deliveries(desk)
        assert (left.status, left.last_error) == (DeliveryStatus.DEAD, "nobody_listens")

    async def test_groups_and_broadcasts_do_not_mix(self, desk: Desk) -> None:
        await self.members(desk, 2)
        await self.members(desk, 2, group_id="h")
        await listen(desk, "job.queued")
        await listen(desk, "job.queued")
        await desk.add()
        assert len(await take(desk)) == 4
