"""Authentication: the principal of a request, determined from its headers before the body is read."""

from __future__ import annotations

from typing import Any, Final

from interlock.api.headers import Headers
from interlock.api.routes import RequestContext, Route
from interlock.api.service import Service
from interlock.domain.job import Job
from interlock.domain.principal import Principal
from interlock.errors import Forbidden, NotFound, Unauthenticated

UNKNOWN_WORKER: Final = "local"  # default worker name while authentication is off


async def authenticate(service: Service, headers: Headers) -> Principal:
    """Return the caller. With authentication off, every caller is the one local user."""
    if service.local_principal is not None:
        return service.local_principal
    principal: Principal = await service.engine.tokens.authenticate(bearer(headers))
    return principal


def bearer(headers: Headers) -> str:
    """Return the credential of a request."""
    given = headers.get("authorization")
    scheme, _, credential = (given or "").partition(" ")
    if scheme.lower() != "bearer" or not credential:
        raise Unauthenticated
    return credential


def check_role(who: Principal, route: Route) -> None:
    """Reject a caller without any of the roles; the handler checks what depends on the job."""
    if route.roles and not who.roles & (route.roles | route.on_condition):
        raise lacks(route)


def lacks(route: Route) -> Forbidden:
    return Forbidden(f"this needs the role {' or '.join(sorted(route.roles))}")


def worker_name(who: Principal, asked: str | None) -> str:
    """Return the worker name that a caller works under."""
    if asked is None and who.unchecked:
        return UNKNOWN_WORKER
    return who.works_as(asked)


def is_own_worker(who: Principal, worker: str | None) -> bool:
    """Return whether the caller is that worker, or the worker is an instance of the caller."""
    if worker is None or not who.may("work"):
        return False
    return who.unchecked or (who.worker is not None and (worker == who.worker or worker.startswith(f"{who.worker}/")))


async def readable(call: RequestContext[Any, Any]) -> Job:
    """Return the job of the path if the caller may see it: by role, or as lease holder of the job or its parent.

    Other callers get the same error whether the job exists or not.
    """
    queries, tenant = call.engine.queries, call.who.tenant
    if call.who.may("read"):
        return await queries.job(tenant, call.job_id)
    try:
        job = await queries.job(tenant, call.job_id)
        if is_own_worker(call.who, job.worker):
            return job
        if job.parent_id is not None and is_own_worker(call.who, (await queries.job(tenant, job.parent_id)).worker):
            return job
    except NotFound:
        pass
    raise lacks(call.route)


async def created(call: RequestContext[Any, Any]) -> None:
    """Reject callers that did not create the job of the path, with the same error whether the job exists or not."""
    try:
        job = await call.engine.queries.job(call.who.tenant, call.job_id)
    except NotFound:
        raise lacks(call.route) from None
    if job.created_by != call.who.actor:
        raise lacks(call.route)
