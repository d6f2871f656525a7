"""Credentials of outside issuers: what is refused, and how an issuer's keys come and go."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from joserfc import jws
from joserfc.jwk import ECKey, Key, OctKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

from interlock.domain.issuer import ALGORITHMS, Issuer, issuers
from interlock.domain.principal import Principal
from interlock.engine.jwt import LARGEST_TOKEN, LEEWAY_SECONDS, Issuers
from interlock.engine.keys import BETWEEN_FETCHES_SECONDS, FETCH_SECONDS, LAST_GOOD_SECONDS, LOOK_FIRST_SECONDS
from interlock.engine.recent import FRESH_SECONDS
from interlock.engine.tokens import Tokens, Trust
from interlock.errors import Invalid, Unauthenticated
from interlock.storage.contract import Store
from tests.support.eventually import eventually

NOW = 1_800_000_000
ISS = "https://id.example.com/realm"
AUD = "https://interlock.example.com"
URI = "https://id.example.com/keys"


def rsa(kid: str, **more: Any) -> RSAKey:
    made = RSAKey.generate_key(2048).as_dict(private=True)
    return RSAKey.import_key({**made, "kid": kid, **more})


RSA_A, RSA_B, STRANGER = rsa("a"), rsa("b"), rsa("a")
EC = ECKey.generate_key("P-256", {"kid": "ec"}, auto_kid=False)
EC384 = ECKey.generate_key("P-384", {"kid": "ec384"}, auto_kid=False)
ED = OKPKey.generate_key("Ed25519", {"kid": "ed"}, auto_kid=False)
ANY_ALGORITHM = JWSRegistry(algorithms=list(ALGORITHMS))


def public(*keys: Key) -> dict[str, Any]:
    return {"keys": [key.as_dict(private=False) for key in keys]}


def trusted(**fields: Any) -> Issuer:
    values = {"issuer": ISS, "audience": AUD, "algorithms": ["RS256"], "jwks_uri": URI, **fields}
    (one,) = issuers([{name: value for name, value in values.items() if value is not None}])
    return one


def claims(**fields: Any) -> dict[str, Any]:
    """Claims of a good token; None leaves one out."""
    values = {
        "iss": ISS, "aud": AUD, "sub": "ada", "tenant": "acme", "roles": ["read"], "iat": NOW, "exp": NOW + 600,
        **fields,
    }  # fmt: skip
    return {name: value for name, value in values.items() if value is not None}


def signed(
    payload: object = None, *, key: Key = RSA_A, header: dict[str, Any] | None = None, alg: str = "RS256"
) -> str:
    head = {"alg": alg, "kid": key.kid, "typ": "at+jwt", **(header or {})}
    head = {name: value for name, value in head.items() if value is not None}
    body = payload if isinstance(payload, bytes) else json.dumps(claims() if payload is None else payload).encode()
    if alg == "RS256" and isinstance(key, RSAKey):
        return sealed(head, body, key)
    return jws.serialize_compact(head, body, key, registry=ANY_ALGORITHM)


def b64(value: object) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def sealed(header: object, payload: object, key: RSAKey = RSA_A) -> str:
    """Any header over any payload, with an RS256 signature that fits; a library would refuse to sign some of them."""
    start = f"{b64(header)}.{b64(payload)}"
    private = key.private_key
    assert private is not None
    return f"{start}.{b64(private.sign(start.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


class Site:
    """An issuer's web site, and a watch on every address that is asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers = 0
        self.answer: Callable[[], bytes] = lambda: json.dumps(public(RSA_A)).encode()
        self.open = asyncio.Event()
        self.open.set()

    def publish(self, *keys: Key) -> None:
        self.answer = lambda: json.dumps(public(*keys)).encode()

    def fall_over(self) -> None:
        def fail() -> bytes:
            raise OSError("no route to host")

        self.answer = fail

    async def __call__(self, url: str) -> bytes:
        self.asked.append(url)
        await self.open.wait()
        self.answers += 1
        return self.answer()


