"""Raw sockets: slow callers, broken framing, heads without end. Nothing here goes through an HTTP client."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import resource
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest

from interlock.api.middleware import SECURITY
from interlock.api.options import Options
from interlock.domain.job import Job
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import local
from interlock.storage.contract import Store
from interlock.storage.object_store.s3 import S3Objects
from interlock.wire import JobRequest
from tests.api.rig import Api, problem, serving
from tests.api.test_http import parsed
from tests.support.eventually import RETRY_SECONDS, eventually
from tests.support.stores import ManualClock

BODY = b'{"type":"a"}'
POST = b"POST /v1/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


@pytest.fixture
def engine() -> str:
    """What happens on a socket does not depend on the engine."""
    return "sqlite"


@pytest.fixture
async def quick(store: Store, clock: ManualClock) -> AsyncIterator[Api]:
    """A service that loses patience soon, so that on a busy machine no request is sure to be answered."""
    soon = 0.5
    options = Options(head_seconds=soon, body_seconds=soon, idle_seconds=soon, stalled_seconds=soon)
    async with serving(store, clock, options, objects=S3Objects.in_memory()) as api:
        yield api


@pytest.fixture
async def calm(store: Store, clock: ManualClock) -> AsyncIterator[Api]:
    """A service that waits for as long as a busy machine takes, and closes what it has to at once."""
    long = RETRY_SECONDS
    options = Options(head_seconds=long, body_seconds=long, idle_seconds=long, stalled_seconds=long, largest_head=4096)
    async with serving(store, clock, options) as api:
        yield api


async def job_of(api: Api, **fields: Any) -> Job:
    """A new job, claimed: not over the sockets that are tested."""
    engine, who = api.engine, local(api.tenant)
    await engine.jobs.enqueue(who, JobRequest(type="work", **fields))
    (job,) = await engine.leases.claim(api.tenant, ClaimFilter("w"))
    return job


async def exchange(api: Api, *pieces: bytes) -> bytes:
    """Everything the server sends in response to these bytes until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
    async with asyncio.timeout(RETRY_SECONDS):
        given = await reader.read()
    writer.close()
    return given


