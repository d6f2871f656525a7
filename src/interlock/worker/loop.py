"""The worker: claim, run and finish jobs until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import secrets
import socket
from collections import deque
from collections.abc import Coroutine, Iterable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeVar

from interlock.client.port import Client
from interlock.domain import policy
from interlock.domain.decide import ReleaseJob
from interlock.domain.policy import ClaimFilter
from interlock.errors import Conflict, Fatal, Forbidden, Invalid, Unauthenticated, Unavailable
from interlock.garbage import rare_collections
from interlock.sdk.app import App
from interlock.sdk.context import Context
from interlock.sdk.current import enter
from interlock.sdk.exceptions import in_seconds
from interlock.sdk.leases import Claims, heartbeat_seconds
from interlock.sdk.threads import Threads
from interlock.worker.contained_tasks import contained, mark_run
from interlock.worker.executor import execute, failure, stopped
from interlock.worker.heartbeats import HeartbeatLoop, Interruptions
from interlock.worker.lifespan import WorkerLifespan
from interlock.worker.log import logger
from interlock.worker.reconnect import Reconnect
from interlock.worker.reporter import Reporter
from interlock.worker.run import Run, StopReason

N = TypeVar("N", int, float)
MAX_UNREPORTED: Final = 2000
POLL_SECONDS: Final = 20.0
STARTING_UP: Final = "57P03"
HOPELESS: Final = (Invalid, Unauthenticated, Forbidden)  # repeating the claim would not help
LEAST_STEP_THREADS: Final = 32
SIGN_OFF_SECONDS: Final = 1.0
LAST_WORDS_SECONDS: Final = 5.0  # for interrupted tasks to clean up, and for the last finishes


class Worker:
    """A process that claims and runs the jobs of an app, `concurrency` at a time; blocking tasks in threads.

    With `prefetch`, additional jobs are leased in advance.
    """

    def __init__(
        self,
        app: App,
        *,
        concurrency: int = 100,
        prefetch: int = 0,
        lease: float | timedelta = 60.0,
        heartbeat_interval: float | timedelta | None = None,
        shutdown_grace: float | timedelta = 30.0,
        name: str | None = None,
        types: Iterable[str] | None = None,
        capabilities: Iterable[str] = (),
        affinity_keys: Iterable[str] | None = (),
    ) -> None:
        lease_seconds = in_seconds(lease) or 0.0
        self.name = name or f"{socket.gethostname()}/{os.getpid()}-{secrets.token_hex(3)}"
        self._app = app
        self._tasks = _chosen(app, types)
        self._concurrency = _at_least("concurrency", concurrency, 1)
        self._prefetch = _at_least("prefetch", prefetch, 0)
        self._every_seconds = _interval(
            in_seconds(heartbeat_interval), _shortest_lease(self._tasks.values(), lease_seconds)
        )
        self._grace_seconds = _at_least("shutdown_grace", in_seconds(shutdown_grace) or 0.0, 0)
        self._ask = ClaimFilter(
            worker=self.name,
            types=frozenset(self._tasks),
            capabilities=frozenset(policy.names(capabilities, what="capabilities")),
            affinity_keys=None if affinity_keys is None else policy.any_or(list(affinity_keys), what="affinity_keys"),
            lease_seconds=_at_least("lease", lease_seconds, 1),
        )
        self._log: Any = logger(worker=self.name)
        self._stopping = self._at_once = False
        self._changed = asyncio.Event()
        self._asking: asyncio.Task[Any] | None = None  # a stop cancels it
        self._client: Client
        self._heart: HeartbeatLoop
        self._reporter: Reporter

    async def run(self, *, drain: bool = False, once: bool = False) -> int:
        """Run until stopped, with `drain` until no job is due, with `once` for one job; return the number of runs."""
        client = await self._reach(patiently=not (drain or once))
        if client is None:
            self._stopping = self._at_once = False
            return 0
        self._prepare(client)
        self._client.start_maintenance()
        await self._check_roles()
        self._lifespan = WorkerLifespan(self._app._hooks, self._log)
        if not (await self._unless_stopped(self._register()) and await self._unless_stopped(self._lifespan.open())):
            self._stopping = self._at_once = False
            return 0
        self._log.info("worker started", types=sorted(self._tasks), concurrency=self._concurrency)
        try:
            with contained(self._loop), rare_collections():
                await self._run(drain=drain, once=once)
        finally:
            await self._lifespan.close()
        if self._fault is not None:
            raise self._fault
        self._log.info("worker stopped", runs=self._runs)
        return self._runs

    def stop(self, *, now: bool = False) -> None:
        """Stop claiming and wait for running jobs; with `now`, release them immediately. Uses no attempt."""
        self._stopping = True
        self._at_once = self._at_once or now
        self._changed.set()
        if self._asking is not None:
            self._asking.cancel()

    async def _reach(self, *, patiently: bool) -> Client | None:
        """Connect to the queue, retrying if `patiently`; return None if the worker is stopped first."""
        reconnect = Reconnect(self._log, "connecting")
        while not self._stopping:
            self._asking = connecting = asyncio.create_task(self._app._client())
            try:
                return await connecting
            except asyncio.CancelledError:
                if not self._stopping:
                    raise
            except Unavailable as error:
                if not (patiently and _may_pass(error)):
                    raise
                await reconnect.wait(error)
            finally:
                self._asking = None
        return None

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Do some work of the start; return False if the worker is stopped meanwhile."""
        self._asking = asking = asyncio.create_task(work)
        if self._stopping:
            asking.cancel()
        try:
            await asking
        except asyncio.CancelledError:
            if not self._stopping:
                raise
            return False
        finally:
            self._asking = None
        return True

    async def _register(self) -> None:
        """Register declared objects; report where the registry has other values, and continue."""
        try:
            found = await self._app._register_declared()
        except (Forbidden, Invalid, Conflict, Unauthenticated, Unavailable) as error:
            self._log.warning(
                "declared objects not registered", error=str(error),
                advice="call app.register() with a token that has the roles read, operate and admin",
            )  # fmt: skip
            return
        for one in found:
            self._log.warning(
                "registry differs from code", object=f"{one.kind} {one.name}", declared=dict(one.declared),
                registered=dict(one.registered), advice="change the code, or call app.register(overwrite=True)",
            )  # fmt: skip

    async def _check_roles(self) -> None:
        """Log at start which role the tasks need and the credential lacks, as far as their code shows it."""
        self._asking = asking = asyncio.create_task(self._client.me())
        try:
            roles = (await asking).roles
        except asyncio.CancelledError:
            if not self._stopping:
                raise
            return
        except (Unavailable, Unauthenticated, Forbidden):
            return  # the first claim raises the error, or waits until the server is back
        finally:
            self._asking = None
        needs = {"work": sorted(self._tasks), "produce": sorted(n for n, t in self._tasks.items() if t.enqueues)}
        for role, tasks in needs.items():
            if tasks and role not in roles:
                self._log.warning(
                    "token lacks a role that tasks need", role=role, tasks=tasks, roles=sorted(roles),
                    advice=f"interlock tokens create --role {' --role '.join(sorted({'work', role}))}",
                )  # fmt: skip

    def _prepare(self, client: Client) -> None:
        self._client = client
        self._heart = HeartbeatLoop(
            client, self._log, every_seconds=self._every_seconds, leased_runs=self._held_runs, stop=self._stop_run,
            broken=self._break,
        )  # fmt: skip
        self._interruptions = Interruptions(client, self._log, self._heart, leased_runs=self._held_runs)
        self._reporter = Reporter(client, self._log, self._heart, settled=self._settle, broken=self._break)
        self._threads = Threads()
        self._step_threads = Threads(most=max(self._concurrency, LEAST_STEP_THREADS), name="interlock-step")
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()  # in which every run begins, also one that follows another run
        self._context.run(mark_run)
        self._leased_runs: dict[tuple[str, int], Run] = {}
        self._waiting: deque[Run] = deque()
        self._running = self._runs = 0
        self._claims = Claims(self._ask)
        self._fault: BaseException | None = None

    async def _run(self, *, drain: bool, once: bool) -> None:
        beating = asyncio.create_task(self._heart.heartbeat())
        watching = asyncio.create_task(self._interruptions.watch())
        try:
            await self._work(drain=drain, once=once)
            while once and self._leased_runs and not self._stopping:
                await self._change()
        finally:
            # Release leases even when cancelled; otherwise no worker can claim the jobs until the leases expire.
            self._stopping = True
            winding_down = asyncio.create_task(self._wind_down())
            try:
                await asyncio.shield(winding_down)
            except asyncio.CancelledError:
                self.stop(now=True)
                await winding_down
                raise
            finally:
                beating.cancel()
                watching.cancel()
                await asyncio.wait([beating, watching])
                self._threads.close()
                self._step_threads.close()
                self._stopping = self._at_once = False  # it may be run again

    async def _work(self, *, drain: bool, once: bool) -> None:
        reconnect = Reconnect(self._log, "claiming")
        was_reached = not (drain or once)  # with drain or once, do not wait for a server that was never reachable
        while not self._stopping:
            room = self._concurrency + self._prefetch - self._running - len(self._waiting)
            if (
                room <= 0 or len(self._waiting) > self._prefetch // 2
            ):  # a few large claims cost less than many small ones
                await self._change()
                continue
            if self._reporter.backlog >= MAX_UNREPORTED:
                await self._reporter.flushed()
                continue
            idle = not self._leased_runs and not self._reporter.backlog
            limit = 1 if once else min(room, self._client.work.most_per_claim)
            try:
                claimed = await self._claim(limit, 0.0 if drain else POLL_SECONDS)
                reconnect.rest()
                was_reached = True
            except asyncio.CancelledError:
                if self._stopping:
                    break
                raise
            except (Fatal, *HOPELESS):
                raise
            except Unavailable as error:
                if not was_reached and type(error) is Unavailable:
                    raise
                await reconnect.wait(error)
                continue
            except Exception as error:
                self._log.exception("claim failed, retrying")
                await reconnect.wait(error)
                continue
            if once and claimed:
                break
            if drain and not claimed:
                if idle:
                    break
                await (self._change() if self._leased_runs else self._reporter.flushed())

    async def _claim(self, limit: int, wait_seconds: float) -> int:
        """Claim jobs, or repeat a claim whose response was lost; return the number of jobs."""
        claims, client = self._claims, self._client
        self._asking = claiming = asyncio.create_task(
            claims.repeat(client, wait_seconds) if claims.is_unsure else claims.claim(client, limit, wait_seconds)
        )
        try:
            leases, claim = await claiming
        finally:
            self._asking = None
        for lease in leases:
            self._admit(Run(lease, self._tasks[lease.job.type], claim))
        return len(leases)

    def _admit(self, run: Run) -> None:
        self._leased_runs[run.key] = run
        if run.job.timeout_seconds is not None:
            run.timer = self._loop.call_later(run.job.timeout_seconds, self._stop_run, run, StopReason.TIMED_OUT)
        if self._running < self._concurrency and not self._stopping:
            self._start(run)
        else:
            self._waiting.append(run)

    def _start(self, run: Run) -> None:
        self._running += 1
        self._runs += 1
        run.open_context = self._open_context
        run.started_at = self._loop.time()
        self._interruptions.note_begin()
        run.handle = asyncio.Task(self._carry(run), loop=self._loop, context=self._context.copy())

    def _open_context(self, run: Run) -> Context:
        return Context(
            run.lease, self._client, self._loop, self._step_threads, run.task, run.received, self._lifespan.values
        )

    async def _carry(self, run: Run) -> None:
        enter(run.needed_context)
        order = None
        try:
            order = await execute(run, self._threads, self._app._hooks, self._log)
        except asyncio.CancelledError:
            await asyncio.sleep(0)  # on shutdown of the event loop, let the cancellation of the worker arrive too
            order = ReleaseJob(*run.holder, reason="worker shut down") if self._stopping else stopped(run)
        except GeneratorExit:
            if not run.is_at_work():
                raise
            order = failure(run, "the task raised GeneratorExit", kind="GeneratorExit")
        except Exception as error:  # a bug in the worker: errors of tasks are values
            self._log.exception("run failed in the worker", job=run.job.id)
            order = failure(run, str(error), kind="worker_error")
        finally:
            self._let_go(run)
            if order is None:
                self._settle(run)
            else:
                self._reporter.report(run, order)
            if run.abandoned is None:
                self._free_slot()
            else:  # the thread still runs, so its slot is not free
                run.abandoned.add_done_callback(partial(self._thread_returned, self._threads))

    def _stop_run(self, run: Run, ending: StopReason) -> None:
        if run.handle is None and run.key in self._leased_runs:  # prefetched, not started
            run.ending = ending
            self._waiting.remove(run)
            self._let_go(run)
            order = stopped(run)
            if order is None:
                self._settle(run)
            else:
                self._reporter.report(run, order)
        else:
            run.stop(ending)

    def _held_runs(self) -> Iterator[Run]:
        return (run for run in self._leased_runs.values() if run.is_leased)

    def _let_go(self, run: Run) -> None:
        self._leased_runs.pop(run.key, None)
        if run.started_at is not None and run.seconds is None:
            run.seconds = self._loop.time() - run.started_at
        self._changed.set()
        if run.timer is not None:
            run.timer.cancel()

    def _free_slot(self) -> None:
        self._running -= 1
        if self._waiting and not self._stopping:
            self._start(self._waiting.popleft())
        self._changed.set()

    def _thread_returned(self, threads: Threads, thread: asyncio.Future[Any]) -> None:
        if not thread.cancelled():
            thread.exception()  # retrieve it, or asyncio logs it as never retrieved
        if threads is self._threads:  # and not those of an earlier run()
            self._free_slot()

    def _settle(self, run: Run) -> None:
        run.claim.settle()

    def _break(self, error: BaseException) -> None:
        """Stop immediately and write nothing more: the storage can no longer be trusted."""
        self._fault = self._fault or error
        self.stop(now=True)

    async def _change(self) -> None:
        """Wait until a run has ended or the worker is stopped."""
        self._changed.clear()
        await self._changed.wait()

    async def _wind_down(self) -> None:
        """Release jobs that have not started, wait for running ones, then interrupt and release those too."""
        self._stopping = True
        recovering = asyncio.create_task(self._recover())
        for run in list(self._waiting):
            self._stop_run(run, StopReason.SHUTDOWN)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._grace_seconds):
                while self._leased_runs and not self._at_once:
                    await self._change()
        for run in list(self._leased_runs.values()):
            run.stop(StopReason.SHUTDOWN)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                while self._leased_runs:
                    await self._change()
        for run in list(self._leased_runs.values()):  # a task that did not react to its interruption
            self._let_go(run)
            self._reporter.report(run, ReleaseJob(*run.holder, reason="worker shut down"))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                await recovering
                await self._reporter.flushed()
        if left := await self._reporter.give_up():
            self._log.error("finish not delivered, leases will expire", runs=left)
        await self._sign_off()

    async def _sign_off(self) -> None:
        """Report that this worker has stopped, by a claim for no types; if that fails, its presence expires."""
        if self._fault is None:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(SIGN_OFF_SECONDS):
                    await self._client.work.claim(self._ask._replace(types=frozenset(), limit=1))

    async def _recover(self) -> None:
        """Release the jobs of a claim that was interrupted."""
        reconnect = Reconnect(self._log, "recovering a claim")
        while self._claims.is_unsure and self._fault is None:
            try:
                await self._claims.give_back(self._client, "worker shut down")
            except Fatal as error:
                self._break(error)
                return
            except HOPELESS as error:
                self._log.error("interrupted claim not released, leases will expire", error=str(error))
                return
            except Exception as error:  # possibly a driver error
                await reconnect.wait(error)


