"""Who may call what: every route by every role, from the table itself, so that a new route without a row fails."""

from __future__ import annotations

from dataclasses import replace

import pytest

from interlock.api.routes import Route
from interlock.domain.principal import ROLES
from tests.api.rig import NEVER, Api, problem
from tests.api.world import WORKER, make_world, native, request

# The "who" column of the contract. A route that is not here has not been thought about.
WHO: dict[str, set[str]] = {
    "POST /v1/jobs": {"produce"},
    "POST /v1/jobs/batch": {"produce"},
    "GET /v1/jobs": {"read"},
    "GET /v1/jobs/{job_id}": {"read"},
    "PATCH /v1/jobs/{job_id}": {"operate"},
    "GET /v1/jobs/{job_id}/result": {"read"},
    "GET /v1/jobs/{job_id}/history": {"read"},
    "GET /v1/jobs/{job_id}/children": {"read"},
    "GET /v1/jobs/{job_id}/events": {"read"},
    "GET /v1/jobs/{job_id}/events/stream": {"read"},
    "GET /v1/events/stream": {"read"},
    "POST /v1/jobs/{job_id}/messages": {"operate"},
    "GET /v1/jobs/{job_id}/messages": {"read"},
    "POST /v1/topics/{topic}/messages": {"produce"},
    "POST /v1/jobs/{job_id}/effects": {"work"},
    "PUT /v1/jobs/{job_id}/effects": {"work"},
    "GET /v1/jobs/{job_id}/effects": {"read"},
    "POST /v1/jobs/{job_id}/streams/{name}": {"work"},
    "GET /v1/jobs/{job_id}/streams": {"read"},
    "GET /v1/jobs/{job_id}/streams/{name}": {"read"},
    "GET /v1/jobs/{job_id}/streams/{name}/follow": {"read"},
    "GET /v1/jobs/{job_id}/steps": {"read"},
    "GET /v1/jobs/{job_id}/artifacts": {"read"},
    "GET /v1/jobs/{job_id}/artifacts/{artifact_id}": {"read"},
    "POST /v1/jobs/{job_id}/cancel": {"operate"},
    "POST /v1/jobs/{job_id}/revoke": {"operate"},
    "POST /v1/jobs/{job_id}/run-now": {"operate"},
    "POST /v1/jobs/{job_id}/acknowledge": {"operate"},
    "POST /v1/claims": {"work"},
    "POST /v1/jobs/{job_id}/heartbeat": {"work"},
    "POST /v1/heartbeats": {"work"},
    "POST /v1/leases/watch": {"work"},
    "POST /v1/jobs/{job_id}/complete": {"work"},
    "POST /v1/jobs/{job_id}/fail": {"work"},
    "POST /v1/jobs/{job_id}/release": {"work"},
    "POST /v1/jobs/{job_id}/cancel/ack": {"work"},
    "POST /v1/finishes": {"work"},
    "PUT /v1/jobs/{job_id}/checkpoint": {"work"},
    "POST /v1/jobs/{job_id}/steps": {"work"},
    "POST /v1/jobs/{job_id}/events": {"work"},
    "PUT /v1/jobs/{job_id}/artifacts": {"work"},
    "POST /v1/jobs/{job_id}/artifacts": {"work"},
    "POST /v1/jobs/{job_id}/approvals": {"work"},
    "GET /v1/approvals": {"read", "approve"},
    "GET /v1/approvals/{approval_id}": {"read", "approve"},
    "POST /v1/approvals/{approval_id}/token": {"approve"},
    "POST /v1/approvals/{approval_id}/decide": {"approve"},
    "PUT /v1/types/{name}": {"admin"},
    "GET /v1/types/{name}": {"read"},
    "DELETE /v1/types/{name}": {"admin"},
    "GET /v1/types": {"read"},
    "PUT /v1/agents/{kind}/{id}": {"admin"},
    "GET /v1/agents/{kind}/{id}": {"read"},
    "DELETE /v1/agents/{kind}/{id}": {"admin"},
    "GET /v1/agents": {"read"},
    "GET /v1/queues": {"read"},
    "GET /v1/queues/{type}": {"read"},
    "POST /v1/queues/{type}/pause": {"operate"},
    "POST /v1/queues/{type}/resume": {"operate"},
    "PUT /v1/limits/{name}": {"admin"},
    "GET /v1/limits": {"read"},
    "GET /v1/limits/{name}": {"read"},
    "GET /v1/limits/{name}/keys": {"read"},
    "DELETE /v1/limits/{name}": {"admin"},
    "POST /v1/limits/{name}/hold": {"work", "operate"},
    "POST /v1/limits/{name}/release": {"operate"},
    "PUT /v1/budgets/{name}": {"admin"},
    "GET /v1/budgets": {"read"},
    "GET /v1/budgets/{name}": {"read"},
    "POST /v1/budgets/{name}/raise": {"operate"},
    "DELETE /v1/budgets/{name}": {"admin"},
    "GET /v1/usage": {"read"},
    "GET /v1/jobs/{job_id}/budget": {"read"},
    "POST /v1/jobs/{job_id}/budget/raise": {"operate"},
    "PUT /v1/channels/{name}": {"admin"},
    "GET /v1/channels": {"admin"},
    "GET /v1/channels/{name}": {"admin"},
    "DELETE /v1/channels/{name}": {"admin"},
    "POST /v1/channels/{name}/test": {"admin"},
    "PUT /v1/schedules/{name}": {"operate"},
    "GET /v1/schedules": {"read"},
    "GET /v1/schedules/{name}": {"read"},
    "DELETE /v1/schedules/{name}": {"operate"},
    "POST /v1/schedules/{name}/pause": {"operate"},
    "POST /v1/schedules/{name}/resume": {"operate"},
    "POST /v1/schedules/{name}/run": {"operate"},
    "GET /v1/schedules/{name}/preview": {"read"},
    "POST /v1/subscriptions": {"operate"},
    "GET /v1/subscriptions": {"operate"},
    "GET /v1/subscriptions/{subscription_id}": {"operate"},
    "DELETE /v1/subscriptions/{subscription_id}": {"operate"},
    "POST /v1/subscriptions/{subscription_id}/renew": {"operate"},
    "POST /v1/subscriptions/{subscription_id}/rotate": {"operate"},
    "GET /v1/subscriptions/{subscription_id}/deliveries": {"operate"},
    "POST /v1/subscriptions/{subscription_id}/deliveries/{delivery_id}/redeliver": {"operate"},
    "POST /v1/tokens": {"admin"},
    "GET /v1/tokens": {"admin"},
    "POST /v1/tokens/{token_id}/revoke": {"admin"},
    "POST /v1/jobs/{job_id}/redrive": {"operate"},
    "POST /v1/jobs/bulk": {"operate"},
    "GET /v1/jobs/{job_id}/why": {"read"},
    "GET /v1/workers": {"read"},
    "POST /v1/prune": {"admin"},
    "GET /v1/audit/verify": {"admin"},
    "GET /v1/audit/head": {"admin"},
    "GET /v1/audit/log": {"read"},
    "GET /v1/me": set(ROLES),
    "GET /metrics": {"operate"},
}  # fmt: skip
OPEN = {"GET /healthz", "GET /readyz", "POST /v1/approvals/decide", "GET /openapi.json", "GET /docs"}


