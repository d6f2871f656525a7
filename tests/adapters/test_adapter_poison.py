"""A protocol adapter rejects invalid input in its own format, and the service never fails."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from interlock.api.routes import Route
from interlock.faces.codeq.adapter import CodeqAdapter
from interlock.faces.moonmind.adapter import MoonmindAdapter
from tests.adapters.responses import NEVER
from tests.api.rig import Api

ODD: list[Any] = [
    None, True, -1, 0, 10**30, -(10**30), 1e308, "", " ", "x" * 300, "nul\x00", "\u202e", "é", [], {}, [[]], [None],
    ["a", "a"], ["nul\x00"], {"a": {"b": []}}, NEVER,
]  # fmt: skip
FIELDS = [
    "command", "payload", "priority", "webhook", "maxAttempts", "idempotencyKey", "runAt", "delaySeconds", "tasks",
    "commands", "leaseSeconds", "count", "extendSeconds", "reason", "status", "result", "error",
    "artifacts", "results", "limit", "before", "type", "affinityKey", "workerId", "allowedTypes", "workerCapabilities",
    "resultSummary", "errorMessage", "retryable", "message", "level", "description", "allowedRepositories",
    "allowedJobTypes", "capabilities", "tool", "arguments", "runtimeState", "callbackUrl", "eventTypes", "ttlSeconds",
    "deliveryMode", "groupId", "minIntervalSeconds",
]  # fmt: skip
GOOD: dict[str, Any] = {
    "command": "c", "payload": {}, "count": 1, "status": "FAILED", "type": "t", "workerId": "local", "leaseSeconds": 5,
    "errorMessage": "e", "message": "m", "tool": "queue.get", "arguments": {}, "runtimeState": {},
    "callbackUrl": "https://hooks.example.org/x",
}  # fmt: skip
RAW = [
    b"",
    b"\x00",
    b"\xff\xfe",
    b"{",
    b"nul",
    b"[" * 100,
    b'{"a":1,"a":2}',
    b'{"command":"\\ud800","payload":1}',
    b"NaN",
]


def routes() -> list[Route]:
    return [*CodeqAdapter().routes(), *MoonmindAdapter().routes()]


def path_of(route: Route) -> str:
    path = route.path
    for name in ("id", "job_id", "artifact_id", "command"):
        path = path.replace(f"{{{name}}}", NEVER)
    return path


@pytest.mark.parametrize("route", routes(), ids=lambda route: route.name)
async def test_malformed_input_gets_an_error_in_the_format_of_the_adapter(api: Api, route: Route) -> None:
    path, envelope = path_of(route), "error" if "codeq" in route.path else "detail"
    if route.method == "GET":
        for query in (
            "limit=x",
            "limit=-1",
            "status=%00",
            "status=%ff",
            "type=%00",
            "after=%00",
            "waitSeconds=nan",
            "&&=&",
        ):
            response = await api.get(f"{path}?{query}")
            assert response.status_code < 500, (query, response.text)
            assert response.status_code < 400 or envelope in response.json()
        return
    named = set() if route.body is None else {field.encode_name for field in msgspec.structs.fields(route.body)}
    bodies = [json.dumps(GOOD | {field: odd}).encode() for field in FIELDS if field in named for odd in ODD]
    for body in [*RAW, *bodies]:
        response = await api.send(path, body)
        assert response.status_code < 500, (body, response.text)
        assert response.status_code < 400 or envelope in response.json(), (body, response.text)
