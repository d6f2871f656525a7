"""The codeQ adapter: its settings and routes, who may call them, and its error format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from interlock import config
from interlock.api import auth
from interlock.api.adapters import NO_SETTINGS, Adapter, AdapterError
from interlock.api.headers import Headers
from interlock.api.problems import Refusal
from interlock.api.routes import Route
from interlock.api.service import Service
from interlock.domain.principal import Principal
from interlock.errors import Error, Fatal, Forbidden, Malformed, Unauthenticated, Unavailable
from interlock.faces.codeq import producers, webhooks, workers
from interlock.faces.codeq.credentials import ADMIN, CodeqClaims, Credentials
from interlock.faces.codeq.model import ADMINS, BASE, reject
from interlock.faces.codeq.webhooks import CodeqFormat

if TYPE_CHECKING:
    from interlock.engine.jwks import Fetch

# Rate-limited routes, with the scope and operation that codeQ puts into its 429.
_LIMITED: Final = {
    "create_task": ("producer", "create_task"),
    "create_tasks": ("producer", "create_task"),
    "claim_task": ("worker", "claim"),
    "claim_tasks": ("worker", "claim"),
    "clean_up": ("admin", "cleanup"),
}
# The scope that a worker credential of codeQ needs.
_SCOPES: Final = {
    "claim_task": "codeq:claim",
    "claim_tasks": "codeq:claim",
    "heartbeat": "codeq:heartbeat",
    "abandon": "codeq:abandon",
    "nack": "codeq:nack",
    "submit_result": "codeq:result",
    "submit_results": "codeq:result",
    "subscribe": "codeq:subscribe",
    "renew_subscription": "codeq:subscribe",
}


class CodeqAdapter(Adapter):
    """Producers, workers and admins, by credentials of codeQ or by tokens with the corresponding roles."""

    prefixes = (BASE,)
    settings: ClassVar[Mapping[str, Callable[[object], Any]]] = {
        "codeq_producers": partial(config.tables, "codeq_producers"),
        "codeq_workers": partial(config.tables, "codeq_workers"),
        "codeq_tenant_from_sub": partial(config.flag, "codeq_tenant_from_sub"),
        "codeq_producer_as_worker": partial(config.flag, "codeq_producer_as_worker"),
        "codeq_development": partial(config.flag, "codeq_development"),
        "codeq_webhook_secret": partial(config.secret, "codeq_webhook_secret"),
    }

    def __init__(self, settings: Mapping[str, Any] = NO_SETTINGS, fetch: Fetch | None = None) -> None:
        self._credentials = Credentials.of(settings, fetch)

    async def close(self) -> None:
        await self._credentials.close()

    @classmethod
    def webhook_format(cls, settings: Mapping[str, Any]) -> CodeqFormat:
        return CodeqFormat(settings.get("codeq_webhook_secret"))

    def routes(self) -> list[Route]:
        """Return the routes below their base, and below it twice, for clients that append it to an address with it."""
        table = [*producers.routes, *workers.routes, *webhooks.routes]
        return table + [replace(route, path=BASE + route.path) for route in table]

    async def admit(self, service: Service, route: Route, headers: Headers) -> Principal:
        credentials = self._credentials
        for_admins = not route.roles.isdisjoint(ADMINS)
        try:
            who = await self._caller(service, route, headers)
        except Unauthenticated:
            raise reject(401, "unauthorized. Admin only" if for_admins else "unauthorized") from None
        if for_admins and who.may("produce") and _is_dev_admin(credentials, headers):
            who = who._replace(roles=who.roles | set(ADMINS))
        if route.roles.isdisjoint(who.roles):
            raise reject(401, "unauthorized. Admin only") if for_admins else reject(403, "missing scope")
        return who

    def limit(self, service: Service, route: Route, who: Principal) -> None:
        if service.rates is None or route.name not in _LIMITED:
            return
        try:
            service.rates.take(f"{who.tenant} {who.actor}")
        except Refusal as refusal:
            scope, operation = _LIMITED[route.name]
            seconds = int(refusal.headers["retry-after"])
            document = {"error": "rate limit exceeded", "scope": scope, "operation": operation}
            raise AdapterError(429, document | {"retryAfterSeconds": seconds}, headers=refusal.headers) from None

    def unreadable(self, error: Error, route: Route) -> AdapterError:
        return reject(400, "invalid request body" if route.name == "submit_result" else "invalid body")

    def translate(self, error: Exception, status: int, path: str) -> tuple[int, Mapping[str, Any]]:
        match error:
            case Malformed():
                return 400, {"error": "invalid body"}
            case Forbidden():
                return 403, {"error": "missing scope"}
            case Fatal() | Unavailable():
                return 503, {"error": "unavailable"}
            case Error() | Refusal():
                return 400 if status == 422 else status, {"error": str(error)}
            case _:
                return 500, {"error": "internal error"}

    async def _caller(self, service: Service, route: Route, headers: Headers) -> Principal:
        """The caller by a codeQ provider that accepts the credential, else by our own tokens."""
        if service.options.auth:
            credentials, credential = self._credentials, auth.bearer(headers)
            if route.roles == {"work"}:
                claims = await _worker(credentials, credential)
                if claims is not None and _SCOPES[route.name] not in claims.scopes:
                    raise reject(403, "missing scope")
            else:
                claims = await credentials.worker(credential) if "work" in route.roles else None
            if claims is not None and claims.is_worker:
                return _known(claims.worker(_tenant(credentials, claims)))
            if route.roles != {"work"} and (claims := await credentials.producer(credential)) is not None:
                return _known(claims.producer(_tenant(credentials, claims)))
        return await auth.authenticate(service, headers)


async def _worker(credentials: Credentials, credential: str) -> CodeqClaims | None:
    """The claims of a worker credential; in development those of a producer may take their place."""
    claims = await credentials.worker(credential)
    if claims is not None and claims.is_worker:
        return claims
    if credentials.producer_as_worker and (producer := await credentials.producer(credential)) is not None:
        return producer.as_worker()
    if claims is not None:
        raise reject(401, "missing scope" if claims.event_types else "missing eventTypes")
    return None


def _tenant(credentials: Credentials, claims: CodeqClaims) -> str:
    tenant = claims.tenant(from_subject=credentials.tenant_from_sub)
    if tenant is None:
        raise reject(403, "invalid tenant claims")
    return tenant


def _known(who: Principal | None) -> Principal:
    if who is None:
        raise Unauthenticated
    return who


def _is_dev_admin(credentials: Credentials, headers: Headers) -> bool:
    return credentials.development and (headers.get("x-role") or "").strip().upper() == ADMIN
