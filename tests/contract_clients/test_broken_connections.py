"""Connections cut at arbitrary bytes: every call converges, and nothing is done twice."""

from __future__ import annotations

import asyncio

import pytest

from interlock.client.http import HttpClient
from interlock.domain.artifact import File
from interlock.domain.decide import AcknowledgeCancel, CompleteJob, FailJob, Finish, ReleaseJob
from interlock.domain.job import Checkpoint, Filter, Heartbeat, Job, Rejected
from interlock.domain.lifecycle import Status, Verb
from interlock.domain.policy import ClaimFilter
from interlock.domain.progress import Event, Level, Report, Step
from interlock.wire import error_body, new_id
from tests.api.rig import Api
from tests.contract_clients.cutting_proxy import cutting
from tests.contract_clients.remote_cli import ClientUnderTest, given, held, holder, request
from tests.support.eventually import RETRY_SECONDS
from tests.support.stores import ManualClock


@pytest.mark.parametrize("seed", [1, 2])
async def test_producers_and_workers_converge_over_a_breaking_connection(
    api: Api, clock: ManualClock, tenant: str, seed: int
) -> None:
    async with cutting(api.port, seed=seed) as cutter:
        remote = ClientUnderTest(HttpClient(cutter.url, retry_seconds=RETRY_SECONDS), api.engine, clock, tenant)
        client = remote.client
        try:
            singles = await asyncio.gather(*(client.jobs.enqueue([request(payload=str(n))]) for n in range(12)))
            batch = await client.jobs.enqueue([request(payload=str(n)) for n in range(12, 24)])
            created = [one for (one,) in singles] + batch
            assert not any(one.replayed for one in created)
            jobs: list[Job] = []
            while len(jobs) < 24:
                ask = ClaimFilter("w1", types=frozenset({"work"}), limit=5, lease_seconds=600.0, claim_id=new_id())
                jobs += [lease.job for lease in await client.work.claim(ask)]
            assert sorted(job.id for job in jobs) == sorted(one.id for one in created)
            for n, job in enumerate(jobs):
                await client.work.save_step(Step(*holder(job), "one", 0, str(n)))
                await client.work.checkpoint(Checkpoint(*holder(job), 1, str(n)))
            reported = await client.work.add_events(
                [Report(*holder(job), (Event(new_id(), Level.INFO, "e"),)) for job in jobs]
            )
            assert reported == [(1,)] * 24
            files = [await client.work.attach(held(job), File("f", str(n).encode())) for n, job in enumerate(jobs[:4])]
            await client.jobs.cancel(jobs[-1].id)
            assert not any(
                isinstance(one, Rejected)
                for one in await client.work.heartbeats([Heartbeat(*holder(job)) for job in jobs])
            )
            error, _ = error_body("broke")
            orders: list[Finish] = [CompleteJob(*holder(job), job.payload) for job in jobs[:-3]]
            orders += [
                FailJob(*holder(jobs[-3]), error),
                ReleaseJob(*holder(jobs[-2])),
                AcknowledgeCancel(*holder(jobs[-1])),
            ]
            receipts = [given(answer) for answer in await client.work.finishes(orders)]
            assert await client.work.finishes(orders) == receipts
            again = await client.jobs.redrive(jobs[-1].id)
            await _nothing_doubled(remote, [job.id for job in jobs], again.id)
            for job, id in zip(jobs, files, strict=False):
                assert [one.id for one in await remote.engine.artifacts.list(tenant, job.id)] == [id]
            assert len(await client.jobs.list(Filter(limit=200))) == 25
            assert cutter.cuts > 10
        finally:
            await client.close()


async def _nothing_doubled(remote: ClientUnderTest, ids: list[str], redriven: str) -> None:
    """What the store holds is what one undisturbed run would have left."""
    listed = await remote.engine.queries.jobs(remote.tenant, Filter(limit=200))
    assert {job.id for job in listed} == {*ids, redriven}
    ends = [Verb.COMPLETE] * (len(ids) - 3) + [Verb.FAIL, Verb.RELEASE]
    for id, end in zip(ids, ends, strict=False):
        assert [row.verb for row in await remote.client.jobs.history(id)] == [Verb.ENQUEUE, Verb.CLAIM, end]
        assert len(await remote.engine.progress.events(remote.tenant, id)) == 1
    cancelled = await remote.client.jobs.history(ids[-1])
    assert [row.verb for row in cancelled] == [Verb.ENQUEUE, Verb.CLAIM, Verb.CANCEL, Verb.CANCEL_ACK]


@pytest.mark.parametrize("seed", [4])
async def test_a_tail_neither_misses_nor_repeats_events_over_a_breaking_connection(
    api: Api, http: ClientUnderTest, seed: int
) -> None:
    job = await http.running()
    async with cutting(api.port, seed=seed) as cutter:
        client = HttpClient(cutter.url, retry_seconds=RETRY_SECONDS)

        async def follow() -> list[int]:
            return [row.seq async for row in client.jobs.tail(job.id)]

        following = asyncio.create_task(follow())
        for _ in range(20):
            events = tuple(Event(new_id(), Level.INFO, "x" * 100) for _ in range(10))
            await http.client.work.add_events([Report(*holder(job), events)])
        await http.complete(job)
        assert await following == list(range(1, 201))
        assert cutter.cuts
        await client.close()


async def test_waiting_for_a_result_survives_the_loss_of_its_connection(api: Api, http: ClientUnderTest) -> None:
    job = await http.running()
    async with cutting(api.port, seed=7) as cutter:
        client = HttpClient(cutter.url, retry_seconds=RETRY_SECONDS)
        waiting = asyncio.create_task(client.jobs.wait(job.id, seconds=50))
        await http.complete(job, '"done"')
        ended = await waiting
        assert (ended.status, ended.result) == (Status.SUCCEEDED, '"done"')
        await client.close()
