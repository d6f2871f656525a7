"""The client over an engine in the same process: it passes the tenant and the caller to each method."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from functools import partial
from typing import Concatenate, Final, ParamSpec, TypeVar

from interlock import wire
from interlock.client.port import LeasedJob
from interlock.client.tracing import claiming, enqueueing
from interlock.domain.approval import Approval, RequestApproval
from interlock.domain.artifact import File, Holder, Link
from interlock.domain.effect import BeginEffect, Effect
from interlock.domain.job import Enqueued, Filter, HistoryRow, Job, Receipt
from interlock.domain.lifecycle import TERMINAL
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import Principal
from interlock.domain.progress import EventRow, StepRow
from interlock.domain.registry import QueueStats
from interlock.domain.stream import Chunk
from interlock.engine.engine import Engine
from interlock.wire import JobRequest

P = ParamSpec("P")
A = TypeVar("A")
R = TypeVar("R")
SHORTEST_LOOK_SECONDS: Final = 0.01
MAX_LOOK_SECONDS: Final = 0.5
MAX_CHILDREN: Final = 200
MAX_PER_CLAIM: Final = 500  # more than over HTTP: a commit of this many costs as much as one of a hundred


def bound(verb: Callable[Concatenate[A, P], R], first: A) -> Callable[P, R]:
    """Bind a method of the engine to its first argument, the tenant or the caller."""
    return partial(verb, first)


class LocalJobs:
    def __init__(self, engine: Engine, who: Principal) -> None:
        self._engine, self._who, self._tenant = engine, who, who.tenant
        self.some = bound(engine.queries.some, who.tenant)
        self.search = bound(engine.queries.search, who.tenant)
        self.attention = bound(engine.attention.page, who.tenant)
        self.edit = bound(engine.jobs.edit, who)
        self.run_now = bound(engine.jobs.run_now, who)
        self.budget = bound(engine.budgets.of_job, who.tenant)
        self.raise_budget = bound(engine.budgets.raise_of_job, who)
        self.usage = bound(engine.usage.page, who.tenant)
        self.acknowledge = bound(engine.jobs.acknowledge, who)
        self.cancel = bound(engine.jobs.cancel, who)
        self.cancel_tree = bound(engine.operations.cancel_tree, who)
        self.revoke = bound(engine.jobs.revoke, who)
        self.redrive = bound(engine.operations.redrive, who)
        self.bulk = bound(engine.operations.bulk, who)
        self.prune = bound(engine.retention.prune, who)
        self.why = bound(engine.why.of, who.tenant)
        self.events = bound(engine.progress.events, who.tenant)
        self.streams = bound(engine.streams.of_job, who.tenant)
        self.send = bound(engine.messages.send, who)
        self.publish = bound(engine.messages.publish, who)
        self.messages = bound(engine.messages.of_job, who.tenant)
        self.effects = bound(engine.effects.of_job, who.tenant)
        self.list = bound(engine.queries.jobs, who.tenant)

    async def enqueue(self, requests: Sequence[JobRequest], *, within: object = None) -> list[Enqueued]:
        jobs = self._engine.jobs
        with enqueueing(requests) as trace:
            if within is None and len(requests) == 1:
                return [await jobs.enqueue(self._who, requests[0], traceparent=trace)]
            return await jobs.enqueue_batch(self._who, requests, within=within, traceparent=trace)

    async def get(self, job_id: str) -> Job:
        return await self._engine.queries.job(self._tenant, wire.job_id(job_id))

    async def wait(self, job_id: str, *, seconds: float) -> Job:
        """Wait until a job is terminal; poll after changes, at growing intervals, so that many waiters cost little."""
        deadline = time.monotonic() + seconds
        pause = SHORTEST_LOOK_SECONDS
        while True:
            changed = self._engine.store.watch(self._tenant)
            job = await self.get(job_id)
            left = deadline - time.monotonic()
            if job.status in TERMINAL or left <= 0:
                return job
            await asyncio.sleep(min(pause, left))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(MAX_LOOK_SECONDS, max(left - pause, 0))):
                    await changed.wait()
            pause = min(pause * 1.5, MAX_LOOK_SECONDS)

    async def history(self, job_id: str) -> list[HistoryRow]:
        return await self._engine.queries.history(self._tenant, wire.job_id(job_id))

    async def children(self, job_id: str) -> list[Job]:
        found: list[Job] = []
        filter = Filter(parent_id=wire.job_id(job_id), limit=MAX_CHILDREN)
        while page := await self.list(filter):
            found += page
            filter = filter._replace(before_seq=page[-1].seq)
        return found[::-1]

    async def steps(self, job_id: str, *, after: int = 0, limit: int | None = None) -> list[StepRow]:
        if limit is not None:
            return await self._engine.progress.steps(self._tenant, job_id, after=after, limit=limit)
        (steps,) = await self._engine.progress.steps_of(self._tenant, [wire.job_id(job_id)])
        return [step for step in steps if step.seq > after]

    async def tail(self, job_id: str, *, after: int = 0) -> AsyncGenerator[EventRow, None]:
        async for page in self._engine.progress.tail(self._tenant, job_id, after=after):
            for row in page:
                yield row

    async def chunks(self, job_id: str, name: str, *, after: int = -1, limit: int = 200) -> list[Chunk]:
        return (await self._engine.streams.page(self._tenant, job_id, name, after=after, limit=limit)).chunks

    async def stream(self, job_id: str, name: str, *, after: int = -1) -> AsyncGenerator[Chunk, None]:
        async for page in self._engine.streams.follow(self._tenant, job_id, name, after=after):
            for chunk in page:
                yield chunk

    async def follow(self) -> AsyncIterator[EventRow]:
        start = await self._engine.progress.feed_end(self._tenant)
        async for page in self._engine.progress.follow(self._tenant, start):
            for one in page:
                yield one.event


class LocalWork:
    most_per_claim = MAX_PER_CLAIM

    def __init__(self, engine: Engine, who: Principal) -> None:
        self._engine, self._who, self._tenant = engine, who, who.tenant
        self.heartbeats = bound(engine.leases.heartbeats, who.tenant)
        self.interrupted = bound(engine.leases.interrupted, who.tenant)
        self.finishes = bound(engine.leases.finishes, who.tenant)
        self.checkpoint = bound(engine.leases.checkpoint, who.tenant)
        self.save_step = bound(engine.progress.save_step, who.tenant)
        self.add_events = bound(engine.progress.reports, who.tenant)
        self.append = bound(engine.streams.append, who.tenant)
        self.settle_effect = bound(engine.effects.settle, who.tenant)

    async def claim(self, ask: ClaimFilter, *, wait_seconds: float = 0.0) -> list[LeasedJob]:
        with claiming() as leased:
            jobs = await self._engine.leases.claim(
                self._tenant, ask, wait_seconds=wait_seconds, most=self.most_per_claim
            )
            leased(len(jobs))
        again = [job.id for job in jobs if not job.runs_first]
        if not again:
            return [LeasedJob(job) for job in jobs]
        steps = dict(zip(again, await self._engine.progress.steps_of(self._tenant, again), strict=True))
        approvals = await self._engine.store.approvals.decisions(self._tenant, again)
        return [LeasedJob(job, steps.get(job.id, ()), approvals.get(job.id, ())) for job in jobs]

    async def begin_effect(self, order: BeginEffect) -> Effect:
        return (await self._engine.effects.begin(self._tenant, order)).effect

    async def request_approval(self, approval: RequestApproval) -> Receipt:
        return (await self._engine.approvals.open(self._who, approval)).receipt

    async def attach(self, holder: Holder, thing: File | Link) -> str:
        return (await self._engine.artifacts.add(self._tenant, holder, thing)).id


class LocalApprovals:
    def __init__(self, engine: Engine, who: Principal) -> None:
        self.get = bound(engine.approvals.get, who.tenant)
        self.decide = bound(engine.approvals.decide, who)
        self.of_token = engine.approvals.of_token
        self.decide_by_token = engine.approvals.decide_by_token
        self.create_link = bound(engine.approvals.create_link, who)
        self.list = bound(engine.approvals.list, who.tenant)
        self._queries = engine.queries

    async def job_of(self, approval: Approval) -> Job:
        """Return the job of an approval for the bearer of its link, who has no tenant."""
        return await self._queries.job(approval.tenant, approval.job_id)


class LocalQueues:
    def __init__(self, engine: Engine, who: Principal) -> None:
        self._queries, self._tenant = engine.queries, who.tenant
        self.pause = bound(engine.jobs.pause, who)
        self.resume = bound(engine.jobs.resume, who)
        self.list = bound(engine.queries.queues, who.tenant)

    async def get(self, type: str) -> QueueStats:
        return await self._queries.queue(self._tenant, wire.name(type, "type"))


class LocalSchedules:
    def __init__(self, engine: Engine, who: Principal) -> None:
        self._engine, self._who = engine, who
        self.get = bound(engine.schedules.get, who.tenant)
        self.set = bound(engine.schedules.set, who)
        self.delete = bound(engine.schedules.delete, who)
        self.pause = bound(engine.schedules.pause, who)
        self.resume = bound(engine.schedules.resume, who)
        self.preview = bound(engine.schedules.preview, who.tenant)
        self.list = bound(engine.schedules.page, who.tenant)

    async def run(self, name: str) -> Job:
        return (await self._engine.schedules.run(self._who, name)).job


class LocalLimits:
    def __init__(self, engine: Engine, who: Principal) -> None:
        self.get = bound(engine.flow.get, who.tenant)
        self.set = bound(engine.flow.set, who)
        self.delete = bound(engine.flow.delete, who)
        self.hold = bound(engine.flow.hold, who)
        self.release = bound(engine.flow.release, who)
        self.list = bound(engine.flow.page, who.tenant)
        self.keys = bound(engine.flow.keys, who.tenant)


class LocalChannels:
    def __init__(self, engine: Engine, who: Principal) -> None:
        self.get = bound(engine.channels.get, who)
        self.set = bound(engine.channels.set, who)
        self.delete = bound(engine.channels.delete, who)
        self.list = bound(engine.channels.page, who)
        self.test = bound(engine.channels.test, who)


class LocalBudgets:
    def __init__(self, engine: Engine, who: Principal) -> None:
        self.get = bound(engine.budgets.get, who.tenant)
        self.set = bound(engine.budgets.set, who)
        self.raise_by = bound(engine.budgets.raise_by, who)
        self.delete = bound(engine.budgets.delete, who)
        self.list = bound(engine.budgets.page, who.tenant)


class LocalAgents:
    def __init__(self, engine: Engine, who: Principal) -> None:
        self.get = bound(engine.registry.agent, who.tenant)
        self.set = bound(engine.registry.set_agent, who)
        self.delete = bound(engine.registry.delete_agent, who)
        self.list = bound(engine.registry.agents, who.tenant)


class LocalTypes:
    def __init__(self, engine: Engine, who: Principal) -> None:
        self.get = bound(engine.registry.type, who.tenant)
        self.set = bound(engine.registry.set_type, who)
        self.delete = bound(engine.registry.delete_type, who)
        self.list = bound(engine.registry.types, who.tenant)


class LocalTokens:
    def __init__(self, engine: Engine, who: Principal) -> None:
        self.create = bound(engine.tokens.create, who)
        self.revoke = bound(engine.tokens.revoke, who)
        self.list = bound(engine.tokens.list, who)


class LocalSubscriptions:
    def __init__(self, engine: Engine, who: Principal) -> None:
        self.create = bound(engine.webhooks.subscribe, who)
        self.get = bound(engine.webhooks.subscription, who)
        self.delete = bound(engine.webhooks.unsubscribe, who)
        self.renew = bound(engine.webhooks.renew, who)
        self.rotate = bound(engine.webhooks.rotate, who)
        self.rotate_job_secret = bound(engine.webhooks.rotate_job_secret, who)
        self.deliveries = bound(engine.webhooks.deliveries, who)
        self.redeliver = bound(engine.webhooks.redeliver, who)
        self.list = bound(engine.webhooks.subscriptions, who)


class LocalArtifacts:
    def __init__(self, engine: Engine, who: Principal) -> None:
        self.get = bound(engine.artifacts.get, who.tenant)
        self.read = bound(engine.artifacts.read, who.tenant)
        self.list = bound(engine.artifacts.list, who.tenant)


class LocalWorkers:
    def __init__(self, engine: Engine, who: Principal) -> None:
        self.list = bound(engine.workers.seen, who.tenant)


class LocalAudit:
    def __init__(self, engine: Engine, who: Principal) -> None:
        self.verify = bound(engine.audit.verify_part, who.tenant)
        self.head = bound(engine.queries.head, who.tenant)
        self.log = bound(engine.audit.log, who.tenant)
        self.export = bound(engine.audit.export, who.tenant)


class LocalOverview:
    """Queries of the dashboard that the HTTP API does not offer."""

    def __init__(self, engine: Engine, who: Principal) -> None:
        self.minutes = bound(engine.queries.minutes, who.tenant)
        self.needing_attention = bound(engine.attention.page, who.tenant)
        self.count_attention = bound(engine.attention.count, who.tenant)
        self.redriven = bound(engine.queries.redriven, who.tenant)
        self.redrives = bound(engine.queries.redrives, who.tenant)
        self.parents = bound(engine.queries.parents, who.tenant)
        self.history = bound(engine.queries.history, who.tenant)
        self.may_send_to = bound(engine.messages.is_in_tree_of, who)
        self.mismatched = bound(engine.queries.mismatched, who.tenant)
        self.stalled_agents = bound(engine.registry.stalled_agents, who.tenant)
        self.unreachable = engine.queries.unreachable
        self.due_under = bound(engine.flow.due, who.tenant)
        self.held_limits = bound(engine.flow.held, who.tenant)
        self.refuses = bound(engine.budgets.refuses, who.tenant)
        self.spent_trees = bound(engine.budgets.spent_trees, who.tenant)
        self.utilization = engine.utilization


class LocalClient:
    """A client of one tenant that calls an engine in this process."""

    def __init__(self, engine: Engine, who: Principal) -> None:
        self.engine, self._who = engine, who
        self.now = engine.queries.now
        self.jobs = LocalJobs(engine, who)
        self.work = LocalWork(engine, who)
        self.approvals = LocalApprovals(engine, who)
        self.queues = LocalQueues(engine, who)
        self.agents = LocalAgents(engine, who)
        self.schedules = LocalSchedules(engine, who)
        self.limits = LocalLimits(engine, who)
        self.budgets = LocalBudgets(engine, who)
        self.channels = LocalChannels(engine, who)
        self.types = LocalTypes(engine, who)
        self.tokens = LocalTokens(engine, who)
        self.subscriptions = LocalSubscriptions(engine, who)
        self.artifacts = LocalArtifacts(engine, who)
        self.workers = LocalWorkers(engine, who)
        self.audit = LocalAudit(engine, who)
        self.overview = LocalOverview(engine, who)

    async def me(self) -> Principal:
        return self._who

    def start_maintenance(self) -> None:
        self.engine.maintenance.start()

    async def close(self) -> None:
        await self.engine.close()
