"""A task requests an approval, waits without a worker, and resumes with the decision."""

from __future__ import annotations

import asyncio

import interlock
from interlock.domain.approval import Approval, ApprovalFilter, ApprovalStatus, Decision
from interlock.domain.lifecycle import Status
from interlock.domain.principal import local
from tests.support.apps import TENANT, StoreApp
from tests.support.eventually import RETRY_SECONDS, eventually
from tests.support.stores import ManualClock

ADA = local(TENANT)
NOW = {"kind": "fixed", "base_seconds": 0}


async def approvals(app: StoreApp, job_id: str) -> list[Approval]:
    """Oldest first."""
    return (await app.engine.approvals.list(TENANT, ApprovalFilter(job_id=job_id)))[::-1]


async def decide(app: StoreApp, job_id: str, decision: Decision, **answer: str) -> None:
    (approval,) = [approval for approval in await approvals(app, job_id) if approval.status is ApprovalStatus.OPEN]
    await app.engine.approvals.decide(ADA, approval.id, decision, **answer)


async def test_an_approved_job_resumes_where_it_requested_approval_with_its_steps(app: StoreApp) -> None:
    searched: list[str] = []

    @app.task
    async def publish(ctx: interlock.Context, topic: str) -> dict[str, object]:
        await ctx.step("search", searched.append, topic)
        answer = await ctx.approve("Publish this?", details={"pages": 3})
        return {"approved": answer.approved, "comment": answer.comment, "attempt": ctx.attempt}

    handle = await publish.enqueue(topic="tides")
    assert await app.drain() == 1
    job = await app.job(handle.id)
    assert (job.status, job.worker, job.attempt) == (Status.WAITING_FOR_APPROVAL, None, 1)
    assert await app.drain() == 0
    await decide(app, handle.id, Decision.APPROVE, comment="go")
    assert await app.drain() == 1
    assert await handle.result(timeout=RETRY_SECONDS) == {"approved": True, "comment": "go", "attempt": 1}
    assert searched == ["tides"]


async def test_a_denial_fails_the_job_or_is_returned_to_the_task(app: StoreApp) -> None:
    @app.task
    async def strict(ctx: interlock.Context) -> None:
        await ctx.approve("May I?")

    @app.task
    async def lenient(ctx: interlock.Context) -> str:
        answer = await ctx.approve("May I?", on_deny="resume")
        return "denied" if answer.denied else "approved"

    first, second = await strict.enqueue(), await lenient.enqueue()
    await app.drain()
    for handle in (first, second):
        await decide(app, handle.id, Decision.DENY)
    await app.drain()
    assert (await app.job(first.id)).status == Status.FAILED
    assert await second.result(timeout=RETRY_SECONDS) == "denied"


async def test_the_data_of_the_approver_reaches_the_task(app: StoreApp) -> None:
    @app.task
    async def edited(ctx: interlock.Context) -> str:
        answer = await ctx.approve("Which title?", schema={"type": "string"})
        return str(answer.data)

    handle = await edited.enqueue()
    await app.drain()
    await decide(app, handle.id, Decision.APPROVE, data='"Tides"')
    await app.drain()
    assert await handle.result(timeout=RETRY_SECONDS) == "Tides"


async def test_every_approval_needs_its_own_decision_even_after_a_retry(app: StoreApp, clock: ManualClock) -> None:
    @app.task(backoff=NOW)
    async def twice(ctx: interlock.Context) -> list[str | None]:
        first = await ctx.approve("Send it?")
        if ctx.attempt == 1:
            raise RuntimeError("after the first answer")
        second = await ctx.approve("Send it?")
        return [first.comment, second.comment]

    handle = await twice.enqueue()
    await app.drain()
    await decide(app, handle.id, Decision.APPROVE, comment="one")
    await app.drain()
    assert (await app.job(handle.id)).status == Status.RETRY
    clock.advance(1)
    await app.drain()
    assert (await app.job(handle.id)).status == Status.WAITING_FOR_APPROVAL
    await decide(app, handle.id, Decision.APPROVE, comment="two")
    await app.drain()
    assert await handle.result(timeout=RETRY_SECONDS) == ["one", "two"]
    assert len(await approvals(app, handle.id)) == 2


