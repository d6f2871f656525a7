"""A head that comes again is known by its bytes, and means what it meant before: no more and no less."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from interlock.api.head_cache import MAX_HEADS, HeadCache
from tests.api.rig import Api
from tests.support.eventually import RETRY_SECONDS

LINE = b"POST /v1/jobs HTTP/1.1"
HOST, JSON = (b"host", b"localhost"), (b"content-type", b"application/json")


@pytest.fixture
def engine() -> str:
    """What a head means does not depend on the engine."""
    return "sqlite"


def request(*headers: tuple[bytes, bytes], body: bytes, line: bytes = LINE) -> bytes:
    length = (b"content-length", b"%d" % len(body))
    return b"\r\n".join([line, *(b"%b: %b" % one for one in (*headers, length)), b"", body])


async def answers(api: Api, *requests: bytes) -> list[tuple[int, bytes]]:
    """What a server says to one request after the other on one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    given = []
    async with asyncio.timeout(RETRY_SECONDS):
        for one in requests:
            writer.write(one)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length: ")[2].partition(b"\r")[0])
            given.append((int(head.split()[1]), await reader.readexactly(length)))
    writer.close()
    return given


async def test_requests_with_the_same_head_get_their_own_responses(api: Api) -> None:
    bodies = [b'{"type":"a%d"}' % n for n in range(3)]
    given = await answers(api, *(request(HOST, JSON, body=body) for body in bodies))
    assert [(status, msgspec.json.decode(body)["type"]) for status, body in given] == [
        (201, "a0"), (201, "a1"), (201, "a2"),
    ]  # fmt: skip


async def test_a_cached_head_skips_no_check(api: Api) -> None:
    good = request(HOST, JSON, body=b'{"type":"a0"}')
    foreign = request(HOST, JSON, (b"origin", b"http://elsewhere.example"), body=b'{"type":"a0"}')
    given = await answers(
        api,
        good,
        good[:-1] + b"!",  # no JSON
        good.replace(b"/v1/jobs", b"/v1/no-such"),
        good.replace(b"POST", b"DELETE"),
        foreign,
        foreign,
        foreign.replace(b"POST /v1/jobs", b"GET /healthz"),
        foreign,
        good,
    )
    assert [status for status, _ in given] == [201, 400, 404, 405, 403, 403, 413, 403, 201]


async def test_two_requests_with_a_cached_head_may_arrive_together_or_in_parts(api: Api) -> None:
    first, second = (request(HOST, JSON, body=b'{"type":"%b"}' % name) for name in (b"a0", b"a1"))
    (known,) = await answers(api, first)
    assert known[0] == 201
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    async with asyncio.timeout(RETRY_SECONDS):
        for pieces in ([first], [first + second], [first[:20], first[20:] + second[:-3], second[-3:]]):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            for _ in range(1 if len(pieces) == 1 and pieces[0] == first else 2):
                assert (await reader.readuntil(b'"finished_at":null}')).startswith(b"HTTP/1.1 201")
    writer.close()


def test_only_a_complete_request_with_the_identical_head_uses_the_cache() -> None:
    heads, body = HeadCache(), b'{"type":"a0"}'
    data = request(HOST, JSON, body=body)
    assert heads.whole(data) is None
    heads.remember(data, [HOST, JSON, (b"content-length", b"13")])
    known = heads.whole(data)
    assert known is not None
    assert (known.method, known.path, known.body) == ("POST", b"/v1/jobs", body)
    assert heads.whole(data + b" ") is None
    assert heads.whole(data[:-1]) is None
    assert heads.whole(data.replace(b"localhost", b"localhosT")) is None
    for line in (
        b"POST /v1/jobs?a=b HTTP/1.1",
        b"POST /v1/jobs HTTP/1.0",
        b"POST /v1/../jobs HTTP/1.1",
        b"POST  / HTTP/1.1",
    ):
        assert heads.whole(data.replace(LINE, line)) is None


@pytest.mark.parametrize(
    "more", [(b"expect", b"100-continue"), (b"connection", b"close"), (b"upgrade", b"h2c"), HOST], ids=str
)
def test_a_head_that_needs_more_than_a_response_is_never_cached(more: tuple[bytes, bytes]) -> None:
    heads = HeadCache()
    data = request(HOST, JSON, more, body=b"{}")
    heads.remember(data, [HOST, JSON, more, (b"content-length", b"2")])
    assert heads.whole(data) is None


def test_a_connection_caches_few_heads() -> None:
    heads = HeadCache()
    sent = [request(HOST, (b"x-number", b"%d" % n), body=b"{}") for n in range(MAX_HEADS + 2)]
    for n, data in enumerate(sent):
        heads.remember(data, [HOST, (b"x-number", b"%d" % n), (b"content-length", b"2")])
    assert [heads.whole(data) is not None for data in sent] == [False, False] + [True] * MAX_HEADS
