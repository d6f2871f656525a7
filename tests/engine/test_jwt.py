"""Credentials of outside issuers: what lets in, and what is refused."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from joserfc.jwk import Key, RSAKey

from interlock.domain.issuer import issuers
from interlock.engine.jwt import LARGEST_TOKEN, LEEWAY_SECONDS
from interlock.errors import Invalid, Unauthenticated
from tests.engine.issuers import (
    AUD,
    EC,
    EC384,
    ED,
    ISS,
    NOW,
    RSA_A,
    STRANGER,
    URI,
    World,
    b64,
    claims,
    public,
    rsa,
    sealed,
    signed,
    trusted,
)


async def test_a_valid_token_authenticates_its_bearer(world: World) -> None:
    who = await world.enter(signed())
    assert (who.tenant, who.actor, who.roles) == ("acme", "user:ada", frozenset({"read"}))
    assert (who.worker, who.unchecked) == (None, False)
    assert world.site.asked == [URI]


@pytest.mark.parametrize(
    ("algorithm", "key"),
    [("RS256", RSA_A), ("RS512", RSA_A), ("PS256", RSA_A), ("ES256", EC), ("ES384", EC384), ("Ed25519", ED)],
)
async def test_every_supported_algorithm_works(world: World, algorithm: str, key: Key) -> None:
    world.trust(trusted(algorithms=[algorithm], jwks_uri=None, jwks=public(key)))
    assert (await world.enter(signed(key=key, alg=algorithm))).tenant == "acme"
    assert world.site.asked == []


# S07: the algorithm is fixed per issuer, and the key must be one for it.


@pytest.mark.parametrize(
    "alg", ["none", "None", "nOnE", "NONE", "", "HS256", "rs256", "RS256 ", "ES256", "PBES2", None]
)
@pytest.mark.parametrize("signature", ["", "AAAA"])
async def test_another_algorithm_is_rejected(world: World, alg: str | None, signature: str) -> None:
    header = {"kid": "a", "typ": "at+jwt"} | ({} if alg is None else {"alg": alg})
    assert await world.rejects(f"{b64(header)}.{b64(claims())}.{signature}")


@pytest.mark.parametrize("alg", [["RS256"], {"RS256": 1}, 256, True])
async def test_an_algorithm_that_is_not_text_is_rejected(world: World, alg: Any) -> None:
    assert await world.rejects(sealed({"alg": alg, "kid": "a", "typ": "at+jwt"}, claims()))


async def test_a_public_key_used_as_a_shared_secret_is_rejected(world: World) -> None:
    """Anyone who knows the public key can create such a token."""
    for secret in (RSA_A.as_pem(private=False), RSA_A.as_der(private=False), json.dumps(public(RSA_A)).encode()):
        start = f"{b64({'alg': 'HS256', 'kid': 'a', 'typ': 'at+jwt'})}.{b64(claims())}"
        mac = hmac.new(secret, start.encode(), hashlib.sha256).digest()
        assert await world.rejects(f"{start}.{b64(mac)}")


async def test_no_algorithm_with_a_shared_secret_can_be_trusted() -> None:
    for algorithm in ("HS256", "none", "EdDSA", "ES256K", "RSA1_5"):
        with pytest.raises(Invalid) as caught:
            trusted(algorithms=["RS256", algorithm])
        assert caught.value.pointer == "/issuers/0/algorithms"


async def test_a_valid_signature_of_an_unlisted_algorithm_is_rejected(world: World) -> None:
    assert await world.rejects(signed(alg="RS512"))
    assert await world.rejects(signed(alg="PS256"))


async def test_a_key_bound_to_one_algorithm_is_rejected_for_others(world: World) -> None:
    bound = rsa("bound", alg="RS512")
    world.trust(trusted(algorithms=["RS256", "RS512"], jwks_uri=None, jwks=public(bound)))
    free = RSAKey.import_key({k: v for k, v in bound.as_dict(private=True).items() if k != "alg"})
    assert await world.rejects(signed(key=free, alg="RS256"))
    assert (await world.enter(signed(key=bound, alg="RS512"))).tenant == "acme"


async def test_a_key_of_another_type_or_curve_is_rejected(world: World) -> None:
    world.trust(trusted(algorithms=["RS256", "ES256"], jwks_uri=None, jwks=public(RSA_A, EC, EC384)))
    token = signed(key=EC, alg="ES256")
    assert (await world.enter(token)).tenant == "acme"
    _, body, signature = token.split(".")
    for kid in ("a", "ec384"):
        assert await world.rejects(f"{b64({'alg': 'ES256', 'kid': kid, 'typ': 'at+jwt'})}.{body}.{signature}")
    assert await world.rejects(f"{b64({'alg': 'RS256', 'kid': 'ec', 'typ': 'at+jwt'})}.{body}.{signature}")


async def test_a_signature_by_another_key_or_over_other_data_is_rejected(world: World) -> None:
    assert await world.rejects(signed(key=STRANGER))
    head, _, signature = signed().split(".")
    assert await world.rejects(f"{head}.{b64(claims(roles=['admin']))}.{signature}")
    assert await world.rejects(f"{head}.{b64(claims())}.{b64(b'x' * 256)}")
    assert not await world.rejects(signed())


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
async def test_an_unusual_key_id_finds_nothing(world: World, kid: Any) -> None:
    assert await world.rejects(signed(header={"kid": kid}))
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
    assert await world.rejects(signed(key=STRANGER))
    assert await world.rejects(signed(claims(iss=other), key=RSA_A))


# S09: keys named in a token are ignored.


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
async def test_a_key_contained_in_a_token_is_never_used(world: World, header: dict[str, Any]) -> None:
    assert await world.rejects(signed(key=STRANGER, header=header))
    assert not await world.rejects(signed(key=RSA_A, header=header))
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
async def test_anything_but_a_plain_signed_token_is_rejected(world: World, odd: Callable[[], str]) -> None:
    assert await world.rejects(odd())


@pytest.mark.parametrize("name", ["a JWE", "huge", "unknown crit", "b64 false", "too large"])
async def test_a_malicious_token_is_rejected_cheaply(world: World, name: str) -> None:
    await world.enter(signed())
    trap = ODD[name]()
    spent = []
    for _ in range(5):
        start = time.process_time()
        assert await world.rejects(trap)
        spent.append(time.process_time() - start)
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
async def test_a_well_signed_token_with_wrong_claims_is_rejected(world: World, wrong: dict[str, Any]) -> None:
    assert await world.rejects(signed(claims(**wrong)))


RIGHT: dict[str, dict[str, Any]] = {
    "aud in a list": {"aud": ["https://other.example.com", AUD]},
    "just not expired": {"exp": NOW - LEEWAY_SECONDS + 1, "iat": NOW - 600},
    "nbf within the leeway": {"nbf": NOW + LEEWAY_SECONDS},
    "iat within the leeway": {"iat": NOW + LEEWAY_SECONDS},
    "an hour": {"exp": NOW + 3600},
    "no iat": {"iat": None},
    "no roles": {"roles": None},
    "unknown words": {"roles": ["read", "openid", "king"]},
    "roles as one text": {"roles": "openid read"},
    "more claims": {"nonce": "x", "scope": "y"},
}


@pytest.mark.parametrize("right", RIGHT.values(), ids=RIGHT)
async def test_a_token_at_the_limits_of_the_rules_is_accepted(world: World, right: dict[str, Any]) -> None:
    who = await world.enter(signed(claims(**right)))
    assert who.roles == (frozenset() if right.get("roles", "") is None else frozenset({"read"}))


@pytest.mark.parametrize(
    ("typ", "fine"),
    [("at+jwt", True), ("AT+JWT", True), ("application/at+jwt", True), ("JWT", False), ("id+jwt", False), (None, False),
     ("", False), (1, False), (["at+jwt"], False)],
)  # fmt: skip
async def test_only_an_access_token_is_accepted(world: World, typ: Any, fine: bool) -> None:
    header = {"alg": "RS256", "kid": "a"} | ({} if typ is None else {"typ": typ})
    text = sealed(header, claims())
    assert await world.rejects(text) is not fine


async def test_other_kinds_of_token_are_accepted_if_configured(world: World) -> None:
    world.trust(trusted(typ=["JWT", ""]))
    assert not await world.rejects(signed(header={"typ": "JWT"}))
    assert not await world.rejects(signed(header={"typ": None}))
    assert await world.rejects(signed(header={"typ": "at+jwt"}))


async def test_every_rejection_has_the_same_text_and_the_log_contains_no_token(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    reported = set()
    texts = [make() for make in ODD.values()] + [signed(claims(**wrong)) for wrong in WRONG.values()]
    for text in texts:
        with pytest.raises(Unauthenticated) as caught:
            await world.enter(text)
        reported.add(str(caught.value))
        assert caught.value.__cause__ is None
    assert len(reported) == 1
    assert "it has expired" in caplog.text
    signatures = [text.rsplit(".", 1)[-1] for text in texts]
    assert not [signature for signature in signatures if len(signature) > 20 and signature in caplog.text]
