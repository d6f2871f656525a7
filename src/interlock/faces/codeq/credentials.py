"""Credentials of codeQ besides our own tokens: their claims, and their providers, the first of which decides."""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from interlock.domain import policy, principal, token
from interlock.domain.issuer import issuers
from interlock.domain.json_text import is_visible_name
from interlock.domain.policy import ANY, Policy
from interlock.domain.principal import Principal
from interlock.domain.token import fingerprint
from interlock.errors import Invalid, Unauthenticated

if TYPE_CHECKING:
    from interlock.engine.jwks import Fetch
    from interlock.engine.jwt import Issuers

MAX_LIFE_SECONDS: Final = 10 * 365 * 86_400  # codeQ requires an expiry and accepts any
ADMIN_SCOPE: Final = "codeq:admin"
ADMIN: Final = "ADMIN"
WORKER_SCOPES: Final = frozenset(
    f"codeq:{verb}" for verb in ("claim", "heartbeat", "abandon", "nack", "result", "subscribe")
)
TENANT_CLAIMS: Final = ("tid", "tenantId", "tenant_id", "organizationId", "organization_id")
SUBJECT_TENANT: Final = "codeq-sub:"  # a tenant claim cannot contain a colon, so it cannot name such a tenant

_TENANT: Final = re.compile(r"[a-z][a-z0-9-]{1,62}")
_PRODUCER: Final = frozenset({"produce", "read"})
_ADMIN: Final = frozenset({"operate", "admin"})


class AnyCase(frozenset[str]):
    """The commands of a codeQ credential: they allow types in every spelling, unlike the types of our tokens."""


class CodeqClaims(NamedTuple):
    """The claims of a valid credential; `raw` has all of them."""

    subject: str
    scopes: frozenset[str]
    event_types: tuple[str, ...]
    raw: Mapping[str, Any]

    @classmethod
    def of_token(cls, raw: Mapping[str, Any]) -> CodeqClaims:
        """Read the claims of a signed token."""
        subject, scope, types = raw.get("sub"), raw.get("scope"), raw.get("eventTypes")
        return cls(
            subject if isinstance(subject, str) else "",
            frozenset(scope.split()) if isinstance(scope, str) else frozenset(),
            tuple(one for one in types if isinstance(one, str)) if isinstance(types, list) else (),
            raw,
        )

    @property
    def is_admin(self) -> bool:
        role = self.raw.get("role")
        return ADMIN_SCOPE in self.scopes or (isinstance(role, str) and role.upper() == ADMIN)

    @property
    def is_worker(self) -> bool:
        """Whether the claims list commands and scopes, as those of a worker must."""
        return bool(self.event_types and self.scopes)

    def as_worker(self) -> CodeqClaims:
        """The same subject with every command and worker scope."""
        return self._replace(scopes=WORKER_SCOPES, event_types=(ANY,))

    def tenant(self, *, from_subject: bool) -> str | None:
        """The tenant, if all tenant claims are valid and equal, else None."""
        given = [self.raw[name] for name in TENANT_CLAIMS if name in self.raw]
        if not given:
            named = SUBJECT_TENANT + self.subject
            return named if from_subject and self.subject and is_visible_name(named) else None
        first = given[0]
        if not isinstance(first, str) or not _TENANT.fullmatch(first) or any(one != first for one in given):
            return None
        return first

    def producer(self, tenant: str) -> Principal | None:
        """The producer or admin, or None if the subject is not a valid name."""
        if not is_visible_name(self.subject):
            return None
        roles = _PRODUCER | _ADMIN if self.is_admin else _PRODUCER
        return Principal(tenant, principal.user(f"codeq/{self.subject}"), roles, None, Policy())

    def worker(self, tenant: str) -> Principal | None:
        """The worker named by the subject, or None if that or a command is not a valid name."""
        try:
            name = token.worker_id(self.subject)
            types = None if ANY in self.event_types else AnyCase(policy.names(self.event_types, what="eventTypes"))
        except Invalid:
            return None
        assert name is not None
        return Principal(tenant, principal.worker(name), frozenset({"work"}), name, Policy(types))


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
    verifiers: Sequence[Issuers] = ()

    @classmethod
    def of(cls, settings: Mapping[str, Any], fetch: Fetch | None) -> Credentials:
        """Read the settings, which have the names and the format of codeQ's own."""
        verifiers: list[Issuers] = []

        def providers(name: str) -> list[Provider]:
            found: list[Provider] = []
            for i, table in enumerate(settings.get(name, ())):
                try:
                    found.append(_provider(table, fetch, verifiers))
                except Invalid as error:
                    error.pointer = f"/{name}/{i}{error.pointer.removeprefix('/issuers/0')}"
                    raise
            return found

        return cls(
            producers=providers("codeq_producers"),
            workers=providers("codeq_workers"),
            tenant_from_sub=settings.get("codeq_tenant_from_sub", False),
            producer_as_worker=settings.get("codeq_producer_as_worker", False),
            development=settings.get("codeq_development", False),
            verifiers=verifiers,
        )

    async def close(self) -> None:
        for verifier in self.verifiers:
            await verifier.close()

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


def _provider(table: Mapping[str, Any], fetch: Fetch | None, verifiers: list[Issuers]) -> Provider:
    match table.get("type"):
        case "static":
            return StaticCredential.of(table)
        case "jwks":
            from interlock.engine.jwt import Issuers  # it loads a cryptography library

            assert fetch is not None, "a server passes one"
            (issuer,) = issuers([issuer_table(table)])
            verifiers.append(Issuers([issuer._replace(longest_life_seconds=MAX_LIFE_SECONDS)], fetch=fetch))
            return SignedCredentials(verifiers[-1])
        case _:
            raise Invalid("a provider is of type static or jwks", pointer="/type")
