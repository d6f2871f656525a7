"""Construction of the sharded store from names and addresses; an invalid shard map is rejected at startup."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Final, cast

from interlock.domain.shards import ENTRY_POINTS, ShardSupplier
from interlock.errors import Invalid, SchemaMismatch
from interlock.storage.postgres.store import PostgresStore
from interlock.storage.shards.directory import FRESH_SECONDS, ShardDirectory
from interlock.storage.shards.shard import Open, Shard
from interlock.storage.shards.sharded_store import ShardedStore

POOL: Final = 8
MAX_ASKED_FOR: Final = 1_000


async def open_sharded_store(
    addresses: Mapping[str, str],
    *,
    supplier: str | ShardSupplier | None = None,
    size: int = POOL,
    clock: Callable[[], int] | None = None,
    fresh_seconds: float = FRESH_SECONDS,
) -> ShardedStore:
    """Open a store over databases by name; the first holds the directory and must be up, the others may be down."""
    names = list(addresses)
    first = await _open(names[0], addresses[names[0]], size=size, clock=clock)
    try:
        listed = {shard.name: shard for shard in await first.shards()}
        _check_names(names, [name for name, shard in listed.items() if shard.here], list(listed))
        _check_known(names, await first.population(), "the directory places tenants on")
    except BaseException:
        await first.close()
        raise
    shards = [
        Shard(name, listed[name].no, _opener(name, address, size=size, clock=clock))
        for name, address in addresses.items()
    ]
    shards[0].adopt(first)
    try:
        own = ShardDirectory(shards[0], names, fresh_seconds=fresh_seconds)
        chosen = own if supplier is None else checked_supplier(supplier, names)
        await asyncio.gather(*(shard.connect() for shard in shards[1:]))
    except BaseException:
        await asyncio.gather(*(shard.close() for shard in shards))
        raise
    router = ShardedStore(shards, chosen)
    try:
        if chosen is not own:
            await _check_map(router)
    except BaseException:
        await router.close()
        raise
    return router


async def _check_map(router: ShardedStore) -> None:
    """Query a third-party supplier for existing tenants, so that a wrong shard name fails at startup."""
    for tenant in (await router.audit.tenants())[:MAX_ASKED_FOR]:
        try:
            await router.homes(tenant)
        except Exception as error:  # any third-party error: a server does not start without its shard map
            raise Invalid(
                f"the shard supplier returns no shard for tenant {tenant!r}: {error}", pointer="/shard_supplier"
            ) from error


def checked_supplier(supplier: str | ShardSupplier, shards: Sequence[str]) -> ShardSupplier:
    """Return the supplier, or load it by entry point name; reject one that maps to an unknown shard."""
    if isinstance(supplier, str):
        supplier = _offered(supplier, shards)
    named = getattr(supplier, "shards", None)
    if named is not None:
        _check_known(shards, named(), "the shard supplier maps jobs to")
    return supplier


def _offered(name: str, shards: Sequence[str]) -> ShardSupplier:
    found = list(entry_points(group=ENTRY_POINTS, name=name))
    if not found:
        raise Invalid(f"no package offers a shard supplier named {name!r}", pointer="/shard_supplier")
    try:
        made = found[0].load()(tuple(shards))
    except Exception as error:  # any third-party error: a server does not start without its shard map
        raise Invalid(f"the shard supplier {name!r} cannot be made: {error!r}", pointer="/shard_supplier") from error
    for method in ("queue_shards", "current_shard"):
        if not callable(getattr(made, method, None)):
            raise Invalid(f"the shard supplier {name!r} has no method {method}", pointer="/shard_supplier")
    return cast(ShardSupplier, made)


async def _open(name: str, address: str, *, size: int, clock: Callable[[], int] | None) -> PostgresStore:
    try:
        return await PostgresStore.open(address, size=size, clock=clock)
    except SchemaMismatch as error:
        raise SchemaMismatch(f"shard {name}: {error}") from error


def _opener(name: str, address: str, *, size: int, clock: Callable[[], int] | None) -> Open:
    async def open() -> PostgresStore:
        store = await _open(name, address, size=size, clock=clock)
        try:
            here = [shard.name for shard in await store.shards() if shard.here]
        except BaseException:
            await store.close()
            raise
        if here != [name]:
            await store.close()
            raise Invalid(
                f"the URL of shard {name!r} is that of {f'shard {here[0]!r}' if here else 'no shard'}",
                pointer="/shards",
            )
        return store

    return open


def _check_names(names: Sequence[str], here: Sequence[str], listed: Sequence[str]) -> None:
    advice = "run interlock shards add"
    if here != [names[0]]:
        found = f"it is shard {here[0]!r}" if here else f"it is no shard yet; {advice} {names[0]}"
        raise Invalid(f"the first shard, {names[0]!r}, must hold the directory, but {found}", pointer="/shards")
    for name in names:
        if name not in listed:
            raise Invalid(
                f"the settings name a shard {name!r} that the directory lacks; {advice} {name}", pointer="/shards"
            )


def _check_known(names: Sequence[str], mapped: Sequence[str] | Mapping[str, int], who: str) -> None:
    if unknown := sorted(set(mapped) - set(names)):
        raise Invalid(f"{who} shard {unknown[0]!r}, which the settings do not name", pointer="/shards")
