"""Every verb of a store, once: what must be there before it, and the call that a crash interrupts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from interlock.domain.decide import ReleaseJob
from interlock.domain.job import Job
from interlock.domain.limits import Limit
from interlock.domain.message import AwaitMessage, SendMessage
from interlock.domain.operations import PruneCommand, Redrive
from interlock.domain.registry import Agent, JobType
from interlock.domain.stream import Append, NewChunk
from interlock.domain.token import NewToken
from interlock.storage.contract import Terms
from tests.contract.approvals import ADA, BOB, DENY, command, edit, request_approval, waiting
from tests.contract.artifacts import file, opened
from tests.contract.builders import (
    OPERATOR,
    TenantQueue,
    acknowledge,
    ask,
    cancel,
    cancel_ack,
    complete,
    expire,
    fail,
    heartbeat,
    new_id,
    new_job,
    pass_deadline,
    release,
    revoke,
    save,
)
from tests.contract.progress import event, report, step
from tests.contract.webhooks import listen

Act = Callable[[TenantQueue], Awaitable[Any]]
Verb = Callable[[TenantQueue, int], Awaitable[Act]]
"""Prepares a tenant for a batch of some size, and returns the call."""

VERBS: Final[dict[str, Verb]] = {}
ONCE: Final = {"edit", "set a limit"}
"""Calls that change something each time: a client that got no answer must look before it repeats them."""


def verb(prepare: Verb) -> Verb:
    VERBS[prepare.__name__.replace("_", " ").strip()] = prepare
    return prepare


async def _running(queue: TenantQueue, many: int, **fields: Any) -> list[Job]:
    return [await queue.running(**fields) for _ in range(many)]


def _orders(make: Callable[[Job], Any]) -> Verb:
    async def prepare(queue: TenantQueue, many: int) -> Act:
        orders = [make(job) for job in await _running(queue, many, max_attempts=3)]
        return lambda at: at.store.carry_out(at.tenant, orders)

    return prepare


VERBS["complete"] = _orders(lambda job: complete(job, result='"done"'))
VERBS["fail and retry"] = _orders(fail)
VERBS["fail for good"] = _orders(lambda job: fail(job, retryable=False))
VERBS["release"] = _orders(release)
VERBS["sleep"] = _orders(lambda job: release(job, delay_seconds=60.0))
VERBS["wait for a message"] = _orders(lambda job: release(job, message=AwaitMessage("go")))
VERBS["request an approval"] = _orders(request_approval)
VERBS["cancel a running job"] = _orders(lambda job: cancel(job.id))
VERBS["revoke"] = _orders(lambda job: revoke(job.id))


@verb
async def enqueue(queue: TenantQueue, many: int) -> Act:
    jobs = [new_job(idempotency_key=new_id(), body_sha256=bytes(32), tags=("a",)) for _ in range(many)]
    return lambda at: at.store.enqueue(at.tenant, jobs)


@verb
async def enqueue_for_an_agent(queue: TenantQueue, many: int) -> Act:
    await queue.store.registry.set_agent(queue.tenant, Agent("bot", "one", max_concurrency=1))
    jobs = [
        new_job(idempotency_key=new_id(), body_sha256=bytes(32), agent_kind="bot", agent_id="one") for _ in range(many)
    ]
    return lambda at: at.store.enqueue(at.tenant, jobs)


@verb
async def enqueue_a_child(queue: TenantQueue, many: int) -> Act:
    parent = await queue.running()
    jobs = [new_job(idempotency_key=new_id(), body_sha256=bytes(32), parent_id=parent.id) for _ in range(many)]
    return lambda at: at.store.enqueue(at.tenant, jobs)


@verb
async def claim(queue: TenantQueue, many: int) -> Act:
    for _ in range(many):
        await queue.add()
    asked = ask(limit=many, claim_id=new_id())
    return lambda at: at.store.claim(at.tenant, asked)


@verb
async def claim_under_a_limit(queue: TenantQueue, many: int) -> Act:
    await queue.store.limits.set(queue.tenant, Limit("llm", concurrency=many), actor=OPERATOR)
    terms = Terms((await queue.store.registry.read(queue.tenant)).version)
    limits = '[{"name":"llm","key":null,"cost":{}}]'
    await queue.store.enqueue(queue.tenant, [new_job(limits=limits) for _ in range(many + 1)], terms=terms)
    asked = ask(limit=many + 1, claim_id=new_id())
    return lambda at: at.store.claim(at.tenant, asked)


@verb
async def beat(queue: TenantQueue, many: int) -> Act:
    beats = [heartbeat(job, checkpoint=save(job, 1)) for job in await _running(queue, many)]
    return lambda at: at.store.heartbeat(at.tenant, beats)


@verb
async def checkpoint(queue: TenantQueue, many: int) -> Act:
    saved = [save(job, 1) for job in await _running(queue, many)]
    return lambda at: at.store.checkpoint(at.tenant, saved)


@verb
async def save_a_step(queue: TenantQueue, many: int) -> Act:
    steps = [step(job) for job in await _running(queue, many)]
    return lambda at: at.store.save_steps(at.tenant, steps)


@verb
async def add_events(queue: TenantQueue, many: int) -> Act:
    reports = [report(job, event(), event()) for job in await _running(queue, many)]
    return lambda at: at.store.add_events(at.tenant, reports)


@verb
async def append_to_a_stream(queue: TenantQueue, many: int) -> Act:
    job = await queue.running()
    chunks = tuple(NewChunk(b"some text", True) for _ in range(many))
    append = Append(job.id, job.fence, job.worker or "", "tokens", 0, chunks)
    return lambda at: at.store.streams.append(at.tenant, append, limit=1 << 20)


@verb
async def send_a_message(queue: TenantQueue, many: int) -> Act:
    job = await queue.running()
    await queue.do(release(job, message=AwaitMessage("go")))
    message = SendMessage(job.id, new_id(), OPERATOR, "go", '"now"')
    return lambda at: at.store.messages.send(at.tenant, message)


@verb
async def wait_for_children(queue: TenantQueue, many: int) -> Act:
    parent = await queue.running(type="parent")
    children = tuple([await queue.add(parent_id=parent.id) for _ in range(many)])
    order = ReleaseJob(parent.id, parent.fence, parent.worker or "", children=children)
    return lambda at: at.store.carry_out(at.tenant, [order])


@verb
async def complete_the_last_child(queue: TenantQueue, many: int) -> Act:
    parent = await queue.running(type="parent")
    child = await queue.running(parent_id=parent.id)
    await queue.do(ReleaseJob(parent.id, parent.fence, parent.worker or "", children=(child.id,)))
    return lambda at: at.store.carry_out(at.tenant, [complete(child)])


@verb
async def complete_with_a_webhook(queue: TenantQueue, many: int) -> Act:
    await listen(queue)
    orders = [complete(job) for job in await _running(queue, many)]
    return lambda at: at.store.carry_out(at.tenant, orders)


@verb
async def decide(queue: TenantQueue, many: int) -> Act:
    votes = [command((await waiting(queue))[1]) for _ in range(many)]
    return lambda at: at.store.approvals.decide(at.tenant, votes)


@verb
async def decide_with_a_second_vote(queue: TenantQueue, many: int) -> Act:
    _, approval = await waiting(queue, required=2)
    await queue.store.approvals.decide(queue.tenant, [command(approval, actor=BOB)])
    return lambda at: at.store.approvals.decide(at.tenant, [command(approval, actor=ADA)])


@verb
async def deny(queue: TenantQueue, many: int) -> Act:
    votes = [command((await waiting(queue))[1], DENY) for _ in range(many)]
    return lambda at: at.store.approvals.decide(at.tenant, votes)


@verb
async def cancel_waiting_jobs(queue: TenantQueue, many: int) -> Act:
    orders = [cancel(await queue.add()) for _ in range(many)]
    return lambda at: at.store.carry_out(at.tenant, orders)


@verb
async def acknowledge_a_cancel(queue: TenantQueue, many: int) -> Act:
    jobs = await _running(queue, many)
    for job in jobs:
        await queue.do(cancel(job.id))
    return lambda at: at.store.carry_out(at.tenant, [cancel_ack(job) for job in jobs])


@verb
async def expire_leases(queue: TenantQueue, many: int) -> Act:
    jobs = await _running(queue, many, lease_seconds=1.0, max_attempts=2)
    queue.clock.advance(2)
    return lambda at: at.store.carry_out(at.tenant, [expire(job.id) for job in jobs])


@verb
async def enforce_deadlines(queue: TenantQueue, many: int) -> Act:
    ids = [await queue.add(deadline=queue.after(1)) for _ in range(many)]
    queue.clock.advance(2)
    return lambda at: at.store.carry_out(at.tenant, [pass_deadline(id) for id in ids])


@verb
async def _edit(queue: TenantQueue, many: int) -> Act:
    id = await queue.add()
    return lambda at: at.store.carry_out(at.tenant, [edit(id, priority=5, tags=("b",))])


async def _failed(queue: TenantQueue) -> str:
    job = await queue.running()
    await queue.do(fail(job, retryable=False))
    return job.id


@verb
async def acknowledge_a_failure(queue: TenantQueue, many: int) -> Act:
    orders = [acknowledge(await _failed(queue)) for _ in range(many)]
    return lambda at: at.store.carry_out(at.tenant, orders)


@verb
async def redrive(queue: TenantQueue, many: int) -> Act:
    orders = [Redrive(await _failed(queue), new_id(), OPERATOR, once=True) for _ in range(many)]
    return lambda at: at.store.redrive(at.tenant, orders)


@verb
async def prune(queue: TenantQueue, many: int) -> Act:
    for _ in range(many):
        await queue.do(complete(await queue.running()))
    queue.clock.advance(10)
    order = PruneCommand(new_id(), OPERATOR, queue.clock.now, 0, 100)
    return lambda at: at.store.prune(at.tenant, order)


@verb
async def publish_an_artifact(queue: TenantQueue, many: int) -> Act:
    job = await queue.running()
    items = [file(job, f"{number}.md") for number in range(many)]
    await opened(queue, *items)
    return lambda at: at.store.artifacts.publish(at.tenant, items, quota=None)


@verb
async def set_an_agent(queue: TenantQueue, many: int) -> Act:
    for _ in range(many):
        await queue.add(agent_kind="bot", agent_id="one")
    return lambda at: at.store.registry.set_agent(at.tenant, Agent("bot", "one", max_concurrency=1))


@verb
async def set_a_type(queue: TenantQueue, many: int) -> Act:
    return lambda at: at.store.registry.set_type(at.tenant, JobType("work", schema="{}"))


@verb
async def set_a_limit(queue: TenantQueue, many: int) -> Act:
    return lambda at: at.store.limits.set(at.tenant, Limit("llm", concurrency=3), actor=OPERATOR)


@verb
async def hold_a_limit(queue: TenantQueue, many: int) -> Act:
    await queue.store.limits.set(queue.tenant, Limit("llm", concurrency=3), actor=OPERATOR)
    until = queue.after(60)
    return lambda at: at.store.limits.hold(at.tenant, "llm", key="", until=until, actor=OPERATOR, reason=None)


@verb
async def create_a_token(queue: TenantQueue, many: int) -> Act:
    token = NewToken(new_id(), new_id().encode()[-32:], ("read",), OPERATOR, key=new_id())
    return lambda at: at.store.tokens.create(at.tenant, [token])


@verb
async def revoke_a_token(queue: TenantQueue, many: int) -> Act:
    token = NewToken(new_id(), new_id().encode()[-32:], ("read",), OPERATOR)
    await queue.store.tokens.create(queue.tenant, [token])
    return lambda at: at.store.tokens.revoke(at.tenant, [token.id], actor=OPERATOR)
