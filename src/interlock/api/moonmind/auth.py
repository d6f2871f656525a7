"""Who calls through the MoonMind face, and how it says no: `{"detail": {"code", "message"}}`."""

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
from interlock.errors import ArtifactLost, Conflict, Error, Forbidden, NotFound, TooLarge, Unauthenticated

BASE: Final = "/api/queue"
WORKER_TOKEN: Final = "x-moonmind-worker-token"
_MISSING: Final = {"job": "job_not_found", "artifact": "artifact_not_found", "token": "worker_token_not_found"}


def refused(status: int, code: str, message: str) -> Said:
    return Said(status, {"detail": {"code": code, "message": message}})


def code_of(error: Error) -> tuple[int, str]:
    """The status and code for a refusal of the engine."""
    match error:
        case NotFound():
            return 404, _MISSING.get(error.what, "job_not_found")
        case Unauthenticated():
            return 401, "worker_auth_failed"
        case Forbidden():
            return 403, "worker_not_authorized"
        case ArtifactLost():
            return 404, "artifact_file_missing"
        case Conflict():
            return 409, "job_state_conflict"
        case _ if error.status in (400, 413, 416, 422):
            return 422, "invalid_queue_payload"
        case _ if error.status == 503:
            return 503, "queue_unavailable"
        case _:
            return 500, "queue_internal_error"


class MoonmindAuth:
    """Users are bearers of our credentials; workers show theirs in a header of its own, or as a bearer too."""

    prefixes = (BASE, "/mcp/tools")

    async def admit(self, service: Service, route: Route, headers: Headers) -> Principal:
        works = "work" in route.roles
        shown = headers.get(WORKER_TOKEN) if works else None
        try:
            if shown is not None and service.options.auth:
                who: Principal = await service.engine.tokens.authenticate(shown)
            else:
                who = await auth.authenticate(service, headers)
        except Unauthenticated:
            code = "worker_auth_failed" if works else "user_auth_failed"
            raise refused(401, code, "a valid credential is needed") from None
        if route.roles.isdisjoint(who.roles):
            code = "worker_not_authorized" if works else "user_not_authorized"
            raise refused(403, code, str(auth.lacks(route)))
        return who

    def limit(self, service: Service, route: Route, who: Principal) -> None:  # every route alike
        if service.rates is not None:
            service.rates.take(f"{who.tenant} {who.actor}")

    def unreadable(self, error: Error, route: Route) -> Said:
        if isinstance(error, TooLarge):
            return refused(413, "queue_payload_too_large", str(error))
        return refused(422, "invalid_queue_payload", str(error))

    def translate(self, error: Exception, status: int, path: str) -> tuple[int, Mapping[str, Any]]:
        if isinstance(error, Refusal):
            return status, {"detail": {"code": error.code, "message": str(error)}}
        if isinstance(error, Error):
            status, code = code_of(error)
            return status, {"detail": {"code": code, "message": str(error)}}
        code = "mcp_tool_internal_error" if path.startswith("/mcp/") else "queue_internal_error"
        return 500, {"detail": {"code": code, "message": "something went wrong here"}}
