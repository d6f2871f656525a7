"""Messages: the inbox of a job in order, and a wait that ends with the message or with its time."""

from __future__ import annotations

from typing import Any

from interlock.domain.job import Rejected
from interlock.domain.lifecycle import Status, Verb
from interlock.domain.message import AwaitMessage, Message, SendMessage, Sent
from interlock.domain.operations import PruneCommand
from interlock.errors import AlreadyFinished, Error, MessageConflict, NotFound
from tests.contract.builders import NEVER, OPERATOR, TenantQueue, complete, new_id, release
from tests.contract.connections import SqlConnection, rejection

GO = AwaitMessage("go")


async def sent(queue: TenantQueue, job_id: str, id: str, name: str = "go", **more: Any) -> Sent:
    answer = await queue.store.messages.send(queue.tenant, SendMessage(job_id, id, OPERATOR, name, **more))
    assert isinstance(answer, Sent), answer
    return answer


async def refused(queue: TenantQueue, job_id: str, id: str, **more: Any) -> Error:
    answer = await queue.store.messages.send(queue.tenant, SendMessage(job_id, id, OPERATOR, "go", **more))
    assert isinstance(answer, Rejected), answer
    return answer.error


async def inbox(queue: TenantQueue, job_id: str, **more: Any) -> list[Message]:
    return await queue.store.messages.of_job(queue.tenant, job_id, **({"limit": 100} | more))


async def test_an_inbox_is_in_order_and_stores_each_id_once(queue: TenantQueue) -> None:
    job_id = await queue.add()
    first = await sent(queue, job_id, "a", payload='{"n":1}')
    await sent(queue, job_id, "b", "other")
    again = await sent(queue, job_id, "a", payload='{"n":1}')
    assert (first.is_new, again) == (True, Sent(first.message, False))
    assert isinstance(await refused(queue, job_id, "a", payload="2"), MessageConflict)
    found = await inbox(queue, job_id)
    assert [(m.seq, m.id, m.name, m.payload, m.sender) for m in found] == [
        (1, "a", "go", '{"n":1}', OPERATOR), (2, "b", "other", None, OPERATOR),
    ]  # fmt: skip
    assert await inbox(queue, job_id, name="other") == await inbox(queue, job_id, after=1) == found[1:]


async def test_a_message_makes_the_job_that_waits_for_it_due(queue: TenantQueue) -> None:
    job = await queue.running()
    await queue.do(release(job, message=GO))
    await sent(queue, job.id, "a", "other")
    queue.clock.advance(86_400)
    assert await queue.claim() == []
    await sent(queue, job.id, "b")
    now, rows = await queue.trace(job.id)
    assert (now.status, now.run_at, now.releases) == (Status.QUEUED, queue.clock.now, 0)
    assert (rows[-1].verb, rows[-1].actor) == (Verb.SEND_MESSAGE, OPERATOR)
    assert (await queue.again(job)).attempt == 1
    await queue.verify()


async def test_a_message_that_came_before_the_release_ends_the_wait(queue: TenantQueue) -> None:
    job = await queue.running()
    await sent(queue, job.id, "a")
    receipt = await queue.do(release(job, message=GO))
    assert (receipt.run_at, (await queue.job(job.id)).releases) == (queue.clock.now, 0)
    again = await queue.again(job)
    await queue.do(release(again, message=AwaitMessage("go", 1)))
    assert await queue.claim() == []
    await sent(queue, job.id, "b")
    await queue.again(again)


async def test_a_wait_ends_with_its_time(queue: TenantQueue) -> None:
    job = await queue.running()
    await queue.do(release(job, message=GO, delay_seconds=60.0))
    assert await queue.claim() == []
    queue.clock.advance(60)
    again = await queue.again(job)
    await queue.do(release(again, delay_seconds=60.0))
    version = (await queue.job(job.id)).version
    await sent(queue, job.id, "a")  # the wait of an earlier lease counts no more
    assert (await queue.job(job.id)).version == version


async def test_a_terminal_or_unknown_job_rejects_messages(queue: TenantQueue) -> None:
    job = await queue.running()
    await sent(queue, job.id, "a")
    await queue.do(complete(job))
    assert isinstance(await refused(queue, job.id, "b"), AlreadyFinished)
    assert not (await sent(queue, job.id, "a")).is_new
    assert isinstance(await refused(queue, NEVER, "a"), NotFound)


async def test_a_prune_deletes_messages_with_their_job(queue: TenantQueue) -> None:
    job = await queue.running()
    await sent(queue, job.id, "a")
    await queue.do(complete(job))
    queue.clock.advance(1)
    await queue.store.prune(queue.tenant, PruneCommand(new_id(), OPERATOR, queue.clock.now, 0, 100))
    assert await inbox(queue, job.id) == []


async def test_messages_and_waits_never_change_by_direct_sql(queue: TenantQueue, sql: SqlConnection) -> None:
    job = await queue.running()
    await sent(queue, job.id, "a", "other")
    await queue.do(release(job, message=GO))
    for statement in (
        "UPDATE job_message SET name = 'go' WHERE tenant = $1 AND job_id = $2",
        "DELETE FROM job_message WHERE tenant = $1 AND job_id = $2",
        "UPDATE message_wait SET name = 'other' WHERE tenant = $1 AND job_id = $2",
        "DELETE FROM message_wait WHERE tenant = $1 AND job_id = $2",
    ):
        await rejection(sql, statement, queue.tenant, job.id)
    assert [m.name for m in await inbox(queue, job.id)] == ["other"]


async def test_the_tree_of_a_job_has_those_who_may_send_to_it(queue: TenantQueue) -> None:
    parent = await queue.running(created_by="token:p", worker="w/1")
    child = await queue.add(parent_id=parent.id, created_by="token:c")
    sibling = await queue.add(parent_id=parent.id, created_by="token:s")
    other = await queue.add(created_by="token:o")

    async def related(actor: str | None, worker: str | None = None) -> bool:
        return await queue.store.messages.has_relative(queue.tenant, child, actor=actor, worker=worker)

    assert [await related(f"token:{one}") for one in "pcso"] == [True, True, True, False]
    assert [await related(None, one) for one in ("w", "w/1", "v", None)] == [True, True, False, False]
    assert sibling != other
