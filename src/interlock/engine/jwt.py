"""JWTs of external issuers: verify the token completely, then map its claims to a principal."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeGuard

from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jws import JWSRegistry

from interlock.domain import json_text, principal, token
from interlock.domain.issuer import Issuer, Path
from interlock.domain.json_text import is_visible_name
from interlock.domain.policy import Policy
from interlock.domain.principal import Principal
from interlock.engine.jwks import Fetch, KeyRing
from interlock.engine.ttl_cache import FRESH_SECONDS, MAX_REMEMBERED, TtlCache
from interlock.errors import Error, Invalid, Unauthenticated

log = logging.getLogger(__name__)

LARGEST_TOKEN: Final = 8 * 1024
MAX_KID_LENGTH: Final = 200
MAX_SUBJECT_LENGTH: Final = 255
LEEWAY_SECONDS: Final = 60

_COMPACT: Final = re.compile(r"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)")  # JWS: three non-empty parts
_USED: Final = frozenset({"alg", "kid", "typ"})
_IGNORED: Final = frozenset(
    {"jku", "x5u", "jwk", "x5c", "x5t", "x5t#S256"}
)  # a token must not choose where keys come from


class _Rejected(Exception):
    """Why a token was rejected: for the log, never for the sender."""


class Issuers:
    """The trusted issuers."""

    def __init__(
        self,
        issuers: Sequence[Issuer],
        *,
        fetch: Fetch,
        now: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self._now = now
        self._ticks = ticks
        self._known: TtlCache[bytes, Principal] = TtlCache(MAX_REMEMBERED)
        self._trusted = {one.issuer: (one, KeyRing(one, fetch, ticks), _registry(one)) for one in issuers}

    async def authenticate(self, credential: str) -> Principal:
        """Return the principal of a token; raise Unauthenticated for any fault."""
        with _one_error_for_callers():
            if len(credential) > LARGEST_TOKEN or not credential.isascii():
                raise _Rejected("it is too large, or no token at all")
            hash, start = token.fingerprint(credential), self._ticks()
            if (known := self._known.get(hash, start)) is not None:
                return known
            caller, seconds_left = await self._caller(credential)
            self._known.put(hash, caller, start + min(FRESH_SECONDS, seconds_left))
            return caller

    async def claims(self, credential: str) -> Mapping[str, Any]:
        """Return the claims of a valid token, for adapters that interpret them; raise Unauthenticated otherwise."""
        with _one_error_for_callers():
            if len(credential) > LARGEST_TOKEN or not credential.isascii():
                raise _Rejected("it is too large, or no token at all")
            claims, _, _ = await self._verified(credential)
            return claims

    async def close(self) -> None:
        for _, keys, _ in self._trusted.values():
            await keys.close()

    async def _caller(self, credential: str) -> tuple[Principal, float]:
        """Return the principal of a token and its remaining lifetime."""
        claims, issuer, seconds_left = await self._verified(credential)
        try:
            return _principal(claims, issuer), seconds_left
        except Invalid as error:
            raise _Rejected(f"issuer {issuer.issuer}: invalid roles: {error}") from None

    async def _verified(self, credential: str) -> tuple[dict[str, Any], Issuer, float]:
        """Return the claims of a token, its issuer and its remaining lifetime."""
        parts = _COMPACT.fullmatch(credential)
        if parts is None:
            raise _Rejected("it is not three parts of a signed token")
        header, claims = _object(parts[1]), _object(parts[2])
        issuer, keys, registry = self._trusted.get(_str(claims.get("iss")), (None, None, None))
        if issuer is None or keys is None or registry is None:
            raise _Rejected("its issuer is not trusted")
        algorithm, kid = _checked_header(header, issuer)
        key = await keys.find(kid, algorithm)
        if key is None:
            raise _Rejected(f"issuer {issuer.issuer} has no such key for its algorithm")
        try:
            jws.deserialize_compact(credential, key, registry=registry)
        except (JoseError, ValueError, TypeError):
            raise _Rejected(f"it was not signed by issuer {issuer.issuer}") from None
        return claims, issuer, _check_claims(claims, issuer, self._now())


@contextlib.contextmanager
def _one_error_for_callers() -> Iterator[None]:
    """Raise the same error for every fault, so that the sender learns nothing from it."""
    try:
        yield
        return
    except _Rejected as refused:
        log.info("a token was refused: %s", refused)
    except Error as error:
        log.info("a token was refused: %s in its text", error.code)
    raise Unauthenticated


def _registry(issuer: Issuer) -> JWSRegistry:
    """Build a registry that limits only the total size; headers are checked before."""
    registry = JWSRegistry(algorithms=sorted(issuer.algorithms), strict_check_header=False)
    registry.max_header_length = registry.max_signature_length = LARGEST_TOKEN
    return registry


def _object(part: str) -> dict[str, Any]:
    try:
        decoded = base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True)
    except ValueError:
        raise _Rejected("it is not base64") from None
    value = json.loads(json_text.check(decoded, what="token", limit=LARGEST_TOKEN))
    if not isinstance(value, dict):
        raise _Rejected("its parts are not objects")
    return value


def _checked_header(header: Mapping[str, Any], issuer: Issuer) -> tuple[str, str]:
    """Return the algorithm and key ID; reject a header that requires unsupported features."""
    if not header.keys() <= _USED | _IGNORED:
        raise _Rejected("its header has a parameter that is not understood")
    algorithm, kid = _str(header.get("alg")), _str(header.get("kid"))
    if algorithm not in issuer.algorithms:
        raise _Rejected(f"its algorithm is not one of issuer {issuer.issuer}")
    if not 1 <= len(kid) <= MAX_KID_LENGTH:
        raise _Rejected("it names no key")
    if _str(header.get("typ", "")).lower().removeprefix("application/") not in issuer.typ:
        raise _Rejected(f"its typ is not one of issuer {issuer.issuer}")
    return algorithm, kid


def _check_claims(claims: Mapping[str, Any], issuer: Issuer, now: float) -> float:
    """Return the remaining lifetime in seconds of a token for this audience."""
    audience = claims.get("aud")
    if issuer.audience.isdisjoint(audience if _is_list(audience) else [_str(audience)]):
        raise _Rejected("audience mismatch")
    expires, not_before, issued = (_moment(claims, name) for name in ("exp", "nbf", "iat"))
    if expires is None or expires + LEEWAY_SECONDS <= now:
        raise _Rejected("it has expired, or never would")
    if not_before is not None and not_before - LEEWAY_SECONDS > now:
        raise _Rejected("it does not count yet")
    if issued is not None and issued - LEEWAY_SECONDS > now:
        raise _Rejected("it comes from the future")
    if expires - (now if issued is None else issued) > issuer.longest_life_seconds:
        raise _Rejected("it lives too long")
    return expires + LEEWAY_SECONDS - now


def _moment(claims: Mapping[str, Any], name: str) -> int | None:
    """Return a claim in whole seconds since 1970; reject any other value."""
    if name not in claims:
        return None
    value = claims[name]
    if not isinstance(value, int) or isinstance(value, bool):
        raise _Rejected(f"its {name} is not a valid time")
    return value


def _principal(claims: Mapping[str, Any], issuer: Issuer) -> Principal:
    tenant, subject = _str(_at(claims, issuer.claims.tenant)), _str(claims.get("sub"))
    if not is_visible_name(tenant) or (issuer.tenants is not None and tenant not in issuer.tenants):
        raise _Rejected("it names no tenant of this issuer")
    if not is_visible_name(subject, limit=MAX_SUBJECT_LENGTH):
        raise _Rejected("it names no subject")
    actor = principal.user(issuer.actor(subject))
    roles = issuer.roles_of(_words(_at(claims, issuer.claims.roles)))
    if not roles:
        return Principal(tenant, actor, roles, None, Policy())
    if "work" not in roles:
        return Principal(tenant, actor, frozenset(token.roles(roles, worker_id=None)), None, Policy())
    named = _at(claims, issuer.claims.worker_id)
    worker = token.worker_id(subject if named is None else _str(named))
    assert worker is not None
    types = token.types(_names(claims, issuer.claims.types))
    repositories = token.repositories(_names(claims, issuer.claims.repositories))
    allowed = Policy(
        None if types is None else frozenset(types),
        None if repositories is None else frozenset(repositories),
        frozenset(token.capabilities(_names(claims, issuer.claims.capabilities))),
    )
    may = frozenset(token.roles(roles, worker_id=worker))
    return Principal(tenant, principal.worker(worker), may, worker, allowed, subject=actor)


def person(claims: Mapping[str, Any], issuer: Issuer, *, tenant: str | None = None) -> Principal:
    """Return the principal of a person who signed in; people do not work, so they never have that role."""
    named, subject = _at(claims, issuer.claims.tenant), _str(claims.get("sub"))
    whose = _str(tenant if named is None else named)
    with _one_error_for_callers():
        if not is_visible_name(whose) or (issuer.tenants is not None and whose not in issuer.tenants):
            raise _Rejected("it names no tenant of this issuer")
        if not is_visible_name(subject, limit=MAX_SUBJECT_LENGTH):
            raise _Rejected("it names no subject")
        roles = issuer.roles_of(_words(_at(claims, issuer.claims.roles))) - {"work"}
    return Principal(whose, principal.user(issuer.actor(subject)), roles, None, Policy())


def claim(claims: Mapping[str, Any], path: Path) -> Any:
    return _at(claims, path)


def _at(claims: Mapping[str, Any], path: Path) -> Any:
    value: Any = claims
    for step in path:
        value = value.get(step) if isinstance(value, Mapping) else None
    return value


def _words(value: Any) -> list[str]:
    """Return a list of words, or split a space-separated string as in `scope`; empty if absent."""
    if value is None:
        return []
    if isinstance(value, str):
        return value.split()
    if _is_list(value):
        return list(value)
    raise _Rejected("its roles are not strings")


def _names(claims: Mapping[str, Any], path: Path) -> list[str] | None:
    value = _at(claims, path)
    if value is None or _is_list(value):
        return value
    raise _Rejected(f"its {path[-1]} is not a list of names")


def _str(value: Any) -> str:
    """Return the value if it is a string, else the empty string, which never matches."""
    return value if isinstance(value, str) else ""


def _is_list(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)
