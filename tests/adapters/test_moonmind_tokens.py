"""MoonMind's worker tokens: who they let in, and to what."""

from __future__ import annotations

import re
from typing import Any

import httpx2

from tests.adapters.responses import NEVER, RFC3339, json_of
from tests.adapters.test_moonmind_jobs import rejects
from tests.api.rig import Api
from tests.support.stores import ManualClock

BASE = "/api/queue"


async def created_link(admin: Api, body: bytes) -> tuple[str, dict[str, Any]]:
    made = json_of(await admin.send(f"{BASE}/workers/tokens", body), 201)
    assert list(made) == ["token", "workerToken"]
    return made["token"], made["workerToken"]


async def claimed(guarded: Api, token: str, body: bytes = b'{"workerId":"w1","leaseSeconds":60}') -> httpx2.Response:
    return await guarded.send(f"{BASE}/jobs/claim", body, x_moonmind_worker_token=token)


async def test_a_worker_token_is_shown_once_and_listed_without_its_secret(guarded: Api) -> None:
    admin = await guarded.as_role("admin")
    body = (
        b'{"workerId":"w1","description":"desk","allowedRepositories":["acme/site"],"allowedJobTypes":["t"],'
        b'"capabilities":["git"]}'
    )
    token, record = await created_link(admin, body)
    assert re.fullmatch(r"mmwt_[0-9a-f]{48}", token)
    created = record["createdAt"]
    assert RFC3339.fullmatch(created)
    assert record == {
        "id": record["id"], "workerId": "w1", "description": "desk", "allowedRepositories": ["acme/site"],
        "allowedJobTypes": ["t"], "capabilities": ["git"], "isActive": True, "createdAt": created,
    }  # fmt: skip
    listed = await admin.get(f"{BASE}/workers/tokens")
    assert json_of(listed, 200) == {"items": [record]}
    assert token not in listed.text


async def test_a_worker_claims_with_its_token_and_under_its_own_name_only(guarded: Api) -> None:
    admin, user = await guarded.as_role("admin"), await guarded.as_role("produce", "read")
    token, _ = await created_link(admin, b'{"workerId":"w1"}')
    id = json_of(await user.send(f"{BASE}/jobs", b'{"type":"t"}'), 201)["id"]
    rejects(await claimed(guarded, token, b'{"workerId":"w2","leaseSeconds":5}'), 403, "worker_not_authorized")
    job = json_of(await claimed(guarded, token), 200)["job"]
    assert (job["id"], job["claimedBy"]) == (id, "w1")
    other, _ = await created_link(admin, b'{"workerId":"w2"}')
    response = await guarded.send(f"{BASE}/jobs/{id}/complete", b'{"workerId":"w1"}', x_moonmind_worker_token=other)
    rejects(response, 403, "worker_not_authorized")


async def test_only_worker_tokens_can_be_revoked(guarded: Api) -> None:
    admin = await guarded.as_role("admin")
    own = [one["id"] for one in admin.ok(await admin.get("/v1/tokens"))["items"]]
    _, record = await created_link(admin, b'{"worker_id":"w1","allowedJobTypes":["t"," t ",""],"capabilities":[]}')
    assert (record["allowedJobTypes"], record["capabilities"]) == (["t"], [])
    for id in (*own, NEVER, "nonsense", "ffffffff-ffff-ffff-ffff-ffffffffffff"):
        rejects(await admin.post(f"{BASE}/workers/tokens/{id}/revoke"), 404, "worker_token_not_found")
    assert all(one["revoked_at"] is None for one in admin.ok(await admin.get("/v1/tokens"))["items"])
    for _ in range(2):
        ended = json_of(await admin.post(f"{BASE}/workers/tokens/{record['id'].upper()}/revoke"), 200)
        assert (ended["id"], ended["isActive"]) == (record["id"], False)


async def test_lists_of_tokens_have_up_to_500_and_descriptions_are_trimmed(guarded: Api) -> None:
    admin = await guarded.as_role("admin")
    made = [(await created_link(admin, b'{"workerId":"w","description":" mine "}'))[1] for _ in range(3)]
    listed = json_of(await admin.get(f"{BASE}/workers/tokens?limit=500"), 200)["items"]
    assert [one["id"] for one in listed] == [one["id"] for one in reversed(made)]
    assert {one["description"] for one in listed} == {"mine"}
    assert len({one["id"][:8] for one in listed}) == 3
    for limit in ("0", "501"):
        rejects(await admin.get(f"{BASE}/workers/tokens?limit={limit}"), 422, "invalid_queue_payload")


async def test_an_invalid_token_is_rejected(guarded: Api) -> None:
    for token in ("", "mmwt_", "mmwt_" + "0" * 48, "mmwt_" + "G" * 48, "ilk_" + "0" * 49):
        rejects(await claimed(guarded, token), 401, "worker_auth_failed")
    rejects(await guarded.send(f"{BASE}/jobs/claim", b"{}"), 401, "worker_auth_failed")
    rejects(await guarded.send(f"{BASE}/jobs", b"{}"), 401, "user_auth_failed")


