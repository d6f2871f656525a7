"""An issuer with keys and a web site, and tokens of any shape that it might have signed."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from joserfc import jws
from joserfc.jwk import ECKey, Key, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

from interlock.domain.issuer import ALGORITHMS, Issuer, issuers
from interlock.domain.principal import Principal
from interlock.engine.jwt import Issuers
from interlock.errors import Unauthenticated

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

    async def rejects(self, text: str) -> bool:
        try:
            await self.enter(text)
        except Unauthenticated:
            return True
        return False
