"""A bad connection between service and PostgreSQL: valid responses or 503, nothing lost, and it recovers by itself."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from interlock.api.options import Options
from interlock.errors import Unavailable
from interlock.storage.postgres import connection
from interlock.storage.postgres.store import PostgresStore
from tests.api.rig import Api, problem, serving
from tests.api.toxic_proxy import Toxic, ToxicProxy, toxic_proxy
from tests.support.eventually import RETRY_SECONDS, eventually
from tests.support.postgres import Postgres
from tests.support.stores import APP_LOGIN, ManualClock

_numbers = itertools.count(1)


@pytest.fixture
async def line(postgres: Postgres, database: str) -> AsyncIterator[ToxicProxy]:
    async with toxic_proxy(postgres.dsn(database, user=APP_LOGIN)) as made:
        yield made


@pytest.fixture
async def api(line: ToxicProxy, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Api]:
    """A service that reaches its database over the line, and loses patience soon."""
    monkeypatch.setattr(connection, "KEEP_TRYING_SECONDS", 2.0)
    monkeypatch.setattr(connection, "COMMAND_SECONDS", 2.0)
    async with serving(await opened(line), clock, Options(tenant=f"toxic-{next(_numbers)}")) as served:
        yield served


async def opened(line: ToxicProxy) -> PostgresStore:
    """A store over the line, for whose patience a busy machine may be too slow at first."""
    async with asyncio.timeout(RETRY_SECONDS):
        while True:
            with contextlib.suppress(Unavailable):
                return await PostgresStore.open(line.dsn, size=4)


async def created(api: Api, key: str) -> str | None:
    """The ID of the job of this key, or None after a 503; anything else is a fault."""
    response = await api.post("/v1/jobs", {"type": "work", "idempotency_key": key})
    if response.status_code in (200, 201):
        found: str = response.json()["id"]
        return found
    assert problem(response, 503, response.json()["code"])["code"] in ("unavailable", "indeterminate")
    return None


async def created_at_last(api: Api, key: str) -> str:
    """The same, asked until there is an answer."""
    found: list[str] = []

    async def answered() -> bool:
        found.extend(filter(None, [await created(api, key)]))
        return bool(found)

    await eventually(answered)
    return found[0]


async def listed_at_last(api: Api) -> list[dict[str, Any]]:
    responses: list[httpx2.Response] = []

    async def answered() -> bool:
        responses.append(await api.get("/v1/jobs?limit=200"))
        return responses[-1].status_code == 200

    await eventually(answered)
    items: list[dict[str, Any]] = responses[-1].json()["items"]
    return items


@pytest.mark.parametrize("toxic", [Toxic.CUT, Toxic.SLICES, Toxic.REFUSE, Toxic.SILENCE])
async def test_a_bad_database_connection_gives_correct_responses_or_503_and_recovers(
    api: Api, line: ToxicProxy, toxic: Toxic
) -> None:
    keys = [f"key-{number}" for number in range(16)]
    line.become(toxic)
    answers = await asyncio.gather(*(created(api, key) for key in keys))
    queries: list[httpx2.Response] = await asyncio.gather(*(api.get("/v1/queues") for _ in range(4)))
    assert {response.status_code for response in queries} <= {200, 503}
    assert (await api.get("/healthz")).status_code == 200
    line.become(Toxic.NONE)
    await eventually(lambda: is_ready(api))
    # Every acknowledged job exists, and a repeated call gets one job for each key.
    for key, reported in zip(keys, answers, strict=True):
        assert reported in (None, await created_at_last(api, key))
    listed = await listed_at_last(api)
    assert sorted(job["idempotency_key"] for job in listed if job["idempotency_key"] in keys) == sorted(keys)
    if toxic in (Toxic.REFUSE, Toxic.SILENCE):
        assert set(answers) == {None}


async def is_ready(api: Api) -> bool:
    return (await api.get("/readyz")).status_code == 200