def key(route: Route) -> str:
    return f"{route.method} {route.path}"


async def test_every_route_has_a_row_and_every_row_a_route(api: Api) -> None:
    document = (await api.get("/openapi.json")).json()
    documented = {f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods}
    assert documented | {"GET /openapi.json", "GET /docs"} == set(WHO) | OPEN


async def test_every_route_requires_its_roles_and_no_others(guarded: Api) -> None:
    """S21: each role on each route; a missing role is 403 and reveals nothing about the resource."""
    world = await make_world(guarded, guarded.tenant)
    callers = {role: await guarded.as_role(role) for role in sorted(ROLES - {"work"})}
    callers["work"] = await guarded.as_role("work", worker_id="somebody-else")
    for route in native():
        for role, caller in callers.items():
            if role in WHO[key(route)]:
                continue
            problem(await request(caller, route, world), 403, "forbidden")
            unknown = world.path(route).replace(world.queued, NEVER).replace(world.running, NEVER)
            response = await request(caller, route, world, path=unknown)
            may_send = route.name == "send_message" and role in ("produce", "work")  # to some jobs of the tenant
            problem(response, *((404, "not_found") if may_send else (403, "forbidden")))


async def test_a_caller_with_the_role_is_not_rejected(guarded: Api) -> None:
    to_read = await make_world(guarded, guarded.tenant)
    for route in native():
        for role in sorted(WHO[key(route)]):
            is_read = route.method == "GET"
            world = to_read if is_read else await make_world(guarded, f"{guarded.tenant}-{route.name}-{role}")
            policy = {"worker_id": WORKER} if role == "work" else {}
            caller = await guarded.as_role(role, tenant=world.tenant, **policy)
            response = await request(caller, route, world)
            conflicts = {"acknowledge_cancel", "redrive", "acknowledge", "delete_limit"}
            expected = (
                {409} if route.name in conflicts else {404} if route.name == "redeliver" else {200, 201, 202, 204}
            )
            assert response.status_code in expected, (key(route), role, response.text)


