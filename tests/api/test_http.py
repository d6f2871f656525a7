"""The manners of the service: paths, methods, headers, hosts, sites; every refusal is a problem document."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import httpx2
import pytest

from interlock.api.app import create_app, routes
from interlock.api.options import Options
from interlock.api.server import Server, check_address, listen
from interlock.engine.engine import Engine
from interlock.errors import Invalid, Unavailable
from interlock.storage.contract import Store
from tests.api.rig import Api, problem, serving
from tests.support.stores import ManualClock


async def test_every_response_has_the_security_headers(api: Api) -> None:
    for path in ("/healthz", "/v1/jobs", "/nope", "/docs", "/openapi.json", "/v1/jobs/x"):
        headers = (await api.get(path)).headers
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["x-frame-options"] == "DENY"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "server" not in headers
        assert "date" in headers
        assert len(headers.multi_items()) == len(headers)
        assert not [name for name in headers if name.startswith("access-control-")]


async def test_a_preflight_is_rejected(api: Api) -> None:
    headers = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    response = await api.call("OPTIONS", "/v1/jobs", headers=headers)
    assert response.status_code in (403, 405)
    assert not [name for name in response.headers if name.startswith("access-control-")]


async def test_a_head_request_has_the_headers_of_a_get(api: Api) -> None:
    job = await api.enqueue()
    for path in (f"/v1/jobs/{job['id']}", "/v1/jobs/x", "/docs"):
        short, long = await api.call("HEAD", path), await api.get(path)
        assert short.content == b""
        assert short.status_code == long.status_code
        changing = {"x-request-id", "date"}
        assert {name: short.headers[name] for name in short.headers if name not in changing} == {
            name: long.headers[name] for name in long.headers if name not in changing
        }


async def test_health_returns_only_ok(api: Api) -> None:
    assert (await api.get("/healthz")).json() == {"status": "ok"}
    assert (await api.call("HEAD", "/healthz")).content == b""


async def test_a_path_has_one_spelling(api: Api) -> None:
    for path in (
        "/nope", "/v1", "/v1/", "/v1/jobs/", "//v1/jobs", "/v1//jobs", "/V1/jobs", "/v1/JOBS", "/v1/%6Aobs",
        "/v1%2Fjobs", "/v2/jobs", "/debug", "/admin", "/v1/jobs;x=1", "/v1/jobs%00", "/.git/config", "/v1/queues/%ff",
    ):  # fmt: skip
        problem(await _raw_get(api, path), 404, "no_such_route")
    for path in (
        "/v1/./jobs",
        "/v1/x/../jobs",
        "/v1/%2e/jobs",
        "/v1/%2E%2e/jobs",
        "/v1/jobs/%",
        "/v1/jobs/%zz",
        "/v1/jo\\bs",
    ):
        assert (await _raw_get(api, path)).status_code in (400, 404)


async def test_a_wrong_method_is_rejected_with_the_allowed_ones(api: Api) -> None:
    for method, path, allowed in [
        ("DELETE", "/v1/jobs", "GET, HEAD, POST"),
        ("GET", "/v1/claims", "POST"),
        ("PATCH", "/v1/me", "GET, HEAD"),
        ("TRACE", "/healthz", "GET, HEAD"),
        ("OPTIONS", "/v1/jobs", "GET, HEAD, POST"),
    ]:
        response = await api.call(method, path)
        problem(response, 405, "method_not_allowed")
        assert response.headers["allow"] == allowed


async def test_a_method_cannot_be_overridden(api: Api) -> None:
    headers = {"x-http-method-override": "POST", "x-method-override": "POST", "x-http-method": "POST"}
    assert (await api.get("/v1/jobs?_method=POST", headers=headers)).status_code == 422
    problem(await api.get("/v1/claims", headers=headers), 405, "method_not_allowed")


async def test_with_auth_off_only_loopback_hosts_are_accepted(api: Api) -> None:
    for host in ("localhost", "127.0.0.1:8420", "[::1]:1", "LOCALHOST."):
        assert (await api.get("/v1/me", headers={"host": host})).status_code == 200
    for host in ("evil.example", "localhost.evil.example", "169.254.169.254", "0.0.0.0"):
        problem(await api.get("/v1/me", headers={"host": host}), 421, "unknown_host")
    for host in ("", "a b", "localhost/x", "localhost:x", "user@localhost"):
        problem(await api.get("/v1/me", headers={"host": host}), 400, "bad_request")


async def test_a_list_of_hosts_is_enforced(store: Store, clock: ManualClock) -> None:
    async with serving(store, clock, Options(auth=True, hosts=("queue.example",))) as api:
        assert (await api.get("/healthz", headers={"host": "queue.example"})).status_code == 200
        problem(await api.get("/healthz", headers={"host": "localhost"}), 421, "unknown_host")


async def test_a_page_of_another_site_changes_nothing(api: Api) -> None:
    job = await api.enqueue()
    for headers in (
        {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}, {"origin": "https://evil.example"}, {"origin": "null"},
    ):  # fmt: skip
        problem(await api.post(f"/v1/jobs/{job['id']}/cancel", headers=headers), 403, "cross_site")
    assert (await api.job(job["id"]))["status"] == "queued"
    own = {"sec-fetch-site": "same-origin", "origin": api.url}
    assert (await api.post(f"/v1/jobs/{job['id']}/cancel", headers=own)).status_code == 200


async def test_a_request_id_is_echoed_if_harmless_and_generated_otherwise(api: Api) -> None:
    assert (await api.get("/healthz", headers={"x-request-id": "abc-1"})).headers["x-request-id"] == "abc-1"
    for odd in ("a b", "x" * 65, '"}{', ""):
        made = (await api.get("/healthz", headers={"x-request-id": odd})).headers["x-request-id"]
        assert made != odd
        assert len(made) == 32


async def test_the_document_and_its_page_are_served(api: Api) -> None:
    document = (await api.get("/openapi.json")).json()
    assert document["openapi"] == "3.1.0"
    page = await api.get("/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "<script" not in page.text
    assert "http://" not in page.text
    assert "https://" not in page.text
    assert 'id="lease_lost"' in page.text


async def test_the_document_names_every_route_that_is_served(api: Api) -> None:
    document = (await api.get("/openapi.json")).json()
    named = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert named == {(route.method, route.path) for route in routes()}
    ids = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    assert len(ids) == len(set(ids))


async def test_metrics_name_routes_not_addresses(api: Api) -> None:
    job = await api.enqueue()
    await api.job(job["id"])
    await api.get("/something/odd")
    text = (await api.get("/metrics")).text
    assert 'interlock_http_requests_total{method="GET",route="/v1/jobs/{job_id}",status="200"} 1.0' in text
    for secret in (job["id"], api.tenant, "/something"):
        assert secret not in text


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com", "[::]"])
def test_without_auth_the_server_listens_on_loopback_only(host: str) -> None:
    with pytest.raises(Invalid, match="auth"):
        check_address(host, auth=False)
    check_address(host, auth=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.0.0.2", "[::1]"])
def test_loopback_needs_no_auth(host: str) -> None:
    check_address(host, auth=False)


async def test_a_server_with_auth_off_rejects_a_public_socket(store: Store) -> None:
    engine = Engine(store)
    with listen("0.0.0.0", 0) as listening, pytest.raises(Invalid, match="loopback"):
        Server(create_app(engine), listening)
    await engine.close()


def test_a_port_in_use_is_named() -> None:
    with listen("127.0.0.1", 0) as first, pytest.raises(Unavailable, match="cannot listen"):
        listen("127.0.0.1", first.getsockname()[1])


async def test_responses_under_load_do_not_mix(api: Api) -> None:
    """P50: callers disconnect at random bytes; no caller ever reads the response to another."""
    jobs = [(await api.enqueue(payload={"canary": n}))["id"] for n in range(8)]

    async def rude(n: int) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", api.port)
        request = f"GET /v1/jobs/{jobs[n % 8]} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
        writer.write(request[: 10 + (n * 7) % (len(request) - 9)])
        await writer.drain()
        writer.transport.abort()

    async def polite(n: int) -> None:
        assert (await api.job(jobs[n % 8]))["payload"] == {"canary": n % 8}

    await asyncio.gather(*(rude(n) if n % 2 else polite(n // 2) for n in range(120)))
    other = replace(api)
    assert (await other.job(jobs[3]))["payload"] == {"canary": 3}


async def _raw_get(api: Api, path: str) -> httpx2.Response:
    """A request for a path as it is; an ordinary client would tidy it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    writer.write(b"GET %b HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n" % path.encode())
    raw = await reader.read()
    writer.close()
    return parsed(raw)


def parsed(raw: bytes) -> httpx2.Response:
    """The bytes of one answer as a response."""
    head, _, body = raw.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return httpx2.Response(int(status.split()[1]), headers=headers, content=body)
