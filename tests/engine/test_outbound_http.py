"""The way out, against real sockets: what may be reached, for how long, and how much of the answer is read."""

from __future__ import annotations

import asyncio
import datetime
import gzip
import ipaddress
import itertools
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from interlock.domain.webhook import WebhookResponse
from interlock.domain.webhook_url import Allowance
from interlock.engine.dns import RESOLVERS, RESOLVERS_OF_ONE
from interlock.engine.outbound_http import ANSWER_BYTES, OutboundClient, Resolve
from interlock.errors import Invalid, Unavailable
from tests.domain.test_webhook_url import REFUSED
from tests.support.eventually import RETRY_SECONDS, eventually
from tests.support.receiver import Answer, Receiver, Seen, hang, receiver, responds, sends

PUBLIC = "8.8.8.8"
REFUSAL = WebhookResponse(error="destination_refused")


@pytest.fixture
async def there() -> AsyncIterator[Receiver]:
    async with receiver() as made:
        yield made


@pytest.fixture
async def outside(there: Receiver) -> AsyncIterator[OutboundClient]:
    """A way out that may reach the receiver."""
    made = OutboundClient(there.allowance, deadline_seconds=RETRY_SECONDS)
    yield made
    await made.close()


def resolver(*answers: Sequence[str]) -> Resolve:
    """Responses one after another, the last one repeatedly."""
    left = list(answers)

    async def resolve(_host: str, _port: int) -> Sequence[str]:
        return left.pop(0) if len(left) > 1 else left[0]

    return resolve


def leading(
    to: Sequence[str] | Resolve, allow: Sequence[str] = (), *, tls: ssl.SSLContext | None = None
) -> OutboundClient:
    """A way out for which every name leads there."""
    return OutboundClient(
        Allowance.of(allow), resolve=to if callable(to) else resolver(to), tls=tls, deadline_seconds=RETRY_SECONDS
    )


async def test_a_request_arrives_as_sent(there: Receiver, outside: OutboundClient) -> None:
    url = f"http://127.0.0.1:{there.port}/a/b?c=%2e%2e&d=e"
    assert await outside.post(url, {"webhook-id": "1"}, b"{}") == WebhookResponse(200)
    (seen,) = there.seen
    assert seen.line == "POST /a/b?c=%2e%2e&d=e HTTP/1.1"
    assert seen.body == b"{}"
    assert seen.headers["host"] == f"127.0.0.1:{there.port}"
    assert seen.headers["accept-encoding"] == "identity"
    assert seen.headers.keys().isdisjoint({"cookie", "authorization"})


async def test_nothing_is_kept_between_two_requests(there: Receiver, outside: OutboundClient) -> None:
    there.answer = responds(200, "set-cookie: a=b\r\nconnection: keep-alive\r\n")
    for _ in range(2):
        await outside.post(there.url, {}, b"")
    assert there.connections == 2
    assert "cookie" not in there.seen[1].headers


@pytest.mark.parametrize("url", REFUSED)
async def test_no_invalid_url_is_requested(outside: OutboundClient, url: str) -> None:
    assert await outside.post(url, {}, b"") == REFUSAL
    with pytest.raises(Invalid):
        await outside.admit(url)