class World:
    """One site, one moving time, and the issuers that are trusted."""

    def __init__(self) -> None:
        self.site = Site()
        self.now = float(NOW)
        self.trust(trusted())

    def trust(self, *some: Issuer) -> None:
        self.issuers = Issuers(some, fetch=self.site, now=lambda: self.now, ticks=lambda: self.now)

    async def enter(self, text: str) -> Principal:
        return await self.issuers.authenticate(text)

    async def refuses(self, text: str) -> bool:
        try:
            await self.enter(text)
        except Unauthenticated:
            return True
        return False


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    await made.issuers.close()


async def test_a_good_token_lets_its_bearer_in(world: World) -> None:
    who = await world.enter(signed())
    assert (who.tenant, who.actor, who.roles) == ("acme", "user:ada", frozenset({"read"}))
    assert (who.worker, who.unchecked) == (None, False)
    assert world.site.asked == [URI]


@pytest.mark.parametrize(
    ("algorithm", "key"),
    [("RS256", RSA_A), ("RS512", RSA_A), ("PS256", RSA_A), ("ES256", EC), ("ES384", EC384), ("Ed25519", ED)],
)
async def test_every_algorithm_that_is_offered_works(world: World, algorithm: str, key: Key) -> None:
    world.trust(trusted(algorithms=[algorithm], jwks_uri=None, jwks=public(key)))
    assert (await world.enter(signed(key=key, alg=algorithm))).tenant == "acme"
    assert world.site.asked == []


# S07: the algorithm is fixed per issuer, and the key must be one for it.


@pytest.mark.parametrize(
    "alg", ["none", "None", "nOnE", "NONE", "", "HS256", "rs256", "RS256 ", "ES256", "PBES2", None]
)
@pytest.mark.parametrize("signature", ["", "AAAA"])
async def test_another_algorithm_is_refused(world: World, alg: str | None, signature: str) -> None:
    header = {"kid": "a", "typ": "at+jwt"} | ({} if alg is None else {"alg": alg})
    assert await world.refuses(f"{b64(header)}.{b64(claims())}.{signature}")


@pytest.mark.parametrize("alg", [["RS256"], {"RS256": 1}, 256, True])
async def test_an_algorithm_that_is_no_text_is_refused(world: World, alg: Any) -> None:
    assert await world.refuses(sealed({"alg": alg, "kid": "a", "typ": "at+jwt"}, claims()))


async def test_a_public_key_used_as_a_shared_secret_is_refused(world: World) -> None:
    """Whoever knows the public key can make such a token."""
    for secret in (RSA_A.as_pem(private=False), RSA_A.as_der(private=False), json.dumps(public(RSA_A)).encode()):
        start = f"{b64({'alg': 'HS256', 'kid': 'a', 'typ': 'at+jwt'})}.{b64(claims())}"
        mac = hmac.new(secret, start.encode(), hashlib.sha256).digest()
        assert await world.refuses(f"{start}.{b64(mac)}")


async def test_no_algorithm_with_a_shared_secret_can_be_trusted() -> None:
    for algorithm in ("HS256", "none", "EdDSA", "ES256K", "RSA1_5"):
        with pytest.raises(Invalid) as caught:
            trusted(algorithms=["RS256", algorithm])
        assert caught.value.pointer == "/issuers/0/algorithms"


async def test_a_good_signature_of_an_algorithm_that_is_not_listed_is_refused(world: World) -> None:
    assert await world.refuses(signed(alg="RS512"))
    assert await world.refuses(signed(alg="PS256"))


async def test_a_key_that_is_bound_to_one_algorithm_does_for_no_other(world: World) -> None:
    bound = rsa("bound", alg="RS512")
    world.trust(trusted(algorithms=["RS256", "RS512"], jwks_uri=None, jwks=public(bound)))
    free = RSAKey.import_key({k: v for k, v in bound.as_dict(private=True).items() if k != "alg"})
    assert await world.refuses(signed(key=free, alg="RS256"))
    assert (await world.enter(signed(key=bound, alg="RS512"))).tenant == "acme"


async def test_a_key_of_another_type_or_curve_does_not_do(world: World) -> None:
    world.trust(trusted(algorithms=["RS256", "ES256"], jwks_uri=None, jwks=public(RSA_A, EC, EC384)))
    token = signed(key=EC, alg="ES256")
    assert (await world.enter(token)).tenant == "acme"
    _, body, signature = token.split(".")
    for kid in ("a", "ec384"):
        assert await world.refuses(f"{b64({'alg': 'ES256', 'kid': kid, 'typ': 'at+jwt'})}.{body}.{signature}")
    assert await world.refuses(f"{b64({'alg': 'RS256', 'kid': 'ec', 'typ': 'at+jwt'})}.{body}.{signature}")


