"""Schedules: named objects that enqueue a job at each tick, exactly once for any number of processes.

A due schedule is fired by any process that runs maintenance. It enqueues the job under an idempotency key that names
the tick, then records the outcome. A process that dies in between leaves the tick due: the next one enqueues the same
key, gets the same job, and records it. So no lock is held while a job is validated, and the job may be on another
shard.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from contextlib import suppress
from typing import Final

import msgspec

from interlock import wire
from interlock.domain import schedule
from interlock.domain.job import Added
from interlock.domain.lifecycle import TERMINAL
from interlock.domain.principal import Principal
from interlock.domain.retry import SECOND
from interlock.domain.schedule import MAX_PREVIEW, CatchUp, Fired, Overlap, Schedule, Timing
from interlock.domain.timestamps import when
from interlock.engine.jobs import Jobs
from interlock.engine.registry import TypeRegistry
from interlock.errors import Conflict, Error, Fatal, IdempotencyKeyReuse, Invalid, NotFound
from interlock.storage.contract import Store
from interlock.storage.contract.schedules import DueSchedule
from interlock.wire import JobRequest
from interlock.wire.schedule import ScheduleRequest

log = logging.getLogger(__name__)

LOOK_EVERY_SECONDS: Final = 0.5
BATCH_SIZE: Final = 100
AT_ONCE: Final = 16
MAX_PAGE_SIZE: Final = 200
MAX_NAME_LENGTH: Final = 200  # also of an idempotency key
ROLES: Final = frozenset({"produce", "operate"})
# Set by the schedule itself. A fixed time or key would be the same for every tick.
_NOT_IN_JOB: Final = ("run_at", "deadline", "idempotency_key", "parent_id")


class Schedules:
    """Operations on schedules, and the maintenance task that runs them."""

    def __init__(self, store: Store, registry: TypeRegistry, jobs: Jobs) -> None:
        self._store = store
        self._registry = registry
        self._jobs = jobs
        self._looked_at: int | None = None  # the time of the previous look of this process

    async def set(self, who: Principal, name: str, request: ScheduleRequest) -> Schedule:
        """Create or update a schedule. Only ticks from now on count; an update that keeps the times keeps all ticks."""
        now = await self._store.now()
        old = await self._store.schedules.get(who.tenant, wire.name(name, "name"))
        timing = schedule.check(
            Timing(
                request.cron, request.every_seconds, request.timezone,
                wire.instant(request.starts_at, "starts_at"), wire.instant(request.ends_at, "ends_at"),
            ),
            created_at=now if old is None else old.created_at,
        )  # fmt: skip
        if not 0 <= request.jitter_seconds <= schedule.MAX_JITTER_SECONDS:
            raise Invalid(
                f"jitter_seconds is {request.jitter_seconds:g}: expected 0 to {schedule.MAX_JITTER_SECONDS:g}",
                pointer="/jitter_seconds",
            )
        for member in _NOT_IN_JOB:
            if getattr(request.job, member) is not None:
                raise Invalid(f"the job of a schedule cannot set {member}", pointer=f"/job/{member}")
        try:
            await self._registry.check(who, request.job)
        except Invalid as error:
            raise error.within("/job") from None
        if old is not None and old.timing != timing:
            await self._fire(who.tenant, name)  # a tick that is due belongs to the old times
            old = await self._store.schedules.get(who.tenant, name)
        # A tick exactly now counts. Ticks from before the first version, or before other times, are not missed ticks.
        next_at = timing.next(now - 1)
        if old is not None and old.last_at is not None and next_at is not None and next_at <= old.last_at:
            next_at = timing.next(old.last_at)
        given = Schedule(
            name, timing.cron, timing.every_seconds, timing.timezone, timing.starts_at, timing.ends_at,
            msgspec.json.encode(request.job).decode(), request.overlap, request.catch_up, request.jitter_seconds,
            next_at, None, None, None, None, None, 0, now, who.actor, now,
        )  # fmt: skip
        return await self._store.schedules.set(who.tenant, given, actor=who.actor)

    async def get(self, tenant: str, name: str) -> Schedule:
        return _found(await self._store.schedules.get(tenant, name), name)

    async def page(self, tenant: str, *, after: str = "", limit: int = 50) -> list[Schedule]:
        """List schedules by name, starting after `after`."""
        wire.whole(limit, "limit", 1, MAX_PAGE_SIZE)
        return await self._store.schedules.page(tenant, after=after, limit=limit)

    async def delete(self, who: Principal, name: str) -> None:
        """Delete a schedule. Jobs that it created remain."""
        if not await self._store.schedules.delete(who.tenant, name, actor=who.actor):
            raise NotFound(name, resource="schedule")

    async def pause(self, who: Principal, name: str) -> Schedule:
        """Pause a schedule."""
        return _found(await self._store.schedules.pause(who.tenant, name, actor=who.actor), name)

    async def resume(self, who: Principal, name: str) -> Schedule:
        """Resume a schedule. The ticks during the pause are missed ticks: `catch_up` determines whether they run."""
        paused = await self.get(who.tenant, name)
        next_at = paused.next_at
        if paused.catch_up is CatchUp.NONE:
            next_at = paused.timing.next(await self._store.now())
        return _found(await self._store.schedules.resume(who.tenant, name, actor=who.actor, next_at=next_at), name)

    async def run(self, who: Principal, name: str) -> Added:
        """Enqueue the job of a schedule now, also while it is paused; its ticks do not change."""
        found = await self.get(who.tenant, name)
        added = await self._jobs.add(who, _job_of(found, await self._store.now()))
        await self._store.schedules.log_run(who.tenant, name, actor=who.actor, job_id=added.job.id)
        return added

    async def preview(self, tenant: str, name: str, n: int = 10) -> list[int]:
        """Return the next ticks of a schedule, whether it is paused or not."""
        wire.whole(n, "n", 1, MAX_PREVIEW)
        found = await self.get(tenant, name)
        return await asyncio.to_thread(schedule.preview, found.timing, await self._store.now(), n)

    async def fire_due(self) -> int:
        """Fire every due tick; a schedule that cannot be fired does not stop the others."""
        since, self._looked_at = self._looked_at, None  # none after a look that fails
        now = await self._store.now()
        fired, tried = 0, set[DueSchedule]()
        while due := [one for one in await self._store.schedules.due(BATCH_SIZE + len(tried)) if one not in tried]:
            tried.update(due)
            for start in range(0, len(due), AT_ONCE):
                some = [self._try_to_fire(one, since) for one in due[start : start + AT_ONCE]]
                fired += sum(await asyncio.gather(*some))
        self._looked_at = now
        return fired

    async def _try_to_fire(self, due: DueSchedule, since: int | None) -> int:
        try:
            return await self._fire(*due, since)
        except Fatal:
            raise
        except Exception as error:  # also a row that another program wrote and that cannot be read
            log.warning("cannot fire schedule %s of tenant %s, retrying: %r", due.name, due.tenant, error)
            return 0

    async def _fire(self, tenant: str, name: str, since: int | None = None) -> int:
        found = await self._store.schedules.get(tenant, name)
        now = await self._store.now()
        if found is None or found.paused_at is not None or found.next_at is None or found.next_at > now:
            return 0
        ticks, next_at = schedule.due(found.timing, found.catch_up, found.next_at, now, looked_at=since)
        if not ticks:
            await self._store.schedules.advance(tenant, found, Fired(now, next_at))
            return 0
        done = 0
        for tick, following in zip(ticks, [*ticks[1:], next_at], strict=True):
            outcome = Fired(tick, following, *await self._enqueue(tenant, found, tick))
            if not await self._store.schedules.advance(tenant, found, outcome):
                break  # another process fired it, or the schedule has changed
            done += outcome.job_id is not None
            found = found._replace(next_at=following, last_job_id=outcome.job_id or found.last_job_id)
        return done

    async def _enqueue(self, tenant: str, found: Schedule, tick: int) -> tuple[str | None, str | None]:
        """Return the job of a tick, or why there is none."""
        who = Principal(tenant, f"schedule:{found.name}", ROLES)
        if found.overlap is not Overlap.ALLOW and found.last_job_id is not None:
            (previous,) = await self._store.get(tenant, [found.last_job_id])
            if previous is not None and previous.status not in TERMINAL:
                if found.overlap is Overlap.SKIP:
                    return None, f"skipped: job {previous.id} of the previous tick is not finished"
                with suppress(Conflict):  # it finished meanwhile
                    await self._jobs.cancel(who, previous.id, reason=f"next tick of schedule {found.name}")
        delay = schedule.jitter(tenant, found.name, tick, found.jitter_seconds) / SECOND
        try:
            enqueued = await self._jobs.enqueue(who, _job_of(found, tick, delay=delay, key=_key(found, tick)))
        except IdempotencyKeyReuse as used:  # enqueued by a process that died, before the schedule was edited
            return used.job_id, None
        except Error as error:
            if error.status >= 500:
                raise  # a database error, not one of the job: retry
            log.warning("schedule %s of tenant %s: tick rejected: %s", found.name, tenant, error)
            return None, str(error)
        return enqueued.id, None


def _job_of(found: Schedule, tick: int, *, delay: float = 0, key: str | None = None) -> JobRequest:
    request = msgspec.json.decode(found.job, type=JobRequest)
    headers = {**(request.headers or {}), "schedule": found.name, "tick": when(tick)}
    delay += request.delay_seconds or 0
    return msgspec.structs.replace(request, headers=headers, delay_seconds=delay or None, idempotency_key=key)


def _key(found: Schedule, tick: int) -> str:
    """Return the idempotency key of a tick; a long name is in it as its digest."""
    key = f"schedule:{found.name}:{found.created_at}:{tick}"
    if len(key) <= MAX_NAME_LENGTH:
        return key
    return f"schedule:{hashlib.sha256(found.name.encode()).hexdigest()}:{found.created_at}:{tick}"


def _found(kept: Schedule | None, name: str) -> Schedule:
    if kept is None:
        raise NotFound(name, resource="schedule")
    return kept