async def test_a_loopback_receiver_is_not_reached_unless_allowed(there: Receiver) -> None:
    async def everywhere(host: str, _port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    closed = OutboundClient(resolve=everywhere)
    for host in ("127.0.0.1", "localhost", "hooks.example"):
        for scheme in ("http", "https"):
            assert await closed.post(f"{scheme}://{host}:{there.port}/", {}, b"") == REFUSAL
    assert there.connections == 0


async def test_a_name_that_changes_from_public_to_private_is_not_reached(there: Receiver) -> None:
    """Each request resolves once, and what it resolved to is what is judged and connected to."""
    answers = itertools.cycle([[PUBLIC], ["127.0.0.1"]])

    async def rebinding(_host: str, _port: int) -> Sequence[str]:
        return next(answers)

    rebound = OutboundClient(resolve=rebinding)
    for _ in range(10_000):
        await rebound.admit("https://hooks.example/")
        assert await rebound.post("https://hooks.example/", {}, b"") == REFUSAL
    assert there.connections == 0
    await rebound.close()


async def test_the_checked_address_is_the_one_that_is_used(there: Receiver) -> None:
    async with receiver(host="127.0.0.2", port=there.port) as sentinel:
        url = f"http://hooks.example:{there.port}/"
        names = leading(resolver(["127.0.0.1"], ["127.0.0.2"]), allow=[f"hooks.example:{there.port}"])
        assert await names.post(url, {}, b"") == WebhookResponse(200)
        assert (there.connections, sentinel.connections) == (1, 0)
        assert there.seen[0].headers["host"] == f"hooks.example:{there.port}"


@pytest.mark.parametrize(
    "answer", [[PUBLIC, "127.0.0.1"], ["127.0.0.1", PUBLIC], [PUBLIC, "::1"], [PUBLIC, "fe80::1%lo"]]
)
async def test_one_bad_address_rejects_all(answer: Sequence[str]) -> None:
    mixed = leading(answer)
    assert await mixed.post("https://hooks.example/", {}, b"") == REFUSAL
    with pytest.raises(Invalid):
        await mixed.admit("https://hooks.example/")


async def test_an_unresponsive_address_falls_back_to_the_next(there: Receiver) -> None:
    names = leading(["127.0.0.3", "127.0.0.1"], allow=["127.0.0.0/8", f"hooks.example:{there.port}"])
    assert await names.post(f"http://hooks.example:{there.port}/", {}, b"") == WebhookResponse(200)


async def test_an_unknown_name_is_admitted_and_not_reached() -> None:
    async def unknown(_host: str, _port: int) -> Sequence[str]:
        raise OSError("no such name")

    for resolve in (unknown, resolver([])):
        nowhere = leading(resolve)
        await nowhere.admit("https://hooks.example/")
        assert await nowhere.post("https://hooks.example/", {}, b"") == WebhookResponse(error="cannot_resolve")


async def test_the_resolver_of_the_system_is_the_default(there: Receiver) -> None:
    outside = OutboundClient(Allowance.of([f"localhost:{there.port}"]), deadline_seconds=RETRY_SECONDS)
    assert await outside.post(f"http://localhost:{there.port}/", {}, b"") == WebhookResponse(200)
    await outside.close()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed(there: Receiver, outside: OutboundClient, status: int) -> None:
    async with receiver() as inside:
        for target in (inside.url, "file:///etc/passwd", there.url, "gopher://x/"):
            there.answer = responds(status, f"location: {target}\r\n")
            assert await outside.post(there.url, {}, b"") == WebhookResponse(status)
        assert inside.connections == 0
    assert there.connections == 4


async def test_no_proxy_of_the_environment_is_used(
    there: Receiver, outside: OutboundClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with receiver() as proxy:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        assert await outside.post(there.url, {}, b"") == WebhookResponse(200)
        assert proxy.connections == 0


async def drip(seen: Seen, writer: asyncio.StreamWriter, head: bytes) -> None:
    """A byte now and then: no single read takes long."""
    writer.write(head)
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.01)


async def drip_headers(seen: Seen, writer: asyncio.StreamWriter) -> None:
    await drip(seen, writer, b"HTTP/1.1 200 OK\r\nx-long: ")


async def drip_body(seen: Seen, writer: asyncio.StreamWriter) -> None:
    await drip(seen, writer, b"HTTP/1.1 200 OK\r\ncontent-length: 4000\r\n\r\n")


@pytest.mark.parametrize("answer", [hang, drip_headers, drip_body], ids=lambda answer: answer.__name__)
async def test_the_deadline_is_absolute(there: Receiver, answer: Answer) -> None:
    there.answer = answer
    hasty = OutboundClient(there.allowance, deadline_seconds=0.2)
    async with asyncio.timeout(RETRY_SECONDS):
        assert await hasty.post(there.url, {}, b"") == WebhookResponse(error="timeout")
    await hasty.close()


async def test_a_hanging_resolver_has_the_same_deadline() -> None:
    async def never(_host: str, _port: int) -> Sequence[str]:
        await asyncio.Event().wait()
        return []

    stuck = OutboundClient(resolve=never, deadline_seconds=0.05)
    assert await stuck.post("https://hooks.example/", {}, b"") == WebhookResponse(error="timeout")
    await stuck.admit("https://hooks.example/")


async def test_hanging_names_delay_only_their_owner(there: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answers = [], threading.Event()

    def ask(host: str, port: int, **more: Any) -> Any:
        asked.append(host)
        if host != "localhost":
            assert answers.wait(RETRY_SECONDS)
            raise OSError("no such name")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", ask)
    outside = OutboundClient(Allowance.of([f"localhost:{there.port}"]), deadline_seconds=RETRY_SECONDS)
    try:
        names = [f"https://slow{n}.example/" for n in range(RESOLVERS)]
        asking = [asyncio.create_task(outside.admit(name, owner="a")) for name in names]

        async def some_hang() -> bool:
            return len(asked) == RESOLVERS_OF_ONE

        await eventually(some_hang)
        for task in asking:
            task.cancel()
        await asyncio.wait(asking)
        url = f"http://localhost:{there.port}/"
        assert await outside.post(url, {}, b"", owner="b") == WebhookResponse(200)
        delayed = asyncio.create_task(outside.post(url, {}, b"", owner="a"))
        await outside.post(url, {}, b"", owner="b")
        assert (len(asked), delayed.done()) == (RESOLVERS_OF_ONE + 2, False), "its threads hang, though no call waits"
        answers.set()
        assert await delayed == WebhookResponse(200)
    finally:
        answers.set()
        await outside.close()


async def test_only_the_beginning_of_a_long_response_is_read(there: Receiver, outside: OutboundClient) -> None:
    written = 0

    async def flood(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10000000000\r\n\r\n")
        while True:
            writer.write(b"x" * 65536)
            await writer.drain()
            written += 65536

    there.answer = flood
    assert await outside.post(there.url, {}, b"") == WebhookResponse(200)
    assert written < 64 * 1024 * 1024, "only what the buffers between us hold"


async def test_a_response_is_not_decompressed(there: Receiver, outside: OutboundClient) -> None:
    bomb = gzip.compress(b"0" * 1_000_000)
    assert len(bomb) < ANSWER_BYTES
    there.answer = responds(200, "content-encoding: gzip\r\n", bomb)
    assert await outside.post(there.url, {}, b"") == WebhookResponse(200)
    assert await outside.fetch(there.url) == bomb


@pytest.mark.parametrize(
    "raw", [b"", b"<h1>HTTP 0.9</h1>", b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab", b"SSH-2.0-x\r\n"]
)
async def test_an_invalid_response_is_reported_as_broken(there: Receiver, outside: OutboundClient, raw: bytes) -> None:
    there.answer = sends(raw)
    assert await outside.post(there.url, {}, b"") == WebhookResponse(error="broken_answer")


async def test_a_closed_port_is_reported(there: Receiver) -> None:
    async with receiver() as gone:
        pass
    outside = OutboundClient(gone.allowance)
    assert await outside.post(gone.url, {}, b"") == WebhookResponse(error="cannot_connect")


@pytest.mark.parametrize(("header", "seconds"), [("120", 120.0), ("-1", None), ("soon", None), ("9" * 30, None)])
async def test_a_receiver_may_send_retry_after(
    there: Receiver, outside: OutboundClient, header: str, seconds: float | None
) -> None:
    there.answer = responds(429, f"retry-after: {header}\r\n")
    assert await outside.post(there.url, {}, b"") == WebhookResponse(429, None, seconds)


class TestFetch:
    async def test_a_document_is_fetched_completely(self, there: Receiver, outside: OutboundClient) -> None:
        there.answer = responds(200, body=b'{"keys": []}')
        assert await outside.fetch(there.url) == b'{"keys": []}'
        assert there.seen[0].line.startswith("GET /hook ")

    @pytest.mark.parametrize(
        "answer", [responds(404), responds(302, "location: /x\r\n"), responds(200, body=b"x" * 101), responds(500)]
    )
    async def test_any_other_response_is_not_a_document(
        self, there: Receiver, outside: OutboundClient, answer: Answer
    ) -> None:
        there.answer = answer
        with pytest.raises(Unavailable):
            await outside.fetch(there.url, limit=100)

    async def test_a_document_of_the_maximum_size_is_accepted(self, there: Receiver, outside: OutboundClient) -> None:
        there.answer = responds(200, body=b"x" * 100)
        assert len(await outside.fetch(there.url, limit=100)) == 100

    async def test_documents_have_the_destination_rules_of_webhooks(self, there: Receiver) -> None:
        with pytest.raises(Unavailable, match="destination_refused"):
            await OutboundClient().fetch(there.url)
        assert there.connections == 0


def certificate(directory: Path, *names: str) -> Path:
    """A certificate that signs itself, and its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([
            x509.IPAddress(ipaddress.ip_address(n)) if n[0].isdigit() else x509.DNSName(n) for n in names
        ]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    file = directory / f"{names[0]}.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file.write_bytes(made.public_bytes(serialization.Encoding.PEM) + private)
    return file


class TestTLS:
    async def test_the_certificate_must_match_the_name_not_the_address(self, tmp_path: Path) -> None:
        files = [certificate(tmp_path, name) for name in ("hooks.example", "127.0.0.1")]
        for file, expected in zip(files, (WebhookResponse(200), WebhookResponse(error="cannot_connect")), strict=True):
            server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            server.load_cert_chain(file)
            asked: list[str | None] = []
            server.sni_callback = lambda _socket, name, _context, asked=asked: asked.append(name)
            trusted = ssl.create_default_context(cafile=str(file))
            async with receiver(tls=server) as there:
                names = leading(["127.0.0.1"], allow=[f"hooks.example:{there.port}"], tls=trusted)
                assert await names.post(f"https://hooks.example:{there.port}/", {}, b"") == expected
                await names.close()
            assert asked == ["hooks.example"]

    async def test_an_untrusted_certificate_is_rejected(self, tmp_path: Path) -> None:
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(certificate(tmp_path, "hooks.example"))
        async with receiver(tls=server) as there:
            names = leading(["127.0.0.1"], allow=[f"hooks.example:{there.port}"])
            reply = await names.post(f"https://hooks.example:{there.port}/", {}, b"")
            assert reply == WebhookResponse(error="cannot_connect")
            assert there.seen == []
            await names.close()
