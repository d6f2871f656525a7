"""Whose credentials count for codeQ besides our own tokens: providers, of which the first that knows one decides."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from interlock.api.codeq.jwt_claims import Claims
from interlock.domain.token import fingerprint
from interlock.errors import Invalid, Unauthenticated

DEFAULT_SUBJECT = "static"


class Provider(Protocol):
    """Knows credentials of one kind."""

    async def claims(self, credential: str) -> Claims | None:
        """What a credential says, or None if it is not one of these."""
        ...


class Verifier(Protocol):
    """Checks signed tokens."""

    async def claims(self, credential: str) -> Mapping[str, Any]:
        """What a good token says, or Unauthenticated."""
        ...


class Static:
    """One exact credential, and what it stands for."""

    def __init__(self, token: str, claims: Claims) -> None:
        self._hash = fingerprint(token)
        self._claims = claims

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Static:
        """From a table of the settings."""
        if unknown := sorted(table.keys() - {"type", "token", "subject", "email", "scopes", "eventTypes", "raw"}):
            raise Invalid(f"a static credential has no setting {unknown[0]!r}", pointer=f"/{unknown[0]}")
        token, raw = _text(table, "token", ""), table.get("raw", {})
        if not token:
            raise Invalid("a static credential needs a token", pointer="/token")
        if not isinstance(raw, Mapping):
            raise Invalid("raw must be a table of claims", pointer="/raw")
        claims = Claims(
            _text(table, "subject", DEFAULT_SUBJECT) or DEFAULT_SUBJECT,
            frozenset(_texts(table, "scopes")), _texts(table, "eventTypes"), dict(raw),
        )  # fmt: skip
        return cls(token, claims)

    async def claims(self, credential: str) -> Claims | None:
        return self._claims if hmac.compare_digest(fingerprint(credential), self._hash) else None


class Signed:
    """Tokens that an outside issuer has signed."""

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier

    async def claims(self, credential: str) -> Claims | None:
        try:
            return Claims.of_token(await self._verifier.claims(credential))
        except Unauthenticated:
            return None


@dataclass(frozen=True, kw_only=True)
class Callers:
    """The providers for producers and for workers, and how much is made easy for development."""

    producers: Sequence[Provider] = ()
    workers: Sequence[Provider] = ()
    tenant_from_sub: bool = False
    producer_as_worker: bool = False
    development: bool = False  # the header X-Role counts

    async def producer(self, credential: str) -> Claims | None:
        return await _first(self.producers, credential)

    async def worker(self, credential: str) -> Claims | None:
        return await _first(self.workers, credential)


async def _first(providers: Sequence[Provider], credential: str) -> Claims | None:
    for provider in providers:
        if (claims := await provider.claims(credential)) is not None:
            return claims
    return None


def issuer_table(table: Mapping[str, Any]) -> dict[str, Any]:
    """A provider of signed tokens, from a table of the settings, in the words of our own issuers."""
    if unknown := sorted(table.keys() - {"type", "jwksUrl", "jwks", "issuer", "audience"}):
        raise Invalid(f"a jwks provider has no setting {unknown[0]!r}", pointer=f"/{unknown[0]}")
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
