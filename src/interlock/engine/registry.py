"""Registered types and agents, and validation of new jobs against them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any, Final, NamedTuple

from interlock import wire
from interlock.domain.job import Enqueued, NewJob, Rejected
from interlock.domain.json_text import is_visible_name
from interlock.domain.principal import Principal
from interlock.domain.registry import NO_DEFAULTS, Agent, Defaults, JobType, Registry
from interlock.domain.webhook_format import STANDARD, address
from interlock.engine import schemas
from interlock.errors import Error, Invalid, NotFound, UnknownType
from interlock.storage.contract import RegistryChanged, Store, Terms
from interlock.wire import JobRequest, Limits

TRIES: Final = 20
MAX_PAGE_SIZE: Final = 200
MAX_AGENTS: Final = 10_000
MAX_HOLD_SECONDS: Final = 0.01  # of the event loop, while a batch is validated


class Accepted(NamedTuple):
    """An accepted request: its job and the result of the store."""

    new: NewJob
    enqueued: Enqueued


class TypeRegistry:
    """Registration of types and agents, and every enqueue, because each is validated against them."""

    def __init__(
        self, store: Store, limits: Limits, *, strict_types: bool = False, implicit_agents: bool = True
    ) -> None:
        self._store = store
        self._limits = limits
        self._strict_types = strict_types
        self._implicit_agents = implicit_agents
        self._known: dict[str, _TypeCache] = {}
        self._new_job_shard = (
            store.new_job_shard
        )  # cached: the lookup through the store's layers costs more than the call

    async def enqueue(
        self,
        who: Principal,
        requests: Sequence[JobRequest],
        *,
        whole: bool,
        now: int,
        traceparent: str | None = None,
        webhook_format: str = STANDARD,
        within: object = None,
        judged: bool = False,
        key_lifetime_seconds: float | None = None,
    ) -> list[Accepted | Rejected]:
        """Validate the requests against the current registry and enqueue them; each item has its own result.

        With `judged`, the payload text is already validated as part of a larger document; only its size is checked.
        """
        refused = False
        for _ in range(TRIES):
            known = (None if refused else self._known.get(who.tenant)) or await self._learn(who.tenant)
            await known.meet_agents(self._store, who.tenant, requests)
            checked, began = [], monotonic()
            for request in requests:
                if monotonic() - began > MAX_HOLD_SECONDS:
                    await asyncio.sleep(0)
                    began = monotonic()
                checked.append(await self._checked(known, request, who, now, traceparent, webhook_format, judged))
            jobs = await self._new_jobs(who.tenant, checked)
            if key_lifetime_seconds is not None:
                jobs = [
                    job._replace(key_lifetime_seconds=key_lifetime_seconds) if isinstance(job, NewJob) else job
                    for job in jobs
                ]
            good = [job for job in jobs if isinstance(job, NewJob)]
            faulty = len(good) < len(jobs) or any(job.fault is not None for job in good)
            if faulty and not refused:  # reject nothing because of a stale registry
                refused = True
                continue
            if not good or (whole and len(good) < len(jobs)):
                return [
                    Rejected(job) if isinstance(job, Error) else Accepted(job, Enqueued(job.id, 0, False))
                    for job in jobs
                ]
            try:
                terms = Terms(known.registry.version, self._implicit_agents)
                answers = iter(
                    await self._store.enqueue(who.tenant, good, whole=whole, terms=terms)
                    if within is None
                    else await self._store.enqueue_within(within, who.tenant, good, terms=terms)
                )
            except RegistryChanged:
                self._known.pop(who.tenant, None)
                continue
            return [Rejected(job) if isinstance(job, Error) else _accepted(job, next(answers)) for job in jobs]
        raise Invalid("the registry of types changes faster than a job can be checked against it; try again")

    async def check(self, who: Principal, request: JobRequest) -> None:
        """Raise the error that an enqueue of this request would raise now."""
        known = await self._learn(who.tenant)
        await known.meet_agents(self._store, who.tenant, [request])
        checked = await self._checked(known, request, who, await self._store.now(), None, STANDARD, judged=False)
        if isinstance(checked, Error):
            raise checked

    async def set_type(
        self,
        who: Principal,
        name: str,
        *,
        schema: str | None = None,
        requires: Sequence[str] = (),
        defaults: Mapping[str, Any] | None = None,
    ) -> JobType:
        """Register or update a type; the schema is JSON text."""
        if schema is not None:
            await schemas.register(schema)
        type = JobType(
            wire.name(name, "name"), schema, wire.needs(name, requires), wire.defaults(defaults, self._limits)
        )
        return await self._store.registry.set_type(who.tenant, type, actor=who.actor)

    async def types(self, tenant: str) -> list[JobType]:
        return list((await self._store.registry.read(tenant)).types.values())

    async def type(self, tenant: str, name: str) -> JobType:
        found = (await self._store.registry.read(tenant)).types.get(name)
        if found is None:
            raise NotFound(name, resource="type")
        return found

    async def delete_type(self, who: Principal, name: str) -> None:
        if not await self._store.registry.delete_type(who.tenant, name, actor=who.actor):
            raise NotFound(name, resource="type")

    async def set_agent(
        self,
        who: Principal,
        kind: str,
        id: str,
        *,
        max_concurrency: int | None = None,
        strict: bool = False,
        backoff: Mapping[str, Any] | None = None,
        defaults: Mapping[str, Any] | None = None,
    ) -> Agent:
        """Register or update an agent; a lower limit takes effect as its jobs finish."""
        if max_concurrency is not None:
            wire.whole(max_concurrency, "max_concurrency", 1, 1_000_000)
        given = wire.defaults(defaults, self._limits)
        if backoff is not None:
            given = given._replace(backoff=wire.backoff(backoff))
        agent = Agent(wire.name(kind, "kind"), wire.name(id, "id"), max_concurrency, strict, given)
        return await self._store.registry.set_agent(who.tenant, agent, actor=who.actor)

    async def agents(self, tenant: str, *, after: tuple[str, str] = ("", ""), limit: int = 50) -> list[Agent]:
        """List agents by kind and ID, starting after `after`."""
        wire.whole(limit, "limit", 1, MAX_PAGE_SIZE)
        return await self._store.registry.agents(tenant, after, limit)

    async def stalled_agents(self, tenant: str, *, limit: int = 50) -> list[Agent]:
        """List strict agents whose slots are all held by waiting jobs, by kind and ID."""
        wire.whole(limit, "limit", 1, MAX_PAGE_SIZE)
        return await self._store.registry.stalled_agents(tenant, limit=limit)

    async def agent(self, tenant: str, kind: str, id: str) -> Agent:
        found = await self._store.registry.agents_named(tenant, [(kind, id)])
        if (kind, id) not in found:
            raise NotFound(f"{kind}/{id}", resource="agent")
        return found[kind, id]

    async def delete_agent(self, who: Principal, kind: str, id: str) -> None:
        """Delete an agent that has no unfinished jobs."""
        if not await self._store.registry.delete_agent(who.tenant, kind, id, actor=who.actor):
            raise NotFound(f"{kind}/{id}", resource="agent")

    async def _learn(self, tenant: str) -> _TypeCache:
        known = self._known[tenant] = _TypeCache(await self._store.registry.read(tenant))
        return known

    async def _new_jobs(self, tenant: str, jobs: Sequence[NewJob | Error]) -> list[NewJob | Error]:
        """Return the same jobs with IDs that encode their target shard."""
        types = {job.type for job in jobs if isinstance(job, NewJob)}
        requests = {type: shard for type in types if (shard := await self._new_job_shard(tenant, type))}
        if not requests:
            return list(jobs)
        return [
            job._replace(id=wire.new_id(requests[job.type]))
            if isinstance(job, NewJob) and job.type in requests
            else job
            for job in jobs
        ]

    async def _checked(
        self,
        known: _TypeCache,
        request: JobRequest,
        who: Principal,
        now: int,
        traceparent: str | None,
        webhook_format: str,
        judged: bool,
    ) -> NewJob | Error:
        try:
            type = known.registry.types.get(request.type)
            if type is None and self._strict_types:
                raise UnknownType(request.type)
            defaults = known.defaults_of(request).over(type.defaults if type else NO_DEFAULTS)
            job = wire.new_job(
                request, created_by=who.actor, now=now, limits=self._limits, defaults=defaults,
                requires=type.requires if type else (), traceparent=traceparent, judged=judged,
                known_limits=known.registry.limits,
            )  # fmt: skip
            if type is not None and type.schema is not None:
                await schemas.check(type.schema, job.payload, what="payload")
        except Error as error:
            return _only_known(request, error) or error
        return job if job.webhook is None else job._replace(webhook=address(webhook_format, job.webhook))


def _only_known(request: JobRequest, error: Error) -> NewJob | None:
    """Return a job for an invalid request only if it may repeat an accepted one with the same idempotency key."""
    key = request.idempotency_key
    if key is None or not is_visible_name(key) or not is_visible_name(request.type):
        return None
    try:
        digest = wire.body_sha256(request)
    except (TypeError, ValueError, RecursionError):  # not serializable as JSON, so never accepted
        return None
    return NewJob(wire.new_id(), request.type, idempotency_key=key, body_sha256=digest, fault=error)


def _accepted(new: NewJob, enqueued: Enqueued | Rejected) -> Accepted | Rejected:
    return enqueued if isinstance(enqueued, Rejected) else Accepted(new, enqueued)


class _TypeCache:
    """A tenant's registry as cached by this process; an enqueue with a stale version is rejected and retried."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self._agents: dict[tuple[str, str], Defaults] = {}

    async def meet_agents(self, store: Store, tenant: str, requests: Sequence[JobRequest]) -> None:
        """Load the defaults of agents that are not cached yet."""
        named = {(r.agent.kind, r.agent.id) for r in requests if r.agent is not None}
        # An invalid name is rejected with its request; skip the query for it.
        new = {name for name in named if all(map(is_visible_name, name))} - self._agents.keys()
        if not new:
            return
        if len(self._agents) + len(new) > MAX_AGENTS:
            self._agents.clear()
        found = await store.registry.agents_named(tenant, sorted(new))
        self._agents |= {name: found[name].defaults if name in found else NO_DEFAULTS for name in new}

    def defaults_of(self, request: JobRequest) -> Defaults:
        if request.agent is None:
            return NO_DEFAULTS
        return self._agents.get((request.agent.kind, request.agent.id), NO_DEFAULTS)
