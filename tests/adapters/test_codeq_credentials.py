"""codeQ's own credentials: static ones, signed tokens, several kinds together, and what their claims allow."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from joserfc.jwk import RSAKey

from interlock import assemble, config
from interlock.api.options import Options
from interlock.errors import Invalid
from interlock.storage.contract import Store
from interlock.storage.object_store.s3 import S3Objects
from tests.adapters.responses import NEVER, assert_response, json_of
from tests.api.rig import Api, serving
from tests.support.stores import ManualClock

BASE = "/v1/codeq"
TASK = b'{"command":"render","payload":{}}'
ISSUER, AUDIENCE = "https://id.example.org", "codeq"
KEY = RSAKey.import_key({**RSAKey.generate_key(2048).as_dict(private=True), "kid": "k1"})
STRANGER = RSAKey.import_key({**RSAKey.generate_key(2048).as_dict(private=True), "kid": "k1"})
JWKS = {"type": "jwks", "issuer": ISSUER, "audience": AUDIENCE, "jwksUrl": "https://id.example.org/keys"}
SCOPES = "codeq:claim codeq:heartbeat codeq:abandon codeq:nack codeq:result codeq:subscribe"


def static(token: str, **more: Any) -> dict[str, Any]:
    return {"type": "static", "token": token, "raw": {"tid": "acme"}, **more}


def jwt(key: RSAKey = KEY, header: dict[str, Any] | None = None, **claims: Any) -> str:
    """A token signed by hand: RS256 over two parts in base64, as a client of codeQ would bring it."""
    now = int(time.time())
    body = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "tid": "acme", "exp": now + 600, **claims}
    body = {name: value for name, value in body.items() if value is not None}
    head = {"alg": "RS256", "typ": "JWT", "kid": "k1", **(header or {})}
    head = {name: value for name, value in head.items() if value is not None}
    start = b".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in (head, body))
    private = key.private_key
    assert private is not None
    signature = private.sign(start, padding.PKCS1v15(), hashes.SHA256())
    return (start + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")).decode()


def bearing(api: Api, token: str) -> Api:
    return replace(api, token=token)


async def keys(url: str) -> bytes:
    assert url == "https://id.example.org/keys"
    return json.dumps({"keys": [KEY.as_dict(private=False)]}).encode()


class CodeqServer:
    """A server whose codeQ adapter knows the callers that a test names."""

    def __init__(self, store: Store, clock: ManualClock, stack: AsyncExitStack) -> None:
        self._store, self._clock, self._stack = store, clock, stack

    async def __call__(self, **settings: Any) -> Api:
        given = {name: value if isinstance(value, bool) else json.dumps(value) for name, value in settings.items()}
        loaded = config.load({**given, "faces": "codeq"}, environ={})
        faces = await self._stack.enter_async_context(assemble.open_adapters(loaded, keys))
        options = Options(auth=True, faces=faces)
        return await self._stack.enter_async_context(
            serving(self._store, self._clock, options, objects=S3Objects.in_memory())
        )


@pytest.fixture
def engine() -> str:
    """Claims are read before any store is asked, so one engine will do."""
    return "sqlite"


@pytest.fixture
async def adapter(store: Store, clock: ManualClock) -> AsyncIterator[CodeqServer]:
    async with AsyncExitStack() as stack:
        yield CodeqServer(store, clock, stack)


async def test_a_static_credential_is_one_exact_string(adapter: CodeqServer) -> None:
    api = await adapter(codeq_producers=[static("producer-secret", subject="shop")])
    producer = bearing(api, "producer-secret")
    task = json_of(await producer.send(f"{BASE}/tasks", TASK), 202)
    assert task["tenantId"] == "acme"
    assert (await api.engine.queries.job("acme", task["id"])).created_by == "user:codeq/shop"
    json_of(await producer.get(f"{BASE}/tasks/{task['id']}"), 200)
    for wrong in ("producer-secre", "producer-secret2", "Producer-secret", "x"):
        assert_response(await bearing(api, wrong).send(f"{BASE}/tasks", TASK), 401, b'{"error":"unauthorized"}')
    assert_response(await producer.send(f"{BASE}/tasks/claim", b"{}"), 401, b'{"error":"unauthorized"}')
    assert (await producer.get("/v1/jobs")).status_code == 401  # it is valid in this adapter only


async def test_a_worker_has_commands_and_scopes_and_the_name_of_its_subject(adapter: CodeqServer) -> None:
    api = await adapter(
        codeq_producers=[static("p")],
        codeq_workers=[static("w", subject="bob", eventTypes=["render"], scopes=SCOPES.split())],
    )
    producer, worker = bearing(api, "p"), bearing(api, "w")
    id = json_of(await producer.send(f"{BASE}/tasks", TASK), 202)["id"]
    assert_response(
        await worker.send(f"{BASE}/tasks/claim", b'{"commands":["paint"]}'), 403,
        b'{"error":"event type not allowed"}',
    )  # fmt: skip
    task = json_of(await worker.send(f"{BASE}/tasks/claim", b'{"commands":["render"]}'), 200)
    assert (task["id"], task["workerId"]) == (id, "bob")
    json_of(await worker.get(f"{BASE}/tasks/{id}"), 200)
    assert_response(await worker.send(f"{BASE}/tasks", TASK), 401, b'{"error":"unauthorized"}')
    with_file = b'{"status":"COMPLETED","result":{},"artifacts":[{"name":"a.txt","contentBase64":"aGk="}]}'
    (file,) = json_of(await worker.send(f"{BASE}/tasks/{id}/result", with_file), 200)["artifacts"]
    for caller in (producer, worker):
        read = await caller.get(file["url"])
        assert (read.status_code, read.content) == (200, b"hi")
        assert read.headers["content-disposition"] == "attachment; filename*=UTF-8''a.txt"
    assert_response(await api.get(file["url"]), 401, b'{"error":"unauthorized"}')
    assert_response(await producer.get(f"{BASE}/tasks/{id}/artifacts/{NEVER}"), 404, b'{"error":"not found"}')


async def test_the_commands_of_a_worker_allow_every_spelling_in_the_queue(adapter: CodeqServer) -> None:
    api = await adapter(
        codeq_producers=[static("p")],
        codeq_workers=[static("w", subject="bob", eventTypes=["render"], scopes=SCOPES.split())],
    )
    producer, worker = bearing(api, "p"), bearing(api, "w")
    for body in (b'{"commands":["render"]}', b"{}"):
        id = json_of(await producer.send(f"{BASE}/tasks", TASK.replace(b"render", b"RENDER")), 202)["id"]
        task = json_of(await worker.send(f"{BASE}/tasks/claim", body), 200)
        assert (task["id"], task["command"]) == (id, "RENDER")
    assert_response(
        await worker.send(f"{BASE}/tasks/claim", b'{"commands":["RENDER"]}'), 403,
        b'{"error":"event type not allowed"}',
    )  # fmt: skip


@pytest.mark.parametrize(
    ("scope", "method_and_path", "body"),
    [
        ("codeq:claim", "tasks/claim", b"{}"),
        ("codeq:claim", "tasks/claim/batch", b'{"count":1}'),
        ("codeq:heartbeat", f"tasks/{NEVER}/heartbeat", b"{}"),
        ("codeq:abandon", f"tasks/{NEVER}/abandon", b""),
        ("codeq:nack", f"tasks/{NEVER}/nack", b"{}"),
        ("codeq:result", f"tasks/{NEVER}/result", b'{"status":"COMPLETED"}'),
        ("codeq:result", "tasks/batch/results", b'{"results":[{"taskId":"x","status":"COMPLETED"}]}'),
        ("codeq:subscribe", "workers/subscriptions", b'{"callbackUrl":"https://hooks.example.org/x"}'),
        ("codeq:subscribe", f"workers/subscriptions/{NEVER}/heartbeat", b"{}"),
    ],
)
async def test_each_operation_of_a_worker_needs_its_scope(
    adapter: CodeqServer, scope: str, method_and_path: str, body: bytes
) -> None:
    others = " ".join(sorted(set(SCOPES.split()) - {scope}))
    api = await adapter(codeq_workers=[JWKS])
    path = f"{BASE}/{method_and_path}"
    without = bearing(api, jwt(eventTypes=["*"], scope=others))
    assert_response(await without.send(path, body), 403, b'{"error":"missing scope"}')
    assert (await bearing(api, jwt(eventTypes=["*"], scope=scope)).send(path, body)).status_code in (200, 204, 404)


async def test_a_worker_with_incomplete_claims_is_not_authenticated(adapter: CodeqServer) -> None:
    api = await adapter(codeq_workers=[JWKS])
    for claims, text in (
        ({"scope": SCOPES}, b"missing eventTypes"),
        ({"scope": SCOPES, "eventTypes": []}, b"missing eventTypes"),
        ({"scope": SCOPES, "eventTypes": "render"}, b"missing eventTypes"),
        ({"eventTypes": ["*"]}, b"missing scope"),
        ({"eventTypes": ["*"], "scope": " "}, b"missing scope"),
    ):
        response = await bearing(api, jwt(**claims)).send(f"{BASE}/tasks/claim", b"{}")
        assert_response(response, 401, b'{"error":"%b"}' % text)


async def test_a_signed_token_must_be_valid(adapter: CodeqServer) -> None:
    api = await adapter(codeq_producers=[JWKS])
    json_of(await bearing(api, jwt()).send(f"{BASE}/tasks", TASK), 202)
    json_of(await bearing(api, jwt(exp=int(time.time()) - 5)).send(f"{BASE}/tasks", TASK), 202)  # a minute of leeway
    for bad in (
        jwt(STRANGER),
        jwt(iss="https://evil.example.org"),
        jwt(aud="other"),
        jwt(exp=int(time.time()) - 120),
        jwt(sub=None),
        jwt(header={"kid": None}),
        jwt(header={"kid": "k2"}),
        jwt(header={"alg": "none"}),
        jwt(header={"alg": "HS256"}),
        jwt()[:-8],
    ):
        assert_response(await bearing(api, bad).send(f"{BASE}/tasks", TASK), 401, b'{"error":"unauthorized"}')


async def test_the_first_provider_that_knows_a_credential_decides(adapter: CodeqServer) -> None:
    first, second = static("same", subject="first"), static("same", subject="second", raw={"tid": "other"})
    api = await adapter(codeq_producers=[first, JWKS, second])
    assert json_of(await bearing(api, "same").send(f"{BASE}/tasks", TASK), 202)["tenantId"] == "acme"
    assert json_of(await bearing(api, jwt(tid="corp")).send(f"{BASE}/tasks", TASK), 202)["tenantId"] == "corp"
    own = await api.as_role("produce", tenant="native")
    assert json_of(await own.send(f"{BASE}/tasks", TASK), 202)["tenantId"] == "native"


async def test_the_tenant_has_several_names_but_one_value(adapter: CodeqServer) -> None:
    api = await adapter(codeq_producers=[JWKS])
    for claims in (
        {"tid": "corp"},
        {"tid": None, "tenantId": "corp"},
        {"tid": None, "tenant_id": "corp"},
        {"tid": None, "organizationId": "corp"},
        {"tid": None, "organization_id": "corp"},
        {"tid": "corp", "tenantId": "corp", "organization_id": "corp"},
    ):
        assert json_of(await bearing(api, jwt(**claims)).send(f"{BASE}/tasks", TASK), 202)["tenantId"] == "corp"


@pytest.mark.parametrize("for_worker", [False, True])
async def test_an_ambiguous_tenant_is_rejected(adapter: CodeqServer, for_worker: bool) -> None:
    api = await adapter(codeq_producers=[JWKS], codeq_workers=[JWKS])
    for claims in (
        {"tid": None},
        {"tid": "corp", "tenantId": "other"},
        {"tid": "corp", "organizationId": 7},
        {"tid": 7},
        {"tid": ""},
        {"tid": "Corp"},
        {"tid": "c"},
        {"tid": "-corp"},
        {"tid": " corp"},
        {"tid": "corp\n"},
        {"tid": "c" * 64},
        {"tid": ["corp"]},
        {"tid": None, "tenant_id": "codeq-sub:ada"},
    ):
        more: dict[str, Any] = {"eventTypes": ["*"], "scope": SCOPES} if for_worker else {}
        path = "tasks/claim" if for_worker else "tasks"
        response = await bearing(api, jwt(**claims, **more)).send(f"{BASE}/{path}", TASK)
        assert_response(response, 403, b'{"error":"invalid tenant claims"}')


async def test_a_subject_is_a_tenant_only_if_configured_and_never_an_existing_one(adapter: CodeqServer) -> None:
    api = await adapter(codeq_producers=[JWKS], codeq_tenant_from_sub=True)
    native = await api.as_role("produce", tenant="ada")
    id = json_of(await native.send(f"{BASE}/tasks", TASK), 202)["id"]
    ada = bearing(api, jwt(tid=None))
    assert_response(await ada.get(f"{BASE}/tasks/{id}"), 404, b'{"error":"not found"}')
    assert json_of(await ada.send(f"{BASE}/tasks", TASK), 202)["tenantId"] == "codeq-sub:ada"
    doubtful = bearing(api, jwt(tid="A"))
    assert_response(await doubtful.send(f"{BASE}/tasks", TASK), 403, b'{"error":"invalid tenant claims"}')


async def test_an_admin_is_a_producer_with_a_scope_or_a_role(adapter: CodeqServer) -> None:
    api = await adapter(
        codeq_producers=[JWKS, static("plain"), static("boss", scopes=["codeq:admin"])], codeq_workers=[static("w")]
    )
    for token in ("boss", jwt(scope="a codeq:admin b"), jwt(role="ADMIN"), jwt(role="admin")):
        admin = bearing(api, token)
        json_of(await admin.get(f"{BASE}/admin/queues"), 200)
        json_of(await admin.send(f"{BASE}/admin/tasks/cleanup", b""), 200)
        assert_response(await admin.post(f"{BASE}/tasks/{NEVER}/requeue"), 404, b'{"error":"not found"}')
    for token in ("plain", "w", jwt(), jwt(role="USER"), jwt(role=["ADMIN"]), jwt(scope="codeq:administrator")):
        for path in ("admin/queues", "admin/queues/render", "admin/tasks"):
            response = await bearing(api, token).get(f"{BASE}/{path}", headers={"x-role": "ADMIN"})
            assert_response(response, 401, b'{"error":"unauthorized. Admin only"}')


async def test_in_development_a_header_makes_a_producer_admin(adapter: CodeqServer) -> None:
    api = await adapter(codeq_producers=[static("p")], codeq_development=True)
    producer, worker = bearing(api, "p"), await api.as_role("work", worker_id="w")
    assert_response(await producer.get(f"{BASE}/admin/queues"), 401, b'{"error":"unauthorized. Admin only"}')
    json_of(await producer.get(f"{BASE}/admin/queues", headers={"x-role": "ADMIN"}), 200)
    for caller in (worker, api):
        response = await caller.get(f"{BASE}/admin/queues", headers={"x-role": "ADMIN"})
        assert_response(response, 401, b'{"error":"unauthorized. Admin only"}')


async def test_a_producer_works_only_if_configured(adapter: CodeqServer) -> None:
    api = await adapter(codeq_producers=[static("p", subject="dev")], codeq_producer_as_worker=True)
    producer = bearing(api, "p")
    id = json_of(await producer.send(f"{BASE}/tasks", TASK), 202)["id"]
    task = json_of(await producer.send(f"{BASE}/tasks/claim", b'{"commands":["render"]}'), 200)
    assert (task["id"], task["workerId"]) == (id, "dev")
    assert_response(await producer.send(f"{BASE}/tasks/{id}/heartbeat", b"{}"), 200, b'{"ok":true}')
    assert_response(await bearing(api, "x").send(f"{BASE}/tasks/claim", b"{}"), 401, b'{"error":"unauthorized"}')


async def test_tenants_of_codeq_share_neither_tasks_nor_keys(adapter: CodeqServer) -> None:
    api = await adapter(codeq_producers=[JWKS], codeq_workers=[JWKS])
    one, two = bearing(api, jwt(tid="one-co")), bearing(api, jwt(tid="two-co"))
    worker = bearing(api, jwt(tid="two-co", eventTypes=["*"], scope=SCOPES))
    body = b'{"command":"render","payload":{},"idempotencyKey":"same"}'
    first, second = (
        json_of(await one.send(f"{BASE}/tasks", body), 202),
        json_of(await two.send(f"{BASE}/tasks", body), 202),
    )
    assert first["id"] != second["id"]
    assert_response(await two.get(f"{BASE}/tasks/{first['id']}"), 404, b'{"error":"not found"}')
    assert_response(await two.get(f"{BASE}/tasks/{first['id']}/result"), 404, b'{"error":"task not found"}')
    assert_response(await worker.send(f"{BASE}/tasks/{first['id']}/nack", b"{}"), 404, b'{"error":"not-found"}')
    assert json_of(await worker.send(f"{BASE}/tasks/claim", b"{}"), 200)["id"] == second["id"]


@pytest.mark.parametrize(
    ("table", "pointer"),
    [
        ({"type": "ldap"}, "/codeq_workers/1/type"),
        ({"type": "static"}, "/codeq_workers/1/token"),
        ({"type": "static", "token": " "}, "/codeq_workers/1/token"),
        ({"type": "static", "token": "x", "tenant": "y"}, "/codeq_workers/1/tenant"),
        ({"type": "static", "token": "x", "scopes": "a b"}, "/codeq_workers/1/scopes"),
        ({"type": "static", "token": "x", "raw": []}, "/codeq_workers/1/raw"),
        ({**JWKS, "algorithms": ["HS256"]}, "/codeq_workers/1/algorithms"),
        ({**JWKS, "audience": ""}, "/codeq_workers/1/audience"),
    ],
)
async def test_an_unreadable_provider_is_rejected_at_startup(
    tmp_path: Path, table: dict[str, Any], pointer: str
) -> None:
    given = {"codeq_workers": json.dumps([static("x"), table]), "faces": "codeq"}
    settings = config.load(given, environ={}, directory=tmp_path)
    with pytest.raises(Invalid) as rejection:
        async with assemble.open_adapters(settings, keys):
            pass
    assert rejection.value.pointer == pointer
