"""MCP on the wire: plain HTTP with literal bytes, invalid Unicode, clients that disconnect, and a server that stops."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from interlock.api.routes import AROUND_CHECKPOINT
from interlock.faces.mcp.http import AROUND_TOOL
from tests.adapters.agents import MODES, agent
from tests.adapters.test_mcp_tools import someone_waits
from tests.api.rig import Api, problem
from tests.support.eventually import eventually

ACCEPT = {"accept": "application/json, text/event-stream"}
HANDSHAKE = (
    b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},'
    b'"clientInfo":{"name":"t","version":"1"}}}'
)


async def given(api: Api, message: bytes, **headers: str) -> dict[str, Any]:
    response = await api.send("/mcp", message, accept="application/json, text/event-stream", **headers)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def called(api: Api, tool: str, arguments: bytes, **headers: str) -> tuple[bool, str]:
    """Whether a tool refused, and the text of its answer."""
    message = b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"%b","arguments":%b}}'
    answer = await given(api, message % (tool.encode(), arguments), **headers)
    assert answer["id"] == 7
    result = answer["result"]
    assert "structuredContent" not in result  # the response is sent once
    return result["isError"], result["content"][0]["text"]


async def test_a_handshake_names_the_server_and_its_capabilities(api: Api) -> None:
    response = await api.send("/mcp", HANDSHAKE, accept="application/json, text/event-stream")
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    assert response.headers["mcp-session-id"]
    result = response.json()["result"]
    assert result["protocolVersion"] == "2025-06-18"
    assert result["serverInfo"]["name"] == "interlock"
    assert result["capabilities"] == {"tools": {"listChanged": False}}
    accepted = await api.send(
        "/mcp", b'{"jsonrpc":"2.0","method":"notifications/initialized"}', accept=ACCEPT["accept"]
    )
    assert (accepted.status_code, accepted.content) == (202, b"")


@pytest.mark.parametrize(
    "payload",
    [b'{"a":1.10,"b":1e0,"b2":-0.0}', b"[1.000, 9007199254740993]", b'"\\u0000 \\u00e9"', b'{ "x" :[ ] }', b"null"],
)
async def test_a_payload_is_stored_byte_for_byte(api: Api, payload: bytes) -> None:
    refused, text = await called(api, "enqueue_job", b'{"type":"exact","payload":%b}' % payload)
    assert not refused
    job = json.loads(text)
    assert b'"payload":' + payload in (await api.get(f"/v1/jobs/{job['id']}")).content
    assert f'"payload":{payload.decode()}' in (await called(api, "get_job", b'{"job_id":"%b"}' % job["id"].encode()))[1]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (b'{"type":"a","payload":"\\ud800"}', "invalid"),
        (b'{"type":"a","payload":{"a":1,"a":2}}', "malformed"),
        (b'{"type":"a","type":"b"}', "malformed"),
        (b'{"type":"a","payload":NaN}', "malformed"),
        (b'{"type":"a","payload":' + b"[" * 70 + b"]" * 70 + b"}", "malformed"),
        (b'{"type":"nul\\u0000"}', "invalid"),
        (b'{"type":"a","payload":"' + b"x" * 270_000 + b'"}', "too_large"),
        (b'{"type":"a","interlock":"{}"}', "invalid"),
        (b'{"interlock":"{\\"type\\":\\"smuggled\\"}"}', "invalid"),
    ],
)
async def test_invalid_unicode_is_rejected_by_the_rules_of_the_native_api(
    api: Api, arguments: bytes, code: str
) -> None:
    refused, text = await called(api, "enqueue_job", arguments)
    assert refused
    assert json.loads(text)["code"] == code, text
    assert api.ok(await api.get("/v1/jobs"))["items"] == []


async def test_invalid_unicode_of_a_worker_is_sanitized_and_marked(api: Api) -> None:
    for tool, more in (
        ("complete_job", b'"result":"\\udfff"'),
        ("fail_job", b'"error":{"message":"\\ud800"},"retryable":false'),
    ):
        job = await api.running(type="odd")
        arguments = b'{"job_id":"%b","fence":%d,%b}' % (job["id"].encode(), job["lease"]["fence"], more)
        refused, text = await called(api, tool, arguments)
        assert not refused, text
        ended = await api.job(job["id"])
        assert ended["sanitized"] is True
        assert "\ufffd" in (ended["result"] or ended["error"]["message"])


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"null", 400),
        (b"[]", 400),
        (b'[{"jsonrpc":"2.0","id":1,"method":"tools/list"}]', 400),
        (b"\xff\xfe", 400),
        (b"[" * 100_000, 400),
        (b'{"jsonrpc":"1.0","id":1,"method":"tools/list"}', 400),
        (b'{"id":1,"method":"tools/list"}', 400),
    ],
)
async def test_an_invalid_message_is_rejected(api: Api, body: bytes, status: int) -> None:
    response = await api.send("/mcp", body, accept="application/json, text/event-stream")
    assert response.status_code == status, response.text


async def test_meaningless_messages_are_protocol_errors(api: Api) -> None:
    for message, code in (
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/uncall"}', -32601),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call"}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"get_job","arguments":[]}}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":7}}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"no_tool"}}', -32602),
    ):
        assert (await given(api, message))["error"]["code"] == code


async def test_only_a_json_post_is_accepted(api: Api) -> None:
    for method in ("GET", "DELETE", "PUT", "HEAD"):
        response = await api.call(method, "/mcp")
        assert (response.status_code, response.headers["allow"]) == (405, "POST")
    listing = b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}'
    problem(await api.send("/mcp", listing, content_type="text/plain"), 415, "unsupported_media_type")
    assert (await api.send("/mcp", listing, accept="text/html")).status_code == 406
    problem(await api.get("/mcp/anything"), 404, "no_such_route")
    foreign = await api.send("/mcp", listing, origin="https://evil.example", **ACCEPT)
    problem(foreign, 403, "cross_site")


async def test_a_message_may_be_as_large_as_a_checkpoint_and_not_larger(api: Api) -> None:
    job = await api.running(type="big")
    lease = b'"job_id":"%b","fence":%d' % (job["id"].encode(), job["lease"]["fence"])
    data = b'"' + b"x" * (1024 * 1024 - 2) + b'"'
    refused, text = await called(api, "checkpoint_job", b'{%b,"seq":1,"data":%b}' % (lease, data))
    assert (refused, json.loads(text)) == (False, {"seq": 1})
    refused, text = await called(api, "checkpoint_job", b'{%b,"seq":2,"data":%b}' % (lease, data[:-1] + b'y"'))
    assert (refused, json.loads(text)["code"]) == (True, "too_large")
    largest = 1024 * 1024 + AROUND_CHECKPOINT + AROUND_TOOL
    problem(await api.send("/mcp", b" " * (largest + 1)), 413, "too_large")


@pytest.mark.parametrize("mode", MODES)
async def test_a_cancelled_claim_leases_no_job(api: Api, mode: str) -> None:
    async with agent(api, mode) as impatient, agent(api, mode) as patient:
        claim = asyncio.create_task(impatient.claims(types=["late"], wait_seconds=60))
        await someone_waits(api)
        claim.cancel()
        await no_request_waits(api)
        job = await api.enqueue(type="late")
        taken = await patient.claims(types=["late"])
        assert (taken["id"], taken["attempt"], taken.get("releases", 0)) == (job["id"], 1, 0)


async def test_a_disconnected_caller_leases_no_job(api: Api) -> None:
    body = (
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"claim_job","arguments":{"wait_seconds":60}}}'
    )
    head = b"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\naccept: application/json\r\n"
    _, writer = await asyncio.open_connection("127.0.0.1", api.port)
    writer.write(head + b"content-length: %d\r\n\r\n%b" % (len(body), body))
    await someone_waits(api)
    writer.close()
    await no_request_waits(api)
    job = await api.enqueue(type="late")
    (taken,) = await api.claim()
    assert (taken["id"], taken["attempt"], taken["releases"]) == (job["id"], 1, 0)


async def test_a_cancellation_ends_only_the_request_it_names(api: Api) -> None:
    waiting = (
        b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"claim_job","arguments":{"wait_seconds":60}}}'
    )
    take_back = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}'
    one, other = {"mcp_session_id": "one", "accept": ACCEPT["accept"]}, {"mcp_session_id": "other", **ACCEPT}
    first = asyncio.create_task(api.send("/mcp", waiting % 5, **one))
    second = asyncio.create_task(api.send("/mcp", waiting % 5, **other))

    async def both_wait() -> bool:
        return api.service.admission.waiting == 4

    await eventually(both_wait)
    for wrong in (take_back % 6, b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{}}'):
        assert (await api.send("/mcp", wrong, **one)).status_code == 202
    assert (await api.send("/mcp", take_back % 5, **one)).status_code == 202
    assert (await first).json()["error"]["code"] == -32800
    job = await api.enqueue(type="late")
    result = json.loads((await second).json()["result"]["content"][0]["text"])
    assert [one["id"] for one in result["jobs"]] == [job["id"]]


@pytest.mark.parametrize("mode", MODES)
async def test_waiting_requests_get_a_response_when_the_server_stops(api: Api, mode: str) -> None:
    async with agent(api, mode) as worker:
        await worker.tools()  # else the client asks for them after its first call
        claim = asyncio.create_task(worker.does("claim_job", wait_seconds=60))
        await someone_waits(api)
        api.server.should_exit = True
        assert await claim == {"jobs": []}


async def no_request_waits(api: Api) -> None:
    async def is_quiet() -> bool:
        return api.service.admission.waiting == 0

    await eventually(is_quiet)


async def test_the_request_slots_of_all_requests_are_released(api: Api) -> None:
    async with agent(api) as someone:
        for _ in range(3):
            await someone.does("queue_stats")
            await someone.is_rejected("get_job", 404, "not_found", job_id="x")
    admission = api.service.admission

    async def is_empty() -> bool:
        return (admission.active, admission.waiting, admission.body_bytes, dict(admission.by_tenant)) == (0, 0, 0, {})

    await eventually(is_empty)