def _chosen(app: App, types: Iterable[str] | None) -> dict[str, Any]:
    wanted = set(app.tasks) if types is None else set(types)
    if unknown := sorted(wanted - app.tasks.keys()):
        raise ValueError(f"unknown task {', '.join(unknown)}: the app does not declare it")
    if not wanted:
        raise ValueError("the app has no tasks: import the modules that declare them")
    return {name: app.tasks[name] for name in wanted}


def _may_pass(error: Unavailable) -> bool:
    """Return whether waiting may help: the connection was refused or PostgreSQL is starting, not a wrong password."""
    cause = error.__cause__
    return isinstance(cause, OSError) or getattr(cause, "sqlstate", None) == STARTING_UP


def _at_least(what: str, value: N, least: int) -> N:
    if not value >= least:  # written so that NaN fails too
        raise ValueError(f"{what} is {value}: expected at least {least}")
    return value


def _shortest_lease(tasks: Iterable[Any], lease_seconds: float) -> float:
    """Return the shortest lease: all runs send heartbeats together, and each asks for its task's lease."""
    asked: list[float] = [task._lease_seconds for task in tasks if task._lease_seconds is not None]
    return _at_least("lease", min([lease_seconds, *asked]), 1)


def _interval(asked: float | None, lease_seconds: float) -> float:
    """Return the heartbeat interval: less than half of the lease, so that one lost heartbeat does not lose it."""
    if asked is None:
        return heartbeat_seconds(lease_seconds)
    if not 0 < asked < lease_seconds / 2:
        raise ValueError(f"heartbeat_seconds is {asked}: expected less than half of the lease of {lease_seconds} s")
    return asked