async def test_without_a_credential_only_public_routes_are_open(guarded: Api) -> None:
    """S05: every bad credential gets one answer."""
    world = await make_world(guarded, guarded.tenant)
    good = await guarded.as_role("read")
    assert good.token is not None
    bodies = set()
    junk = [
        "",
        "nothing",
        "x" * 3000,
        good.token[:-1],
        good.token.swapcase(),
        good.token + "x",
        f"{good.token} x",
        "ilk_",
    ]
    for route in native():
        response = await request(guarded, route, world)
        problem(response, 401, "unauthenticated")
        assert response.headers["www-authenticate"] == "Bearer"
        bodies.add(response.content)
    for bad in junk:
        for header in (f"Bearer {bad}", bad, f"Basic {bad}"):
            if header.strip() not in ("", "Bearer", "Basic"):
                response = await guarded.get("/v1/me", headers={"authorization": header})
                assert response.status_code == 401
                bodies.add(response.content)
    assert len(bodies) == 1


async def test_an_unauthenticated_caller_is_rejected_before_the_body_is_read(guarded: Api) -> None:
    """S16: a body of any size from an unknown caller costs nothing."""
    response = await guarded.http.post(
        "/v1/jobs",
        content=b"x" * 900_000,
        headers={"content-type": "application/json", "authorization": "Bearer nothing"},
    )
    problem(response, 401, "unauthenticated")
    assert guarded.service.admission.body_bytes == 0


async def test_the_word_bearer_is_case_insensitive(guarded: Api) -> None:
    reader = await guarded.as_role("read")
    response = await guarded.get("/v1/me", headers={"authorization": f"bEARER {reader.token}"})
    assert response.status_code == 200


async def test_me_describes_the_caller(guarded: Api) -> None:
    worker = await guarded.as_role("work", "read", worker_id="w1")
    me = worker.ok(await worker.get("/v1/me"))
    assert me == {
        "tenant": guarded.tenant,
        "actor": "worker:w1",
        "roles": ["read", "work"],
        "worker": "w1",
        "auth": True,
    }


async def test_a_producer_may_cancel_its_own_jobs_and_no_others(guarded: Api) -> None:
    mine, other = await guarded.as_role("produce"), await guarded.as_role("produce")
    job = await mine.enqueue()
    refused = await other.post(f"/v1/jobs/{job['id']}/cancel")
    unknown = await other.post(f"/v1/jobs/{NEVER}/cancel")
    problem(refused, 403, "forbidden")
    assert refused.content == unknown.content
    assert mine.ok(await mine.post(f"/v1/jobs/{job['id']}/cancel"))["status"] == "cancelled"


