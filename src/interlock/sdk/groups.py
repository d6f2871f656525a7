"""All operations of an app in groups. Each calls the client and returns public values, on a database or a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypeVar, Unpack

import msgspec

from interlock.client.port import (
    ChannelRequest,
    Client,
    JobRequest,
    ScheduleRequest,
    SubscriptionRequest,
    TokenRequest,
)
from interlock.domain.approval import ApprovalFilter, ApprovalStatus
from interlock.domain.approval import Decision as _Decision
from interlock.domain.channel import DEFAULT_EVENTS
from interlock.domain.job import Filter
from interlock.domain.lifecycle import Status
from interlock.domain.limits import LimitState
from interlock.domain.operations import Action
from interlock.domain.schedule import CatchUp, Overlap
from interlock.domain.timestamps import micros
from interlock.domain.webhook import DeliveryFilter, DeliveryStatus
from interlock.sdk import serialization
from interlock.sdk.exceptions import in_seconds
from interlock.sdk.handle import JobHandle
from interlock.sdk.limit_requests import budget_request, limit_request
from interlock.sdk.sync import background_loop, iterate, sync_version
from interlock.sdk.tasks import Options, request_fields
from interlock.sdk.values import (
    Agent,
    Approval,
    ApprovalLink,
    Artifact,
    AuditRow,
    Budget,
    BulkResult,
    ChainVerification,
    ChannelTest,
    Chunk,
    CreatedSubscription,
    CreatedToken,
    Defaults,
    Delivery,
    Effect,
    Event,
    HistoryRow,
    Job,
    JobType,
    Limit,
    LimitKey,
    Message,
    NotificationChannel,
    PruneResult,
    QueueStats,
    Receipt,
    Schedule,
    Step,
    Stream,
    Subscription,
    Token,
    UsageTotal,
    Why,
    WorkerPresence,
    time_of,
    value_of,
)

V = TypeVar("V")
PAGE: Final = 200


class Group:
    """Operations of one kind; every async method has a synchronous version that ends in `_sync`."""

    def __init__(self, client: Callable[[], Awaitable[Client]]) -> None:
        self._client = client

    def _loop_for_blocking(self) -> asyncio.AbstractEventLoop:
        return background_loop()


class Jobs(Group):
    """Operations on jobs."""

    async def enqueue(self, type: str, payload: Any = None, /, **options: Unpack[Options]) -> JobHandle[Any]:
        """Enqueue a job by the name of its type, for producers without its code; never a child of the running task."""
        text = b"{}" if payload is None else serialization.encode_call(payload).encode()
        request = JobRequest(type=type, payload=msgspec.Raw(text), **request_fields(options))
        (enqueued,) = await (await self._client()).jobs.enqueue([request])
        return JobHandle(enqueued.id, self._client, replayed=enqueued.replayed)

    async def get(self, job_id: str) -> Job:
        """Return a job."""
        return value_of(Job, await (await self._client()).jobs.get(job_id))

    async def search(self, text: str, *, limit: int = 50) -> list[Job]:
        """Find jobs by ID, its last 8 or more characters, or idempotency key, then by text, each newest first.

        Text is found in payload, error, tags and the name of the requester, in the newest 5000 jobs.
        """
        return _all(Job, await (await self._client()).jobs.search(text, limit=limit))

    async def attention(self, *, search: str | None = None, before: int | None = None, limit: int = 50) -> list[Job]:
        """List jobs that need attention, newest first: unacknowledged failures, and due jobs without a worker.

        With `search`, only those that it finds.
        """
        return _all(Job, await (await self._client()).jobs.attention(search=search, before_seq=before, limit=limit))

    async def cancel(self, job_id: str, *, reason: str | None = None, force: bool = False) -> Receipt:
        """Cancel a job; a running one when its worker acknowledges it, or with `force` immediately."""
        return value_of(Receipt, await (await self._client()).jobs.cancel(job_id, reason=reason, force=force))

    async def cancel_tree(self, job_id: str, *, reason: str | None = None, force: bool = False) -> int:
        """Cancel a job and all its descendants; return the number of descendants."""
        return (await (await self._client()).jobs.cancel_tree(job_id, reason=reason, force=force)).descendants

    async def revoke(self, job_id: str, *, reason: str | None = None) -> Receipt:
        """End the current lease as if it had expired."""
        return value_of(Receipt, await (await self._client()).jobs.revoke(job_id, reason=reason))

    async def run_now(self, job_id: str) -> Receipt:
        """Make a queued or retrying job due."""
        return value_of(Receipt, await (await self._client()).jobs.run_now(job_id))

    async def budget(self, job_id: str) -> Budget:
        """Return the budget of the tree that a job belongs to; its name is `tree:` and the ID of the root."""
        return value_of(Budget, await (await self._client()).jobs.budget(job_id))

    async def raise_budget(self, job_id: str, amount: Mapping[str, float]) -> Budget:
        """Add to the budget of the tree that a job belongs to."""
        return value_of(Budget, await (await self._client()).jobs.raise_budget(job_id, amount))

    async def usage(
        self,
        by: Literal["type", "agent", "day", "tree"] = "type",
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 1000,
    ) -> list[UsageTotal]:
        """Sum the usage of jobs that finished from `since` until before `until`: 30 days by default, at most 366."""
        jobs = (await self._client()).jobs
        found: list[UsageTotal] = []
        after = None
        while len(found) < limit:
            size = min(limit - len(found), PAGE)
            some = await jobs.usage(by, since=since, until=until, after=after, limit=size)
            found += _all(UsageTotal, some)
            if len(some) < size:
                break
            after = some[-1].key
        return found

    async def acknowledge(self, job_id: str, *, comment: str | None = None) -> Receipt:
        """End the need for attention of a failed or dead-letter job."""
        return value_of(Receipt, await (await self._client()).jobs.acknowledge(job_id, comment=comment))

    async def edit(
        self,
        job_id: str,
        *,
        priority: int | None = None,
        run_at: datetime | None = None,
        deadline: datetime | None = None,
        drop_deadline: bool = False,
        max_attempts: int | None = None,
        tags: Sequence[str] | None = None,
    ) -> Receipt:
        """Change fields of a waiting job; None leaves a field unchanged."""
        edited = (await self._client()).jobs.edit(
            job_id, priority=priority, run_at=run_at, deadline=deadline, drop_deadline=drop_deadline,
            max_attempts=max_attempts, tags=tags,
        )  # fmt: skip
        return value_of(Receipt, await edited)

    async def redrive(
        self,
        job_id: str,
        *,
        start_from: str = "start",
        idempotency_key: str | None = None,
        payload: Any = None,
        priority: int | None = None,
        run_at: datetime | None = None,
        delay: float | timedelta | None = None,
        max_attempts: int | None = None,
        tags: Sequence[str] | None = None,
    ) -> JobHandle[Any]:
        """Create a new job from a terminal one: from the start, its checkpoint, or after a named step.

        Options that are None stay as they were.
        """
        job: JobHandle[Any] = JobHandle(job_id, self._client)
        return await job.redrive(
            start_from, idempotency_key=idempotency_key, payload=payload, priority=priority, run_at=run_at, delay=delay,
            max_attempts=max_attempts, tags=tags,
        )  # fmt: skip

    async def bulk(
        self,
        action: Literal["cancel", "redrive", "acknowledge"],
        ids: Sequence[str] | None = None,
        *,
        status: Status | str | Sequence[Status | str] = (),
        type: str | None = None,
        tags: Sequence[str] = (),
        created_before: datetime | None = None,
        before: int | None = None,
        limit: int = 1000,
        dry_run: bool = False,
        reason: str | None = None,
        force: bool = False,
    ) -> BulkResult:
        """Cancel, redrive or acknowledge many jobs, by their IDs or by a filter; `reason` is the comment."""
        filter = None
        if ids is None:
            filter = Filter(
                _statuses(status), type, tags=tuple(tags), created_before=_micros(created_before), before_seq=before,
                limit=limit,
            )  # fmt: skip
        done = (await self._client()).jobs.bulk(
            Action(action), ids=ids, filter=filter, dry_run=dry_run, reason=reason, force=force
        )
        return value_of(BulkResult, await done)

    async def prune(
        self, older_than: float | timedelta, *, limit: int = 1000, dry_run: bool = False, after: int = 0
    ) -> PruneResult:
        """Delete jobs that finished longer ago than this, with all their data."""
        days = (in_seconds(older_than) or 0.0) / 86_400
        jobs = (await self._client()).jobs
        return value_of(PruneResult, await jobs.prune(days, limit=limit, dry_run=dry_run, after_seq=after))

    async def why(self, job_id: str) -> Why:
        """Explain why a job does not run."""
        return value_of(Why, await (await self._client()).jobs.why(job_id))

    async def history(self, job_id: str) -> list[HistoryRow]:
        """Return all transitions of a job, oldest first."""
        return _all(HistoryRow, await (await self._client()).jobs.history(job_id))

    async def children(self, job_id: str) -> list[Job]:
        """Return the children of a job, oldest first."""
        return _all(Job, await (await self._client()).jobs.children(job_id))

    async def steps(self, job_id: str) -> list[Step]:
        """Return the saved steps of a job, oldest first."""
        return _all(Step, await (await self._client()).jobs.steps(job_id))

    async def send(self, job_id: str, name: str, payload: Any = None, *, id: str | None = None) -> Message:
        """Send a message to a job; with the ID of an earlier message to the job, return that one."""
        job: JobHandle[Any] = JobHandle(job_id, self._client)
        return await job.send(name, payload, id=id)

    async def messages(
        self, job_id: str, *, name: str | None = None, topic: str | None = None, after: int = 0, limit: int = PAGE
    ) -> Sequence[Message]:
        """Return messages of a job with a number above `after`, oldest first: those of a name, or to a topic."""
        found = await (await self._client()).jobs.messages(job_id, name=name, topic=topic, after=after, limit=limit)
        return _all(Message, found)

    async def effects(self, job_id: str, *, after: int = 0, limit: int = PAGE) -> Sequence[Effect]:
        """Return effects of a job with a number above `after`, in the order in which they began."""
        return _all(Effect, await (await self._client()).jobs.effects(job_id, after=after, limit=limit))

    async def events(self, job_id: str, *, after: int = 0, limit: int = PAGE) -> list[Event]:
        """Return events of a job with a number above `after`, oldest first."""
        return _all(Event, await (await self._client()).jobs.events(job_id, after=after, limit=limit))

    async def streams(self, job_id: str) -> list[Stream]:
        """Return the streams of a job by name; `JobHandle.stream` follows one."""
        return _all(Stream, await (await self._client()).jobs.streams(job_id))

    async def chunks(self, job_id: str, name: str, *, after: int = -1, limit: int = PAGE) -> list[Chunk]:
        """Return chunks of a stream with an offset above `after`, in order."""
        return _all(Chunk, await (await self._client()).jobs.chunks(job_id, name, after=after, limit=limit))

    async def list(
        self,
        *,
        status: Status | str | Sequence[Status | str] = (),
        type: str | None = None,
        agent: tuple[str, str] | None = None,
        worker: str | None = None,
        stale: float | timedelta | None = None,
        parent_id: str | None = None,
        tags: Sequence[str] = (),
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        before: int | None = None,
        limit: int = 50,
    ) -> list[Job]:
        """List jobs, newest first, without payloads; `before` is the `seq` of the last job of the previous page."""
        filter = Filter(
            _statuses(status), type, agent, worker, in_seconds(stale), parent_id, tuple(tags), _micros(created_after),
            _micros(created_before), before, limit,
        )  # fmt: skip
        return _all(Job, await (await self._client()).jobs.list(filter))

    enqueue_sync = sync_version(enqueue)
    get_sync = sync_version(get)
    search_sync = sync_version(search)
    attention_sync = sync_version(attention)
    cancel_sync = sync_version(cancel)
    cancel_tree_sync = sync_version(cancel_tree)
    revoke_sync = sync_version(revoke)
    run_now_sync = sync_version(run_now)
    budget_sync = sync_version(budget)
    raise_budget_sync = sync_version(raise_budget)
    usage_sync = sync_version(usage)
    acknowledge_sync = sync_version(acknowledge)
    edit_sync = sync_version(edit)
    redrive_sync = sync_version(redrive)
    bulk_sync = sync_version(bulk)
    prune_sync = sync_version(prune)
    why_sync = sync_version(why)
    history_sync = sync_version(history)
    children_sync = sync_version(children)
    steps_sync = sync_version(steps)
    send_sync = sync_version(send)
    messages_sync = sync_version(messages)
    effects_sync = sync_version(effects)
    events_sync = sync_version(events)
    streams_sync = sync_version(streams)
    chunks_sync = sync_version(chunks)
    list_sync = sync_version(list)


class Approvals(Group):
    """Approvals that jobs request."""

    async def get(self, approval_id: str) -> Approval:
        """Return an approval."""
        return value_of(Approval, await (await self._client()).approvals.get(approval_id))

    async def decide(
        self,
        approval_id: str,
        decision: Literal["approve", "deny"],
        *,
        comment: str | None = None,
        data: Any = None,
        digest: str | None = None,
    ) -> Approval:
        """Vote as the caller; with `digest`, fail if the request has a different one."""
        text = None if data is None else serialization.encode(data)
        decided = (await self._client()).approvals.decide(
            approval_id, _Decision(decision), comment=comment, data=text, digest=digest
        )
        return value_of(Approval, await decided)

    async def create_link(self, approval_id: str) -> ApprovalLink:
        """Create an approval link, which needs no other credential; it replaces the previous one."""
        return value_of(ApprovalLink, await (await self._client()).approvals.create_link(approval_id))

    async def list(
        self,
        *,
        status: ApprovalStatus | str | None = None,
        job_id: str | None = None,
        before: Approval | None = None,
        limit: int = 50,
    ) -> list[Approval]:
        """List approvals, newest first; `before` is the last one of the previous page."""
        position = None if before is None else (micros(before.requested_at), before.id)
        chosen = None if status is None else ApprovalStatus(status)
        filter = ApprovalFilter(chosen, job_id, before=position, limit=limit)
        return _all(Approval, await (await self._client()).approvals.list(filter))

    get_sync = sync_version(get)
    decide_sync = sync_version(decide)
    create_link_sync = sync_version(create_link)
    list_sync = sync_version(list)


class Queues(Group):
    """Job counts by type, and pausing a type."""

    async def get(self, type: str) -> QueueStats:
        """Return the counts of a type."""
        return value_of(QueueStats, await (await self._client()).queues.get(type))

    async def pause(self, type: str, *, reason: str | None = None) -> None:
        """Pause a type: its jobs are not claimed until it is resumed."""
        await (await self._client()).queues.pause(type, reason=reason)

    async def resume(self, type: str) -> None:
        """Resume a paused type."""
        await (await self._client()).queues.resume(type)

    async def list(self, *, after: str = "", limit: int = 50) -> list[QueueStats]:
        """List queues by type."""
        return _all(QueueStats, await (await self._client()).queues.list(after=after, limit=limit))

    get_sync = sync_version(get)
    pause_sync = sync_version(pause)
    resume_sync = sync_version(resume)
    list_sync = sync_version(list)


class Agents(Group):
    """Registered agents."""

    async def get(self, kind: str, id: str) -> Agent:
        """Return an agent."""
        return value_of(Agent, await (await self._client()).agents.get(kind, id))

    async def set(
        self,
        kind: str,
        id: str,
        *,
        max_concurrency: int | None = None,
        strict: bool = False,
        defaults: Defaults | None = None,
    ) -> Agent:
        """Register or update an agent; a lower limit takes effect as its jobs finish."""
        agents = (await self._client()).agents
        fields = None if defaults is None else defaults.to_json()
        return value_of(
            Agent, await agents.set(kind, id, max_concurrency=max_concurrency, strict=strict, defaults=fields)
        )

    async def delete(self, kind: str, id: str) -> None:
        """Delete an agent without unfinished jobs."""
        await (await self._client()).agents.delete(kind, id)

    async def list(self, *, after: tuple[str, str] = ("", ""), limit: int = 50) -> list[Agent]:
        """List agents by kind and ID."""
        return _all(Agent, await (await self._client()).agents.list(after=after, limit=limit))

    get_sync = sync_version(get)
    set_sync = sync_version(set)
    delete_sync = sync_version(delete)
    list_sync = sync_version(list)


class Types(Group):
    """Registered types."""

    async def get(self, name: str) -> JobType:
        """Return a type."""
        return value_of(JobType, await (await self._client()).types.get(name))

    async def set(
        self,
        name: str,
        *,
        schema: Mapping[str, Any] | None = None,
        requires: Sequence[str] = (),
        defaults: Defaults | None = None,
    ) -> JobType:
        """Register or update a type."""
        text = None if schema is None else serialization.encode(schema)
        fields = None if defaults is None else defaults.to_json()
        types = (await self._client()).types
        return value_of(JobType, await types.set(name, schema=text, requires=requires, defaults=fields))

    async def delete(self, name: str) -> None:
        """Delete a type; its jobs stay."""
        await (await self._client()).types.delete(name)

    async def list(self) -> list[JobType]:
        """List all types by name."""
        return _all(JobType, await (await self._client()).types.list())

    get_sync = sync_version(get)
    set_sync = sync_version(set)
    delete_sync = sync_version(delete)
    list_sync = sync_version(list)


class Schedules(Group):
    """Schedules, which enqueue jobs at given times."""

    async def get(self, name: str) -> Schedule:
        """Return a schedule."""
        return value_of(Schedule, await (await self._client()).schedules.get(name))

    async def set(
        self,
        name: str,
        type: str,
        payload: Any = None,
        *,
        cron: str | None = None,
        every: float | timedelta | None = None,
        timezone: str = "UTC",
        overlap: Overlap | Literal["allow", "skip", "cancel"] = "allow",
        catch_up: CatchUp | Literal["none", "last", "all"] = "none",
        jitter: float | timedelta = 0,
        starts_at: datetime | None = None,
        ends_at: datetime | None = None,
        options: Options | None = None,
    ) -> Schedule:
        """Create or update a schedule that enqueues jobs of a type; an update keeps its last tick."""
        text = b"{}" if payload is None else serialization.encode_call(payload).encode()
        request = ScheduleRequest(
            job=JobRequest(type=type, payload=msgspec.Raw(text), **request_fields(options or {})), cron=cron,
            every_seconds=in_seconds(every), timezone=timezone, overlap=Overlap(overlap), catch_up=CatchUp(catch_up),
            jitter_seconds=in_seconds(jitter) or 0, starts_at=starts_at, ends_at=ends_at,
        )  # fmt: skip
        return value_of(Schedule, await (await self._client()).schedules.set(name, request))

    async def delete(self, name: str) -> None:
        """Delete a schedule; its jobs stay."""
        await (await self._client()).schedules.delete(name)

    async def pause(self, name: str) -> Schedule:
        """Pause a schedule."""
        return value_of(Schedule, await (await self._client()).schedules.pause(name))

    async def resume(self, name: str) -> Schedule:
        """Resume a paused schedule."""
        return value_of(Schedule, await (await self._client()).schedules.resume(name))

    async def run(self, name: str) -> Job:
        """Enqueue the job of a schedule now; its ticks do not change."""
        return value_of(Job, await (await self._client()).schedules.run(name))

    async def preview(self, name: str, n: int = 10) -> list[datetime]:
        """Return the next ticks."""
        ticks = await (await self._client()).schedules.preview(name, n)
        return [time_of(tick) for tick in ticks]

    async def list(self, *, after: str = "", limit: int = 50) -> list[Schedule]:
        """List schedules by name."""
        return _all(Schedule, await (await self._client()).schedules.list(after=after, limit=limit))

    get_sync = sync_version(get)
    set_sync = sync_version(set)
    delete_sync = sync_version(delete)
    pause_sync = sync_version(pause)
    resume_sync = sync_version(resume)
    run_sync = sync_version(run)
    preview_sync = sync_version(preview)
    list_sync = sync_version(list)


class Limits(Group):
    """Limits on how many jobs run concurrently, and how much of a unit they use over time."""

    async def get(self, name: str) -> Limit:
        """Return a limit and its state."""
        return _limit(await (await self._client()).limits.get(name))

    async def set(
        self,
        name: str,
        *,
        concurrency: int | None = None,
        rate: Mapping[str, float] | None = None,
        per: float | timedelta = 60,
        burst: Mapping[str, float] | None = None,
        keyed: bool = False,
        fair: bool = False,
        weights: Mapping[str, float] | None = None,
    ) -> Limit:
        """Create or update a limit: concurrency, the amount of each unit in each period `per`, or both.

        With `keyed`, each key that jobs name has its own room; with `fair`, keys share it by their weights.
        """
        request = limit_request(
            concurrency=concurrency, rate=rate, per=per, burst=burst, keyed=keyed, fair=fair, weights=weights
        )
        return _limit(await (await self._client()).limits.set(name, request))

    async def delete(self, name: str) -> None:
        """Delete a limit that no unfinished job names."""
        await (await self._client()).limits.delete(name)

    async def hold(self, name: str, until: datetime, *, key: str | None = None, reason: str | None = None) -> Limit:
        """Lease no job that names the limit until a time; the later time of two holds wins."""
        return _limit(await (await self._client()).limits.hold(name, until, key=key, reason=reason))

    async def release(self, name: str, *, key: str | None = None) -> Limit:
        """End the hold of a limit."""
        return _limit(await (await self._client()).limits.release(name, key=key))

    async def keys(self, name: str, *, after: str = "", limit: int = 50) -> list[LimitKey]:
        """List the keys of a limit that jobs have used, starting after `after`."""
        return _all(LimitKey, await (await self._client()).limits.keys(name, after=after, limit=limit))

    async def list(self, *, after: str = "", limit: int = 50) -> list[Limit]:
        """List limits by name, starting after `after`."""
        return [_limit(one) for one in await (await self._client()).limits.list(after=after, limit=limit)]

    get_sync = sync_version(get)
    set_sync = sync_version(set)
    delete_sync = sync_version(delete)
    hold_sync = sync_version(hold)
    release_sync = sync_version(release)
    keys_sync = sync_version(keys)
    list_sync = sync_version(list)


def _limit(found: LimitState) -> Limit:
    """Return the rules and the state of a limit as one value."""
    rules, state = found.limit, found.state
    return Limit(
        name=rules.name, concurrency=rules.concurrency, rate={**rules.units},
        per=timedelta(seconds=rules.per_seconds), burst={**rules.burst}, keyed=rules.keyed, fair=rules.fair,
        weights={**rules.weights}, used=state.used, available={**state.available}, waiting=state.waiting,
        held_until=None if state.held_until is None else time_of(state.held_until), hold_reason=state.hold_reason,
        created_at=time_of(rules.created_at), updated_at=time_of(rules.updated_at),
    )  # fmt: skip


class Budgets(Group):
    """Budgets: amounts that jobs may use in total, or in each hour, day or month."""

    async def get(self, name: str) -> Budget:
        """Return a budget and what was spent of it."""
        return value_of(Budget, await (await self._client()).budgets.get(name))

    async def set(
        self,
        name: str,
        amount: Mapping[str, float],
        *,
        per: Literal["hour", "day", "month"] | None = None,
        timezone: str = "UTC",
        on_exceed: str = "pause",
    ) -> Budget:
        """Create or update a budget; what was spent stays."""
        request = budget_request(amount, per=per, timezone=timezone, on_exceed=on_exceed)
        return value_of(Budget, await (await self._client()).budgets.set(name, request))

    async def raise_by(self, name: str, amount: Mapping[str, float]) -> Budget:
        """Add to the amount of a budget; its waiting jobs continue as far as that goes."""
        return value_of(Budget, await (await self._client()).budgets.raise_by(name, amount))

    async def delete(self, name: str) -> None:
        """Delete a budget that no unfinished job names."""
        await (await self._client()).budgets.delete(name)

    async def list(self, *, after: str = "", limit: int = 50) -> list[Budget]:
        """List budgets by name, starting after `after`."""
        return _all(Budget, await (await self._client()).budgets.list(after=after, limit=limit))

    get_sync = sync_version(get)
    set_sync = sync_version(set)
    raise_by_sync = sync_version(raise_by)
    delete_sync = sync_version(delete)
    list_sync = sync_version(list)


class Tokens(Group):
    """Credentials of the tenant."""

    async def create(
        self,
        roles: Sequence[str],
        *,
        description: str | None = None,
        worker_id: str | None = None,
        types: Sequence[str] | None = None,
        repositories: Sequence[str] | None = None,
        capabilities: Sequence[str] | None = None,
        expires_in: float | timedelta | None = None,
        idempotency_key: str | None = None,
    ) -> CreatedToken:
        """Create a token; absent types or repositories mean any, absent capabilities none."""
        request = TokenRequest(
            roles=[*roles], description=description, worker_id=worker_id, types=_names(types),
            repositories=_names(repositories), capabilities=_names(capabilities),
            expires_in_seconds=in_seconds(expires_in), key=idempotency_key,
        )  # fmt: skip
        return value_of(CreatedToken, await (await self._client()).tokens.create(request))

    async def revoke(self, token_id: str) -> Token:
        """Revoke a token."""
        return value_of(Token, await (await self._client()).tokens.revoke(token_id))

    async def list(self, *, before: str | None = None, limit: int = 50) -> list[Token]:
        """List tokens, newest first; `before` is the ID of the last one of the previous page."""
        return _all(Token, await (await self._client()).tokens.list(before=before, limit=limit))

    create_sync = sync_version(create)
    revoke_sync = sync_version(revoke)
    list_sync = sync_version(list)


class Channels(Group):
    """Notification channels, which send messages about events to people."""

    async def get(self, name: str) -> NotificationChannel:
        """Return a channel."""
        return value_of(NotificationChannel, await (await self._client()).channels.get(name))

    async def set(
        self,
        name: str,
        kind: Literal["slack", "teams", "email", "webhook"],
        *,
        url: str | None = None,
        secret: str | None = None,
        host: str | None = None,
        port: int | None = None,
        tls: Literal["starttls", "implicit", "none"] | None = None,
        username: str | None = None,
        password: str | None = None,
        sender: str | None = None,
        to: Sequence[str] = (),
        events: Sequence[str] | None = None,
        types: Sequence[str] | None = None,
        tags: Sequence[str] | None = None,
        min_risk: str | None = None,
        min_interval: float | timedelta = 60,
    ) -> NotificationChannel:
        """Create or replace a channel: `url` for slack, teams and webhook, a mail server and addresses for email."""
        request = ChannelRequest(
            kind=kind, events=[*(DEFAULT_EVENTS if events is None else events)], types=_names(types),
            tags=_names(tags), min_risk=min_risk, min_interval_seconds=in_seconds(min_interval) or 0.0, url=url,
            secret=secret, host=host, port=port, tls=tls, username=username, password=password, sender=sender,
            recipients=[*to],
        )  # fmt: skip
        return value_of(NotificationChannel, await (await self._client()).channels.set(name, request))

    async def delete(self, name: str) -> None:
        """Delete a channel and its pending messages."""
        await (await self._client()).channels.delete(name)

    async def test(self, name: str) -> ChannelTest:
        """Send a test message immediately."""
        return value_of(ChannelTest, await (await self._client()).channels.test(name))

    async def list(self, *, after: str = "", limit: int = 50) -> list[NotificationChannel]:
        """List channels by name, starting after `after`."""
        return _all(NotificationChannel, await (await self._client()).channels.list(after=after, limit=limit))

    get_sync = sync_version(get)
    set_sync = sync_version(set)
    delete_sync = sync_version(delete)
    test_sync = sync_version(test)
    list_sync = sync_version(list)


class Subscriptions(Group):
    """Webhook subscriptions and their deliveries."""

    async def create(
        self,
        url: str,
        events: Sequence[str],
        *,
        types: Sequence[str] | None = None,
        mode: Literal["broadcast", "group"] = "broadcast",
        group_id: str | None = None,
        min_interval: float | timedelta = 0,
        expires_in: float | timedelta | None = None,
        idempotency_key: str | None = None,
    ) -> CreatedSubscription:
        """Create a subscription; absent types mean all."""
        request = SubscriptionRequest(
            url=url, events=[*events], types=_names(types), mode=mode, group_id=group_id,
            min_interval_seconds=in_seconds(min_interval) or 0.0, expires_in_seconds=in_seconds(expires_in),
            key=idempotency_key,
        )  # fmt: skip
        return value_of(CreatedSubscription, await (await self._client()).subscriptions.create(request))

    async def get(self, id: str) -> Subscription:
        """Return a subscription."""
        return value_of(Subscription, await (await self._client()).subscriptions.get(id))

    async def delete(self, id: str) -> None:
        """Delete a subscription."""
        await (await self._client()).subscriptions.delete(id)

    async def renew(self, id: str, *, expires_in: float | timedelta | None = None) -> Subscription:
        """Extend a subscription, and enable it again if it was disabled."""
        renewed = (await self._client()).subscriptions.renew(id, expires_in_seconds=in_seconds(expires_in))
        return value_of(Subscription, await renewed)

    async def rotate(self, id: str) -> str:
        """Create a new signing secret, shown only once; for one day, deliveries are signed with both."""
        return await (await self._client()).subscriptions.rotate(id)

    async def deliveries(
        self,
        *,
        subscription_id: str | None = None,
        job_id: str | None = None,
        status: DeliveryStatus | str | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> list[Delivery]:
        """List deliveries, newest first; `before` is the ID of the last one of the previous page."""
        chosen = None if status is None else DeliveryStatus(status)
        filter = DeliveryFilter(subscription_id, job_id, chosen, before, limit)
        return _all(Delivery, await (await self._client()).subscriptions.deliveries(filter))

    async def redeliver(self, delivery_id: str) -> Delivery:
        """Send a delivery again with the same ID and body."""
        return value_of(Delivery, await (await self._client()).subscriptions.redeliver(delivery_id))

    async def list(self, *, before: str | None = None, limit: int = 50) -> list[Subscription]:
        """List subscriptions, newest first."""
        return _all(Subscription, await (await self._client()).subscriptions.list(before=before, limit=limit))

    create_sync = sync_version(create)
    get_sync = sync_version(get)
    delete_sync = sync_version(delete)
    renew_sync = sync_version(renew)
    rotate_sync = sync_version(rotate)
    deliveries_sync = sync_version(deliveries)
    redeliver_sync = sync_version(redeliver)
    list_sync = sync_version(list)


class Artifacts(Group):
    """Files and links of jobs."""

    async def get(self, job_id: str, artifact_id: str) -> Artifact:
        """Return an artifact, without its bytes."""
        return value_of(Artifact, await (await self._client()).artifacts.get(job_id, artifact_id))

    async def read(self, job_id: str, artifact_id: str) -> bytes:
        """Return the bytes of a file, verified against its hash."""
        download = await (await self._client()).artifacts.read(job_id, artifact_id)
        async with aclosing(download.chunks):
            return b"".join([chunk async for chunk in download.chunks])

    async def list(self, job_id: str, *, before: Artifact | None = None, limit: int = 50) -> list[Artifact]:
        """List the artifacts of a job, newest first; `before` is the last one of the previous page."""
        position = None if before is None else (micros(before.created_at), before.id)
        return _all(Artifact, await (await self._client()).artifacts.list(job_id, before=position, limit=limit))

    get_sync = sync_version(get)
    read_sync = sync_version(read)
    list_sync = sync_version(list)


class Workers(Group):
    """Workers that polled lately or hold leases."""

    async def list(self, *, after: str = "", limit: int = 50) -> list[WorkerPresence]:
        """List workers by name."""
        return _all(WorkerPresence, await (await self._client()).workers.list(after=after, limit=limit))

    list_sync = sync_version(list)


class Audit(Group):
    """History of the tenant: its hash chains, and the audit log of operator actions."""

    async def verify(self, *, after: str | None = None, jobs: int | None = None) -> ChainVerification:
        """Verify the chains of up to `jobs` jobs, starting after the previous part."""
        return value_of(ChainVerification, await (await self._client()).audit.verify(after=after, jobs=jobs))

    async def head(self) -> str:
        """Return one hash over all chain heads."""
        return await (await self._client()).audit.head()

    async def log(self, *, after: int = 0, limit: int = 50) -> list[AuditRow]:
        """List operator actions, oldest first."""
        return _all(AuditRow, await (await self._client()).audit.log(after=after, limit=limit))

    async def export(self, *, after: int = 0) -> AsyncIterator[list[HistoryRow]]:
        """Yield the complete history of each job, in enqueue order."""
        async for some in (await self._client()).audit.export(after=after):
            for one in some:
                yield _all(HistoryRow, one.rows)

    def export_sync(self, *, after: int = 0) -> Iterator[list[HistoryRow]]:
        """Yield the complete history of each job, in enqueue order."""
        return iterate(self._loop_for_blocking(), self.export(after=after))

    verify_sync = sync_version(verify)
    head_sync = sync_version(head)
    log_sync = sync_version(log)


def _all(kind: type[V], found: Sequence[Any]) -> list[V]:
    return [value_of(kind, one) for one in found]


def _statuses(status: Status | str | Sequence[Status | str]) -> tuple[Status, ...]:
    return (Status(status),) if isinstance(status, str) else tuple(Status(one) for one in status)


def _micros(at: datetime | None) -> int | None:
    return None if at is None else micros(at)


def _names(values: Sequence[str] | None) -> list[str] | None:
    return None if values is None else [*values]
