"""Routing from a tenant or an ID to its shards; the operations of the sharded store are built on these methods."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import isawaitable
from typing import Any, Final, Protocol, TypeVar

from interlock.domain.shards import ShardSupplier, shard_of_id
from interlock.errors import Error, Fatal, TenantMoved, Unavailable
from interlock.pauses import Pauses
from interlock.storage.contract import RegistryChanged
from interlock.storage.postgres.store import PostgresStore
from interlock.storage.shards.directory import ShardDirectory
from interlock.storage.shards.shard import Shard

T = TypeVar("T")
I = TypeVar("I")  # noqa: E741 - an item
A = TypeVar("A")
D = TypeVar("D", bound="_OfTenant")
Find = Callable[[str, Sequence[str], Sequence[Shard]], Awaitable[dict[str, Shard]]]

# How long a call waits for a tenant that is being moved, and a sweep for a slow shard.
MOVE_SECONDS: Final = 30.0
RETRY_SECONDS: Final = 0.5
MAX_PAUSE_SECONDS: Final = 0.25


class _OfTenant(Protocol):
    """A row found across tenants, with its tenant."""

    @property
    def tenant(self) -> str: ...


class Routing:
    """Shards by name, and the placement of tenants."""

    def __init__(self, shards: Sequence[Shard], supplier: ShardSupplier) -> None:
        self._shards: Mapping[str, Shard] = {shard.name: shard for shard in shards}
        self._supplier = supplier
        self._late: dict[tuple[str, str], asyncio.Task[Any]] = {}
        self._unheard: set[asyncio.Future[Any]] = set()

    async def homes(self, tenant: str, type: str | None = None) -> list[Shard]:
        """Return the shards of a tenant, starting with the one for new jobs."""
        if isinstance(self._supplier, ShardDirectory):  # one lookup: two could straddle a move
            return [self._named((await self._supplier.placement(tenant)).shard)]
        current = self._supplier.current_shard(tenant, type)
        first = await current if isawaitable(current) else current
        every = self._supplier.queue_shards(tenant, type)
        names = await every if isawaitable(every) else every
        return [self._named(name) for name in dict.fromkeys((str(first), *names))]

    def _named(self, name: str) -> Shard:
        shard = self._shards.get(name)
        if shard is None:
            raise Unavailable(f"jobs are mapped to shard {name!r}, which the settings do not name")
        return shard

    async def routed(self, tenant: str, go: Callable[[list[Shard]], Awaitable[T]], *, type: str | None = None) -> T:
        """Call the tenant's shards; look them up again if the map was stale, and wait if the tenant is moving."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + MOVE_SECONDS
        pauses = Pauses(0.01, MAX_PAUSE_SECONDS)
        while True:
            shards = await self.homes(tenant, type)
            try:
                return await go(shards)
            except TenantMoved as error:
                refused = error
            if isinstance(self._supplier, ShardDirectory):
                self._supplier.forget(tenant)
            admitted = [await shard.run(lambda store: store.admit(tenant)) for shard in await self.homes(tenant, type)]
            if any(admitted):
                continue
            if clock() > deadline:
                raise refused
            await pauses.wait()

    async def home(self, tenant: str, call: Callable[[PostgresStore], Awaitable[T]], *, type: str | None = None) -> T:
        """Call the shard for new jobs."""
        return await self.routed(tenant, lambda shards: shards[0].run(call), type=type)

    async def each(self, tenant: str, call: Callable[[PostgresStore], Awaitable[T]]) -> list[T]:
        """Call all shards of a tenant; the current one's result comes first."""
        return await self.routed(tenant, lambda shards: asyncio.gather(*(shard.run(call) for shard in shards)))

    async def first(self, tenant: str, call: Callable[[PostgresStore], Awaitable[T]]) -> T:
        """Return the first truthy result, or the last one."""

        async def go(shards: list[Shard]) -> T:
            for shard in shards[:-1]:
                answer = await shard.run(call)
                if answer:
                    return answer
            return await shards[-1].run(call)

        return await self.routed(tenant, go)

    async def by_job(
        self,
        tenant: str,
        items: Sequence[I],
        id_of: Callable[[I], str],
        call: Callable[[PostgresStore, Sequence[I]], Awaitable[Sequence[A]]],
        *,
        find: Find | None = None,
    ) -> list[A]:
        """Return the results of the items in order, each from the shard of its job, or the one that `find` returns."""

        def on(shard: Shard, some: Sequence[I]) -> Awaitable[Sequence[A]]:
            return shard.run(lambda store: call(store, some))

        async def go(shards: list[Shard]) -> list[A]:
            if len(shards) == 1:
                return list(await on(shards[0], items))
            where = await (find or self.where)(tenant, [id_of(item) for item in items], shards)
            parts: dict[Shard, list[int]] = defaultdict(list)
            for i, item in enumerate(items):
                parts[where[id_of(item)]].append(i)
            results = await asyncio.gather(
                *(on(shard, [items[i] for i in positions]) for shard, positions in parts.items())
            )
            answers = {
                i: answer
                for positions, some in zip(parts.values(), results, strict=True)
                for i, answer in zip(positions, some, strict=True)
            }
            return [answers[i] for i in range(len(items))]

        return await self.routed(tenant, go)

    async def of_job(self, tenant: str, job_id: str, call: Callable[[PostgresStore], Awaitable[T]]) -> T:
        """Call the shard of one job."""

        async def go(shards: list[Shard]) -> T:
            shard = shards[0] if len(shards) == 1 else (await self.where(tenant, [job_id], shards))[job_id]
            return await shard.run(call)

        return await self.routed(tenant, go)

    async def where(self, tenant: str, ids: Sequence[str], shards: Sequence[Shard]) -> dict[str, Shard]:
        """Return the shard of each job: try the one in its ID, then all; unknown jobs go to the current shard."""
        found: dict[str, Shard] = {}
        by_number = {shard.no: shard for shard in shards}
        guesses: dict[str, list[str]] = defaultdict(list)
        for id in dict.fromkeys(ids):
            guesses[by_number.get(shard_of_id(id), shards[0]).name].append(id)

        async def look(shard: Shard, some: Sequence[str]) -> None:
            for holder in await shard.run(lambda store: store.holders(tenant, [], some)) if some else ():
                found.setdefault(holder.id, shard)

        await asyncio.gather(*(look(self._shards[name], some) for name, some in guesses.items()))
        left = [id for id in dict.fromkeys(ids) if id not in found]
        await asyncio.gather(*(look(shard, left) for shard in shards))
        return {id: found.get(id, shards[0]) for id in ids}

    async def registry_of(self, tenant: str, store: PostgresStore, version: int) -> int:
        """Return the version of this shard's registry if the tenant's registry has not changed since validation."""
        home = (await self.homes(tenant))[0]
        if store is home.store:
            return version
        if (await home.run(lambda its: its.registry.read(tenant))).version != version:
            raise RegistryChanged(tenant)
        return (await store.registry.read(tenant)).version

    async def everywhere(self, verb: str, call: Callable[[PostgresStore], Awaitable[T]]) -> list[tuple[Shard, T]]:
        """Return the results of all shards that respond soon; a slow shard does not block the others."""
        return await self._on_each(verb, dict.fromkeys(self._shards, call))

    async def _on_each(
        self, verb: str, calls: Mapping[str, Callable[[PostgresStore], Awaitable[T]]]
    ) -> list[tuple[Shard, T]]:
        tasks: dict[str, asyncio.Task[Any]] = {}
        new: list[asyncio.Task[Any]] = []
        for name, shard in self._shards.items():
            if (verb, name) not in self._late:
                self._late[verb, name] = asyncio.ensure_future(shard.run(calls[name]))
                new.append(self._late[verb, name])
            tasks[name] = self._late[verb, name]
        if new:  # shards that were late last time get no further wait
            await asyncio.wait(new, timeout=RETRY_SECONDS)
        answers: list[tuple[Shard, T]] = []
        failures: list[Exception] = []
        for name, task in tasks.items():
            if not task.done():
                continue
            self._late.pop((verb, name), None)
            try:
                answers.append((self._shards[name], task.result()))
            except Fatal:
                raise
            except Error as error:
                failures.append(error)
        if failures and not answers:
            raise failures[0]
        return answers

    async def due(self, verb: str, limit: int, call: Callable[[PostgresStore], Awaitable[Sequence[D]]]) -> list[D]:
        """List what is due on all shards, interleaved; skip tenants that are blocked by a move."""
        results = await self.everywhere(verb, call)
        pairs = {(due.tenant, shard) for shard, found in results for due in found}
        goes_on = dict(zip(pairs, await asyncio.gather(*(self.goes_on(*pair) for pair in pairs)), strict=True))
        rows = itertools.zip_longest(
            *([due for due in found if goes_on[due.tenant, shard]] for shard, found in results)
        )  # fmt: skip
        return list(dict.fromkeys(due for row in rows for due in row if due is not None))[:limit]

    async def share(self, verb: str, limit: int, call: Callable[[PostgresStore, int], Awaitable[int]]) -> int:
        """Run maintenance on all shards, each with a share of the limit; return the total."""

        def of(share: int) -> Callable[[PostgresStore], Awaitable[int]]:
            return lambda store: call(store, share)

        count = len(self._shards)
        calls = {name: of((limit + count - 1 - i) // count) for i, name in enumerate(self._shards)}
        return sum(expired for _, expired in await self._on_each(verb, calls))

    async def ask_all(
        self, call: Callable[[PostgresStore], Awaitable[T | None]], whose: Callable[[T], str]
    ) -> T | None:
        """Return the first result from a shard on which its tenant is placed.

        If no shard has it and one did not respond, raise: the row may still exist there.
        """
        asked: dict[asyncio.Future[T | None], Shard] = {
            asyncio.ensure_future(shard.run(call)): shard for shard in self._shards.values()
        }
        failures: list[Unavailable] = []
        waiting = set(asked)
        try:
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    try:
                        found = task.result()
                    except Unavailable as error:
                        failures.append(error)
                        continue
                    if found is not None and await self.lives(whose(found), asked[task]):
                        return found
        finally:
            for task in waiting:  # cancelling a query costs more than letting it finish
                self._unheard.add(task)
                task.add_done_callback(self._heard)
        if failures:
            raise failures[0]
        return None

    def _heard(self, task: asyncio.Future[Any]) -> None:
        self._unheard.discard(task)
        if not task.cancelled():
            task.exception()

    async def on_first_shard(self, call: Callable[[PostgresStore], Awaitable[T]]) -> T:
        """Call the shard that keeps what exists once."""
        return await next(iter(self._shards.values())).run(call)

    async def all_shards(self, call: Callable[[PostgresStore], Awaitable[T]]) -> dict[str, T]:
        """Return the results of all shards, or raise."""
        results = await asyncio.gather(*(shard.run(call) for shard in self._shards.values()))
        return dict(zip(self._shards, results, strict=True))

    async def lives(self, tenant: str, shard: Shard) -> bool:
        """Return whether a tenant is placed on a shard; an incomplete or old copy does not count."""
        try:
            return shard in await self.homes(tenant)
        except Unavailable:  # unknown: the shard itself rejects writes of a tenant that is not placed there
            return True

    async def goes_on(self, tenant: str, shard: Shard) -> bool:
        """Return whether a tenant is placed on a shard and not blocked there by a running or crashed move."""
        if not await self.lives(tenant, shard):
            return False
        try:
            if isinstance(self._supplier, ShardDirectory) and (await self._supplier.placement(tenant)).unsettled:
                return await shard.run(lambda store: store.may_change(tenant))
        except Unavailable:
            pass
        return True

    async def drop_late(self) -> None:
        """Cancel calls to shards that are late."""
        late, self._late = [*self._late.values(), *self._unheard], {}
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    async def _stop(self) -> None:
        await self.drop_late()
        await asyncio.gather(*(shard.close() for shard in self._shards.values()))