async def trickle(api: Api, first: bytes, then: bytes) -> bytes:
    """The response to a client that sends one byte every now and then, and continues after the response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    writer.write(first)
    answer = asyncio.create_task(reader.readuntil(b"}"))
    closed = False
    async with asyncio.timeout(RETRY_SECONDS):
        for n in itertools.count():
            try:
                writer.write(then[n : n + 1] or b"x")
                await writer.drain()
            except ConnectionError:
                closed = True
                break
            await asyncio.wait([answer], timeout=0.05)
            if answer.done() and reader.at_eof():
                closed = True
                break
    assert closed
    writer.close()
    return await answer


async def test_a_slow_head_is_cut_off(quick: Api) -> None:
    problem(parsed(await trickle(quick, b"GET /healthz HTTP/1.1\r\nx-long: ", b"")), 408, "request_timeout")


async def test_a_slow_body_is_cut_off(quick: Api) -> None:
    given = await trickle(quick, POST + b"content-length: 1000\r\n\r\n", b'{"type":')
    problem(parsed(given), 408, "request_timeout")
    assert b"connection: close" in given


async def test_a_slow_upload_is_cut_off(quick: Api) -> None:
    job = await job_of(quick)
    head = f"PUT /v1/jobs/{job.id}/artifacts?name=a&worker=w HTTP/1.1\r\nhost: localhost\r\ninterlock-fence: {job.fence}\r\n"
    given = await trickle(quick, head.encode() + b"content-length: 100000\r\n\r\n", b"")
    problem(parsed(given), 408, "request_timeout")
    assert b"connection: close" in given


async def test_a_silent_connection_is_closed(quick: Api) -> None:
    assert parsed(await exchange(quick)).status_code == 408


async def test_an_idle_connection_is_closed_without_a_response(quick: Api) -> None:
    given = await exchange(quick, b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
    assert given.count(b"HTTP/1.1") == 1


async def test_blank_lines_do_not_keep_a_connection_open(quick: Api) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", quick.port)
    writer.write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
    given = bytearray()

    async def read() -> None:
        with contextlib.suppress(ConnectionError):  # A blank line may meet a socket that the server has closed.
            while chunk := await reader.read(4096):
                given.extend(chunk)

    closed = asyncio.create_task(read())
    async with asyncio.timeout(RETRY_SECONDS):
        while not closed.done():
            with contextlib.suppress(ConnectionError):
                writer.write(b"\r\n")
                await writer.drain()
            await asyncio.wait([closed], timeout=0.05)
    await closed
    assert given.count(b"HTTP/1.1") == 1
    writer.close()


async def test_a_request_in_parts_between_others_gets_a_response(api: Api) -> None:
    ask = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    async with asyncio.timeout(RETRY_SECONDS):
        writer.write(ask + ask[:9])
        assert (await reader.readuntil(b"}")).endswith(b'{"status":"ok"}')
        writer.write(ask[9:] + ask[:30])
        assert (await reader.readuntil(b"}")).endswith(b'{"status":"ok"}')
        writer.write(ask[30:])
        assert (await reader.readuntil(b"}")).endswith(b'{"status":"ok"}')
    writer.close()


async def test_a_caller_that_never_reads_is_cut_off(quick: Api) -> None:
    jobs = [await job_of(quick, payload=msgspec.Raw(b'"%b"' % (b"x" * 200_000))) for _ in range(30)]
    _, writer = await asyncio.open_connection("127.0.0.1", quick.port, limit=1)
    for job in jobs:
        writer.write(f"GET /v1/jobs/{job.id} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())

    async def cut_off() -> bool:
        writer.write(b"\r\n")
        return writer.transport.is_closing()

    await eventually(cut_off)
    writer.close()


@pytest.fixture
def many_files() -> Iterator[None]:
    """Room for both ends of a thousand connections in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 8192)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_thousand_slow_callers_do_not_block_others(many_files: None, store: Store, clock: ManualClock) -> None:
    async with serving(store, clock, Options(head_seconds=RETRY_SECONDS)) as api:
        slow = [await asyncio.open_connection("127.0.0.1", api.port) for _ in range(1000)]
        for _, writer in slow:
            writer.write(b"GET /healthz HTTP/1.1\r\nx: ")
        for _ in range(20):
            assert (await api.get("/v1/me")).status_code == 200
        assert len(api.server.connections) > 1000
        for _, writer in slow:
            writer.close()


@pytest.mark.parametrize(
    "head",
    [
        b"content-length: 12\r\ntransfer-encoding: chunked\r\n",
        b"content-length: 12\r\ncontent-length: 12\r\n",
        b"content-length: 12\r\ncontent-length: 13\r\n",
        b"content-length: -1\r\n",
        b"content-length: +12\r\n",
        b"content-length: 1e1\r\n",
        b"content-length: 12, 12\r\n",
        b"transfer-encoding: gzip, chunked\r\n",
        b"transfer-encoding: identity\r\n",
        b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
        b"transfer-encoding: xchunked\r\n",
        b"content-length: 12\r\nx: a\r\n b\r\n",
        b"content-length : 12\r\n",
        b"content-length: 12\r\nx\x00y: 1\r\n",
        b"content-length: 12\r\nx: a\x00b\r\n",
        b"content-length: 12\r\nauthorization: Bearer a\r\nauthorization: Bearer b\r\n",
        b"content-length: 12\r\nidempotency-key: a\r\nidempotency-key: b\r\n",
        b"content-length: 12\r\nhost: other\r\n",
        b"content-length: 12\n",
    ],
)
async def test_ambiguous_framing_is_rejected_and_the_connection_closed(calm: Api, head: bytes) -> None:
    given = await exchange(calm, POST + head + b"\r\n" + BODY + b"GET /v1/me HTTP/1.1\r\nhost: localhost\r\n\r\n")
    problem(parsed(given), 400, "bad_request")
    assert given.count(b"HTTP/1.1 ") == 1
    assert (await calm.get("/v1/jobs")).json()["items"] == []


