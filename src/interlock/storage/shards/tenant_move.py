"""Moving a tenant to another shard while its jobs keep running.

First, jobs are copied in bounded steps, and those that change meanwhile are copied again, without blocking anything.
Then writes to the tenant's data are blocked while the last changes are copied; calls wait. The target commits the whole
copy, the source marks the tenant as gone, and the directory names the target. The next move resumes one that was
interrupted at any point. Until the source marks the tenant as gone, the tenant stays there unaffected.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final, NamedTuple

import asyncpg

from interlock.domain.shards import CLEARING, COPYING, MAX_SHARDS, Placement, next_number
from interlock.errors import Conflict, Invalid, NotFound
from interlock.storage.postgres.migrate import until_free
from interlock.storage.shards.admin_connection import Owner, admin_connection
from interlock.storage.shards.directory import FRESH_SECONDS
from interlock.storage.shards.precopy import Precopy
from interlock.storage.shards.tenant_copy import Copier

STEP: Final = 1_000
STALE_SECONDS: Final = 1.5 * FRESH_SECONDS
GIVE_WAY_SECONDS: Final = 2
LAST_MOVER_SECONDS: Final = 10
MAX_EPOCHS: Final = 10
SPARE_NUMBERS: Final = 1_000
_EPOCH: Final = "select value from interlock.epoch"
_MEET: Final = "insert into interlock.tenant (tenant, state) values ($1, $2) on conflict do nothing"
_ONE_MOVER: Final = "select pg_advisory_lock(interlock.move_lock('mover of ' || $1))"


class _Overtaken(Exception):
    """The source's epoch was raised after the target's."""


class Moved(NamedTuple):
    """The source and target of a move, and how many jobs and history rows were copied."""

    tenant: str
    source: str
    target: str
    jobs: int
    rows: int


class Mover:
    """Moves tenants between the configured databases; it needs a superuser address for each."""

    def __init__(
        self,
        addresses: Mapping[str, str],
        *,
        stale_seconds: float = STALE_SECONDS,
        step: int = STEP,
        at: Callable[[str], None] = lambda point: None,
    ) -> None:
        self._addresses = addresses
        self._stale_seconds = stale_seconds
        self._step = step
        self._at = at

    async def move(self, tenant: str, target: str) -> Moved:
        """Move a tenant to a shard; resume or clean up an earlier attempt."""
        if target not in self._addresses:
            raise Invalid(f"the settings have no shard {target!r}", pointer="/shard")
        first = next(iter(self._addresses))
        async with admin_connection(first, self._addresses[first], copies=True) as directory:
            await _be_the_only_mover(directory, tenant)
            placement = await _placement(directory, tenant)
            if placement.phase == COPYING and placement.shard == target:
                await self._call_off(directory, tenant, placement.shard, str(placement.other))
                return Moved(tenant, target, target, 0, 0)
            if placement.phase == COPYING and placement.other != target:
                raise Conflict(f"{tenant!r} is being moved to shard {placement.other!r}: finish that move first")
            jobs = rows = 0
            source = placement.shard
            if placement.phase == CLEARING:
                source = str(placement.other)
                await self._clear(directory, tenant, source, placement.shard)
                placement = Placement(placement.shard)
            if placement.shard != target:
                source = placement.shard
                jobs, rows = await self._carry_over(directory, tenant, source, target)
                await self._clear(directory, tenant, source, target)
            return Moved(tenant, source, target, jobs, rows)

    async def _carry_over(self, directory: Owner, tenant: str, source: str, target: str) -> tuple[int, int]:
        async with (
            admin_connection(source, self._address(source), copies=True) as old,
            admin_connection(target, self._address(target), copies=True) as new,
        ):
            copier = await Copier.between(old, new, tenant, self._at)
            await _note(directory, tenant, source, Placement(source, target, COPYING))
            self._at("noted")
            await asyncio.sleep(self._stale_seconds)  # from now on every process queries the directory before each call
            counts = await self._copy(old, new, copier, tenant)
            await _note(directory, tenant, source, Placement(target, source, CLEARING))
            self._at("switched")
        return counts

    async def _copy(self, old: Owner, new: Owner, copier: Copier, tenant: str) -> tuple[int, int]:
        state_here, arrived = await _state(old, tenant), await _state(new, tenant)
        if state_here == "gone" and arrived == "here":  # only the directory is out of date
            return 0, 0
        if state_here == "gone":
            raise Conflict(f"{tenant!r} is in neither database whole; look for a third one, or restore a backup")
        begins = state_here != "leaving"
        if begins and arrived == "here":
            raise Conflict(
                f"{tenant!r} exists in both databases, as after a restore of one of them; nothing was changed, "
                "decide first which of the two is current (docs/how-to/shard.md)"
            )
        if begins:
            if not await copier.is_empty(new):  # left by a cancelled move or a stale map
                await copier.clear(new)
            await old.execute(_MEET, tenant, "leaving")
        async with self._alone(old, tenant):
            await _set_state(old, tenant, "leaving")
            await copier.begin(anew=begins)
        self._at("leaving")
        if arrived == "here":  # a stale copy: the tenant stayed at its source since
            await copier.clear(new)
        await new.execute(_MEET, tenant, "gone")
        await _set_state(new, tenant, "gone")
        self._at("expected")
        ahead = Precopy(old, new, copier, tenant, step=self._step, at=self._at)
        await ahead.copy()
        for _ in range(MAX_EPOCHS):
            await self._lift_epoch(old, new)
            with suppress(_Overtaken):  # by a restore, or by a move in the other direction
                return await self._leave(old, new, copier, tenant, ahead)
        raise Conflict("another process keeps raising the epoch of the source; nothing was moved, retry")

    async def _leave(self, old: Owner, new: Owner, copier: Copier, tenant: str, ahead: Precopy) -> tuple[int, int]:
        async with self._alone(old, tenant):
            self._at("alone")
            counts = await self._copy_last(old, new, copier, tenant, ahead)
            self._at("arrived")
            await _set_state(old, tenant, "gone")
            self._at("gone")
        return counts

    async def _copy_last(self, old: Owner, new: Owner, copier: Copier, tenant: str, ahead: Precopy) -> tuple[int, int]:
        """Copy the rest in one transaction on the target while the source does not change."""
        async with old.transaction(isolation="repeatable_read"), new.transaction():
            if await new.fetchval(_EPOCH) <= await old.fetchval(_EPOCH):
                raise _Overtaken
            counts = await ahead.finish()
            self._at("counted")
            no = int(await new.fetchval("select no from interlock.shard where here"))
            await copier.lift_numbers(lambda sequence, highest: _above(sequence, highest, no))
            registry = await old.fetchval("select registry from interlock.tenant where tenant = $1", tenant)
            await new.execute(
                "update interlock.tenant set state = 'here', registry = $2 where tenant = $1", tenant, registry
            )
        return counts

    async def _lift_epoch(self, old: Owner, new: Owner) -> None:
        """Raise the target's epoch above the source's: the feed sorts by epoch, so new events follow copied ones."""
        epoch = int(await old.fetchval(_EPOCH))

        async def lift() -> None:
            async with new.transaction():
                await new.execute(f"set local lock_timeout = '{GIVE_WAY_SECONDS}s'")
                await new.execute("lock table interlock.epoch in access exclusive mode")
                await new.execute("update interlock.epoch set value = $1 + 1 where value <= $1", epoch)

        if await new.fetchval(_EPOCH) <= epoch:
            await until_free(
                lift, "others have held the epoch of the target for too long; nothing was moved, try again"
            )
        self._at("epoch")

    async def _call_off(self, directory: Owner, tenant: str, source: str, target: str) -> None:
        """Cancel a move: the tenant stays. Delete the partial copy, now or in the next move to that shard."""
        async with (
            admin_connection(source, self._address(source), copies=True) as old,
            admin_connection(target, self._address(target), copies=True) as new,
        ):
            if await _state(old, tenant) == "gone":
                raise Conflict(f"{tenant!r} has left shard {source!r} already; finish the move to {target!r}")
            copier = await Copier.between(old, new, tenant, self._at)
            await _set_state(new, tenant, "gone")
            self._at("not expected")
            await _set_state(old, tenant, "here")
            self._at("staying")
            await copier.clear(new)
        await _note(directory, tenant, source, Placement(source))
        self._at("called off")

    async def _clear(self, directory: Owner, tenant: str, source: str, target: str) -> None:
        """Delete the old copy; no call goes there since the directory names the target."""
        async with admin_connection(source, self._address(source), copies=True) as old:
            if await _state(old, tenant) != "gone":
                raise Conflict(f"{tenant!r} still lives on shard {source!r}; its copy there is not deleted")
            copier = await Copier.between(old, old, tenant, self._at)
            await copier.clear(old)
        await _note(directory, tenant, target, Placement(target))
        self._at("done")

    @asynccontextmanager
    async def _alone(self, side: Owner, tenant: str) -> AsyncIterator[None]:
        """Hold the move lock: other writers are rejected and retry; if this process crashes, the lock is released."""
        await side.execute(f"set lock_timeout = '{GIVE_WAY_SECONDS}s'")
        await until_free(
            lambda: side.execute("select pg_advisory_lock(interlock.move_lock($1))", tenant),
            f"a transaction of {tenant!r} was open for too long",
        )
        try:
            yield
        finally:
            if not side.is_closed() and not side.is_in_transaction():
                await side.execute("select pg_advisory_unlock(interlock.move_lock($1))", tenant)

    def _address(self, name: str) -> str:
        if name not in self._addresses:
            raise Invalid(f"the directory names shard {name!r}, which the settings do not", pointer="/shards")
        return self._addresses[name]


def _above(sequence: str, highest: int, no: int) -> int:
    if sequence == "job_seq_seq":
        return next_number(highest + SPARE_NUMBERS * MAX_SHARDS, no)
    return highest + SPARE_NUMBERS


async def _be_the_only_mover(directory: Owner, tenant: str) -> None:
    """Take the mover lock; wait, because a mover that just crashed may still hold it for a moment."""
    await directory.execute(f"set lock_timeout = '{LAST_MOVER_SECONDS}s'")
    try:
        await directory.execute(_ONE_MOVER, tenant)
    except asyncpg.LockNotAvailableError:
        raise Conflict(f"another process is moving {tenant!r}") from None
    await directory.execute("reset lock_timeout")


async def _placement(directory: Owner, tenant: str) -> Placement:
    row = await directory.fetchrow("select shard, other, phase from interlock.placement where tenant = $1", tenant)
    if row is None:
        raise NotFound(tenant, resource="tenant")
    return Placement(*row)


async def _note(directory: Owner, tenant: str, believed: str, placement: Placement) -> None:
    noted = await directory.fetchval(
        "select interlock.note_move($1, $2, $3, $4, $5)", tenant, believed, *placement
    )  # fmt: skip
    if not noted:
        raise Conflict(f"{tenant!r} no longer lives on shard {believed!r}; look again")


async def _state(side: Owner, tenant: str) -> str | None:
    state = await side.fetchval("select state from interlock.tenant where tenant = $1", tenant)
    return None if state is None else str(state)


async def _set_state(side: Owner, tenant: str, state: str) -> None:
    await side.execute("update interlock.tenant set state = $2 where tenant = $1", tenant, state)
