"""MoonMind's artifacts, events and tools."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import httpx2

from interlock.api.options import Options
from interlock.faces.moonmind.adapter import MoonmindAdapter
from interlock.faces.moonmind.model import decode_id
from interlock.storage.contract import Store
from interlock.storage.object_store.filesystem import FileObjects
from interlock.wire import Limits
from tests.adapters.responses import NEVER, RFC3339, json_of
from tests.adapters.test_moonmind_jobs import act, claim, enqueue, rejects, running
from tests.api.rig import Api, serving
from tests.support.eventually import RETRY_SECONDS
from tests.support.stores import ManualClock

BASE = "/api/queue"
REPORT = b"\x00--edge\r\n--\xff not the end\r\n"


def form(**fields: bytes) -> bytes:
    """A form as a browser writes it; the file goes first, since fields may well come after it."""
    lines = b""
    for name, value in fields.items():
        head = b'Content-Disposition: form-data; name="%b"' % name.encode()
        if name == "file":
            head += b'; filename="report.bin"\r\nContent-Type: text/plain'
        lines += b"--edge7\r\n" + head + b"\r\n\r\n" + value + b"\r\n"
    return lines + b"--edge7--\r\n"


async def upload(api: Api, id: str, body: bytes, kind: str = "multipart/form-data; boundary=edge7") -> httpx2.Response:
    return await api.http.request(
        "POST", f"{BASE}/jobs/{id}/artifacts/upload", content=body, headers={"content-type": kind}
    )


async def test_a_file_is_uploaded_listed_and_downloaded(api: Api) -> None:
    id = await running(api)
    digest = "sha256:" + hashlib.sha256(REPORT).hexdigest()
    body = form(file=REPORT, workerId=b"w1", name=b"out/report.bin", digest=digest.encode())
    made = json_of(await upload(api, id, body), 201)
    assert RFC3339.fullmatch(made["createdAt"])
    assert made == {
        "id": made["id"], "jobId": id, "name": "out/report.bin", "contentType": "text/plain",
        "sizeBytes": len(REPORT), "digest": digest, "storagePath": f"{id}/out/report.bin",
        "createdAt": made["createdAt"],
    }  # fmt: skip
    assert json_of(await api.get(f"{BASE}/jobs/{id}/artifacts"), 200) == {"items": [made]}
    got = await api.get(f"{BASE}/jobs/{id}/artifacts/{made['id']}/download")
    assert (got.status_code, got.content) == (200, REPORT)
    assert got.headers["content-type"] == "text/plain"
    assert got.headers["content-disposition"] == 'attachment; filename="report.bin"'


async def test_only_the_lease_holder_may_upload(api: Api) -> None:
    id = await running(api)
    body = form(file=b"x", workerId=b"w2", name=b"a")
    rejects(await upload(api, id, body), 409, "job_ownership_mismatch")
    waiting = (await enqueue(api))["id"]
    rejects(await upload(api, waiting, form(file=b"x", workerId=b"w1", name=b"a")), 409, "job_state_conflict")
    rejects(await upload(api, NEVER, form(file=b"x", workerId=b"w1", name=b"a")), 404, "job_not_found")
    assert json_of(await api.get(f"{BASE}/jobs/{id}/artifacts"), 200) == {"items": []}


async def test_an_incomplete_form_is_rejected(api: Api) -> None:
    id = await running(api)
    whole = form(file=b"x", workerId=b"w1", name=b"a")
    for body in (b"", whole[:-4], whole.replace(b'name="file"', b'name="data"'), form(workerId=b"w1", name=b"a"),
                 form(file=b"x", name=b"a"), whole.replace(b'name="name"', b'name="workerId"'),
                 form(file=b"x", workerId=b"w1", name=b"a", digest=b"md5:00"),
                 form(file=b"x", workerId=b"w1", name=b"a", digest=b"sha256:" + b"0" * 64),
                 form(file=b"x", workerId=b"w1", name=b"\xff")):  # fmt: skip
        rejects(await upload(api, id, body), 422, "invalid_queue_payload")
    rejects(await upload(api, id, whole, "application/json"), 422, "invalid_queue_payload")
    assert json_of(await api.get(f"{BASE}/jobs/{id}/artifacts"), 200) == {"items": []}


async def test_names_and_content_types_are_parsed_as_by_moonmind(api: Api) -> None:
    id = await running(api)

    async def made(**fields: bytes) -> tuple[str, str]:
        found = json_of(await upload(api, id, form(file=b"x", workerId=b"w1", **fields)), 201)
        assert found["storagePath"] == f"{id}/{found['name']}"
        return found["name"], found["contentType"]

    assert await made(name=b" logs/a.txt ", contentType=b"") == ("logs/a.txt", "text/plain")
    assert await made(name=b"./././b", contentType=b" image/png ") == ("b", "image/png")
    assert await made(name=b"dir\\c", contentType=b"odd") == ("dir/c", "application/octet-stream")
    assert await made(name=b"n" * 512) == ("n" * 512, "text/plain")
    assert await made(name="é".encode() * 512) == ("é" * 512, "text/plain")
    for name in (b"", b"  ", b"n" * 513, b"/etc/passwd", b"a/../../b", b"..", "😀".encode() * 512, b"a\nb"):
        rejects(await upload(api, id, form(file=b"x", workerId=b"w1", name=name)), 422, "invalid_queue_payload")
    assert len(json_of(await api.get(f"{BASE}/jobs/{id}/artifacts"), 200)["items"]) == 5
    assert (await api.get(f"/v1/jobs/{decode_id(id)}/artifacts")).status_code == 200


async def test_a_file_that_is_too_large_is_rejected(api: Api) -> None:
    id = await running(api)
    response = await upload(api, id, form(file=b"x" * (50 * 1024 * 1024 + 1), workerId=b"w1", name=b"a"))
    rejects(response, 413, "artifact_too_large")


async def test_an_unknown_artifact_is_not_found(api: Api) -> None:
    id = await running(api)
    rejects(await api.get(f"{BASE}/jobs/{id}/artifacts/{NEVER}/download"), 404, "artifact_not_found")
    rejects(await api.get(f"{BASE}/jobs/{NEVER}/artifacts/{NEVER}/download"), 404, "job_not_found")
    rejects(await api.get(f"{BASE}/jobs/{id}/artifacts?limit=501"), 422, "invalid_queue_payload")


async def test_an_artifact_of_another_job_is_not_found(api: Api) -> None:
    id, other = await running(api), await running(api)
    made = json_of(await upload(api, id, form(file=b"x", workerId=b"w1", name=b"a")), 201)
    rejects(await api.get(f"{BASE}/jobs/{other}/artifacts/{made['id']}/download"), 409, "artifact_job_mismatch")


async def test_an_artifact_of_another_tenant_is_not_found(guarded: Api) -> None:
    ours = await guarded.as_role("work", "read", "produce", worker_id="w1")
    rival = await guarded.as_role("read", "produce", tenant=f"{guarded.tenant}-rival")
    id = await running(ours)
    body, kind = form(file=b"x", workerId=b"w1", name=b"a"), "multipart/form-data; boundary=edge7"
    made = json_of(await ours.send(f"{BASE}/jobs/{id}/artifacts/upload", body, content_type=kind), 201)
    theirs = (await enqueue(rival))["id"]
    rejects(await rival.get(f"{BASE}/jobs/{theirs}/artifacts/{made['id']}/download"), 404, "artifact_not_found")
    rejects(await rival.get(f"{BASE}/jobs/{id}/artifacts/{made['id']}/download"), 404, "job_not_found")


async def test_the_lease_holder_emits_an_event(api: Api) -> None:
    id = await running(api)
    body = b'{"workerId":"w1","level":"warn","message":"slow","payload":{"seconds": 9}}'
    event = json_of(await act(api, id, "events", body), 201)
    assert RFC3339.fullmatch(event["createdAt"])
    assert event == {
        "id": event["id"], "jobId": id, "level": "warn", "message": "slow", "payload": {"seconds": 9},
        "createdAt": event["createdAt"],
    }  # fmt: skip
    bare = json_of(await act(api, id, "events", b'{"workerId":"w1","message":"m"}'), 201)
    assert (bare["level"], bare["payload"]) == ("info", None)
    for bad in (b'{"workerId":"w1"}', b'{"message":"m"}', b'{"workerId":"w1","message":"m","level":"loud"}'):
        rejects(await act(api, id, "events", bad), 422, "invalid_queue_payload")


async def test_events_cover_the_life_of_a_job_oldest_first_and_strictly_after_a_time(
    api: Api, clock: ManualClock
) -> None:
    id = (await enqueue(api))["id"]
    clock.advance(1)
    await claim(api)
    clock.advance(1)
    json_of(await act(api, id, "events", b'{"workerId":"w1","message":"half way"}'), 201)
    clock.advance(1)
    json_of(await upload(api, id, form(file=b"x", workerId=b"w1", name=b"a")), 201)
    clock.advance(1)
    json_of(await act(api, id, "fail", b'{"workerId":"w1","errorMessage":"broke"}'), 200)
    items = json_of(await api.get(f"{BASE}/jobs/{id}/events"), 200)["items"]
    assert [(one["level"], one["message"]) for one in items] == [
        ("info", "Job queued"), ("info", "Job claimed"), ("info", "half way"), ("info", "Artifact uploaded"),
        ("error", "Job failed"),
    ]  # fmt: skip
    assert items[-1]["payload"]["error"] == "broke"
    after = items[2]["createdAt"]
    rest = json_of(await api.get(f"{BASE}/jobs/{id}/events?after={after}"), 200)["items"]
    assert rest == items[3:]
    assert json_of(await api.get(f"{BASE}/jobs/{id}/events?after={after.removesuffix('Z')}"), 200)["items"] == rest
    assert json_of(await api.get(f"{BASE}/jobs/{id}/events?limit=2"), 200)["items"] == items[:2]
    rejects(await api.get(f"{BASE}/jobs/{id}/events?after=noon"), 422, "invalid_queue_payload")


async def test_events_are_streamed_until_the_job_is_terminal(api: Api) -> None:
    id = await running(api)

    async def read() -> list[tuple[str, Any]]:
        async with api.http.stream("GET", f"{BASE}/jobs/{id}/events/stream") as response:
            assert response.headers["content-type"] == "text/event-stream"
            text = (await response.aread()).decode()
        blocks = [dict(line.split(": ", 1) for line in block.splitlines()) for block in text.split("\n\n") if block]
        return [(block["event"], json.loads(block["data"])) for block in blocks if "data" in block]

    reading = asyncio.create_task(read())
    json_of(await act(api, id, "events", b'{"workerId":"w1","message":"half way"}'), 201)
    json_of(await act(api, id, "complete", b'{"workerId":"w1"}'), 200)
    got = await asyncio.wait_for(reading, RETRY_SECONDS)
    assert {name for name, _ in got} == {"queue_event"}
    assert {event["message"] for _, event in got} == {"Job queued", "Job claimed", "half way", "Job completed"}
    assert len(got) == 4
    rejects(await api.get(f"{BASE}/jobs/{NEVER}/events/stream"), 404, "job_not_found")


async def test_tools_are_listed_by_name_with_their_schemas(api: Api) -> None:
    tools = json_of(await api.get("/mcp/tools"), 200)["tools"]
    assert [tool["name"] for tool in tools] == [
        "queue.cancel", "queue.claim", "queue.complete", "queue.enqueue", "queue.fail", "queue.get", "queue.heartbeat",
        "queue.list", "queue.upload_artifact",
    ]  # fmt: skip
    assert all(tool["description"] and tool["inputSchema"]["type"] == "object" for tool in tools)
    assert tools[1]["inputSchema"]["required"] == ["workerId", "leaseSeconds"]


async def test_tools_do_what_the_routes_do(api: Api) -> None:
    async def tool(name: bytes, arguments: bytes) -> Any:
        response = await api.send("/mcp/tools/call", b'{"tool":"queue.%b","arguments":%b}' % (name, arguments))
        return json_of(response, 200)["result"]

    id = (await tool(b"enqueue", b'{"type":"t","payload":{"n":1}}'))["id"].encode()
    assert (await tool(b"claim", b'{"workerId":"w1","leaseSeconds":60}'))["job"]["id"] == id.decode()
    ours = b'{"jobId":"%b","workerId":"w1"' % id
    assert (await tool(b"heartbeat", ours + b',"leaseSeconds":9}'))["status"] == "running"
    assert (await tool(b"upload_artifact", ours + b',"name":"a","contentBase64":"eA=="}'))["sizeBytes"] == 1
    assert (await tool(b"complete", ours + b',"resultSummary":"done"}'))["resultSummary"] == "done"
    assert (await tool(b"get", b'{"jobId":"%b"}' % id))["status"] == "succeeded"
    other = (await tool(b"enqueue", b'{"type":"t"}'))["id"].encode()
    assert [job["id"].encode() for job in (await tool(b"list", b'{"limit":5}'))["items"]] == [other, id]
    assert (await tool(b"cancel", b'{"jobId":"%b"}' % other))["status"] == "cancelled"
    failing = (await tool(b"enqueue", b'{"type":"t"}'))["id"].encode()
    await tool(b"claim", b'{"workerId":"w1","leaseSeconds":60}')
    failed = await tool(b"fail", b'{"jobId":"%b","workerId":"w1","errorMessage":"x"}' % failing)
    assert failed["status"] == "failed"


async def test_an_invalid_tool_call_is_rejected(api: Api) -> None:
    rejects(await api.send("/mcp/tools/call", b'{"tool":"queue.burn"}'), 404, "tool_not_found")
    for arguments in (b"{}", b"[]", b'{"jobId":1}'):
        response = await api.send("/mcp/tools/call", b'{"tool":"queue.get","arguments":%b}' % arguments)
        rejects(response, 422, "invalid_tool_arguments")
    unknown = await api.send("/mcp/tools/call", b'{"tool":"queue.get","arguments":{"jobId":"%b"}}' % NEVER.encode())
    rejects(unknown, 404, "job_not_found")


async def test_a_tool_sanitizes_invalid_unicode_of_workers_only(api: Api) -> None:
    response = await api.send(
        "/mcp/tools/call", b'{"tool":"queue.enqueue","arguments":{"type":"t","payload":{"a":"\\ud800"}}}'
    )
    rejects(response, 422, "invalid_tool_arguments")
    id = await running(api)
    done = (
        b'{"tool":"queue.complete","arguments":{"jobId":"%b","workerId":"w1","resultSummary":"\\ud800"}}' % id.encode()
    )
    assert json_of(await api.send("/mcp/tools/call", done), 200)["result"]["resultSummary"] == "\ufffd"
    assert (await api.job(decode_id(id)))["sanitized"] is True


async def test_a_tool_needs_the_role_of_its_route(guarded: Api) -> None:
    reader = await guarded.as_role("read")
    response = await reader.send("/mcp/tools/call", b'{"tool":"queue.enqueue","arguments":{"type":"t"}}')
    rejects(response, 403, "worker_not_authorized")
    rejects(await guarded.get("/mcp/tools"), 401, "worker_auth_failed")


async def test_a_stalled_upload_is_aborted(store: Store, clock: ManualClock) -> None:
    async with serving(store, clock, Options(faces=[MoonmindAdapter()], body_seconds=0.5)) as api:
        head = (
            f"POST {BASE}/jobs/{NEVER}/artifacts/upload HTTP/1.1\r\nhost: localhost\r\ncontent-length: 50000000\r\n\r\n"
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
        writer.write(head.encode() + b"--edge7\r\n")
        async with asyncio.timeout(RETRY_SECONDS):
            assert b"408" in await reader.readline()
        writer.close()


async def test_a_form_with_malformed_parameters_is_rejected(api: Api) -> None:
    id = await running(api)
    body = form(file=b"x", workerId=b"w1", name=b"a")
    for odd in ("boundary*0=ed; boundary*1*=ge7; boundary*=x", "boundary*0=e; boundary*=x", "boundary*=''%ff; boundary*1=e",
                "boundary*1=a; boundary*1*=b; boundary*0=c; boundary*=utf-8''d"):  # fmt: skip
        rejects(await upload(api, id, body, f"multipart/form-data; {odd}"), 422, "invalid_queue_payload")
        heading = body.replace(b'name="name"', odd.replace("boundary", "name").encode())
        rejects(await upload(api, id, heading), 422, "invalid_queue_payload")


async def test_a_tool_uploads_as_large_a_file_as_the_route_does(
    store: Store, clock: ManualClock, tmp_path: Path
) -> None:
    limits = Limits(artifact=10 * 1024 * 1024)
    objects = FileObjects(tmp_path / "artifacts")
    async with serving(store, clock, Options(faces=[MoonmindAdapter()]), objects=objects, limits=limits) as api:
        id = await running(api)

        async def keep(size: int) -> httpx2.Response:
            content = base64.b64encode(b"x" * size)
            arguments = b'{"jobId":"%b","workerId":"w1","name":"a","contentBase64":"%b"}' % (id.encode(), content)
            return await api.send("/mcp/tools/call", b'{"tool":"queue.upload_artifact","arguments":%b}' % arguments)

        assert json_of(await keep(limits.artifact), 200)["result"]["sizeBytes"] == limits.artifact
        for over in (1, 2 * 1024 * 1024):
            rejects(await keep(limits.artifact + over), 413, "artifact_too_large")
        rejects(await api.send("/mcp/tools/call", b"["), 422, "invalid_queue_payload")


async def test_a_form_with_a_long_header_is_rejected_before_it_is_read(api: Api) -> None:
    id = await running(api)
    body = form(file=b"x", workerId=b"w1", name=b"a")
    kind = "multipart/form-data; boundary=edge7; more="
    rejects(await upload(api, id, body, kind + '"' + ";" * 20_000), 422, "invalid_queue_payload")
    long = body.replace(b'name="name"', b'name="name"; more="' + b";" * 4_000)
    rejects(await upload(api, id, long), 422, "invalid_queue_payload")
