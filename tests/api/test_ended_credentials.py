"""A waiting call or a stream ends when the credential of its caller ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import httpx2

from interlock.api.options import Options
from interlock.storage.contract import Store
from interlock.storage.object_store.filesystem import FileObjects
from tests.api.rig import Api, problem, serving
from tests.support.eventually import eventually
from tests.support.stores import ManualClock

ENDS: Final = "to be revoked"


async def test_a_stream_ends_with_the_token_it_was_opened_by(guarded: Api) -> None:
    reader, admin = await guarded.as_role("read", description=ENDS), await guarded.as_role("admin")
    for path in ("/v1/events/stream", f"/v1/jobs/{await _job(guarded)}/events/stream"):
        async with reader.http.stream("GET", path, headers=reader.headers()) as response:
            assert response.status_code == 200
            await _revoke(admin)
            async with asyncio.timeout(120):
                assert b"event: end" not in await response.aread()
        reader = await guarded.as_role("read", description=ENDS)


async def test_a_claim_that_waits_gets_nothing_for_a_revoked_token(guarded: Api) -> None:
    worker, admin = await guarded.as_role("work", worker_id="w1", description=ENDS), await guarded.as_role("admin")
    claim = await _waiting(worker, "POST", "/v1/claims", {"wait_seconds": 60})
    await _revoke(admin)
    problem(await claim, 401, "unauthenticated")
    id = await _job(guarded)
    assert (await (await guarded.as_role("read")).job(id))["status"] == "queued"


async def test_a_result_is_not_returned_to_a_revoked_token(guarded: Api) -> None:
    reader, admin = await guarded.as_role("read", description=ENDS), await guarded.as_role("admin")
    result = await _waiting(reader, "GET", f"/v1/jobs/{await _job(guarded)}/result?wait_seconds=60")
    await _revoke(admin)
    problem(await result, 401, "unauthenticated")


async def _job(api: Api) -> str:
    return str((await (await api.as_role("produce")).enqueue())["id"])


async def _waiting(api: Api, method: str, path: str, body: Any = None) -> asyncio.Task[httpx2.Response]:
    """A call whose answer is being waited for."""
    call = asyncio.create_task(api.call(method, path, body, timeout=120))

    async def waits() -> bool:
        return api.service.admission.waiting == 1 or call.done()

    await eventually(waits)
    return call


async def _revoke(admin: Api) -> None:
    found = admin.ok(await admin.get("/v1/tokens"))["items"]
    for id in (one["id"] for one in found if one["description"] == ENDS):
        admin.ok(await admin.post(f"/v1/tokens/{id}/revoke"))


async def test_a_download_ends_if_its_token_is_revoked(store: Store, clock: ManualClock, tmp_path: Path) -> None:
    async with serving(store, clock, Options(auth=True), objects=FileObjects(tmp_path)) as guarded:
        worker = await guarded.as_role("work", worker_id="w1", description=ENDS)
        admin, reader = await guarded.as_role("admin"), await guarded.as_role("read")
        id = await _job(guarded)
        (job,) = await worker.claim()

        async def pieces() -> AsyncIterator[bytes]:
            yield b"a"
            await _revoke(admin)
            yield b"b"

        headers = worker.headers() | {"interlock-fence": str(job["lease"]["fence"])}
        reported = await worker.http.put(f"/v1/jobs/{id}/artifacts?name=a", content=pieces(), headers=headers)
        problem(reported, 401, "unauthenticated")
        assert reader.ok(await reader.get(f"/v1/jobs/{id}/artifacts"))["items"] == []
