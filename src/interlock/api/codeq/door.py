"""Who calls through the codeQ face, and how it says no: `{"error": text}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from interlock.api import auth
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


def refused(status: int, text: str) -> Said:
    return Said(status, {"error": text})


class CodeqDoor:
    """Producers, workers and admins are credentials of ours with the roles produce, work and admin or operate."""

    async def admit(self, service: Service, route: Route, headers: Headers) -> Principal:
        for_admins = not route.roles.isdisjoint(ADMINS)
        try:
            who = await auth.authenticate(service, headers)
        except Unauthenticated:
            raise refused(401, "unauthorized. Admin only" if for_admins else "unauthorized") from None
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