async def test_who_may_send_a_message(guarded: Api) -> None:
    mine, other = await guarded.as_role("produce"), await guarded.as_role("produce")
    holder, idle = await guarded.as_role("work", worker_id="w1"), await guarded.as_role("work", worker_id="w2")
    operator, foreign = await guarded.as_role("operate"), await guarded.as_role("produce", "operate", tenant="other")
    job = await mine.enqueue()
    path, message = f"/v1/jobs/{job['id']}/messages", {"name": "note"}
    for api in (other, holder, idle, await guarded.as_role("read", "approve", "admin")):
        problem(await api.post(path, message), 403, "forbidden")
    problem(await foreign.post(path, message), 404, "not_found")
    problem(await (await guarded.as_role("produce", tenant="other")).post(path, message), 404, "not_found")
    for api in (mine, other, holder, operator):
        problem(await api.post(f"/v1/jobs/{NEVER}/messages", message), 404, "not_found")
    await holder.claim()
    for api in (mine, holder, operator):
        api.ok(await api.post(path, message), 201)
    problem(await idle.post(path, message), 403, "forbidden")


async def test_the_lease_holder_may_read_its_job_and_related_data(guarded: Api) -> None:
    producer = await guarded.as_role("produce")
    holder = await guarded.as_role("work", worker_id="w1")
    other = await guarded.as_role("work", worker_id="w10")
    job = await producer.enqueue(budget={"usd": 1})
    for path in ("", "/steps", "/artifacts", "/children", "/result", "/budget"):
        problem(await holder.get(f"/v1/jobs/{job['id']}{path}"), 403, "forbidden")
    (held,) = await holder.claim(worker="w1/a")
    child = await producer.enqueue(parent_id=held["id"])
    for path in ("", "/steps", "/artifacts", "/children", "/result", "/budget"):
        assert (await holder.get(f"/v1/jobs/{job['id']}{path}")).status_code in (200, 202)
        problem(await other.get(f"/v1/jobs/{job['id']}{path}"), 403, "forbidden")
    assert (await holder.job(child["id"]))["id"] == child["id"]
    problem(await holder.get("/v1/jobs"), 403, "forbidden")
    holder.ok(await holder.post(f"/v1/jobs/{job['id']}/complete", {"fence": held["lease"]["fence"]}))
    problem(await holder.get(f"/v1/jobs/{job['id']}"), 403, "forbidden")


async def test_a_worker_uses_its_own_name_or_an_instance_of_it(guarded: Api) -> None:
    worker = await guarded.as_role("work", worker_id="w1")
    for name in (None, "w1", "w1/a"):
        assert (await worker.post("/v1/claims", {} if name is None else {"worker": name})).status_code == 200
    for name in ("w2", "w10", "w1/", "W1", "w1 /a"):
        assert (await worker.post("/v1/claims", {"worker": name})).status_code in (403, 422)
    problem(await worker.post("/v1/claims", {"worker": "w2"}), 403, "forbidden")


async def test_an_item_that_names_another_worker_is_rejected_alone(guarded: Api) -> None:
    worker = await guarded.as_role("work", "produce", worker_id="mine")
    job = await worker.running()
    own = {"id": job["id"], "fence": job["lease"]["fence"]}
    heartbeats = worker.ok(await worker.post("/v1/heartbeats", {"items": [own | {"worker": "other"}, own]}))["items"]
    items = [own | {"outcome": "release", "worker": "other"}, own | {"outcome": "complete"}]
    ends = worker.ok(await worker.post("/v1/finishes", {"items": items}))["items"]
    assert [heartbeats[0]["error"]["code"], ends[0]["error"]["code"]] == ["forbidden"] * 2
    assert (heartbeats[1]["cancel_requested"], ends[1]["status"]) == (False, "succeeded")


