"""Effects over HTTP: begun and settled by the lease holder, read by the tenant."""

from __future__ import annotations

from typing import Any

from tests.api.rig import NEVER, Api, pointer, problem


async def begin(api: Api, job: dict[str, Any], **more: Any) -> Any:
    body = {"fence": job["lease"]["fence"], "name": "charge", "occurrence": 1} | more
    return await api.post(f"/v1/jobs/{job['id']}/effects", body)


async def settle(api: Api, job: dict[str, Any], state: str, **more: Any) -> Any:
    body = {"fence": job["lease"]["fence"], "name": "charge", "occurrence": 1, "state": state} | more
    return await api.put(f"/v1/jobs/{job['id']}/effects", body)


async def test_an_effect_is_begun_settled_and_known_to_later_leases(api: Api) -> None:
    job = await api.running()
    first = api.ok(await begin(api, job, key="k1"), 201)
    assert {name: first[name] for name in ("name", "occurrence", "key", "state", "result", "attempt", "fence")} == {
        "name": "charge", "occurrence": 1, "key": "k1", "state": "started", "result": None, "attempt": 1,
        "fence": job["lease"]["fence"],
    }  # fmt: skip
    assert api.ok(await begin(api, job, key="k2")) == first
    api.ok(await api.post(f"/v1/jobs/{job['id']}/release", {"fence": job["lease"]["fence"]}))
    problem(await settle(api, job, "done"), 409, "not_running")
    (again,) = await api.claim()
    assert api.ok(await begin(api, again)) == first
    api.ok(await settle(api, again, "not_done"))
    assert api.ok(await begin(api, again), 201)["state"] == "started"
    done = api.ok(await settle(api, again, "done", result={"n": 1.5}))
    assert (done["state"], done["result"], done["attempt"]) == ("done", {"n": 1.5}, 1)
    assert api.ok(await settle(api, again, "done", result={"n": 1.5})) == done
    for other in (settle(api, again, "done", result=2), settle(api, again, "done"), settle(api, again, "not_done")):
        assert problem(await other, 409, "effect_conflict")["state"] == "done"
    assert api.ok(await begin(api, again)) == done
    assert api.ok(await api.get(f"/v1/jobs/{job['id']}/effects")) == {"items": [done], "next_cursor": None}


async def test_effects_are_listed_by_page(api: Api) -> None:
    job = await api.running()
    for name in ("a", "b", "c"):
        api.ok(await begin(api, job, name=name), 201)
    path = f"/v1/jobs/{job['id']}/effects?limit=2"
    first = api.ok(await api.get(path))
    rest = api.ok(await api.get(f"{path}&cursor={first['next_cursor']}"))
    assert [one["name"] for one in first["items"] + rest["items"]] == ["a", "b", "c"]


async def test_wrong_effects_are_rejected(api: Api) -> None:
    job = await api.running()
    problem(await settle(api, job, "done"), 404, "not_found")
    api.ok(await begin(api, job), 201)
    assert pointer(await settle(api, job, "started")) == "/state"
    assert pointer(await settle(api, job, "not_done", result=1)) == "/result"
    assert pointer(await begin(api, job, name="")) == "/name"
    assert pointer(await begin(api, job, key="")) == "/key"
    problem(await settle(api, job, "done", result="x" * 300_000), 413, "too_large")
    problem(await begin(api, job, fence=job["lease"]["fence"] + 1), 409, "lease_lost")
    problem(await begin(api, job | {"id": NEVER}), 404, "not_found")
    problem(await api.get(f"/v1/jobs/{NEVER}/effects"), 404, "not_found")
