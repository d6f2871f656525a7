"""A service over two shards, one of which is unavailable: its tenants get 503, all others are served."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from interlock.api.options import Options
from interlock.errors import Unavailable
from interlock.storage.shards import routing
from interlock.storage.shards.factory import open_sharded_store
from tests.api.rig import Api, problem, serving
from tests.support.eventually import eventually
from tests.support.postgres import Postgres
from tests.support.shards import copied_shards, resident, wire_to
from tests.support.stores import APP_LOGIN, ManualClock


@pytest.fixture
def addresses(postgres: Postgres) -> Iterator[dict[str, str]]:
    with copied_shards(postgres) as databases:
        yield {name: postgres.dsn(database, user=APP_LOGIN) for name, database in databases.items()}


async def test_requests_for_an_unavailable_shard_get_503_and_readiness_names_it(
    addresses: dict[str, str], clock: ManualClock
) -> None:
    async with wire_to(addresses["b"]) as (wire, near):
        router = await open_sharded_store({**addresses, "b": near}, size=2, clock=clock)
        async with serving(router, clock, Options(auth=True, tenant=resident("a", "here"))) as guarded:
            here = await guarded.as_role("admin", "produce", "read")
            there = await guarded.as_role("admin", "produce", "read", tenant=resident("b", "there"))
            await there.enqueue()
            assert (await guarded.get("/readyz")).json()["status"] == "ok"
            wire.cut()
            await eventually(lambda: _degraded(guarded))
            assert (await guarded.get("/readyz")).json()["unreachable"] == ["b"]
            refused = problem(await there.post("/v1/jobs", {"type": "work"}), 503, "unavailable")
            assert "shard" not in refused["detail"], (
                "the response does not name the database that is down; /readyz names it"
            )
            await here.enqueue()
            assert len(here.ok(await here.get("/v1/jobs"))["items"]) == 1
            wire.restore()
            await eventually(lambda: _ready(guarded))
            assert len(there.ok(await there.get("/v1/jobs"))["items"]) == 1


async def test_a_service_whose_shards_all_hang_is_not_ready(
    addresses: dict[str, str], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with wire_to(addresses["a"]) as (one, near), wire_to(addresses["b"]) as (other, far):
        router = await open_sharded_store({"a": near, "b": far}, size=2, clock=clock)
        async with serving(router, clock, Options()) as api:
            assert (await api.get("/readyz")).json()["status"] == "ok"
            one.stall()
            other.stall()
            with monkeypatch.context() as soon:
                soon.setattr(routing, "RETRY_SECONDS", 0.01)
                problem(await api.get("/readyz"), 503, "unavailable")
                with pytest.raises(Unavailable, match="no shard"):
                    await router.unreachable()
            one.restore()
            other.restore()
            await eventually(lambda: _ready(api))


async def _degraded(api: Api) -> bool:
    return bool((await api.get("/readyz")).json()["status"] == "degraded")


async def _ready(api: Api) -> bool:
    return bool((await api.get("/readyz")).json().get("status") == "ok")
