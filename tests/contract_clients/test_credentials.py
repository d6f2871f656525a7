"""Clients with a token: the server knows tenant, rights and worker by it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from interlock.client.http import HttpClient
from interlock.domain.decide import AcknowledgeCancel, CompleteJob
from interlock.domain.job import Checkpoint, Heartbeat
from interlock.domain.lifecycle import Status, Verb
from interlock.domain.policy import ClaimFilter
from interlock.domain.progress import Event, Level, Report, Step
from interlock.errors import Forbidden, NotFound, Unauthenticated
from interlock.sdk.app import App
from interlock.sdk.context import Context
from interlock.wire import new_id
from interlock.worker.loop import Worker
from tests.api.rig import Api
from tests.contract_clients.remote_cli import given, holder, request


async def client_of(api: Api, *roles: str, **policy: Any) -> HttpClient:
    token = (await api.as_role(*roles, **policy)).token
    return HttpClient(api.url, token=token)


async def test_without_a_valid_token_every_call_is_rejected(guarded: Api) -> None:
    for token in (None, "ilk_wrong"):
        client = HttpClient(guarded.url, token=token)
        with pytest.raises(Unauthenticated):
            await client.jobs.enqueue([request()])
        await client.close()


async def test_a_token_without_the_role_is_rejected(guarded: Api) -> None:
    client = await client_of(guarded, "read")
    with pytest.raises(Forbidden, match="produce"):
        await client.jobs.enqueue([request()])
    await client.close()


async def test_tenants_do_not_see_each_other(guarded: Api) -> None:
    mine = await client_of(guarded, "produce", "read")
    theirs = await client_of(guarded, "produce", "read", tenant=f"{guarded.tenant}-other")
    (created,) = await mine.jobs.enqueue([request()])
    with pytest.raises(NotFound):
        await theirs.jobs.get(created.id)
    await mine.close()
    await theirs.close()


async def test_a_worker_uses_the_name_of_its_token_or_an_instance_of_it(guarded: Api) -> None:
    producer = await client_of(guarded, "produce", "operate", "read")
    worker = await client_of(guarded, "work", worker_id="crew")
    created = await producer.jobs.enqueue([request() for _ in range(3)])
    ask = ClaimFilter("host/17", types=frozenset({"work"}), limit=2, lease_seconds=60.0)
    one, other = [lease.job for lease in await worker.work.claim(ask)]
    assert one.worker == other.worker == "crew/host/17"
    (reply,) = await worker.work.heartbeats([Heartbeat(*holder(one))])
    assert given(reply).id == one.id
    assert await worker.work.checkpoint(Checkpoint(*holder(one), 1, "1")) == 1
    await worker.work.save_step(Step(one.id, one.fence, "host/17", "s", 0, "1"))
    assert await worker.work.add_events([Report(*holder(one), (Event(new_id(), Level.INFO, "e"),))]) == [(1,)]
    await producer.jobs.cancel(other.id)
    answers = await worker.work.finishes([AcknowledgeCancel(*holder(other)), CompleteJob(*holder(one))])
    assert [given(answer).status for answer in answers] == [Status.CANCELLED, Status.SUCCEEDED]
    assert (await producer.jobs.history(one.id))[-1].actor == "worker:crew/host/17"
    (plain,) = await worker.work.claim(ask._replace(worker="crew"))
    assert (plain.job.id, plain.job.worker) == (created[2].id, "crew")
    await producer.close()
    await worker.close()


async def test_a_worker_has_the_capabilities_of_its_token_unless_it_names_fewer(guarded: Api) -> None:
    producer = await client_of(guarded, "produce")
    worker = await client_of(guarded, "work", worker_id="crew", capabilities=["gpu", "web"])
    await producer.jobs.enqueue([request(requires=["gpu"])])
    ask = ClaimFilter("crew", types=frozenset({"work"}), lease_seconds=60.0)
    assert await worker.work.claim(ask._replace(capabilities=frozenset({"web"}))) == []
    assert len(await worker.work.claim(ask)) == 1
    await producer.close()
    await worker.close()


async def test_a_worker_without_the_produce_role_reports_it_and_uses_no_attempt_of_the_parent(
    guarded: Api, caplog: pytest.LogCaptureFixture
) -> None:
    producer = await client_of(guarded, "produce", "read")
    token = (await guarded.as_role("work", worker_id="crew")).token

    async def connect() -> HttpClient:
        return HttpClient(guarded.url, token=token)

    app = App(connect)

    @app.task
    async def child() -> None: ...

    @app.task(max_attempts=2)
    async def parent(ctx: Context) -> None:
        await ctx.enqueue(child)

    @app.task(max_attempts=2)
    async def detached() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(child.enqueue())

    added = await producer.jobs.enqueue(
        [request(type="parent", max_attempts=2), request(type="detached", max_attempts=2)]
    )
    await Worker(app).run(drain=True)
    (given,) = [record for record in caplog.records if record.message == "token lacks a role that tasks need"]
    assert (vars(given)["role"], vars(given)["tasks"]) == ("produce", ["detached", "parent"])
    for one in added:
        job = await producer.jobs.get(one.id)
        assert (job.status, job.attempt, job.releases <= 1) == (Status.QUEUED, 1, True)
        last = (await producer.jobs.history(one.id))[-1]
        assert last.verb == Verb.RELEASE
        assert "role produce" in (last.reason or "")
    released = [record for record in caplog.records if record.message == "run released, a role is missing"]
    assert {vars(record)["job"] for record in released} == {one.id for one in added}
    await app.close()
    await producer.close()


async def test_only_own_leases_can_be_watched_and_a_foreign_one_looks_lost(guarded: Api) -> None:
    producer = await client_of(guarded, "produce", "operate", "read")
    mine = await client_of(guarded, "work", worker_id="crew")
    theirs = await client_of(guarded, "work", worker_id="others")
    await producer.jobs.enqueue([request(), request()])
    one, other = [
        (await client.work.claim(ClaimFilter(name, types=frozenset({"work"}), lease_seconds=60.0)))[0].job
        for client, name in ((mine, "crew"), (theirs, "others"))
    ]
    assert await mine.work.interrupted([(one.id, one.fence)]) == []
    assert await mine.work.interrupted([(other.id, other.fence), (one.id, one.fence + 1), (new_id(), 1)]) != []
    assert await mine.work.interrupted([(other.id, other.fence), (one.id, one.fence)]) == [other.id]
    waiting = asyncio.create_task(mine.work.interrupted([(one.id, one.fence)], wait_seconds=20.0))
    await producer.jobs.cancel(one.id)
    assert await waiting == [one.id]
    for client in (producer, mine, theirs):
        await client.close()