@pytest.mark.parametrize(
    "chunks",
    [b"zz\r\n{}\r\n0\r\n\r\n", b"-1\r\n\r\n", b"5;\x00\r\nhello\r\n0\r\n\r\n", b"2\r\n{}0\r\n\r\n", b"2\n{}\n0\n\n"],
)
async def test_a_broken_chunk_ends_the_connection(quick: Api, chunks: bytes) -> None:
    given = await exchange(quick, POST + b"transfer-encoding: chunked\r\n\r\n" + chunks)
    assert b" 2" not in given[:13]
    assert given.count(b"HTTP/1.1 ") <= 1


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"x" * 5000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"x" * 5000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: localhost\r\n" + b"".join(b"x%d: 1\r\n" % n for n in range(200)) + b"\r\n",
    ],
)
async def test_an_endless_head_is_rejected(calm: Api, head: bytes) -> None:
    problem(parsed(await exchange(calm, head)), 431, "head_too_large")


@pytest.mark.parametrize(
    "given",
    [b"hello\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"GET / HTTP/9.9\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
     b"GET / HTTP/1.1\r\n\r\n", b"CONNECT localhost:80 HTTP/1.1\r\nhost: localhost\r\n\r\n",
     b"GET /v1/me HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: x\r\n\r\n"],
)  # fmt: skip
async def test_a_malformed_request_is_rejected(quick: Api, given: bytes) -> None:
    answer = parsed(await exchange(quick, given))
    assert answer.status_code in (400, 405, 408), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert set(SECURITY) <= {(name.encode(), value.encode()) for name, value in answer.headers.items()}


async def test_pipelined_requests_get_responses_in_order(calm: Api) -> None:
    first = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
    last = b"GET /v1/me HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    given = await exchange(calm, first + last)
    assert given.count(b"HTTP/1.1 200 OK") == 2
    assert given.index(b'"status":"ok"') < given.index(b'"tenant"')


