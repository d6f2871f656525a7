"""Poison in every field of every route: a response below 500, always, and the service continues (S34)."""

from __future__ import annotations

import copy
import itertools
import json
import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from interlock.api.app import routes
from tests.api.rig import JSON, Api
from tests.api.world import World, fill, make_world
from tests.support.forms import IS_LONG

STRIDE = 1 if os.environ.get("INTERLOCK_TEST_THOROUGH") else 7
URL_STRIDE = 1 if IS_LONG else 5
VALUES: list[Any] = [
    None, True, False, 0, -1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 1.5, 1e308, -0.0, "", " ", "a" * 201, "x" * 9000,
    "\x00", "a\x00b", "\r\nset-cookie: x=1", "\x1b[31m", "'; drop table job; --", '"', "\\", "%", "_", "%s%n", "{}", "[]",
    "E'\\\\'", "$1", ":tenant", "../../etc/passwd", "\ud800", "\udfff\ud800", "\ufffe", "\u202e", "e\u0301", "\U0001f4a9", "\U0001d4b3" * 300,
    "NaN", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59.999999-23:59", "2027-02-30T00:00:00Z", "1e999",
    "00000000-0000-0000-0000-000000000000", [], [None], ["\x00"], ["a"] * 2000, {}, {"": ""}, {"a": {"b": []}},
    {"kind": "fixed", "base_seconds": -1}, [[[[]]]], {"\ud800": 1}, {"__proto__": 1},
]  # fmt: skip
RAW: list[bytes] = [
    b"", b"null", b"[]", b"0", b'"x"', b"{", b"\xff\xfe", b"\x00", b"{}" * 3, b'{"a":1,"a":2}', b"[" * 5000, b"1e400", b'{"x":"\\ud800"}',
    b"\xef\xbb\xbf{}", b'{"type":"a","payload":' + b'{"a":' * 70 + b"1" + b"}" * 71,
]  # fmt: skip
SEGMENTS = [
    "%00",
    "%0d%0a",
    "%ff",
    "%f0%9f%92%a9",
    "'%20or%201=1--",
    "%25",
    "..%2f..",
    "x" * 3000,
    "%E2%80%AE",
    "null",
    "%7B%7D",
    "-1",
]
QUERIES = [
    "", "\x00", "\ud800", "'", "-1", "1e99", "9" * 30, "x" * 3000, "null", "true", "é", "[]", "2030-01-01T00:00:00Z",
]  # fmt: skip
HEADERS = [
    "",
    "x",
    "\x7f",
    '"',
    "W/",
    '"1',
    "-1",
    "9" * 40,
    "'; --",
    "é",
    "bytes=0-0,1-1",
    "bytes=-0",
    "bytes=9-1",
    "*",
]


def spoiled(body: Any) -> Iterator[Any]:
    """The body with each of its values, at every depth, replaced by poison; and with a field too many, or too few.

    Every value is tried somewhere; with INTERLOCK_TEST_THOROUGH each of them everywhere.
    """
    for n, path in enumerate(_paths(body)):
        for value in VALUES[n % STRIDE :: STRIDE]:
            bad = copy.deepcopy(body)
            if not path:
                yield value
                continue
            at = bad
            for step in path[:-1]:
                at = at[step]
            at[path[-1]] = value
            yield bad
    if isinstance(body, dict):
        yield body | {"surprise": 1}
        for name in body:
            yield {other: value for other, value in body.items() if other != name}


