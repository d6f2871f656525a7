"""An issuer's public keys: cached, kept while the issuer is unavailable, removed when the issuer removes them."""

from __future__ import annotations

import asyncio
import json
import logging
import warnings
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from joserfc import jwk
from joserfc.jwk import Key, RSAKey

from interlock.domain import json_text
from interlock.domain.issuer import ALGORITHMS, Issuer
from interlock.errors import Invalid

log = logging.getLogger(__name__)

Fetch = Callable[[str], Awaitable[bytes]]

FETCH_SECONDS: Final = 5.0
BETWEEN_FETCHES_SECONDS: Final = 30.0
LOOK_AGAIN_SECONDS: Final = 150.0  # then refresh in the background
LOOK_FIRST_SECONDS: Final = 300.0  # then refresh before use
LAST_GOOD_SECONDS: Final = 86_400.0
LARGEST_DOCUMENT: Final = 256 * 1024
MAX_KEYS: Final = 100
LARGEST_RSA_BITS: Final = 8192
NEVER: Final = float("-inf")

_Keys = Mapping[tuple[str, str], Key]


class KeyRing:
    """The keys of one issuer by ID and type; nothing in a token can change where they are fetched from."""

    def __init__(self, issuer: Issuer, fetch: Fetch, ticks: Callable[[], float]) -> None:
        self._issuer = issuer
        self._fetch = fetch
        self._ticks = ticks
        self._keys = _given_keys(issuer)
        self._good_at = self._tried_at = NEVER
        self._failing = False
        self._fetching: asyncio.Task[None] | None = None

    async def find(self, kid: str, algorithm: str) -> Key | None:
        """Return the key with this ID if it suits this algorithm."""
        if self._issuer.jwks is None:
            await self._keep_fresh(kid, algorithm)
        key = self._get(kid, algorithm)
        return key if key is not None and key.alg in (None, algorithm) else None

    async def close(self) -> None:
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.gather(self._fetching, return_exceptions=True)

    def _get(self, kid: str, algorithm: str) -> Key | None:
        return self._keys.get((kid, ALGORITHMS[algorithm]))

    async def _keep_fresh(self, kid: str, algorithm: str) -> None:
        now = self._ticks()
        age = now - self._good_at
        if age > LAST_GOOD_SECONDS:
            self._keys = {}
        known = self._get(kid, algorithm) is not None
        if known and age < LOOK_AGAIN_SECONDS:
            return
        fetching = self._start_fetching(now)
        # While the issuer is unavailable, use its last valid keys without waiting.
        if fetching is not None and not (known and (age < LOOK_FIRST_SECONDS or self._failing)):
            await asyncio.shield(fetching)

    def _start_fetching(self, now: float) -> asyncio.Task[None] | None:
        """Return the fetch in progress, or start one unless the last started moments ago (shared by all callers)."""
        if self._fetching is None and now - self._tried_at >= BETWEEN_FETCHES_SECONDS:
            self._tried_at = now
            self._fetching = asyncio.create_task(self._fetch_keys(now))
        return self._fetching

    async def _fetch_keys(self, now: float) -> None:
        try:
            async with asyncio.timeout(FETCH_SECONDS):
                self._keys = read_keys(await self._document(await self._address(), "key set"))
        except Exception as error:
            # An invalid or missing response does not invalidate the keys fetched before.
            self._failing = True
            log.warning(
                "no keys from issuer %s (%s); the last good ones stay", self._issuer.issuer, type(error).__name__
            )
        else:
            self._failing = False
            self._good_at = now
        finally:
            self._fetching = None

    async def _address(self) -> str:
        """Return the URL of the keys; repeat OIDC discovery every time, because the issuer may move them."""
        discovery_uri = self._issuer.discovery_uri
        if discovery_uri is not None:
            return self._issuer.discovered(await self._document(discovery_uri, "discovery document"))
        assert self._issuer.jwks_uri is not None
        return self._issuer.jwks_uri

    async def _document(self, url: str, what: str) -> object:
        return json.loads(json_text.check(await self._fetch(url), what=what, limit=LARGEST_DOCUMENT))


def _given_keys(issuer: Issuer) -> _Keys:
    """Return the keys from the settings, if any."""
    try:
        return {} if issuer.jwks is None else read_keys(issuer.jwks)
    except ValueError as error:
        raise Invalid(f"the jwks of issuer {issuer.issuer} are not good: {error}", pointer="/issuers") from None


def read_keys(key_set: object) -> _Keys:
    """Return the signature keys of a JWKS; reject a non-empty set without any."""
    listed = key_set.get("keys") if isinstance(key_set, Mapping) else None
    if not isinstance(listed, list) or len(listed) > MAX_KEYS:
        raise ValueError("this is not a key set")
    keys: dict[tuple[str, str], Key] = {}
    for entry in listed:
        if (key := _verifying_key(entry)) is not None and key.kid is not None:
            keys.setdefault((key.kid, key.key_type), key)
    if listed and not keys:
        raise ValueError("no key in the set can be used")
    return keys


def _verifying_key(entry: Any) -> Key | None:
    """Return the public signature key, or None for any other entry."""
    if not isinstance(entry, Mapping) or entry.get("kty") not in ALGORITHMS.values():
        return None
    if not isinstance(entry.get("kid"), str) or entry.get("use", "sig") != "sig":
        return None
    try:
        with warnings.catch_warnings(action="error"):  # the library warns about keys that are too weak
            key = jwk.import_key(dict(entry))
            key.check_key_op("verify")
    except Exception:
        return None
    if isinstance(key, RSAKey) and key.raw_value.key_size > LARGEST_RSA_BITS:
        return None
    return None if key.is_private else key