async def test_a_signature_by_a_stranger_or_over_something_else_is_refused(world: World) -> None:
    assert await world.refuses(signed(key=STRANGER))
    head, _, signature = signed().split(".")
    assert await world.refuses(f"{head}.{b64(claims(roles=['admin']))}.{signature}")
    assert await world.refuses(f"{head}.{b64(claims())}.{b64(b'x' * 256)}")
    assert not await world.refuses(signed())


# S08: a key is found by issuer and id, in what was fetched, or not at all.


@pytest.mark.parametrize(
    "kid",
    [
        "../../etc/passwd",
        "' OR 1=1 --",
        "https://evil.example/keys",
        "a\0",
        "A",
        "a ",
        "",
        "x" * 10_000,
        "b",
        None,
        1,
        ["a"],
    ],
)
async def test_an_odd_key_id_finds_nothing_and_leads_nowhere(world: World, kid: Any) -> None:
    assert await world.refuses(signed(header={"kid": kid}))
    assert set(world.site.asked) <= {URI}


async def test_the_same_key_id_of_two_issuers_is_two_keys(world: World) -> None:
    other = "https://other.example.com"
    both = issuers(
        [
            {"issuer": ISS, "audience": AUD, "algorithms": ["RS256"], "jwks": public(RSA_A), "name": "one"},
            {"issuer": other, "audience": AUD, "algorithms": ["RS256"], "jwks": public(STRANGER), "name": "two"},
        ]
    )
    world.trust(*both)
    assert (await world.enter(signed(key=RSA_A))).actor == "user:one/ada"
    assert (await world.enter(signed(claims(iss=other), key=STRANGER))).actor == "user:two/ada"
    assert await world.refuses(signed(key=STRANGER))
    assert await world.refuses(signed(claims(iss=other), key=RSA_A))


# S09: what a token says about keys is not listened to.


@pytest.mark.parametrize(
    "header",
    [
        {"jku": "https://evil.example/keys"},
        {"x5u": "https://evil.example/cert"},
        {"jwk": STRANGER.as_dict(private=False)},
        {"x5c": ["MIIB"]},
    ],
    ids=lambda header: next(iter(header)),
)
async def test_a_key_that_a_token_brings_along_is_never_used(world: World, header: dict[str, Any]) -> None:
    assert await world.refuses(signed(key=STRANGER, header=header))
    assert not await world.refuses(signed(key=RSA_A, header=header))
    assert world.site.asked == [URI]


# S10: what is not done here is refused fast.

