"""Sign-in with OpenID Connect: authorization code with PKCE, state and nonce."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote, urlencode

from interlock.domain import json_text
from interlock.domain.principal import Person, Principal
from interlock.domain.retry import SECOND
from interlock.domain.sign_in import Endpoints, SignIn
from interlock.engine.outbound_http import OutboundClient
from interlock.errors import Error, Invalid, SignInFailed, Unauthenticated, Unavailable

if TYPE_CHECKING:  # loads a cryptography library: only for those who use it
    from interlock.engine.jwt import Issuers

log = logging.getLogger(__name__)

DISCOVERY_SECONDS: Final = 600.0
LARGEST_ANSWER: Final = 64 * 1024
MAX_NAME_LENGTH: Final = 200


class Flow(NamedTuple):
    """A sign-in in progress; the browser keeps it in an encrypted cookie."""

    state: str
    nonce: str
    verifier: str
    next: str
    fresh: bool


class Provider:
    """The identity provider of the dashboard."""

    def __init__(
        self,
        settings: SignIn,
        outside: OutboundClient,
        *,
        now: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self._outside = outside
        self._now = now
        self._ticks = ticks
        self._endpoints: tuple[Endpoints, float] | None = None
        self._issuers: Issuers | None = None
        self._finding = asyncio.Lock()

    async def start(self, next: str, *, fresh: bool = False) -> tuple[str, Flow]:
        """Return the address of the provider's sign-in page, and what `finish` needs."""
        settings, endpoints = self.settings, await self._discovered()
        flow = Flow(secrets.token_urlsafe(32), secrets.token_urlsafe(32), secrets.token_urlsafe(48), next, fresh)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(flow.verifier.encode()).digest()).rstrip(b"=").decode()
        query = {
            "response_type": "code", "client_id": settings.client_id, "redirect_uri": settings.redirect_uri,
            "scope": " ".join(settings.scopes), "state": flow.state, "nonce": flow.nonce,
            "code_challenge": challenge, "code_challenge_method": "S256",
        }  # fmt: skip
        if fresh:
            query |= {"prompt": "login", "max_age": str(settings.step_up_seconds)}
        return _with_query(endpoints.authorization, query), flow

    async def finish(self, flow: Flow, answer: Mapping[str, str | None]) -> Principal:
        """Return the person who signed in; raise SignInFailed for every fault of the response or the tokens."""
        if not secrets.compare_digest((answer.get("state") or "").encode(), flow.state.encode()):
            raise SignInFailed("the response does not belong to this browser's sign-in")
        endpoints, issuer = await self._discovered(), answer.get("iss")
        if issuer != self.settings.provider.issuer and (issuer is not None or endpoints.names_issuer):
            raise SignInFailed("the response comes from another provider")
        if (error := answer.get("error")) is not None:
            log.info("sign-in rejected by the provider: %r", error[:60])
            raise SignInFailed("the provider did not sign you in")
        if (code := answer.get("code")) is None:
            raise SignInFailed("the response has no code")
        tokens = await self._tokens(endpoints, flow, code)
        claims = await self._verified(tokens.get("id_token"), flow)
        claims = await self._with_userinfo(endpoints, tokens.get("access_token"), claims)
        return self._person(claims, flow)

    async def end_session_url(self) -> str | None:
        """Return the address that ends the session at the provider, if it has one."""
        try:
            end = (await self._discovered()).end_session
        except Error:
            return None
        back = {"client_id": self.settings.client_id, "post_logout_redirect_uri": f"{self.settings.public_url}/sign-in"}
        return None if end is None else _with_query(end, back)

    async def close(self) -> None:
        if self._issuers is not None:
            await self._issuers.close()

    async def _discovered(self) -> Endpoints:
        async with self._finding:
            if self._endpoints is None or self._ticks() >= self._endpoints[1]:
                uri = self.settings.provider.discovery_uri
                assert uri is not None
                try:
                    text = json_text.check(
                        await self._outside.fetch(uri), what="discovery document", limit=LARGEST_ANSWER
                    )
                    found = self.settings.endpoints(json.loads(text))
                except Error as error:
                    log.warning("no discovery document of %s: %s", self.settings.provider.issuer, error)
                    raise Unavailable("the identity provider cannot be reached: try again later") from None
                self._endpoints = found, self._ticks() + DISCOVERY_SECONDS
            return self._endpoints[0]

    async def _tokens(self, endpoints: Endpoints, flow: Flow, code: str) -> dict[str, Any]:
        settings = self.settings
        form = {
            "grant_type": "authorization_code", "code": code, "redirect_uri": settings.redirect_uri,
            "code_verifier": flow.verifier, "client_id": settings.client_id,
        }  # fmt: skip
        headers = {"content-type": "application/x-www-form-urlencoded", "accept": "application/json"}
        if settings.client_secret is not None:
            pair = f"{quote(settings.client_id, safe='')}:{quote(settings.client_secret, safe='')}"
            headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        return await self._document("POST", endpoints.token, headers, urlencode(form).encode())

    async def _verified(self, id_token: object, flow: Flow) -> dict[str, Any]:
        if self._issuers is None:
            from interlock.engine.jwt import Issuers

            self._issuers = Issuers(
                [self.settings.provider], fetch=self._outside.fetch, now=self._now, ticks=self._ticks
            )
        try:
            claims = dict(await self._issuers.claims(id_token if isinstance(id_token, str) else ""))
        except Unauthenticated:
            raise SignInFailed("the ID token is not valid: see the log of the server") from None
        if not secrets.compare_digest(str(claims.get("nonce", "")).encode(), flow.nonce.encode()):
            raise SignInFailed("the ID token belongs to another sign-in")
        if claims.get("azp", self.settings.client_id) != self.settings.client_id:
            raise SignInFailed("the ID token was issued to another client")
        return claims

    async def _with_userinfo(self, endpoints: Endpoints, access: object, claims: dict[str, Any]) -> dict[str, Any]:
        """Add what the provider returns only at its userinfo endpoint; claims of the ID token win."""
        if endpoints.userinfo is None or not isinstance(access, str):
            return claims
        headers = {"authorization": f"Bearer {access}", "accept": "application/json"}
        more = await self._document("GET", endpoints.userinfo, headers, None)
        if more.get("sub") != claims.get("sub"):
            raise SignInFailed("the userinfo endpoint returned another person")
        return {**{name: value for name, value in more.items() if name != "auth_time"}, **claims}

    def _person(self, claims: Mapping[str, Any], flow: Flow) -> Principal:
        from interlock.engine.jwt import claim, person

        settings = self.settings
        try:
            who = person(claims, settings.provider, tenant=settings.tenant)
        except (Unauthenticated, Invalid):
            raise SignInFailed("the claims name no tenant or no subject: see the log of the server") from None
        at, now = claims.get("auth_time"), self._now()
        authenticated = min(at, int(now)) if isinstance(at, int) and not isinstance(at, bool) else None
        if flow.fresh and (authenticated is None or authenticated < now - settings.step_up_seconds):
            raise SignInFailed("the provider did not authenticate you again")
        paths = settings.provider.claims
        name, email = (_short(claim(claims, path)) for path in (paths.name, paths.email))
        if claims.get("email_verified", True) not in (True, "true"):  # some providers send text
            email = None
        return who._replace(person=Person(name, email, None if authenticated is None else authenticated * SECOND))

    async def _document(
        self, method: str, url: str, headers: Mapping[str, str], content: bytes | None
    ) -> dict[str, Any]:
        answer = await self._outside.call(method, url, headers, content, limit=LARGEST_ANSWER)
        if answer.status_code != 200:
            log.info("%s answered %d: %r", url, answer.status_code, answer.body[:200])
            if answer.status_code >= 500:
                raise Unavailable("the identity provider failed: try again later")
            raise SignInFailed("the provider rejected the code: sign in again")
        try:
            value = json.loads(json_text.check(answer.body, what="response", limit=LARGEST_ANSWER))
        except Error:
            value = None
        if not isinstance(value, dict):
            raise SignInFailed("the response of the provider is not a JSON object")
        return value


def _short(value: object) -> str | None:
    """Return a text for display, or None."""
    text = " ".join(value.split())[:MAX_NAME_LENGTH] if isinstance(value, str) else ""
    return text or None


def _with_query(url: str, query: Mapping[str, str]) -> str:
    return f"{url}{'&' if '?' in url else '?'}{urlencode(query)}"
