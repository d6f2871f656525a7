"""Issuers that are given by their address alone: they publish the address of their keys, over real connections."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from interlock.domain.issuer import DISCOVERY, issuers
from interlock.domain.webhook_url import Allowance
from interlock.engine.jwks import BETWEEN_FETCHES_SECONDS, LOOK_FIRST_SECONDS
from interlock.engine.jwt import Issuers
from interlock.engine.outbound_http import OutboundClient
from interlock.errors import Unauthenticated
from tests.engine.issuers import AUD, NOW, RSA_A, RSA_B, claims, public, signed
from tests.support.eventually import RETRY_SECONDS
from tests.support.receiver import Receiver, Seen, hang, receiver, responds


class Site:
    """An issuer's server: a document, and a set of keys at the address in the document."""

    def __init__(self, host: Receiver) -> None:
        self.host = host
        self.origin = host.url.removesuffix("/hook")
        self.issuer = f"{self.origin}/realm"
        self.document: dict[str, Any] = {"issuer": self.issuer, "jwks_uri": f"{self.origin}/keys"}
        self.keys = {"/keys": public(RSA_A)}
        host.answer = self.answer

    async def answer(self, seen: Seen, writer: asyncio.StreamWriter) -> None:
        path = seen.line.split()[1]
        found = self.document if path == f"/realm{DISCOVERY}" else self.keys.get(path)
        await responds(404 if found is None else 200, body=json.dumps(found).encode())(seen, writer)

    @property
    def asked(self) -> list[str]:
        return [seen.line.split()[1] for seen in self.host.seen]


class World:
    """One site, one moving time, and the issuer that is trusted."""

    def __init__(self, site: Site, outside: OutboundClient) -> None:
        self.site = site
        self.now = float(NOW)
        table = {"issuer": site.issuer, "audience": AUD, "algorithms": ["RS256"]}
        ticks = lambda: self.now  # noqa: E731
        self.issuers = Issuers(issuers([table]), fetch=outside.fetch, now=ticks, ticks=ticks)

    async def admits(self, key: Any = RSA_A) -> bool:
        issued = int(self.now)
        token = signed(claims(iss=self.site.issuer, iat=issued, exp=issued + 600), key=key)
        try:
            return (await self.issuers.authenticate(token)).actor == "user:ada"
        except Unauthenticated:
            return False


@asynccontextmanager
async def opened(allowance: Allowance | None = None) -> AsyncIterator[World]:
    async with receiver() as host:
        outside = OutboundClient(host.allowance if allowance is None else allowance)
        world = World(Site(host), outside)
        try:
            yield world
        finally:
            await world.issuers.close()
            await outside.close()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with opened() as made:
        yield made


async def test_an_issuer_is_trusted_by_its_url_alone(world: World) -> None:
    assert await world.admits()
    assert world.site.asked == [f"/realm{DISCOVERY}", "/keys"]
    assert not await world.admits(RSA_B)


async def test_concurrent_callers_cause_one_request_to_the_issuer(world: World) -> None:
    assert all(await asyncio.gather(*(world.admits() for _ in range(50))))
    assert not any(await asyncio.gather(*(world.admits(RSA_B) for _ in range(50))))
    assert len(world.site.asked) == 2


async def test_new_keys_and_a_new_jwks_url_are_found_without_a_restart(world: World) -> None:
    assert await world.admits()
    world.site.document["jwks_uri"] = f"{world.site.origin}/moved"
    world.site.keys = {"/keys": public(RSA_A), "/moved": public(RSA_B)}
    world.now += BETWEEN_FETCHES_SECONDS
    assert await world.admits(RSA_B)
    assert not await world.admits(RSA_A)


@pytest.mark.parametrize("claimed", ["other", "", None, "slash"])
async def test_a_document_of_another_issuer_is_rejected(world: World, claimed: str | None) -> None:
    world.site.document["issuer"] = {"other": "https://id.example.com", "slash": f"{world.site.issuer}/"}.get(
        claimed or "", claimed
    )
    assert not await world.admits()
    assert world.site.asked == [f"/realm{DISCOVERY}"]


async def test_while_the_document_is_bad_the_last_good_keys_are_used(world: World) -> None:
    assert await world.admits()
    world.site.document["issuer"] = "https://id.example.com"
    world.site.keys = {"/keys": public(RSA_B)}
    world.now += LOOK_FIRST_SECONDS
    assert await world.admits()
    assert not await world.admits(RSA_B)


async def test_an_internal_address_is_not_connected_to(world: World) -> None:
    """The document is foreign input: its address is checked like every other destination."""
    async with receiver() as inside:
        world.site.document["jwks_uri"] = inside.url
        assert not await world.admits()
        assert inside.connections == 0


async def test_the_issuer_itself_is_checked_like_every_other_destination() -> None:
    async with opened(Allowance()) as world:
        assert not await world.admits()
        assert world.site.host.connections == 0


async def test_redirects_are_not_followed(world: World) -> None:
    world.site.host.answer = responds(302, f"location: {world.site.origin}/keys\r\n")
    assert not await world.admits()
    assert world.site.asked == [f"/realm{DISCOVERY}"]


async def test_an_unresponsive_issuer_times_out(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interlock.engine.jwks.FETCH_SECONDS", 0.05)
    world.site.host.answer = hang
    async with asyncio.timeout(RETRY_SECONDS):
        assert not await world.admits()