def _paths(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield here
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _paths(inner, (*here, name))
    elif isinstance(value, list):
        for n, inner in enumerate(value):
            yield from _paths(inner, (*here, n))


FULL: dict[str, dict[str, Any]] = {
    "enqueue": {
        "type": "a", "payload": {"x": 1}, "priority": 1, "run_at": "2030-01-01T00:00:00Z", "delay_seconds": 1, "deadline": "2030-01-01T00:00:00Z",
        "timeout_seconds": 5, "max_attempts": 2, "backoff": {"kind": "fixed", "base_seconds": 1, "max_seconds": 2, "multiplier": 2},
        "expiry_delay_seconds": 1, "headers": {"a": "b"}, "traceparent": "t", "tags": ["a"], "agent": {"kind": "k", "id": "i"},
        "affinity_key": "k", "repository": "r", "requires": ["c"], "idempotency_key": "k", "webhook": "https://example.com/x",
        "parent_id": "00000000-0000-7000-8000-000000000000", "requested_by": "me",
    },
    "claim": {"types": ["a"], "worker": "w", "capabilities": ["c"], "affinity_keys": ["k"], "limit": 1, "lease_seconds": 5, "wait_seconds": 0, "claim_id": "c"},
    "complete": {"fence": 1, "worker": "w", "result": 1, "result_summary": "s", "usage": {"tokens": 1}, "artifacts": [{"name": "n", "content_base64": "eA==", "content_type": "text/plain"}]},
    "link_artifact": {"fence": 1, "worker": "w", "name": "n", "url": "u"},
    "fail": {"fence": 1, "error": {"message": "m", "kind": "k", "details": 1}, "retryable": False, "retry_after_seconds": 1},
    "release": {"fence": 1, "delay_seconds": 1, "run_at": "2030-01-01T00:00:00Z", "children": ["x"], "reason": "r"},
    "open_approval": {"fence": 1, "prompt": "p", "details": 1, "risk": "high", "schema": {"type": "object"}, "required": 1, "on_deny": "fail", "expires_in_seconds": 60, "checkpoint": {"seq": 1, "data": 1}},
    "heartbeat": {"fence": 1, "lease_seconds": 5, "events": [{"message": "m", "level": "info", "payload": 1, "id": "x"}], "checkpoint": {"seq": 1, "data": 1}},
    "decide": {"decision": "deny", "comment": "c", "data": 1, "digest": "d"},
    "decide_by_link": {"token": "t", "decision": "deny", "comment": "c", "data": 1, "digest": "d"},
    "put_type": {"schema": {"type": "object"}, "requires": ["a"], "defaults": {"max_attempts": 1, "backoff": {"kind": "fixed"}, "lease_seconds": 5, "timeout_seconds": 5, "priority": 1}},
    "put_agent": {"max_concurrency": 1, "strict": True, "backoff": {"kind": "fixed"}, "defaults": {"priority": 1}},
    "subscribe": {"url": "https://example.com/", "events": ["job.failed"], "types": ["a"], "mode": "group", "group_id": "g", "min_interval_seconds": 1, "expires_in_seconds": 60, "key": "k"},
    "create_token": {"roles": ["work"], "description": "d", "worker_id": "w", "types": ["a"], "repositories": ["r"], "capabilities": ["c"], "expires_in_seconds": 60, "key": "k"},
    "edit_job": {"priority": 1, "run_at": "2030-01-01T00:00:00Z", "deadline": None, "max_attempts": 5, "tags": ["a"]},
    "cancel": {"reason": "r", "force": True, "cascade": True},
    "redrive": {"from": "start", "overrides": {"priority": 1, "run_at": "2030-01-01T00:00:00Z", "delay_seconds": 1, "max_attempts": 1, "tags": ["a"], "payload": 1}, "idempotency_key": "k"},
    "bulk": {"action": "cancel", "ids": ["x"], "filter": {"status": ["queued"], "type": "a", "agent": "a/b", "worker": "w", "stale_seconds": 1, "parent": "x", "tag": ["t"], "created_after": "2030-01-01T00:00:00Z"}, "dry_run": True, "limit": 5, "reason": "r", "force": False},
    "prune": {"days": 30, "limit": 10, "dry_run": True},
}  # fmt: skip


async def test_no_value_in_any_field_of_any_body_is_a_server_error(api: Api) -> None:
    world = await make_world(api, api.tenant)
    faults: list[str] = []
    for route in routes():
        if route.body is None:
            continue
        body = FULL.get(route.name) or world.body(route) or {}
        for bad in spoiled(body):
            content = json.dumps(bad).encode()
            faults += await fault(api, route.method, world.path(route), content=content, headers=JSON)
        for content in RAW:
            faults += await fault(api, route.method, world.path(route), content=content, headers=JSON)
    assert faults == []
    await still_works(api, world)


async def test_no_path_query_or_header_is_a_server_error(api: Api, engine: str) -> None:
    world = await make_world(api, api.tenant)
    faults: list[str] = []
    numbers = itertools.count(engine == "postgres")  # so that the engines try other values at the same place

    def some(values: list[str]) -> list[str]:
        """Each value is tried somewhere; in the long form everywhere."""
        return values[next(numbers) % URL_STRIDE :: URL_STRIDE]

    for route in routes():
        if route.name.startswith("stream_"):
            continue
        body = world.body(route)
        more: dict[str, Any] = {} if body is None else {"json": body}
        named = world.named(route)
        for name in (name for name in named if "{" + name + "}" in route.path):
            for segment in some(SEGMENTS):
                faults += await fault(
                    api, route.method, fill(route.path, named | {name: segment}), params=world.query(route), **more
                )
        for field in route.query.__struct_fields__:
            for value in some(QUERIES):
                spelled = quote(value.encode(errors="surrogatepass"))
                faults += await fault(api, route.method, f"{world.path(route)}?{field}={spelled}", **more)
        for header in (
            "idempotency-key",
            "if-match",
            "interlock-fence",
            "interlock-link",
            "traceparent",
            "range",
            "x-request-id",
            "expect",
        ):
            for value in some(HEADERS):
                content = {"headers": {header: value.encode()}}
                faults += await fault(
                    api, route.method, world.path(route), params=world.query(route), **more, **content
                )
    assert faults == []
    await still_works(api, world)


async def fault(api: Api, method: str, path: str, **asked: Any) -> list[str]:
    """What is wrong with the answer to a request, if anything."""
    response = await api.http.request(method, path, **asked)
    if response.status_code < 400:
        return []
    if response.status_code < 500 and response.headers["content-type"] == "application/problem+json":
        return []
    return [f"{method} {path} {str(asked)[:300]}: {response.status_code} {response.text[:200]}"]


async def still_works(api: Api, world: World) -> None:
    job = await api.enqueue(type="after")
    assert (await api.job(job["id"]))["status"] == "queued"
    assert (await api.engine.queries.verify(world.tenant)).first_bad is None
