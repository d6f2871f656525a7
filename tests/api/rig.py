"""A real server on a free port of loopback, over a store of either engine, and the words tests use to talk to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import httpx2

from interlock.api.app import create_app
from interlock.api.options import Options
from interlock.api.server import Server, listen, url_of
from interlock.api.service import Service
from interlock.domain.principal import ROLES, Principal, user
from interlock.engine.engine import Engine
from interlock.engine.outbound_http import OutboundClient
from interlock.storage.batching import batched
from interlock.storage.contract import Objects, Store
from interlock.wire import TokenRequest
from tests.api import documented
from tests.support.eventually import RETRY_SECONDS
from tests.support.stores import ManualClock

NEVER: Final = "0193a1b2-ffff-7fff-8fff-ffffffffffff"  # an id that nothing has
JSON: Final = {"content-type": "application/json"}


@dataclass(frozen=True)
class Api:
    """One caller of one server."""

    url: str
    tenant: str
    service: Service
    clock: ManualClock
    http: httpx2.AsyncClient
    server: Server
    token: str | None = None

    @property
    def engine(self) -> Engine:
        return self.service.engine

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def headers(self) -> dict[str, str]:
        return {} if self.token is None else {"authorization": f"Bearer {self.token}"}

    async def call(self, method: str, path: str, json: Any = None, **more: Any) -> httpx2.Response:
        headers = self.headers() | more.pop("headers", {})
        if json is not None:
            more["json"] = json
        return await self.http.request(method, path, headers=headers, **more)

    async def get(self, path: str, **more: Any) -> httpx2.Response:
        return await self.call("GET", path, **more)

    async def post(self, path: str, json: Any = None, **more: Any) -> httpx2.Response:
        return await self.call("POST", path, json, **more)

    async def put(self, path: str, json: Any = None, **more: Any) -> httpx2.Response:
        return await self.call("PUT", path, json, **more)

    async def send(self, path: str, body: bytes, *, method: str = "POST", **headers: str) -> httpx2.Response:
        """Return this body unchanged, declared as JSON."""
        return await self.http.request(
            method,
            path,
            content=body,
            headers=JSON | self.headers() | {n.replace("_", "-"): v for n, v in headers.items()},
        )

    async def enqueue(self, **fields: Any) -> dict[str, Any]:
        """A new job."""
        job: dict[str, Any] = self.ok(await self.post("/v1/jobs", {"type": "work", **fields}), 201)
        return job

    async def claim(self, **fields: Any) -> list[dict[str, Any]]:
        jobs: list[dict[str, Any]] = self.ok(await self.post("/v1/claims", fields))["jobs"]
        return jobs

    async def running(self, *, worker: str | None = None, **fields: Any) -> dict[str, Any]:
        """A new job, already claimed."""
        made = await self.enqueue(**fields)
        ask: dict[str, Any] = {} if worker is None else {"worker": worker}
        (job,) = await self.claim(types=[made["type"]], **ask)
        assert job["id"] == made["id"]
        return job

    async def job(self, job_id: str) -> dict[str, Any]:
        job: dict[str, Any] = self.ok(await self.get(f"/v1/jobs/{job_id}"))
        return job

    def ok(self, response: httpx2.Response, status: int = 200) -> Any:
        assert response.status_code == status, response.text
        return response.json() if response.content else None

    async def as_role(self, *roles: str, tenant: str | None = None, **policy: Any) -> Api:
        """The same server, called with a new token that has these roles."""
        tenant = tenant or self.tenant
        admin = Principal(tenant, user("test"), ROLES)
        created_link = await self.engine.tokens.create(admin, TokenRequest(roles=list(roles), **policy))
        return replace(self, token=created_link.text, tenant=tenant)


def problem(response: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    """The problem document of a refusal, which always has the same form."""
    assert response.status_code == status, (response.status_code, response.text)
    assert response.headers["content-type"] == "application/problem+json"
    encoded: dict[str, Any] = response.json()
    assert encoded["status"] == status
    assert encoded["code"] == code, encoded
    assert encoded["type"] == f"/docs#{code}"
    assert encoded["title"]
    assert encoded["detail"]
    if status == 422:
        assert encoded["errors"]
    if status in (429, 503):
        assert int(response.headers["retry-after"]) >= 1
    return encoded


def pointer(response: httpx2.Response, status: int = 422, code: str = "invalid") -> str:
    """Which field was refused."""
    found: str = problem(response, status, code)["errors"][0]["pointer"]
    return found


@asynccontextmanager
async def serving(
    store: Store, clock: ManualClock, options: Options, *, objects: Objects | None = None, **more: Any
) -> AsyncIterator[Api]:
    """A server for as long as the block lasts; it stops the way it does on SIGTERM."""
    more.setdefault("outside", OutboundClient(resolve=resolved_to_nowhere))  # no test asks a name server
    engine = Engine(batched(store), objects=objects, **more)
    with listen("127.0.0.1", 0) as listening:
        approval = create_app(engine, options)
        server = Server(approval, listening)
        task = asyncio.create_task(server.serve())
        url = url_of(listening)
        try:
            # Nothing is encrypted here, and to read the certificates of the machine costs more than most tests.
            async with httpx2.AsyncClient(
                base_url=url,
                trust_env=False,
                verify=False,
                timeout=RETRY_SECONDS,
                event_hooks={"response": [documented.check]},
            ) as http:
                yield Api(url, options.tenant, approval.service, clock, http, server)
        finally:
            server.should_exit = True
            await task
            await engine.close()


async def resolved_to_nowhere(host: str, port: int) -> Sequence[str]:
    """An address for every name, which nothing is ever sent to."""
    return ["8.8.8.8"]
