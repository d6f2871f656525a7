"""Adding a shard: the database gets a name and a number, and its tenants are entered in the directory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from interlock.domain.shards import MAX_SHARDS, next_number
from interlock.errors import Invalid
from interlock.storage.postgres.shard_directory import Listed
from interlock.storage.shards.admin_connection import Owner, admin_connection

_HERE: Final = "select no, name, here from interlock.shard where here"
_STRIDE: Final = f"alter sequence interlock.job_seq_seq increment by {MAX_SHARDS}"


async def add_shard(addresses: Mapping[str, str], name: str) -> Listed:
    """Enter a configured database in the directory on the first shard; a repeated call changes nothing."""
    if name not in addresses:
        raise Invalid(f"the settings have no shard {name!r}; add its database to the settings first", pointer="/shards")
    first = next(iter(addresses))
    async with admin_connection(first, addresses[first]) as directory, admin_connection(name, addresses[name]) as there:
        if name != first and not await directory.fetchrow(_HERE):
            raise Invalid(f"add {first!r} first: the first shard holds the directory", pointer="/shards")
        here = await there.fetchrow(_HERE)
        if here is not None and here["name"] != name:
            raise Invalid(f"this database is shard {here['name']!r} already", pointer="/shards")
        no = await _number(directory, name)
        await _settle(directory, there, name, no, await _highest(addresses))
        return Listed(no, name, True)


async def _number(directory: Owner, name: str) -> int:
    known = {row["name"]: int(row["no"]) for row in await directory.fetch("select no, name from interlock.shard")}
    if name in known:
        return known[name]
    no = max(known.values(), default=-1) + 1
    if no >= MAX_SHARDS:
        raise Invalid(f"there are at most {MAX_SHARDS} shards")
    return no


async def _highest(addresses: Mapping[str, str]) -> int:
    """Return the highest job number that any database has issued."""
    highest = 0
    for name, address in addresses.items():
        async with admin_connection(name, address) as connection:
            highest = max(highest, int(await connection.fetchval("select last_value from interlock.job_seq_seq")))
    return highest


async def _settle(directory: Owner, there: Owner, name: str, no: int, highest: int) -> None:
    async with there.transaction():
        # Lock out new tenants until all existing tenants are entered in the directory.
        await there.execute("set local lock_timeout = '10s'; lock table interlock.tenant in share row exclusive mode")
        listed = "insert into interlock.shard (no, name, here) values ($1, $2, $3) on conflict (no) do nothing"
        for row in await there.fetch("select * from interlock.tenants()"):
            # A tenant that has moved away may have left a row here; any other tenant in this database must be placed
            # here.
            await _enter(directory, there, row[0], name)
        await directory.execute(listed, no, name, False)
        await there.execute(listed, no, name, True)
        await there.execute("update interlock.shard set here = true where name = $1", name)
        last = int(await there.fetchval("select last_value from interlock.job_seq_seq"))
        if int(await there.fetchval("select increment_by from pg_sequences where sequencename = 'job_seq_seq'")) == 1:
            await there.execute(_STRIDE)
            await there.execute("select setval('interlock.job_seq_seq', $1)", next_number(max(last, highest), no))


async def _enter(directory: Owner, there: Owner, tenant: str, name: str) -> None:
    assigned = await directory.fetchval("select shard from interlock.assign_shard($1, $2)", tenant, name)
    if assigned != name:
        await there.execute("select set_config('interlock.tenant', $1, true)", tenant)
        state = await there.fetchval("select state from interlock.tenant where tenant = $1", tenant)
        if state != "gone":
            raise Invalid(f"tenant {tenant!r} has data in this database, but lives on shard {assigned!r}")