async def test_a_rejected_small_body_leaves_the_connection_usable(calm: Api) -> None:
    wrong = (
        b"POST /v1/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\ncontent-length: 12\r\n\r\n" + BODY
    )
    given = await exchange(calm, wrong + b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    assert given.startswith(b"HTTP/1.1 415 ")
    assert b"HTTP/1.1 200 OK" in given


async def test_a_caller_that_expects_100_continue_is_rejected_before_it_sends(calm: Api) -> None:
    head = b"POST /v1/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\nexpect: 100-continue\r\ncontent-length: 900000\r\n\r\n"
    given = await exchange(calm, head)
    assert given.startswith(b"HTTP/1.1 415 ")
    assert b"100 Continue" not in given


async def test_too_many_connections_are_rejected(store: Store, clock: ManualClock) -> None:
    async with serving(store, clock, Options(most_connections=2)) as api:
        held = [await asyncio.open_connection("127.0.0.1", api.port) for _ in range(2)]
        await eventually(lambda: _is(len(api.server.connections) == 2))
        problem(parsed(await exchange(api)), 503, "overloaded")
        for _, writer in held:
            writer.close()


async def _is(fact: bool) -> bool:
    return fact


@pytest.mark.parametrize("blank", [b"\r\n", b"\n", b"\r\n\r\n"])
async def test_blank_lines_before_the_first_request_are_ignored(calm: Api, blank: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", calm.port)
    writer.write(blank)
    await asyncio.sleep(0.1)  # so that they come alone; together with the request they prove nothing
    writer.write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    async with asyncio.timeout(RETRY_SECONDS):
        assert parsed(await reader.read()).status_code == 200
    writer.close()


@pytest.mark.parametrize("target", ["http://evil.example/healthz", "http://localhost:1/healthz", "/healthz#x"])
async def test_a_target_that_names_another_host_or_a_fragment_is_rejected(calm: Api, target: str) -> None:
    given = await exchange(calm, f"GET {target} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    problem(parsed(given), 400, "bad_request")


async def test_a_target_may_name_its_own_host(calm: Api) -> None:
    head = b"GET http://LOCALHOST:80/healthz HTTP/1.1\r\nhost: localhost:80\r\nconnection: close\r\n\r\n"
    assert parsed(await exchange(calm, head)).status_code == 200


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_trailer_is_not_a_header(store: Store, clock: ManualClock, at_once: bool) -> None:
    async with serving(store, clock, Options(auth=True)) as api:
        known = await api.as_role("produce", "read")
        credential = f"authorization: Bearer {known.token}\r\n".encode()

        async def reported(more: bytes, trailer: bytes) -> bytes:
            parts = [
                POST + more + b"transfer-encoding: chunked\r\n\r\n",
                b"c\r\n" + BODY + b"\r\n0\r\n",
                trailer + b"\r\n",
            ]
            reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
            for part in [b"".join(parts)] if at_once else parts:
                writer.write(part)
                await writer.drain()
            async with asyncio.timeout(RETRY_SECONDS):
                line = await reader.readline()
            writer.close()
            return line.split()[1]

        assert await reported(b"", credential) == b"401"
        assert await reported(credential, b"idempotency-key: a\r\ncontent-type: text/plain\r\n") == b"201"
        assert await reported(credential, b"idempotency-key: a\r\n") == b"201"
        (one, other) = (await known.get("/v1/jobs")).json()["items"]
        assert (one["idempotency_key"], other["idempotency_key"]) == (None, None)


HEALTH = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
LAST = b"GET /v1/me HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


async def test_a_request_before_broken_data_is_answered_first(calm: Api) -> None:
    given = await exchange(calm, POST + b"content-length: 12\r\n\r\n" + BODY + b"what is this\r\n\r\n")
    first, _, second = given.partition(b"}HTTP/1.1 ")
    assert first.startswith(b"HTTP/1.1 201 ")
    assert second.startswith(b"400 ")
    assert len((await calm.get("/v1/jobs")).json()["items"]) == 1


async def test_a_request_whose_body_is_broken_is_answered_once(calm: Api) -> None:
    pieces = [POST + b"transfer-encoding: chunked\r\n\r\n", b"5\r\nhello", b"no chunk"]
    given = await exchange(calm, *pieces)
    problem(parsed(given), 400, "bad_request")
    assert given.count(b"HTTP/1.1 ") == 1
    assert (await calm.get("/v1/jobs")).json()["items"] == []


@pytest.mark.parametrize(
    "start",
    [
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: ",
        b"GET /healthz?",
        POST + b"transfer-encoding: chunked\r\n\r\n5;x=",
        POST + b"transfer-encoding: chunked\r\n\r\nc\r\n" + BODY + b"\r\n0\r\nx: ",
    ],
    ids=["header", "target", "chunk extension", "trailer"],
)
async def test_a_line_without_end_is_not_kept_in_memory(calm: Api, start: bytes) -> None:
    problem(parsed(await exchange(calm, start, *[b"x" * 4096] * 400)), 431, "head_too_large")


@pytest.mark.parametrize("version", [b"0.9", b"1.2", b"2.0"])
async def test_another_version_of_http_is_rejected(calm: Api, version: bytes) -> None:
    given = await exchange(calm, b"GET /healthz HTTP/%b\r\nhost: localhost\r\n\r\n" % version)
    problem(parsed(given), 400, "bad_request")


async def test_data_after_the_last_request_is_ignored(calm: Api) -> None:
    for last in (LAST, LAST.replace(b"connection: close", b"x: y").replace(b"/1.1", b"/1.0")):
        given = await exchange(calm, last + HEALTH + b"rubbish")
        assert given.startswith(b"HTTP/1.1 200 OK")
        assert given.count(b"HTTP/1.1 ") == 1
        assert b"connection: close" in given


async def test_a_client_that_asks_first_is_told_to_continue(calm: Api) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", calm.port)
    async with asyncio.timeout(RETRY_SECONDS):
        for _ in range(2):
            writer.write(POST + b"expect: 100-continue\r\ncontent-length: 12\r\n\r\n")
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(BODY)
            assert (await reader.readuntil(b'"acknowledged_by":null}')).startswith(b"HTTP/1.1 201 ")
    writer.close()


async def test_a_body_that_comes_with_the_question_needs_no_answer(calm: Api) -> None:
    head = POST + b"expect: 100-continue\r\nconnection: close\r\ncontent-length: 12\r\n\r\n"
    assert (await exchange(calm, head + BODY)).startswith(b"HTTP/1.1 201 ")


async def test_the_rest_of_a_small_rejected_body_is_no_request(calm: Api) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", calm.port)
    async with asyncio.timeout(RETRY_SECONDS):
        writer.write(b"POST /v1/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\n")
        writer.write(b"content-length: %d\r\n\r\n" % len(HEALTH))
        assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 415 ")
        writer.write(HEALTH + LAST)
        rest = await reader.read()
    assert rest.count(b"HTTP/1.1 ") == 1
    assert b'"tenant"' in rest
    writer.close()


@pytest.mark.parametrize("framing", [b"content-length: 9000000", b"transfer-encoding: chunked"])
async def test_a_client_that_still_sends_can_read_why_it_was_rejected(calm: Api, framing: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", calm.port)
    async with asyncio.timeout(RETRY_SECONDS):
        writer.write(POST.replace(b"application/json", b"text/plain") + framing + b"\r\n\r\n")
        for _ in range(90):
            writer.write(b"186a0\r\n" + b"x" * 100_000 + b"\r\n")
            await writer.drain()
        given = await reader.read()
    problem(parsed(given), 415, "unsupported_media_type")
    assert b"connection: close" in given
    writer.close()


async def test_a_stream_for_http_1_0_ends_with_the_connection(calm: Api) -> None:
    job = await job_of(calm)
    await calm.engine.jobs.cancel(local(calm.tenant), job.id, force=True)
    path = f"/v1/jobs/{job.id}/events/stream"
    given = await exchange(calm, f"GET {path} HTTP/1.0\r\nhost: localhost\r\n\r\n".encode())
    assert b"transfer-encoding" not in given
    assert given.endswith(b"event: end\ndata: {}\n\n")
    given = await exchange(calm, f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
    assert b"transfer-encoding: chunked\r\n" in given
    assert given.endswith(b"0\r\n\r\n")


async def test_the_answer_to_head_has_no_body(calm: Api) -> None:
    given = await exchange(calm, HEALTH.replace(b"GET", b"HEAD") + LAST)
    head, _, rest = given.partition(b"\r\n\r\n")
    assert b"content-length: 15" in head
    assert rest.startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        ("http://localhost", "localhost", 404),
        ("http://[::1]:80/healthz", "[::1]:80", 200),
        ("http://localhost?x", "localhost", 404),
        ("http://somebody@localhost/healthz", "localhost", 400),
        ("*", "localhost", 404),
        ("//localhost/healthz", "localhost", 404),
    ],
)
async def test_a_target_is_a_path_or_an_address_of_this_host(calm: Api, target: str, host: str, status: int) -> None:
    given = await exchange(calm, f"GET {target} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode())
    assert parsed(given).status_code == status


async def test_many_requests_sent_together_are_answered_in_order(calm: Api) -> None:
    asked = [POST + b"content-length: %d\r\n\r\n" % (14 + len(b"%d" % n)) + b'{"type":"job%d"}' % n for n in range(300)]
    given = await exchange(calm, b"".join(asked) + LAST)
    order = re.findall(rb'"type":"job(\d+)"', given)
    assert [int(one) for one in order] == [*range(300)]
    assert given.count(b"HTTP/1.1 201 ") == 300


async def test_a_client_that_leaves_during_a_long_poll_frees_its_place(calm: Api) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", calm.port)
    body = b'{"wait_seconds":60}'
    head = POST.replace(b"/v1/jobs", b"/v1/claims") + b"content-length: %d\r\n\r\n" % len(body)
    writer.write(head + body + HEALTH)
    await eventually(lambda: _is(calm.service.admission.waiting == 1))
    writer.close()
    await eventually(lambda: _is(calm.service.admission.waiting == 0))