async def test_concurrent_approvals_are_requested_one_after_another(app: StoreApp) -> None:
    @app.task
    async def both(ctx: interlock.Context) -> list[str | None]:
        answers = await asyncio.gather(ctx.approve("The text?"), ctx.approve("The picture?"))
        return [answer.comment for answer in answers]

    handle = await both.enqueue()
    for comment in ("good", "blurred"):
        await app.drain()
        await decide(app, handle.id, Decision.APPROVE, comment=comment)
    await app.drain()
    assert await handle.result(timeout=RETRY_SECONDS) == ["good", "blurred"]
    assert [approval.prompt for approval in await approvals(app, handle.id)] == ["The text?", "The picture?"]


async def test_an_approval_that_would_expire_immediately_is_rejected(app: StoreApp) -> None:
    @app.task(max_attempts=1)
    async def ask(ctx: interlock.Context) -> None:
        await ctx.approve("Now?", expires_in=0)

    handle = await ask.enqueue()
    await app.drain()
    job = await app.job(handle.id)
    assert (job.status, await approvals(app, handle.id)) == (Status.DEAD_LETTER, [])
    assert "expires_in_seconds must be from 1" in (job.error or "")


async def test_events_before_the_approval_are_visible_to_approvers(app: StoreApp) -> None:
    @app.task
    def asking(ctx: interlock.Context) -> bool:
        ctx.event("the draft is ready")
        return ctx.approve_sync("Publish?").approved

    handle = await asking.enqueue()
    await app.drain(heartbeat_interval=20)
    assert (await app.job(handle.id)).status == Status.WAITING_FOR_APPROVAL
    assert [event.message for event in await handle.events()] == ["the draft is ready"]
    await decide(app, handle.id, Decision.APPROVE)
    await app.drain()
    assert await handle.result(timeout=RETRY_SECONDS) is True


async def test_a_cancel_overrides_the_approval(app: StoreApp) -> None:
    @app.task
    async def asking(ctx: interlock.Context) -> None:
        await app.engine.jobs.cancel(ADA, ctx.id, reason="enough")
        await ctx.approve("Publish?")

    handle = await asking.enqueue()
    await app.drain(heartbeat_interval=20)
    job = await app.job(handle.id)
    assert (job.status, job.cancel_reason) == (Status.CANCELLED, "enough")


async def test_a_task_and_its_hooks_clean_up_after_a_request(app: StoreApp, clock: ManualClock) -> None:
    """The request has ended the lease, which heartbeats notice meanwhile."""
    cleaned: list[str] = []
    done = asyncio.Event()

    async def heartbeats() -> None:
        for _ in range(3):  # the first may have begun before the request, the reply to the last is not in yet
            clock.advance(0.001)

            async def is_extended() -> bool:
                return (await app.job(witness.id)).heartbeat_at == clock.now

            await eventually(is_extended)

    @app.after_run
    async def after(ctx: interlock.Context) -> None:
        if ctx.id != witness.id:
            await heartbeats()
            cleaned.append("hook")
            done.set()

    @app.task(name="witness")
    async def wait() -> None:
        await done.wait()

    @app.task
    async def publish(ctx: interlock.Context) -> None:
        try:
            await ctx.approve("Publish?")
        except BaseException as error:
            cleaned.append(type(error).__name__)
            await heartbeats()
            cleaned.append("task")
            raise

    witness, handle = await wait.enqueue(), await publish.enqueue()
    async with app.working():
        await asyncio.wait_for(done.wait(), RETRY_SECONDS)
        await witness.result(timeout=RETRY_SECONDS)
    assert cleaned == ["AwaitsApproval", "task", "hook"]
    assert (await app.job(handle.id)).status is Status.WAITING_FOR_APPROVAL
