"""A plain queue of values: push, pop, and leases that are extended automatically."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import time
from collections.abc import Iterable
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Unpack
from weakref import WeakKeyDictionary, WeakSet

import msgspec

from interlock.client.port import Client, JobRequest, LeasedJob, error_body
from interlock.domain.decide import CompleteJob, FailJob, Finish, ReleaseJob
from interlock.domain.job import Heartbeat, Job, Rejected
from interlock.domain.policy import ClaimFilter
from interlock.errors import Error, Fatal, Invalid, NotFound
from interlock.sdk import serialization
from interlock.sdk.exceptions import in_seconds
from interlock.sdk.leases import HEARTBEATS_PER_CALL, LOST, ClaimId, Claims, heartbeat_seconds
from interlock.sdk.sync import background_loop, run, sync_version
from interlock.sdk.tasks import Connected, Options, request_fields

BATCH_SIZE: Final = 1000
MAX_POPPED: Final = 100
MAX_POLL_SECONDS: Final = 20.0
STOPPED: Final = "the consumer was stopped"


class Item:
    """A leased value, until it is acknowledged, rejected or released.

    Its lease is extended while the item is referenced; a dropped item is available again when its lease expires.
    """

    def __init__(self, queue: Queue, job: Job, claim: ClaimId) -> None:
        self.id = job.id
        self.payload: Any = serialization.decode(job.payload)
        self.attempt = job.attempt
        self.is_settled = False
        self.is_lost = False  # the lease was lost: another consumer may have the job
        self.is_unwanted = False  # cancellation was requested
        self.holder = (job.id, job.fence, job.worker or "")
        self._queue = queue
        self._claim = claim

    def __repr__(self) -> str:
        return f"Item({self.id!r}, {self.payload!r})"

    async def ack(self, result: Any = None) -> None:
        """Complete the item; raise if its lease was lost."""
        await self._settle(CompleteJob(*self.holder, None if result is None else serialization.encode(result)))

    async def nack(
        self, reason: str = "rejected by the consumer", *, kind: str = "nack", delay: float | timedelta | None = None
    ) -> None:
        """Fail the item: it is retried after a delay, until its attempts are used up."""
        error, sanitized = error_body(reason, kind=kind)
        await self._settle(FailJob(*self.holder, error, True, in_seconds(delay), sanitized))

    async def release(self, *, delay: float | timedelta | None = None) -> None:
        """Release the item, now or with a delay, without using an attempt."""
        await self._settle(ReleaseJob(*self.holder, delay_seconds=in_seconds(delay), reason="released"))

    ack_sync = sync_version(ack)
    nack_sync = sync_version(nack)
    release_sync = sync_version(release)

    async def _settle(self, order: Finish) -> None:
        (answer,) = await (await self._queue._client()).work.finishes([order])
        if isinstance(answer, Rejected):
            if isinstance(answer.error, LOST):
                self.is_lost = self.is_lost or not self.is_settled
            raise answer.error
        if not self.is_settled:
            self.is_settled = True
            self._claim.settle()

    def _loop_for_blocking(self) -> asyncio.AbstractEventLoop:
        return background_loop()


class ConsumedItem:
    """One item for one block, in `with` or `async with`: acknowledged at its end, failed if it raises.

    A block that is interrupted (cancelled, or by a signal) releases its item.
    """

    def __init__(self, queue: Queue, wait: float | timedelta | None) -> None:
        self._queue = queue
        self._wait = wait
        self._item: Item | None = None

    async def __aenter__(self) -> Item | None:
        self._item = await self._queue.pop(wait=self._wait)
        return self._item

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        item, self._item = self._item, None
        if item is None or item.is_settled:
            return
        if error is None:
            await item.ack()
            return
        with contextlib.suppress(Error):  # the exception of the block is more useful
            if isinstance(error, Exception):
                await item.nack(str(error) or type(error).__name__, kind=type(error).__name__)
            else:
                await item.release()

    def __enter__(self) -> Item | None:
        return run(background_loop(), self.__aenter__)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run(background_loop(), lambda: self.__aexit__(kind, error, trace))


class Queue:
    """The jobs of one type as a plain queue: at-least-once delivery, highest priority first, with history."""

    def __init__(self, type: str, app: Connected, *, lease: float | timedelta = 60.0, name: str | None = None) -> None:
        lease_seconds = in_seconds(lease) or 0.0
        self.type = type
        self._app = app
        # Without capabilities, skip items that require one or have an affinity key.
        self._claims = Claims(
            ClaimFilter(
                name or f"{socket.gethostname()}/{os.getpid()}-{secrets.token_hex(3)}",
                types=frozenset({type}),
                lease_seconds=lease_seconds,
            )
        )
        self._heartbeat_seconds = heartbeat_seconds(lease_seconds)
        self._keepers: WeakKeyDictionary[asyncio.AbstractEventLoop, _Keeper] = WeakKeyDictionary()

    async def push(self, payload: Any, **options: Unpack[Options]) -> str:
        """Enqueue a value and return the ID of its job."""
        (id,) = await self.push_many([payload], **options)
        return id

    async def push_many(self, payloads: Iterable[Any], **options: Unpack[Options]) -> list[str]:
        """Enqueue values in batches of 1000; each batch is all or none."""
        client, fields = await self._client(), request_fields(options)
        texts = [msgspec.Raw(serialization.encode_call(payload).encode()) for payload in payloads]
        requests = [JobRequest(type=self.type, payload=text, **fields) for text in texts]
        ids: list[str] = []
        for start in range(0, len(requests), BATCH_SIZE):
            ids += [one.id for one in await client.jobs.enqueue(requests[start : start + BATCH_SIZE])]
        return ids

    async def pop(self, *, wait: float | timedelta | None = 0.0) -> Item | None:
        """Return the highest-priority due item, or None after `wait` seconds (`None` waits indefinitely)."""
        items = await self.pop_many(1, wait=wait)
        return items[0] if items else None

    async def pop_many(self, limit: int, *, wait: float | timedelta | None = 0.0) -> list[Item]:
        """Return up to `limit` due items, at most 100, as soon as there is one."""
        if not 1 <= limit <= MAX_POPPED:  # same limit for every client: a local client would accept more
            raise Invalid(f"limit must be from 1 to {MAX_POPPED}", pointer="/limit")
        client = await self._client()
        client.start_maintenance()
        seconds = in_seconds(wait)
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            left = MAX_POLL_SECONDS if deadline is None else max(deadline - time.monotonic(), 0.0)
            items = await self._pop(client, limit, min(left, MAX_POLL_SECONDS))
            if items or (deadline is not None and time.monotonic() >= deadline):
                return items

    def consume(self, *, wait: float | timedelta | None = 0.0) -> ConsumedItem:
        """Return one item for a block: `async with queue.consume() as item`, or `with` in synchronous code."""
        return ConsumedItem(self, wait)

    async def size(self) -> int:
        """Return the number of waiting values, due or not, without popped ones."""
        try:
            stats = await (await self._client()).queues.get(self.type)
        except NotFound:
            return 0
        return stats.ready + stats.delayed + stats.blocked

    push_sync = sync_version(push)
    push_many_sync = sync_version(push_many)
    pop_sync = sync_version(pop)
    pop_many_sync = sync_version(pop_many)
    size_sync = sync_version(size)

    async def _client(self) -> Client:
        """The client of the running event loop."""
        return await self._app._client()

    async def _pop(self, client: Client, limit: int, wait_seconds: float) -> list[Item]:
        while self._claims.is_unsure:
            await self._claims.give_back(client, STOPPED)
        try:
            leases, claim = await self._claims.claim(client, limit, wait_seconds)
        except asyncio.CancelledError:
            with contextlib.suppress(Exception):  # the next pop releases it
                await self._claims.give_back(client, STOPPED)
            raise
        return [self._hold(client, lease, claim) for lease in leases]

    def _hold(self, client: Client, lease: LeasedJob, claim: ClaimId) -> Item:
        item = Item(self, lease.job, claim)
        loop = asyncio.get_running_loop()
        keeper = self._keepers.get(loop)
        if keeper is None or keeper.client is not client:
            keeper = self._keepers[loop] = _Keeper(client, self._heartbeat_seconds)
        keeper.hold(item)
        return item

    def _loop_for_blocking(self) -> asyncio.AbstractEventLoop:
        return background_loop()


class _Keeper:
    """Sends heartbeats for the items of one event loop, in one call, while the program references them."""

    def __init__(self, client: Client, every_seconds: float) -> None:
        self.client = client
        self._every_seconds = every_seconds
        self._leased: WeakSet[Item] = WeakSet()
        self._sending: asyncio.Task[None] | None = None

    def hold(self, item: Item) -> None:
        self._leased.add(item)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send_heartbeats())

    async def _send_heartbeats(self) -> None:
        while self._leased:
            await asyncio.sleep(self._every_seconds)
            try:
                await self._once()
            except Fatal:
                return
            except Exception:  # possibly a driver error
                continue  # settling an item raises the error; until then the next heartbeat may succeed

    async def _once(self) -> None:
        """Send one heartbeat for each item. Between calls only their owners hold references to the items."""
        items = [item for item in self._leased if not (item.is_settled or item.is_lost)]
        self._leased = WeakSet(items)
        for start in range(0, len(items), HEARTBEATS_PER_CALL):
            some = items[start : start + HEARTBEATS_PER_CALL]
            answers = await self.client.work.heartbeats([Heartbeat(*item.holder) for item in some])
            for item, answer in zip(some, answers, strict=True):
                if not isinstance(answer, Rejected):
                    item.is_unwanted = answer.cancel_requested
                elif isinstance(answer.error, LOST) and not item.is_settled:
                    item.is_lost = True
