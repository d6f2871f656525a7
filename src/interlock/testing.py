"""Test support: an in-memory app with a manual clock, whose jobs run on request.

Put `pytest_plugins = ["interlock.testing"]` into a conftest.py and use the fixture `interlock_app`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

import pytest

from interlock.assemble import SQLITE, open_objects
from interlock.client.local import LocalClient
from interlock.client.port import Client
from interlock.domain import principal
from interlock.domain.approval import ApprovalFilter, ApprovalStatus, Decision
from interlock.domain.explain import LONG_SECONDS
from interlock.domain.job import Filter, Job
from interlock.domain.lifecycle import Status
from interlock.domain.principal import DEFAULT_TENANT, local
from interlock.domain.retry import SECOND
from interlock.engine.engine import Engine
from interlock.sdk import serialization
from interlock.sdk.app import App
from interlock.sdk.handle import JobHandle
from interlock.sdk.sync import sync_version
from interlock.sdk.tasks import Task
from interlock.storage.batching import batched
from interlock.storage.sqlite.store import SQLiteStore
from interlock.worker.loop import Worker

MEMORY: Final = ":memory:"
START: Final = datetime(2027, 1, 1, tzinfo=UTC)
PAGE: Final = 200


class Clock:
    """A manual clock."""

    def __init__(self, now: datetime = START) -> None:
        self.now = now

    def __call__(self) -> int:
        return (self.now - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)

    def advance(self, seconds: float | timedelta) -> None:
        """Advance the clock."""
        self.now += seconds if isinstance(seconds, timedelta) else timedelta(seconds=seconds)


class MemoryApp(App):
    """An app whose jobs are in memory for the duration of a test."""

    def __init__(self) -> None:
        self.clock = Clock()
        self._store = SQLiteStore(MEMORY, clock=self.clock)
        self._objects = open_objects(None, SQLITE + MEMORY)
        self._is_ready = False
        self._adopted: list[tuple[App, Callable[[], Awaitable[Client]]]] = []
        super().__init__(self._open)

    def adopt(self, app: App) -> None:
        """Take over an app's tasks and hooks: until the end of the test its jobs are enqueued and run here.

        Its declared agents, limits and budgets are registered at the first call.
        """
        self._adopted.append((app, app._connect_by(self._open)))
        self.tasks.update(app.tasks)
        self._hooks.extend(app._hooks)

    async def run_until_idle(self, *, move_clock: bool = False) -> int:
        """Run all due jobs, and those that become due; return the number of runs.

        With `move_clock`, advance the clock to jobs that are due later, until none is left.
        """
        runs = 0
        able: set[str] = set()
        while True:
            client = await self._local()
            await client.engine.maintenance.sweep()
            runs += await Worker(self, name="testing", capabilities=able, affinity_keys=None).run(drain=True)
            waiting = await self._all(Status.QUEUED, Status.RETRY)
            if wanted := {capability for job in waiting for capability in job.requires} - able:
                able |= wanted  # the only worker has every capability that jobs require
                continue
            # A due job that did not run waits for something other than time, so it does not stop the clock.
            later = [
                job.run_at for job in waiting if job.run_at > self.clock() and not _waits_for_others(job, self.clock())
            ]
            if not (move_clock and later):
                return runs
            self.clock.advance((min(later) - self.clock()) / SECOND)

    async def enqueued(self, task: Task[..., Any]) -> list[dict[str, Any]]:
        """Return the arguments of all jobs of a task, oldest first."""
        client = await self._client()
        jobs = [await client.jobs.get(job.id) for job in await self._all(type=task.name)]
        return [serialization.decode(job.payload) for job in reversed(jobs)]

    async def assert_enqueued(self, task: Task[..., Any], /, **arguments: Any) -> None:
        """Fail unless a job of the task has these arguments (others are ignored)."""
        wanted = serialization.decode(serialization.encode(arguments))
        sent = await self.enqueued(task)
        if not any(wanted.items() <= one.items() for one in sent):
            raise AssertionError(f"no job {task.name} with {wanted} was enqueued, only {sent}")

    async def assert_not_enqueued(self, task: Task[..., Any]) -> None:
        """Fail if there is any job of the task."""
        if sent := await self.enqueued(task):
            raise AssertionError(f"{task.name} was enqueued with {sent}")

    async def decide(
        self,
        job: JobHandle[Any] | str,
        decision: Literal["approve", "deny"] = "approve",
        *,
        comment: str | None = None,
        data: Any = None,
        by: str = "local",
    ) -> None:
        """Decide the pending approval of a job; it resumes or fails at the next `run_until_idle()`.

        With several required votes, `by` names the voter.
        """
        id = job if isinstance(job, str) else job.id
        approvals = (await self._local()).engine.approvals
        found = await approvals.list(DEFAULT_TENANT, ApprovalFilter(status=ApprovalStatus.OPEN, job_id=id, limit=1))
        if not found:
            raise AssertionError(f"job {id} has no pending approval")
        kept = None if data is None else serialization.encode(data)
        who = local()._replace(actor=principal.user(by))
        await approvals.decide(who, found[0].id, Decision(decision), comment=comment, data=kept)

    run_until_idle_sync = sync_version(run_until_idle)
    decide_sync = sync_version(decide)
    enqueued_sync = sync_version(enqueued)
    assert_enqueued_sync = sync_version(assert_enqueued)
    assert_not_enqueued_sync = sync_version(assert_not_enqueued)

    async def discard(self) -> None:
        """Restore adopted apps and delete all jobs."""
        for app, connect in self._adopted:
            app._connect_by(connect)
        await self._store.close()
        await self._objects.close()

    async def _all(self, *statuses: Status, type: str | None = None) -> list[Job]:
        client = await self._client()
        found: list[Job] = []
        filter = Filter(statuses=statuses, type=type, limit=PAGE)
        while page := await client.jobs.list(filter):
            found += page
            filter = filter._replace(before_seq=page[-1].seq)
        return found

    async def _local(self) -> LocalClient:
        client = await self._client()
        assert isinstance(client, LocalClient)
        return client

    async def _open(self) -> Client:
        """Create an engine per event loop, all on the same store."""
        if not self._is_ready:
            await self._store.migrate()
            self._is_ready = True
        client = _Guest(Engine(batched(self._store), objects=self._objects), local())
        for app in (self, *(app for app, _ in self._adopted)):
            await app._register_on(client)
        return client


class _Guest(LocalClient):
    """A client whose store outlives it. It runs no maintenance in the background: `run_until_idle` does."""

    def start_maintenance(self) -> None:
        pass

    async def close(self) -> None:
        await self.engine.waits.stop()
        await self.engine.workers.stop()


def _waits_for_others(job: Job, now: int) -> bool:
    """Return whether no time ends the wait of a job: it waits for children, or for a message without a time limit."""
    return bool(job.awaiting) or (job.awaiting_message is not None and job.run_at >= now + LONG_SECONDS * SECOND)


@pytest.fixture
def interlock_app() -> Iterator[MemoryApp]:
    """An in-memory app. Declare tasks on it, or let it adopt the app under test."""
    app = MemoryApp()
    yield app
    asyncio.run(app.discard())