async def test_a_worker_token_allows_only_worker_routes(guarded: Api) -> None:
    token, _ = await created_link(await guarded.as_role("admin"), b'{"workerId":"w1"}')
    headers = {"authorization": f"Bearer {token}"}
    for method, path in (("GET", "jobs"), ("POST", "jobs"), ("GET", "workers/tokens"), ("POST", "workers/tokens")):
        rejects(await guarded.call(method, f"{BASE}/{path}", headers=headers), 403, "user_not_authorized")


async def test_claimed_types_are_limited_to_those_of_the_token(guarded: Api) -> None:
    admin, user = await guarded.as_role("admin"), await guarded.as_role("produce")
    token, _ = await created_link(admin, b'{"workerId":"w1","allowedJobTypes":["mine"]}')
    json_of(await user.send(f"{BASE}/jobs", b'{"type":"other"}'), 201)
    assert json_of(await claimed(guarded, token), 200) == {"job": None}
    body = b'{"workerId":"w1","leaseSeconds":5,"allowedTypes":["other"]}'
    rejects(await claimed(guarded, token, body), 403, "worker_not_authorized")
    id = json_of(await user.send(f"{BASE}/jobs", b'{"type":"mine"}'), 201)["id"]
    body = b'{"workerId":"w1","leaseSeconds":5,"allowedTypes":["other","mine"]}'
    assert json_of(await claimed(guarded, token, body), 200)["job"]["id"] == id


async def test_the_capabilities_of_the_token_override_those_of_the_claim(guarded: Api) -> None:
    admin, user = await guarded.as_role("admin"), await guarded.as_role("produce")
    needy = b'{"type":"t","payload":{"requiredCapabilities":["git"],"repository":"acme/site"}}'
    id = json_of(await user.send(f"{BASE}/jobs", needy), 201)["id"]
    boast = b'{"workerId":"w1","leaseSeconds":5,"workerCapabilities":["git"]}'
    without, _ = await created_link(admin, b'{"workerId":"w1"}')
    assert json_of(await claimed(guarded, without, boast), 200) == {"job": None}
    elsewhere, _ = await created_link(
        admin, b'{"workerId":"w1","capabilities":["git"],"allowedRepositories":["acme/x"]}'
    )
    assert json_of(await claimed(guarded, elsewhere, boast), 200) == {"job": None}
    able, _ = await created_link(admin, b'{"workerId":"w1","capabilities":["git"]}')
    assert json_of(await claimed(guarded, able), 200)["job"]["id"] == id


async def test_a_job_without_a_repository_is_not_leased_to_a_token_bound_to_repositories(guarded: Api) -> None:
    admin, user = await guarded.as_role("admin"), await guarded.as_role("produce")
    id = json_of(await user.send(f"{BASE}/jobs", b'{"type":"t","payload":{}}'), 201)["id"]
    for bound in (b'["acme/site"]', b"[]"):
        token, _ = await created_link(admin, b'{"workerId":"w1","allowedRepositories":' + bound + b"}")
        assert json_of(await claimed(guarded, token), 200) == {"job": None}
    anywhere, _ = await created_link(admin, b'{"workerId":"w1","allowedRepositories":["*"]}')
    assert json_of(await claimed(guarded, anywhere), 200)["job"]["id"] == id


async def test_a_revoked_token_is_rejected(guarded: Api) -> None:
    admin = await guarded.as_role("admin")
    token, record = await created_link(admin, b'{"workerId":"w1"}')
    json_of(await claimed(guarded, token), 200)
    ended = json_of(await admin.post(f"{BASE}/workers/tokens/{record['id']}/revoke"), 200)
    assert ended == record | {"isActive": False}
    rejects(await claimed(guarded, token), 401, "worker_auth_failed")
    rejects(await admin.post(f"{BASE}/workers/tokens/{NEVER}/revoke"), 404, "worker_token_not_found")


async def test_a_worker_of_another_tenant_sees_nothing(guarded: Api, clock: ManualClock) -> None:
    user = await guarded.as_role("produce", "read")
    id = json_of(await user.send(f"{BASE}/jobs", b'{"type":"t"}'), 201)["id"]
    foreign = await guarded.as_role("admin", "read", tenant=f"{guarded.tenant}-other")
    token, _ = await created_link(foreign, b'{"workerId":"w1"}')
    assert json_of(await claimed(guarded, token), 200) == {"job": None}
    rejects(await foreign.get(f"{BASE}/jobs/{id}"), 404, "job_not_found")
    assert json_of(await foreign.get(f"{BASE}/jobs"), 200) == {"items": []}
    response = await guarded.send(
        f"{BASE}/jobs/{id}/heartbeat", b'{"workerId":"w1","leaseSeconds":5}', x_moonmind_worker_token=token
    )
    rejects(response, 404, "job_not_found")


async def test_worker_tokens_are_found_behind_other_tokens(guarded: Api) -> None:
    admin = await guarded.as_role("admin")
    made = [
        json_of(await admin.send(f"{BASE}/workers/tokens", b'{"workerId":"w%d"}' % n), 201)["workerToken"]["id"]
        for n in range(3)
    ]
    for _ in range(3):
        await guarded.as_role("read")
    listed = json_of(await admin.get(f"{BASE}/workers/tokens?limit=2"), 200)["items"]
    assert [one["id"] for one in listed] == made[:0:-1]
