"""What the command line follows on a server: the events of all jobs, live."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest

from interlock import wire
from interlock.client.http import HttpClient
from interlock.domain.job import Filter
from interlock.domain.operations import Action
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import local
from interlock.domain.progress import Event, EventRow, Level, Report
from interlock.errors import Unauthenticated
from tests.api.rig import Api
from tests.contract_clients.scripted import answer, scripted
from tests.support.eventually import eventually


async def test_events_of_all_jobs_are_followed_through_a_server(api: Api, tenant: str) -> None:
    await api.engine.jobs.enqueue(local(tenant), wire.job_request({"type": "t"}))
    (job,) = await api.engine.leases.claim(tenant, ClaimFilter("w"))
    client = HttpClient(api.url)
    heard: list[EventRow] = []

    async def follow() -> None:
        async for event in client.jobs.follow():
            heard.append(event)

    async def something_is_heard() -> bool:
        """Events from before the stream was open are not part of it, so emit until one arrives."""
        event = Event(wire.new_id(), Level.INFO, "going on", None)
        await api.engine.progress.reports(tenant, [Report(job.id, job.fence, "w", (event,))])
        return bool(heard)

    following = asyncio.create_task(follow())
    try:
        await eventually(something_is_heard)
        assert {(row.job_id, row.message) for row in heard} == {(job.id, "going on")}
    finally:
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
        await client.close()


async def test_a_rejected_stream_reports_why(guarded: Api) -> None:
    client = HttpClient(guarded.url, token="nobody's")
    with pytest.raises(Unauthenticated):
        await anext(client.jobs.follow())
    await client.close()


async def test_a_bulk_operation_continues_from_the_cursor_of_the_server() -> None:
    def reported(number: int, cursor: str | None) -> bytes:
        given = {"matched": number, "done": 0, "more": cursor is not None, "refused": [], "next_cursor": cursor}
        return answer(200, json.dumps(given))

    async with scripted([reported(1000, "behind those"), reported(7, None)]) as server:
        client = HttpClient(server.url)
        one = await client.jobs.bulk(Action.CANCEL, filter=Filter(type="many"), dry_run=True)
        assert (one.matched, one.more) == (1000, True)
        filter = Filter(type="many", before_seq=one.before_seq)
        two = await client.jobs.bulk(Action.CANCEL, filter=filter, dry_run=True)
        assert (two.matched, two.more, two.before_seq) == (7, False, None)
        await client.close()
    assert [json.loads(body).get("cursor") for body in server.bodies] == [None, "behind those"]
    assert [json.loads(body)["filter"] for body in server.bodies] == [{"type": "many"}] * 2
