"""Sign-in with OpenID Connect: the provider's responses and tokens, and every forgery of them, over real connections."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import pytest_asyncio

from interlock.domain.issuer import DISCOVERY
from interlock.domain.principal import Principal
from interlock.domain.retry import SECOND
from interlock.domain.sign_in import sign_in
from interlock.domain.webhook_url import Allowance
from interlock.engine.jwks import BETWEEN_FETCHES_SECONDS
from interlock.engine.outbound_http import OutboundClient
from interlock.engine.sign_in import Flow, Provider
from interlock.errors import Error, SignInFailed, Unavailable
from tests.engine.issuers import EC, RSA_A, RSA_B, STRANGER, b64, public, sealed, signed
from tests.support.receiver import Receiver, Seen, receiver, responds

CLIENT = "interlock"
SECRET = "a secret / with: signs%"
US = "http://127.0.0.1:8420"


class Site:
    """A provider that returns what a test prescribes."""

    def __init__(self, host: Receiver) -> None:
        self.host = host
        self.issuer = host.url.removesuffix("/hook")
        self.now = float(int(time.time()))
        self.keys = [RSA_A]
        self.document: dict[str, Any] = {
            "issuer": self.issuer, "jwks_uri": f"{self.issuer}/keys", "token_endpoint": f"{self.issuer}/token",
            "authorization_endpoint": f"{self.issuer}/authorize?realm=1",
        }  # fmt: skip
        self.claims: dict[str, Any] = {
            "iss": self.issuer, "aud": CLIENT, "sub": "ada", "tenant": "acme", "roles": ["approve", "read", "work"],
            "name": "Ada Lovelace", "email": "ada@example.com", "iat": int(self.now), "exp": int(self.now) + 600,
        }  # fmt: skip
        self.userinfo: dict[str, Any] | None = None
        self.sign: Callable[[dict[str, Any]], str] = lambda claims: signed(claims, header={"typ": "JWT"})
        self.status = 200
        self.verifier = ""
        self.nonce = ""
        host.answer = self.answer

    async def answer(self, seen: Seen, writer: asyncio.StreamWriter) -> None:
        path, body = seen.line.split()[1], None
        if path == DISCOVERY:
            body = self.document
        elif path == "/keys":
            body = public(*self.keys)
        elif path == "/userinfo":
            body = self.userinfo
        elif path == "/token":
            body = self.tokens(seen)
        status = 404 if body is None else self.status if path == "/token" else 200
        await responds(status, body=json.dumps(body).encode())(seen, writer)

    def tokens(self, seen: Seen) -> dict[str, Any]:
        form = {name: value[0] for name, value in parse_qs(seen.body.decode()).items()}
        assert form["grant_type"] == "authorization_code"
        assert form["redirect_uri"] == f"{US}/sign-in/callback"
        self.verifier = form["code_verifier"]
        claims = {name: value for name, value in ({"nonce": self.nonce} | self.claims).items() if value is not None}
        return {"access_token": "access", "token_type": "Bearer", "id_token": self.sign(claims)}


class World:
    """A provider and a dashboard that trusts it."""

    def __init__(self, site: Site, outside: OutboundClient) -> None:
        self.site, self.outside = site, outside
        self.now = site.now
        self.trust()

    def trust(self, **settings: Any) -> None:
        table = {"issuer": self.site.issuer, "client_id": CLIENT, **settings}
        found = sign_in(table, client_secret=SECRET, public_url=US)
        self.provider = Provider(found, self.outside, now=lambda: self.now, ticks=lambda: self.now)

    async def start(self, *, fresh: bool = False) -> tuple[dict[str, str], Flow]:
        url, flow = await self.provider.start("/jobs", fresh=fresh)
        assert url.startswith(f"{self.site.issuer}/authorize?realm=1&")
        self.site.nonce = flow.nonce
        return {name: value[0] for name, value in parse_qs(urlsplit(url).query).items()}, flow

    async def enter(self, *, fresh: bool = False, **response: str | None) -> Principal:
        _, flow = await self.start(fresh=fresh)
        return await self.provider.finish(flow, {"code": "c", "state": flow.state} | response)

    async def rejects(self, *, fresh: bool = False, **response: str | None) -> str:
        with pytest.raises(SignInFailed) as caught:
            await self.enter(fresh=fresh, **response)
        return str(caught.value)


@asynccontextmanager
async def a_world() -> AsyncIterator[World]:
    async with receiver() as host:
        outside = OutboundClient(Allowance.of([f"127.0.0.1:{host.port}"]))
        world = World(Site(host), outside)
        try:
            yield world
        finally:
            await world.provider.close()
            await outside.close()


@pytest_asyncio.fixture
async def world() -> AsyncIterator[World]:
    async with a_world() as made:
        yield made


async def test_a_person_signs_in_with_name_and_roles_of_the_claims(world: World) -> None:
    who = await world.enter()
    assert (who.tenant, who.actor, who.roles) == ("acme", "user:ada", frozenset({"approve", "read"}))
    assert who.person is not None
    assert who.person == ("Ada Lovelace", "ada@example.com", None)


async def test_the_request_carries_pkce_state_and_nonce(world: World) -> None:
    query, flow = await world.start()
    assert (query["response_type"], query["client_id"], query["realm"]) == ("code", CLIENT, "1")
    assert (query["state"], query["nonce"], query["code_challenge_method"]) == (flow.state, flow.nonce, "S256")
    assert "prompt" not in query
    await world.provider.finish(flow, {"code": "c", "state": flow.state})
    digest = hashlib.sha256(world.site.verifier.encode()).digest()
    assert base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == query["code_challenge"]
    again, _ = await world.start()
    assert all(again[name] != query[name] for name in ("state", "nonce", "code_challenge"))


async def test_the_client_authenticates_with_its_encoded_secret(world: World) -> None:
    await world.enter()
    (sent,) = [seen for seen in world.site.host.seen if "/token" in seen.line]
    pair = base64.b64decode(sent.headers["authorization"].removeprefix("Basic ")).decode()
    assert pair == "interlock:a%20secret%20%2F%20with%3A%20signs%25"


@pytest.mark.parametrize("state", [None, "", "other"])
async def test_a_response_with_another_state_is_rejected_before_its_code_is_used(
    world: World, state: str | None
) -> None:
    assert "does not belong to this browser" in await world.rejects(state=state)
    assert not any("/token" in seen.line for seen in world.site.host.seen)


async def test_a_response_of_another_provider_is_rejected(world: World) -> None:
    assert "another provider" in await world.rejects(iss="https://evil.example")
    assert (await world.enter(iss=world.site.issuer)).actor == "user:ada"


async def test_a_response_without_issuer_is_rejected_if_the_provider_always_names_it(world: World) -> None:
    world.site.document["authorization_response_iss_parameter_supported"] = True
    assert "another provider" in await world.rejects()


async def test_an_error_of_the_provider_is_not_repeated_to_the_person(world: World) -> None:
    assert await world.rejects(error="<b>access_denied</b>") == "the provider did not sign you in"
    assert "no code" in await world.rejects(code=None)


FORGERIES: dict[str, dict[str, Any]] = {
    "another nonce": {"nonce": "other"},
    "no nonce": {"nonce": None},
    "a nonce that is not text": {"nonce": 1},
    "another issuer": {"iss": "https://evil.example"},
    "no issuer": {"iss": None},
    "another audience": {"aud": "other"},
    "other audiences": {"aud": ["other"]},
    "no audience": {"aud": None},
    "issued to another client": {"aud": [CLIENT, "other"], "azp": "other"},
    "expired": {"exp": int(time.time()) - 3600, "iat": int(time.time()) - 7200},
    "without end": {"exp": None},
    "of the future": {"iat": int(time.time()) + 3600, "exp": int(time.time()) + 7200},
    "not valid yet": {"nbf": int(time.time()) + 3600},
    "of too long a life": {"exp": int(time.time()) + 10 * 86_400},
    "without subject": {"sub": None},
    "an empty subject": {"sub": ""},
    "without tenant": {"tenant": None},
    "roles that are not text": {"roles": [1]},
}


@pytest.mark.parametrize("change", FORGERIES.values(), ids=FORGERIES)
async def test_an_id_token_with_a_wrong_claim_is_rejected(world: World, change: dict[str, Any]) -> None:
    world.site.claims |= change
    await world.rejects()


SIGNATURES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "none": lambda claims: f"{b64({'alg': 'none', 'kid': 'a'})}.{b64(claims)}.",
    "none with a signature": lambda claims: f"{b64({'alg': 'none', 'kid': 'a'})}.{b64(claims)}.AAAA",
    "a key of another person": lambda claims: signed(claims, key=STRANGER, header={"typ": "JWT"}),
    "a key that is not published": lambda claims: signed(claims, key=RSA_B, header={"typ": "JWT"}),
    "an algorithm that is not allowed": lambda claims: signed(claims, key=EC, alg="ES256", header={"typ": "JWT"}),
    "a key in the header": lambda claims: sealed(
        {"alg": "RS256", "kid": "a", "jwk": STRANGER.as_dict(private=False)}, claims, STRANGER
    ),
    "no key ID": lambda claims: sealed({"alg": "RS256"}, claims),
    "an access token": lambda claims: signed(claims),
    "changed after signing": lambda claims: signed(claims, header={"typ": "JWT"}).replace(".", ".A", 1),
    "no text": lambda claims: None,
    "no token": lambda claims: "",
}


@pytest.mark.parametrize("sign", SIGNATURES.values(), ids=SIGNATURES)
async def test_an_id_token_with_a_wrong_signature_is_rejected(
    world: World, sign: Callable[[dict[str, Any]], Any]
) -> None:
    world.site.sign = sign
    assert await world.rejects() == "the ID token is not valid: see the log of the server"


async def test_a_new_key_of_the_provider_is_found_and_the_old_one_is_forgotten(world: World) -> None:
    await world.enter()
    world.site.keys = [RSA_B]
    world.site.sign = lambda claims: signed(claims, key=RSA_B, header={"typ": "JWT"})
    world.now += BETWEEN_FETCHES_SECONDS
    assert (await world.enter()).actor == "user:ada"
    world.site.sign = lambda claims: signed(claims, key=RSA_A, header={"typ": "JWT"})
    world.now += BETWEEN_FETCHES_SECONDS
    await world.rejects()


async def test_claims_of_the_userinfo_endpoint_are_added(world: World) -> None:
    world.site.document["userinfo_endpoint"] = f"{world.site.issuer}/userinfo"
    world.site.claims |= {"name": None, "roles": None}
    world.site.userinfo = {"sub": "ada", "name": "Ada", "roles": ["read"], "tenant": "other", "auth_time": 1}
    who = await world.enter()
    assert (who.tenant, who.roles) == ("acme", frozenset({"read"})), "claims of the ID token win"
    assert who.person == ("Ada", "ada@example.com", None), "only the ID token says when a person signed in"


async def test_claims_of_another_person_at_the_userinfo_endpoint_are_rejected(world: World) -> None:
    world.site.document["userinfo_endpoint"] = f"{world.site.issuer}/userinfo"
    world.site.userinfo = {"sub": "eve", "roles": ["admin"]}
    assert "another person" in await world.rejects()


async def test_roles_are_mapped_and_unknown_ones_ignored(world: World) -> None:
    world.trust(
        roles={"staff": "read", "leads": "approve"}, claims={"roles": ["realm", "groups"]}, tenant="acme", name="corp"
    )
    world.site.claims |= {"realm": {"groups": ["staff", "admin", "read"]}, "tenant": None}
    who = await world.enter()
    assert (who.tenant, who.actor, who.roles) == ("acme", "user:corp/ada", frozenset({"read"}))


async def test_a_tenant_that_is_not_listed_is_rejected(world: World) -> None:
    world.trust(tenants=["other"])
    assert "tenant" in await world.rejects()


@pytest.mark.parametrize("verified", [False, "false", 0, "no"])
async def test_an_unverified_address_is_not_shown_as_the_persons_own(world: World, verified: object) -> None:
    world.site.claims |= {"email_verified": verified, "name": f"  Ada\n{'x' * 300}"}
    person = (await world.enter()).person
    assert person is not None
    assert person.email is None
    assert person.name is not None
    assert (person.name[:5], len(person.name)) == ("Ada x", 200)


async def test_a_fresh_sign_in_must_be_recent(world: World) -> None:
    query, _ = await world.start(fresh=True)
    assert (query["prompt"], query["max_age"]) == ("login", "300")
    assert "did not authenticate you again" in await world.rejects(fresh=True)
    world.site.claims["auth_time"] = int(world.now) - 301
    assert "did not authenticate you again" in await world.rejects(fresh=True)
    assert (await world.enter()).roles, "an ordinary sign-in may be older"
    world.site.claims["auth_time"] = int(world.now) - 10
    person = (await world.enter(fresh=True)).person
    assert person is not None
    assert person.authenticated_at == (int(world.now) - 10) * SECOND


@pytest.mark.parametrize(
    ("status", "expected"), [(400, SignInFailed), (401, SignInFailed), (302, SignInFailed), (500, Unavailable)]
)
async def test_a_rejected_code_is_no_sign_in(world: World, status: int, expected: type[Error]) -> None:
    world.site.status = status
    with pytest.raises(expected):
        await world.enter()


@pytest.mark.parametrize(
    "change",
    [
        {"issuer": "https://evil.example"},
        {"token_endpoint": "ftp://evil.example"},
        {"token_endpoint": None},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"jwks_uri": "http://evil.example/keys"},
    ],
)
async def test_a_wrong_discovery_document_is_rejected(world: World, change: dict[str, Any]) -> None:
    world.site.document |= change
    with pytest.raises(Unavailable):
        await world.start()


async def test_a_provider_that_does_not_answer_is_reported_as_unavailable(world: World) -> None:
    world.site.document = {}
    with pytest.raises(Unavailable, match="try again later"):
        await world.start()
    assert await world.provider.end_session_url() is None
