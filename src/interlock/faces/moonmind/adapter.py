"""The MoonMind adapter: its routes, who may call them, and its error format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from interlock.api import auth, problems
from interlock.api.adapters import Adapter, AdapterError
from interlock.api.headers import Headers
from interlock.api.problems import Refusal
from interlock.api.routes import Route
from interlock.api.service import Service
from interlock.domain.principal import Principal
from interlock.errors import ArtifactLost, Conflict, Error, Forbidden, NotFound, TooLarge, Unauthenticated
from interlock.faces.moonmind import artifacts, events, jobs, tokens, tools
from interlock.faces.moonmind.model import BASE, TOOLS, error_document, reject

WORKER_TOKEN: Final = "x-moonmind-worker-token"
_MISSING: Final = {"job": "job_not_found", "artifact": "artifact_not_found", "token": "worker_token_not_found"}


def code_of(error: Error) -> tuple[int, str]:
    """The status and code for an error of the engine."""
    match error:
        case NotFound():
            return 404, _MISSING.get(error.resource, "job_not_found")
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
        case _ if error.status in (501, 503):
            return 503, "queue_unavailable"
        case _:
            return 500, "queue_internal_error"


class MoonmindAdapter(Adapter):
    """Users by bearer tokens; workers by the header of MoonMind, or by a bearer token."""

    prefixes = (BASE, TOOLS)

    def routes(self) -> list[Route]:
        return [*jobs.routes, *artifacts.routes, *events.routes, *tokens.routes, *tools.routes]

    async def admit(self, service: Service, route: Route, headers: Headers) -> Principal:
        works = "work" in route.roles
        token = headers.get(WORKER_TOKEN) if works else None
        try:
            if token is not None and service.options.auth:
                who: Principal = await service.engine.tokens.authenticate(token)
            else:
                who = await auth.authenticate(service, headers)
        except Unauthenticated:
            code = "worker_auth_failed" if works else "user_auth_failed"
            raise reject(401, code, "a valid credential is required") from None
        if route.roles.isdisjoint(who.roles):
            code = "worker_not_authorized" if works else "user_not_authorized"
            raise reject(403, code, str(auth.lacks(route)))
        return who

    def unreadable(self, error: Error, route: Route) -> AdapterError:
        if isinstance(error, TooLarge):
            return reject(413, "queue_payload_too_large", str(error))
        return reject(422, "invalid_queue_payload", str(error))

    def translate(self, error: Exception, status: int, path: str) -> tuple[int, Mapping[str, Any]]:
        if isinstance(error, Refusal):
            return status, error_document(error.code, str(error))
        if isinstance(error, Error):
            status, code = code_of(error)
            return status, error_document(code, problems.detail(error))
        code = "mcp_tool_internal_error" if path.startswith(TOOLS) else "queue_internal_error"
        return 500, error_document(code, "internal error")
