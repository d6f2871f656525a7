"""Credentials of codeQ besides our own tokens: providers, of which the first that accepts one decides."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from interlock.api.codeq.jwt_claims import CodeqClaims
from interlock.domain.token import fingerprint
from interlock.errors import Invalid, Unauthenticated

DEFAULT_SUBJECT = "static"


class Provider(Protocol):
    """A source of credentials of one kind."""

    async def claims(self, credential: str) -> CodeqClaims | None:
        """Return the claims of a credential, or None if this provider does not accept it."""
        ...


class Verifier(Protocol):
    """A verifier of signed tokens."""

    async def claims(self, credential: str) -> Mapping[str, Any]:
        """Return the claims of a valid token, or raise Unauthenticated."""
        ...


class StaticCredential:
    """One exact bearer value and its claims."""

    def __init__(self, token: str, claims: CodeqClaims) -> None:
        self._hash = fingerprint(token)
        self._claims = claims

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> StaticCredential:
        """Read a table of the settings."""
        if unknown := sorted(table.keys() - {"type", "token", "subject", "email", "scopes", "eventTypes", "raw"}):
            raise Invalid(f"unknown setting {unknown[0]!r} of a static credential", pointer=f"/{unknown[0]}")
        token, raw = _text(table, "token", ""), table.get("raw", {})
        if not token:
            raise Invalid("a static credential needs a token", pointer="/token")
        if not isinstance(raw, Mapping):
            raise Invalid("raw must be a table of claims", pointer="/raw")
        claims = CodeqClaims(
            _text(table, "subject", DEFAULT_SUBJECT) or DEFAULT_SUBJECT,
            frozenset(_texts(table, "scopes")), _texts(table, "eventTypes"), dict(raw),
        )  # fmt: skip
        return cls(token, claims)

    async def claims(self, credential: str) -> CodeqClaims | None:
        return self._claims if hmac.compare_digest(fingerprint(credential), self._hash) else None


class SignedCredentials:
    """Tokens signed by an external issuer."""

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier

    async def claims(self, credential: str) -> CodeqClaims | None:
        try:
            return CodeqClaims.of_token(await self._verifier.claims(credential))
        except Unauthenticated:
            return None


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """The providers for producers and for workers, and the relaxations for development."""

    producers: Sequence[Provider] = ()
    workers: Sequence[Provider] = ()
    tenant_from_sub: bool = False
    producer_as_worker: bool = False
    development: bool = False  # the header X-Role counts

    async def producer(self, credential: str) -> CodeqClaims | None:
        return await _first(self.producers, credential)

    async def worker(self, credential: str) -> CodeqClaims | None:
        return await _first(self.workers, credential)


async def _first(providers: Sequence[Provider], credential: str) -> CodeqClaims | None:
    for provider in providers:
        if (claims := await provider.claims(credential)) is not None:
            return claims
    return None


def issuer_table(table: Mapping[str, Any]) -> dict[str, Any]:
    """Translate the settings of a `jwks` provider into the format of Interlock's issuers."""
    if unknown := sorted(table.keys() - {"type", "jwksUrl", "jwks", "issuer", "audience"}):
        raise Invalid(f"unknown setting {unknown[0]!r} of a jwks provider", pointer=f"/{unknown[0]}")
    known = {"issuer": "issuer", "audience": "audience", "jwksUrl": "jwks_uri", "jwks": "jwks"}
    given = {ours: table[theirs] for theirs, ours in known.items() if theirs in table}
    return given | {"algorithms": ["RS256"], "typ": ["JWT", "at+jwt", ""]}


def _text(table: Mapping[str, Any], name: str, default: str) -> str:
    value = table.get(name, default)
    if not isinstance(value, str):
        raise Invalid(f"{name} must be a text", pointer=f"/{name}")
    return value.strip()


def _texts(table: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = table.get(name, [])
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise Invalid(f"{name} must be a list of texts", pointer=f"/{name}")
    return tuple(value)
