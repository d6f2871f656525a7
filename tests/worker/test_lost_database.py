"""The database is lost under a worker and comes back: nothing is lost, and the worker resumes by itself."""

from __future__ import annotations

import asyncio

import pytest

import interlock
from interlock.domain.lifecycle import Status
from interlock.errors import StorageBroken
from tests.support.apps import StoreApp
from tests.support.eventually import RETRY_SECONDS, eventually
from tests.support.postgres import PostgresServer
from tests.support.stores import APP_LOGIN, TEMPLATE, make_template


async def test_a_worker_survives_a_crash_of_postgresql_with_its_running_jobs() -> None:
    go_on, started = asyncio.Event(), asyncio.Event()
    with PostgresServer() as server:
        await make_template(server)
        async with interlock.App(server.dsn(TEMPLATE, user=APP_LOGIN)) as app:

            @app.task
            async def across(ctx: interlock.Context) -> str:
                ctx.event("before")
                started.set()
                await go_on.wait()
                await ctx.step("after", lambda: "kept")
                return "done"

            @app.task
            async def next_one() -> int:
                return 1

            handle = await across.enqueue()
            worker = interlock.Worker(app, lease=600, heartbeat_interval=0.05)
            working = asyncio.create_task(worker.run())
            try:
                await asyncio.wait_for(started.wait(), RETRY_SECONDS)
                await asyncio.to_thread(server.kill)
                go_on.set()
                await asyncio.sleep(0.2)  # so that calls are made in vain; not a wait for anything
                await asyncio.to_thread(server.start)
                assert await handle.result(timeout=RETRY_SECONDS) == "done"
                job = await handle.refresh()
                assert (job.attempt, job.status) == (1, Status.SUCCEEDED)
                assert [event.message for event in await handle.events()] == ["before"]
                assert await (await next_one.enqueue()).result(timeout=RETRY_SECONDS) == 1
            finally:
                worker.stop(now=True)
                await working


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)  # PostgreSQL is its own judge of its storage
@pytest.mark.parametrize("app", ["embedded"], indirect=True)  # a server that stops is a server that cannot be reached
async def test_a_worker_stops_with_an_error_when_the_storage_is_broken(app: StoreApp) -> None:
    @app.task
    async def quick() -> None: ...

    working = asyncio.create_task(app.worker(heartbeat_interval=0.01).run())
    handle = await quick.enqueue()
    await app.until(handle.id, Status.SUCCEEDED)
    app.store._writer.stop(StorageBroken("a page cannot be read"))  # type: ignore[attr-defined]

    async def ended() -> bool:
        return working.done()

    await eventually(ended)
    with pytest.raises(StorageBroken, match="a page cannot be read"):
        await working
