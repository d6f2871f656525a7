"""Commands that need the database itself: `migrate`, `restored`, `history` and `shards`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from interlock import assemble
from interlock.assemble import POSTGRES
from interlock.cli import output
from interlock.cli.runner import COMMON, REFUSED, Common, Yes, guard, on_database
from interlock.errors import Invalid, SchemaMismatch, Unavailable
from interlock.wire.encode import when

if TYPE_CHECKING:
    from interlock.storage.postgres.history_partitions import HistoryPart
    from interlock.storage.postgres.store import PostgresStore

history = App(name="history", help="List history partitions; partition the history table.")
shards = App(name="shards", help="List and add shards; move tenants between them.")
QUESTION = "end the leases of all running jobs of all tenants, as after a restore? [y/N] "


def migrate(*, common: Common = COMMON) -> None:
    """Apply missing schema migrations. On PostgreSQL, connect as the owner of the schema."""
    applied = guard(common, lambda: assemble.migrate_all(common.settings))
    line = "applied " + ", ".join(applied) if applied else "nothing to apply, the schema is up to date"
    common.show({"applied": applied}, line)


def restored(
    *,
    yes: Yes = False,
    common: Common = COMMON,
) -> None:
    """Void every lease from before a restore. Run it after a backup was restored, before servers and workers start.

    Workers from before the restore are rejected, and their jobs are retried with the next attempt number. On
    PostgreSQL, connect as the owner of the schema.
    """
    if sys.stdin.isatty() and not yes and input(QUESTION).strip().lower() not in ("y", "yes"):
        print("interlock: cancelled, nothing was changed", file=sys.stderr)
        sys.exit(REFUSED)
    done = on_database(common, lambda engine, who: engine.restore.restored(who))
    were = "was" if done.revoked == 1 else "were"
    line = f"epoch {done.epoch}: {output.counted(done.revoked, 'lease')} from before {were} ended"
    common.show(done._asdict(), line)


@history.command(name="list")
def list_parts(*, common: Common = COMMON) -> None:
    """List the partitions of history: their time range, size and state."""

    async def command() -> list[tuple[str | None, HistoryPart]]:
        from interlock.storage.postgres.store import PostgresStore

        found: list[tuple[str | None, HistoryPart]] = []
        for shard, address in _databases(common):
            store = await PostgresStore.open(address, size=1)
            try:
                found += [(shard, part) for part in await store.history_parts()]
            finally:
                await store.close()
        return found

    found = [
        {"shard": shard, **part._asdict(), "first": when(part.first), "before": when(part.before)}
        for shard, part in guard(common, command)
    ]
    if common.json:
        output.print_json({"items": found})
        return
    columns = ("shard", "name", "first", "before", "bytes", "state")
    encoded = columns if any(part["shard"] for part in found) else columns[1:]
    output.table(encoded, [[part[column] for column in encoded] for part in found])


@history.command
def partition(
    *,
    days: Annotated[float, Parameter(help="days per partition")],
    common: Common = COMMON,
) -> None:
    """Partition the history table by the time of jobs, so that retention drops whole partitions. Irreversible.

    No rows are copied and jobs continue; all writers wait twice for a moment. If history is already partitioned, new
    partitions get the new width. All shards are partitioned, or one with --database. Connect as the owner.
    """

    async def command() -> list[tuple[str | None, bool]]:
        from interlock.storage.postgres.partition_history import partition

        return [(shard, await partition(address, days)) for shard, address in _databases(common)]

    done = guard(common, command)
    if common.json:
        output.print_json({"items": [{"shard": shard, "new": new} for shard, new in done]})
        return
    for shard, new in done:
        given = "history is partitioned from now on" if new else "history was partitioned already; the width is set"
        output.print_line(given if shard is None else f"{shard}: {given}")


def _databases(common: Common) -> list[tuple[str | None, str]]:
    """Return the names and URLs of all shards, or the URL of the single database."""
    settings = common.settings
    if settings.shards:
        return [*settings.shards.items()]
    if not settings.database.startswith(POSTGRES):
        raise Invalid("only PostgreSQL keeps history in partitions", pointer="/database")
    return [(None, settings.database)]


@shards.command(name="list")
def list_shards(*, common: Common = COMMON) -> None:
    """List the shards of the settings, their number of tenants, whether they respond, and unfinished moves."""

    async def command() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        addresses = _addresses(common)
        directory = await _open(next(iter(addresses.values())))
        try:
            listed = {shard.name: shard.no for shard in await directory.shards()}
            tenants, moves = await directory.population(), await directory.moves()
        finally:
            await directory.close()
        shards = [
            {
                "name": name,
                "number": listed.get(name),
                "tenants": tenants.get(name, 0),
                "trouble": await _trouble(addresses.get(name), listed=name in listed),
            }
            for name in dict.fromkeys([*addresses, *listed, *tenants])
        ]
        moving = [{"tenant": tenant, **placement._asdict()} for tenant, placement in moves.items()]
        return shards, moving

    shards, moving = guard(common, command)
    if common.json:
        output.print_json({"shards": shards, "moves": moving})
        return
    output.table(
        ("shard", "number", "tenants", "state"),
        [(s["name"], s["number"], s["tenants"], s["trouble"] or "answers") for s in shards],
    )
    for move in moving:
        output.print_line(
            f"{move['tenant']}: on {move['shard']}, {move['phase']} "
            f"({'to' if move['phase'] == 'copying' else 'from'} {move['other']}); "
            "if no move is running, start it again to finish it"
        )


@shards.command
def add(name: str, *, common: Common = COMMON) -> None:
    """Add a database of the settings as a shard. The first shard holds the directory. Connect as the owner."""

    async def command() -> int:
        from interlock.storage.shards.add_shard import add_shard

        return (await add_shard(_addresses(common), name)).no

    number = guard(common, command)
    common.show({"name": name, "number": number}, f"{name} is shard {number}")


@shards.command
def move(
    tenant: str,
    shard: Annotated[str, Parameter(help="target shard")],
    *,
    common: Common = COMMON,
) -> None:
    """Move a tenant to another shard while its jobs continue. A repeated call resumes an interrupted move.

    Connect to both databases as a superuser: rows are copied as they are, past the triggers that guard them.
    """

    async def command() -> dict[str, Any]:
        from interlock.storage.shards.tenant_move import Mover

        if common.settings.shard_supplier is not None:
            raise Invalid(
                f"the shard supplier {common.settings.shard_supplier!r} places tenants: only tenants placed by the "
                "directory can be moved",
                pointer="/shard_supplier",
            )
        with output.progress("copied", unit="steps") as report:
            steps = 0

            def at(point: str) -> None:
                nonlocal steps
                steps += 1
                report(steps)

            return (await Mover(_addresses(common), at=at).move(tenant, shard))._asdict()

    done = guard(common, command)
    moved = f"{output.counted(done['jobs'], 'job')} and {output.counted(done['rows'], 'row')} of history"
    along = f", moved {moved}" if done["jobs"] else ""
    common.show(done, f"{done['tenant']}: on {done['target']}{along}")


def _addresses(common: Common) -> Mapping[str, str]:
    shards = common.settings.shards
    if not shards:
        alone = " for one database alone: leave out --database" if common.database else ""
        raise Invalid(f"the settings have no shards{alone}; see docs/how-to/shard.md", pointer="/shards")
    return shards


async def _open(address: str) -> PostgresStore:
    from interlock.storage.postgres.store import PostgresStore

    return await PostgresStore.open(address, size=1)


async def _trouble(address: str | None, *, listed: bool) -> str | None:
    if address is None:
        return "not in the settings"
    if not listed:
        return "not added yet"
    try:
        store = await _open(address)
    except (Unavailable, SchemaMismatch) as error:
        return str(error)
    await store.close()
    return None
