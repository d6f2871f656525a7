"""Tenants over HTTP: what belongs to another is answered exactly like what does not exist (S01-S04)."""

from __future__ import annotations

from typing import Any

from interlock.domain.principal import ROLES
from tests.api.rig import NEVER, Api, pointer
from tests.api.world import WORKER, fill, make_world, native, request


async def everyone(api: Api, tenant: str) -> dict[str, Api]:
    """A caller for each role."""
    callers = {role: await api.as_role(role, tenant=tenant) for role in ROLES - {"work"}}
    callers["work"] = await api.as_role("work", tenant=tenant, worker_id=WORKER)
    return callers


async def test_an_id_of_another_tenant_gets_the_same_response_as_an_unknown_one(guarded: Api) -> None:
    theirs = await make_world(guarded, f"{guarded.tenant}-theirs")
    mine = await make_world(guarded, f"{guarded.tenant}-mine")
    callers = await everyone(guarded, mine.tenant)
    asked = 0
    for route in native():
        named = theirs.named(route)
        ids = {name: value for name, value in named.items() if "{" + name + "}" in route.path and name.endswith("_id")}
        if not ids:
            continue
        foreign = fill(route.path, named)
        unknown = fill(route.path, named | dict.fromkeys(ids, NEVER))
        for role in route.roles:
            first = await request(callers[role], route, theirs, path=foreign)
            second = await request(callers[role], route, theirs, path=unknown)
            assert first.status_code == second.status_code == 404, (route.method, route.path, first.text)
            assert _same(first, ids) == _same(second, dict.fromkeys(ids, NEVER)), route.path
            asked += 1
    assert asked > 25


async def test_ids_of_other_tenants_in_bodies_and_filters_find_nothing(guarded: Api) -> None:
    theirs = await make_world(guarded, f"{guarded.tenant}-theirs")
    callers = await everyone(guarded, f"{guarded.tenant}-mine")
    for job_id in (theirs.queued, NEVER):
        listed = await callers["read"].get("/v1/jobs", params={"parent": job_id})
        assert listed.json()["items"] == []
        assert (await callers["read"].get("/v1/approvals", params={"job": job_id})).json()["items"] == []
    first = await callers["produce"].post("/v1/jobs", {"type": "a", "parent_id": theirs.queued})
    second = await callers["produce"].post("/v1/jobs", {"type": "a", "parent_id": NEVER})
    assert first.status_code == second.status_code
    assert first.text.replace(theirs.queued, "X") == second.text.replace(NEVER, "X")
    for job_id in (theirs.running, NEVER):
        item = {"id": job_id, "fence": theirs.fence, "outcome": "complete"}
        (answer,) = callers["work"].ok(await callers["work"].post("/v1/finishes", {"items": [item]}))["items"]
        assert answer["error"]["code"] == "not_found"
        (answer,) = callers["work"].ok(
            await callers["work"].post("/v1/heartbeats", {"items": [{"id": job_id, "fence": theirs.fence}]})
        )["items"]
        assert answer["error"]["code"] == "not_found"


async def test_a_key_of_another_tenant_is_free(guarded: Api) -> None:
    first = await (await guarded.as_role("produce", tenant="a")).post("/v1/jobs", {"type": "x", "idempotency_key": "k"})
    second = await (await guarded.as_role("produce", tenant="b")).post(
        "/v1/jobs", {"type": "y", "idempotency_key": "k"}
    )
    assert (first.status_code, second.status_code) == (201, 201)


async def test_a_cursor_is_valid_for_one_list_of_one_tenant(guarded: Api) -> None:
    tenants = [f"{guarded.tenant}-{n}" for n in range(2)]
    readers = []
    for tenant in tenants:
        producer, reader = await guarded.as_role("produce", tenant=tenant), await guarded.as_role("read", tenant=tenant)
        for _ in range(2):
            await producer.enqueue()
        readers.append(reader)
    cursor = readers[0].ok(await readers[0].get("/v1/jobs", params={"limit": 1}))["next_cursor"]
    assert readers[0].ok(await readers[0].get("/v1/jobs", params={"cursor": cursor}))["items"]
    assert pointer(await readers[1].get("/v1/jobs", params={"cursor": cursor})) == "/cursor"
    assert pointer(await readers[0].get("/v1/types", params={"cursor": cursor})) == "/cursor"
    for n in range(len(cursor)):
        changed = cursor[:n] + ("A" if cursor[n] != "A" else "B") + cursor[n + 1 :]
        answer = await readers[0].get("/v1/jobs", params={"cursor": changed})
        # The last character of base64 may have bits that mean nothing.
        assert answer.status_code == 422 or n == len(cursor) - 1


async def test_the_history_head_reveals_nothing_about_other_tenants(guarded: Api) -> None:
    mine, theirs = await guarded.as_role("admin"), f"{guarded.tenant}-theirs"
    await make_world(guarded, guarded.tenant)
    head = mine.ok(await mine.get("/v1/audit/head"))
    await make_world(guarded, theirs)
    assert (
        mine.ok(await mine.get("/v1/audit/head")) == head == {"head": await guarded.engine.queries.head(guarded.tenant)}
    )
    admin = await guarded.as_role("admin", tenant=theirs)
    assert admin.ok(await admin.get("/v1/audit/head")) != head


def _same(response: Any, ids: dict[str, str]) -> str:
    text: str = response.text
    for id in ids.values():
        text = text.replace(id, "X")
    return text
