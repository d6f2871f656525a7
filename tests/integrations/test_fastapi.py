"""FastAPI: the app is open for as long as the server runs, and a job commits with the rows of the request."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
import sqlalchemy
from fastapi import FastAPI, HTTPException
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

import interlock
from tests.integrations.conftest import DrainedApp


@asynccontextmanager
async def served(api: FastAPI) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of a served API, within its lifespan."""
    async with (
        api.router.lifespan_context(api),
        httpx2.AsyncClient(transport=httpx2.ASGITransport(app=api), base_url="http://api") as client,
    ):
        yield client


async def test_a_request_enqueues_a_job_and_another_reads_its_state(app: DrainedApp) -> None:
    @app.task
    async def greet(name: str) -> str:
        return f"hello {name}"

    @asynccontextmanager
    async def lifespan(api: FastAPI) -> AsyncIterator[None]:
        async with app:
            yield

    api = FastAPI(lifespan=lifespan)

    @api.post("/greetings", status_code=202)
    async def create(name: str) -> dict[str, str]:
        return {"id": (await greet.enqueue(name)).id}

    @api.get("/greetings/{id}")
    async def read(id: str) -> dict[str, Any]:
        job = await app.jobs.get(id)
        return {"status": job.status, "result": job.result}

    async with served(api) as client:
        id = (await client.post("/greetings", params={"name": "Ada"})).json()["id"]
        assert (await client.get(f"/greetings/{id}")).json() == {"status": "queued", "result": None}
        await app.drain()
        assert (await client.get(f"/greetings/{id}")).json() == {"status": "succeeded", "result": "hello Ada"}


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
async def test_a_failed_request_leaves_neither_its_row_nor_its_job(url: str) -> None:
    jobs = interlock.App(url)
    engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"))

    @jobs.task
    async def send(order: int) -> None: ...

    @asynccontextmanager
    async def lifespan(api: FastAPI) -> AsyncIterator[None]:
        async with jobs:
            yield
        await engine.dispose()

    api = FastAPI(lifespan=lifespan)

    @api.post("/orders/{number}")
    async def order(number: int, valid: bool) -> dict[str, str]:
        async with AsyncSession(engine) as session, session.begin():
            await session.execute(sqlalchemy.text("select 1"))
            handle = await send.within(session).enqueue(number)
            if not valid:
                raise HTTPException(422, handle.id)
        return {"id": handle.id}

    async with served(api) as client:
        kept = (await client.post("/orders/1", params={"valid": True})).json()["id"]
        lost = (await client.post("/orders/2", params={"valid": False})).json()["detail"]
        assert (await jobs.job(kept).refresh()).payload == {"order": 1}
        with pytest.raises(interlock.errors.NotFound):
            await jobs.job(lost).refresh()