JWE = ".".join([b64({"alg": "PBES2-HS256+A128KW", "enc": "A128GCM", "p2c": 2**31, "p2s": "AAAA"}), *["AAAA"] * 4])
ODD: dict[str, Callable[[], str]] = {
    "unknown crit": lambda: signed(header={"crit": ["exp"], "exp": 1}),
    "known crit": lambda: signed(header={"crit": ["alg"]}),
    "empty crit": lambda: signed(header={"crit": []}),
    "b64 false": lambda: signed(header={"b64": False}),
    "b64 true": lambda: signed(header={"b64": True}),
    "nested": lambda: signed(header={"cty": "JWT"}),
    "nested body": lambda: signed(signed().encode()),
    "zipped": lambda: signed(header={"zip": "DEF"}),
    "a JWE": lambda: JWE,
    "a JWE of three parts": lambda: ".".join(JWE.split(".")[:3]),
    "too large": lambda: signed(claims(more="x" * LARGEST_TOKEN)),
    "huge": lambda: "a." * 5_000_000,
    "two parts": lambda: signed().rsplit(".", 1)[0],
    "four parts": lambda: signed() + ".AAAA",
    "detached": lambda: re.sub(r"\..*\.", "..", signed()),
    "spaces": lambda: signed() + " ",
    "newline": lambda: signed() + "\n",
    "padding": lambda: signed() + "==",
    "null": lambda: signed() + "\0",
    "header no object": lambda: sealed(["RS256"], claims()),
    "header twice": lambda: sealed(b'{"alg":"none","alg":"RS256","kid":"a","typ":"at+jwt"}', claims()),
    "claims no object": lambda: signed(b"[]"),
    "claims no JSON": lambda: signed(b"\xff"),
    "claims twice": lambda: signed(b'{"tenant":"acme",' + json.dumps(claims(tenant="rival")).encode()[1:]),
    "too deep": lambda: signed(b'{"a":' + b"[" * 2000 + b"]" * 2000 + b"," + json.dumps(claims()).encode()[1:]),
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
async def test_what_is_not_a_plain_signed_token_is_refused(world: World, odd: Callable[[], str]) -> None:
    assert await world.refuses(odd())


@pytest.mark.parametrize("name", ["a JWE", "huge", "unknown crit", "b64 false", "too large"])
async def test_a_trap_costs_less_than_five_milliseconds(world: World, name: str) -> None:
    await world.enter(signed())
    trap = ODD[name]()
    spent = []
    for _ in range(5):
        start = time.perf_counter()
        assert await world.refuses(trap)
        spent.append(time.perf_counter() - start)
    assert min(spent) < 0.005


# S11: who issued it, for whom, and when.

WRONG: dict[str, dict[str, Any]] = {
    "iss with a slash": {"iss": ISS + "/"},
    "iss cut": {"iss": ISS[:-1]},
    "iss longer": {"iss": ISS + ".evil.example"},
    "iss in another case": {"iss": ISS.upper()},
    "iss missing": {"iss": None},
    "iss a list": {"iss": [ISS]},
    "aud missing": {"aud": None},
    "aud of another service": {"aud": "https://other.example.com"},
    "aud of others": {"aud": ["https://other.example.com", AUD + "/"]},
    "aud empty": {"aud": []},
    "aud a number in a list": {"aud": [AUD, 1]},
    "aud an object": {"aud": {AUD: 1}},
    "exp missing": {"exp": None},
    "exp past": {"exp": NOW - LEEWAY_SECONDS, "iat": NOW - 600},
    "exp a float": {"exp": NOW + 600.5},
    "exp a text": {"exp": str(NOW + 600)},
    "exp true": {"exp": True},
    "exp huge": {"exp": 2**62},
    "exp negative": {"exp": -1},
    "nbf in the future": {"nbf": NOW + LEEWAY_SECONDS + 1},
    "nbf a text": {"nbf": "0"},
    "nbf true": {"nbf": True},
    "iat in the future": {"iat": NOW + LEEWAY_SECONDS + 1},
    "iat a float": {"iat": NOW + 0.5},
    "life too long": {"exp": NOW + 3601},
    "life too long, no iat": {"exp": NOW + 3601, "iat": None},
    # S12: the tenant comes from its claim and from nowhere else.
    "tenant missing": {"tenant": None},
    "tenant missing, sub is one": {"tenant": None, "sub": "acme"},
    "tenant empty": {"tenant": ""},
    "tenant blank": {"tenant": " "},
    "tenant padded": {"tenant": " acme"},
    "tenant a list": {"tenant": ["acme"]},
    "tenant a number": {"tenant": 1},
    "tenant an object": {"tenant": {"acme": 1}},
    "tenant true": {"tenant": True},
    "tenant with a null byte": {"tenant": "acme\0"},
    "tenant too long": {"tenant": "x" * 201},
    "sub missing": {"sub": None},
    "sub empty": {"sub": ""},
    "sub a number": {"sub": 1},
    "sub with a newline": {"sub": "a\nb"},
    "roles an object": {"roles": {"read": True}},
    "roles with a number": {"roles": ["read", 1]},
    "work and approve": {"roles": ["work", "approve"]},
    "work and admin": {"roles": ["work", "admin"]},
    "types a text": {"roles": ["work"], "types": "build"},
    "types odd": {"roles": ["work"], "types": ["build", "*"]},
    "repositories an object": {"roles": ["work"], "repositories": {}},
    "capabilities any": {"roles": ["work"], "capabilities": ["*"]},
    "worker a list": {"roles": ["work"], "worker_id": ["w1"]},
    "worker of an instance": {"roles": ["work"], "worker_id": "w1/2"},
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
async def test_a_well_signed_token_with_wrong_claims_is_refused(world: World, wrong: dict[str, Any]) -> None:
    assert await world.refuses(signed(claims(**wrong)))


RIGHT: dict[str, dict[str, Any]] = {
    "aud in a list": {"aud": ["https://other.example.com", AUD]},
    "just not expired": {"exp": NOW - LEEWAY_SECONDS + 1, "iat": NOW - 600},
    "nbf within the leeway": {"nbf": NOW + LEEWAY_SECONDS},
    "iat within the leeway": {"iat": NOW + LEEWAY_SECONDS},
    "an hour": {"exp": NOW + 3600},
    "no iat": {"iat": None},
    "no roles": {"roles": None},
    "words nobody knows": {"roles": ["read", "openid", "king"]},
    "roles as one text": {"roles": "openid read"},
    "more claims": {"nonce": "x", "scope": "y"},
}


@pytest.mark.parametrize("right", RIGHT.values(), ids=RIGHT)
async def test_a_token_at_the_edge_of_the_rules_is_taken(world: World, right: dict[str, Any]) -> None:
    who = await world.enter(signed(claims(**right)))
    assert who.roles == (frozenset() if right.get("roles", "") is None else frozenset({"read"}))


@pytest.mark.parametrize(
    ("typ", "fine"),
    [("at+jwt", True), ("AT+JWT", True), ("application/at+jwt", True), ("JWT", False), ("id+jwt", False), (None, False),
     ("", False), (1, False), (["at+jwt"], False)],
)  # fmt: skip
async def test_only_an_access_token_is_one(world: World, typ: Any, fine: bool) -> None:
    header = {"alg": "RS256", "kid": "a"} | ({} if typ is None else {"typ": typ})
    text = sealed(header, claims())
    assert await world.refuses(text) is not fine


async def test_other_kinds_of_token_count_where_the_settings_say_so(world: World) -> None:
    world.trust(trusted(typ=["JWT", ""]))
    assert not await world.refuses(signed(header={"typ": "JWT"}))
    assert not await world.refuses(signed(header={"typ": None}))
    assert await world.refuses(signed(header={"typ": "at+jwt"}))


async def test_every_refusal_says_the_same_and_the_log_holds_no_token(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    told = set()
    texts = [make() for make in ODD.values()] + [signed(claims(**wrong)) for wrong in WRONG.values()]
    for text in texts:
        with pytest.raises(Unauthenticated) as caught:
            await world.enter(text)
        told.add(str(caught.value))
        assert caught.value.__cause__ is None
    assert len(told) == 1
    assert "it has expired" in caplog.text
    signatures = [text.rsplit(".", 1)[-1] for text in texts]
    assert not [signature for signature in signatures if len(signature) > 20 and signature in caplog.text]


# Rule 17: tenant, roles and policy from configured claims.


async def test_a_workers_token_carries_its_policy(world: World) -> None:
    payload = claims(
        roles=["work", "produce"], worker_id="w1", types=["build"], repositories=["org/x.git"], capabilities=["gpu"]
    )
    who = await world.enter(signed(payload))
    assert (who.actor, who.worker, who.roles) == ("worker:w1", "w1", frozenset({"work", "produce"}))
    assert who.policy == (frozenset({"build"}), frozenset({"org/x"}), frozenset({"gpu"}))


async def test_absent_types_are_any_and_absent_capabilities_none(world: World) -> None:
    who = await world.enter(signed(claims(roles=["work"], types=["*"])))
    assert who.policy == (None, None, frozenset())
    assert who.worker == "ada"  # who names no worker works under the subject's name
    nothing = await world.enter(signed(claims(roles=["work"], types=[], repositories=[])))
    assert nothing.policy == (frozenset(), frozenset(), frozenset())


async def test_a_worker_claim_of_somebody_who_does_not_work_means_nothing(world: World) -> None:
    who = await world.enter(signed(claims(roles=["approve"], worker_id="w1")))
    assert (who.actor, who.worker, who.roles) == ("user:ada", None, frozenset({"approve"}))


async def test_claims_and_words_can_have_other_names(world: World) -> None:
    world.trust(
        trusted(
            claims={"tenant": "https://example.com/org", "roles": ["realm", "roles"], "worker_id": "azp"},
            roles={"ops": "operate", "robots": "work"},
        )
    )
    named = {"tenant": "wrong", "roles": ["admin"], "https://example.com/org": "acme"}
    who = await world.enter(signed(claims(**named, realm={"roles": ["ops", "admin", "read"]})))
    assert (who.tenant, who.roles) == ("acme", frozenset({"operate"}))
    robot = await world.enter(signed(claims(**named, realm={"roles": ["robots"]}, azp="w9")))
    assert (robot.worker, robot.roles) == ("w9", frozenset({"work"}))
    nobody = await world.enter(signed(claims(**named, realm="roles")))
    assert nobody.roles == frozenset()
    assert await world.refuses(signed(claims(tenant="acme")))


async def test_an_issuer_may_be_kept_to_its_tenants(world: World) -> None:
    world.trust(trusted(tenants=["acme", "beta"]))
    assert not await world.refuses(signed(claims(tenant="beta")))
    assert await world.refuses(signed(claims(tenant="rival")))


# F34, S13: keys come, go, and stay while the issuer is away.


async def test_many_unknown_key_ids_cost_one_fetch_in_half_a_minute(world: World) -> None:
    unknown = [signed(header={"kid": f"no-{i}"}) for i in range(20)]
    for _ in range(500):
        assert all(await asyncio.gather(*(world.refuses(text) for text in unknown)))
    assert len(world.site.asked) == 1
    world.now += BETWEEN_FETCHES_SECONDS - 0.1
    assert await world.refuses(unknown[0])
    assert len(world.site.asked) == 1
    world.now += 0.1
    assert all(await asyncio.gather(*(world.refuses(text) for text in unknown)))
    assert len(world.site.asked) == 2


async def test_a_new_key_is_found_without_a_restart(world: World) -> None:
    assert not await world.refuses(signed())
    world.site.publish(RSA_A, RSA_B)
    world.now += BETWEEN_FETCHES_SECONDS
    assert not await world.refuses(signed(key=RSA_B))
    assert not await world.refuses(signed(key=RSA_A))


async def test_a_key_that_was_taken_away_is_refused_within_five_minutes(world: World) -> None:
    assert not await world.refuses(signed())
    world.site.publish(RSA_B)
    world.now += LOOK_FIRST_SECONDS
    assert await world.refuses(signed(claims(iat=int(world.now), exp=int(world.now) + 60)))


async def test_while_keys_are_in_use_they_are_fetched_again_and_nobody_waits(world: World) -> None:
    assert not await world.refuses(signed())
    world.site.publish(RSA_B)
    world.site.open.clear()
    world.now += 200
    assert not await world.refuses(signed())  # answered from the keys at hand
    await eventually(lambda: _true(len(world.site.asked) == 2))
    world.site.open.set()
    await eventually(lambda: _true(world.site.answers == 2))
    world.now += FRESH_SECONDS
    assert await world.refuses(signed())
    assert len(world.site.asked) == 2


async def test_a_hot_token_is_verified_about_once_a_second_but_never_beyond_its_end(world: World) -> None:
    text = signed(claims(exp=NOW + 1))
    first = await world.enter(text)
    assert await world.enter(text) is first
    world.now += FRESH_SECONDS
    assert await world.enter(text) is not first
    world.now = NOW + 1 + LEEWAY_SECONDS - 0.1
    assert not await world.refuses(text)
    world.now += 0.1
    assert await world.refuses(text)


async def test_a_site_that_withdraws_all_keys_is_believed(world: World) -> None:
    assert not await world.refuses(signed())
    world.site.publish()
    world.now += LOOK_FIRST_SECONDS
    assert await world.refuses(signed(claims(iat=int(world.now), exp=int(world.now) + 60)))


GARBAGE: dict[str, bytes] = {
    "nothing": b"",
    "html": b"<html>Service Unavailable</html>",
    "a list": b"[]",
    "no keys": b"{}",
    "keys no list": b'{"keys": {}}',
    "keys no keys": b'{"keys": [1, "a", null, {}, {"kty": "RSA"}]}',
    "only a secret": json.dumps({"keys": [OctKey.generate_key(256, {"kid": "a"}).as_dict(private=True)]}).encode(),
    "a private key": json.dumps({"keys": [STRANGER.as_dict(private=True)]}).encode(),
    "for encryption": json.dumps({"keys": [STRANGER.as_dict(private=False, use="enc")]}).encode(),
    "for signing only": json.dumps({"keys": [STRANGER.as_dict(private=False, key_ops=["sign"])]}).encode(),
    "broken numbers": json.dumps({"keys": [{"kty": "RSA", "kid": "a", "n": "AQ", "e": "AQAB"}]}).encode(),
    "too many": json.dumps({"keys": [STRANGER.as_dict(private=False)] * 101}).encode(),
    "too large": b'{"keys": []' + b" " * 300_000 + b"}",
    "keys twice": b'{"keys": [], "keys": []}',
    "deep": b'{"keys": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
async def test_garbage_from_an_issuer_changes_nothing(world: World, garbage: bytes) -> None:
    assert not await world.refuses(signed())
    world.site.answer = lambda: garbage
    world.now += LOOK_FIRST_SECONDS
    assert not await world.refuses(signed(claims(iat=int(world.now), exp=int(world.now) + 60)))
    assert len(world.site.asked) == 2


async def test_one_bad_key_does_not_spoil_the_others(world: World) -> None:
    keys = public(RSA_A)["keys"]
    world.site.answer = lambda: json.dumps({"keys": [{"kty": "??"}, 7, {"kty": "EC", "kid": "a"}, *keys]}).encode()
    assert not await world.refuses(signed())


async def test_while_an_issuer_is_away_its_last_good_keys_serve_for_a_day(world: World) -> None:
    def fresh() -> str:
        return signed(claims(iat=int(world.now), exp=int(world.now) + 60))

    assert not await world.refuses(fresh())
    world.site.fall_over()
    world.now += LAST_GOOD_SECONDS
    assert not await world.refuses(fresh())
    world.now += 1
    assert await world.refuses(fresh())
    world.site.publish(RSA_A)
    world.now += BETWEEN_FETCHES_SECONDS
    assert not await world.refuses(fresh())


async def test_while_an_issuer_is_away_nobody_waits_for_it(world: World) -> None:
    assert not await world.refuses(signed())
    world.site.fall_over()
    world.now += LOOK_FIRST_SECONDS
    assert not await world.refuses(signed())
    world.site.open.clear()
    world.now += BETWEEN_FETCHES_SECONDS
    async with asyncio.timeout(FETCH_SECONDS / 2):
        assert not await world.refuses(signed())
    await eventually(lambda: _true(len(world.site.asked) == 3))


async def test_an_issuer_that_hangs_is_given_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interlock.engine.keys.FETCH_SECONDS", 0.01)
    world.site.open.clear()
    async with asyncio.timeout(30):
        assert await world.refuses(signed())


async def test_an_issuer_that_never_answered_is_asked_again_later(world: World) -> None:
    world.site.fall_over()
    assert await world.refuses(signed())
    world.site.publish(RSA_A)
    assert await world.refuses(signed())
    world.now += BETWEEN_FETCHES_SECONDS
    assert not await world.refuses(signed())


async def test_a_weak_key_is_not_taken(world: World) -> None:
    with pytest.warns(match="2048"):
        weak = RSAKey.generate_key(1024, {"kid": "weak"}, auto_kid=False)
    numbers = weak.as_dict(private=False)
    world.site.answer = lambda: json.dumps({"keys": [numbers, *public(RSA_A)["keys"]]}).encode()
    assert await world.refuses(signed(key=weak))
    assert not await world.refuses(signed())


async def test_closing_ends_a_fetch_under_way(world: World) -> None:
    world.site.open.clear()
    caller = asyncio.create_task(world.enter(signed()))
    await eventually(lambda: _true(bool(world.site.asked)))
    await world.issuers.close()
    with pytest.raises((Unauthenticated, asyncio.CancelledError)):
        await caller


async def test_a_server_takes_tokens_and_those_of_issuers_side_by_side(world: World, store: Store) -> None:
    both = Tokens(store, Trust(issuers=world.issuers))
    assert (await both.authenticate(signed())).actor == "user:ada"
    for bad in (signed(key=STRANGER), "ilk_" + signed(), "nothing"):
        with pytest.raises(Unauthenticated):
            await both.authenticate(bad)
    only_own = Tokens(store)
    with pytest.raises(Unauthenticated):
        await only_own.authenticate(signed())


async def _true(value: bool) -> bool:
    return value
