"""Who calls through the codeQ face, and how it says no: `{"error": text}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from interlock.api import auth
from interlock.api.codeq.credentials import Callers
from interlock.api.codeq.jwt_claims import ADMIN, Claims
from interlock.api.face import Said
from interlock.api.headers import Headers
from interlock.api.problems import Refusal
from interlock.api.routes import Route
from interlock.api.service import Service
from interlock.domain.principal import Principal
from interlock.errors import Error, Fatal, Forbidden, Malformed, Unauthenticated, Unavailable

READERS: Final = ("produce", "work", "read")
ADMINS: Final = ("admin", "operate")

# What is limited where there are limits, and under which names a client is told.
_LIMITED: Final = {
    "create_task": ("producer", "create_task"),
    "create_tasks": ("producer", "create_task"),
    "claim_task": ("worker", "claim"),
    "claim_tasks": ("worker", "claim"),
    "clean_up": ("admin", "cleanup"),
}
# What a worker's credential of codeQ must have in its scope.
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


def refused(status: int, text: str) -> Said:
    return Said(status, {"error": text})


class CodeqDoor:
    """Producers, workers and admins: credentials of codeQ's own kind, or of ours with the roles that mean the same."""

    async def admit(self, service: Service, route: Route, headers: Headers) -> Principal:
        callers = service.options.codeq
        for_admins = not route.roles.isdisjoint(ADMINS)
        try:
            who = await self._caller(service, route, headers)
        except Unauthenticated:
            raise refused(401, "unauthorized. Admin only" if for_admins else "unauthorized") from None
        if for_admins and who.may("produce") and _says_admin(callers, headers):
            who = who._replace(roles=who.roles | set(ADMINS))
        if route.roles.isdisjoint(who.roles):
            raise refused(401, "unauthorized. Admin only") if for_admins else refused(403, "missing scope")
        return who

    def limit(self, service: Service, route: Route, who: Principal) -> None:
        if service.rates is None or route.name not in _LIMITED:
            return
        try:
            service.rates.take(f"{who.tenant} {who.actor}")
        except Refusal as refusal:
            scope, operation = _LIMITED[route.name]
            seconds = int(refusal.headers["retry-after"])
            said = {"error": "rate limit exceeded", "scope": scope, "operation": operation}
            raise Said(429, said | {"retryAfterSeconds": seconds}, headers=refusal.headers) from None

    def unreadable(self, error: Error) -> Said:
        return refused(400, "invalid body")

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
        """The caller by a provider of codeQ's, where one knows the credential; else by ours."""
        if service.options.auth:
            callers, credential = service.options.codeq, auth.bearer(headers)
            if route.roles == {"work"}:
                claims = await _worker(callers, credential)
                if claims is not None and _SCOPES[route.name] not in claims.scopes:
                    raise refused(403, "missing scope")
            else:
                claims = await callers.worker(credential) if "work" in route.roles else None
            if claims is not None and claims.works:
                return _known(claims.worker(_tenant(callers, claims)))
            if route.roles != {"work"} and (claims := await callers.producer(credential)) is not None:
                return _known(claims.producer(_tenant(callers, claims)))
        return await auth.authenticate(service, headers)


async def _worker(callers: Callers, credential: str) -> Claims | None:
    """What a worker's credential says, and it must say enough; in development a producer's may stand in for it."""
    claims = await callers.worker(credential)
    if claims is not None and claims.works:
        return claims
    if callers.producer_as_worker and (producer := await callers.producer(credential)) is not None:
        return producer.as_worker()
    if claims is not None:
        raise refused(401, "missing scope" if claims.event_types else "missing eventTypes")
    return None


def _tenant(callers: Callers, claims: Claims) -> str:
    tenant = claims.tenant(from_subject=callers.tenant_from_sub)
    if tenant is None:
        raise refused(403, "invalid tenant claims")
    return tenant


def _known(who: Principal | None) -> Principal:
    if who is None:
        raise Unauthenticated
    return who


def _says_admin(callers: Callers, headers: Headers) -> bool:
    return callers.development and (headers.get("x-role") or "").strip().upper() == ADMIN