async def test_a_worker_cannot_finish_the_job_of_another(guarded: Api) -> None:
    producer = await guarded.as_role("produce")
    first, second = await guarded.as_role("work", worker_id="w1"), await guarded.as_role("work", worker_id="w2")
    job = await producer.enqueue()
    (held,) = await first.claim()
    body = {"fence": held["lease"]["fence"]}
    problem(await second.post(f"/v1/jobs/{job['id']}/complete", body), 409, "lease_lost")
    problem(await second.post(f"/v1/jobs/{job['id']}/complete", body | {"worker": "w1"}), 403, "forbidden")
    (answer,) = second.ok(
        await second.post("/v1/finishes", {"items": [{"id": job["id"], "outcome": "complete", **body}]})
    )["items"]
    assert answer["error"]["code"] == "lease_lost"
    assert first.ok(await first.post(f"/v1/jobs/{job['id']}/complete", body))["status"] == "succeeded"


async def test_a_claim_is_narrowed_to_the_policy_of_the_token(guarded: Api) -> None:
    producer = await guarded.as_role("produce")
    gpu = await producer.enqueue(type="a", requires=["gpu"])
    await producer.enqueue(type="b")
    await producer.enqueue(type="a", requires=["root"])
    worker = await guarded.as_role("work", worker_id="w1", types=["a"], capabilities=["gpu"])
    leased = await worker.claim(limit=10, capabilities=["gpu", "root"], types=["a", "b"])
    assert [job["id"] for job in leased] == [gpu["id"]]
    assert (
        await (await guarded.as_role("work", worker_id="w2", types=["a"])).claim(limit=10, capabilities=["gpu"]) == []
    )
    more = await producer.enqueue(type="a", requires=["gpu"])
    assert [job["id"] for job in await worker.claim(limit=10)] == [more["id"]]


@pytest.mark.parametrize(
    ("allowed", "gets"), [(None, "abc"), (["*"], "abc"), (["org/b.git"], "b"), (["org/b", "org/a"], "ab"), ([], "")]
)
async def test_a_token_gets_only_jobs_of_its_repositories(guarded: Api, allowed: list[str] | None, gets: str) -> None:
    producer, reader = await guarded.as_role("produce"), await guarded.as_role("read")
    jobs = {"a": "org/a", "b": "org/b", "c": None}
    made = {(await producer.enqueue(type="t", repository=where))["id"]: name for name, where in jobs.items()}
    worker = await guarded.as_role("work", worker_id="w1", repositories=allowed)
    leased = {made[job["id"]] for job in await worker.claim(limit=10)}
    assert leased == set(gets)
    for id, name in made.items():
        why = reader.ok(await reader.get(f"/v1/jobs/{id}/why"))
        assert why["clause"] == ("running" if name in leased else "no_worker_for_repository")


async def test_a_revoked_token_is_rejected(guarded: Api) -> None:
    admin = await guarded.as_role("admin")
    made = admin.ok(await admin.post("/v1/tokens", {"roles": ["read"], "description": "for a day"}), 201)
    reader = replace(guarded, token=made["token"])
    assert (await reader.get("/v1/me")).status_code == 200
    listed = admin.ok(await admin.get("/v1/tokens"))["items"]
    assert made["id"] in [one["id"] for one in listed]
    assert made["token"] not in str(listed)
    assert admin.ok(await admin.post(f"/v1/tokens/{made['id']}/revoke"))["revoked_at"]
    problem(await reader.get("/v1/me"), 401, "unauthenticated")


@pytest.mark.parametrize("roles", [["work", "approve"], ["work", "admin"], ["work", "operate"], ["root"], []])
async def test_invalid_roles_are_rejected(guarded: Api, roles: list[str]) -> None:
    admin = await guarded.as_role("admin")
    problem(await admin.post("/v1/tokens", {"roles": roles}), 422, "invalid")
