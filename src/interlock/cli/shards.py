"""`interlock shards`: list, add, move."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from interlock.cli import output
from interlock.cli.runner import Common, guard
from interlock.errors import Invalid, SchemaMismatch, Unavailable

if TYPE_CHECKING:
    from interlock.storage.postgres.store import PostgresStore

app = App(name="shards", help="List and add shards; move tenants between them.")
NOTHING = Common()


@app.command(name="list")
def list_(*, common: Common = NOTHING) -> None:
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


@app.command
def add(name: str, *, common: Common = NOTHING) -> None:
    """Add a database of the settings as a shard. The first shard holds the directory. Connect as the owner."""

    async def command() -> int:
        from interlock.storage.shards.add_shard import add_shard

        return (await add_shard(_addresses(common), name)).no

    number = guard(common, command)
    if common.json:
        output.print_json({"name": name, "number": number})
    else:
        output.print_line(f"{name} is shard {number}")


@app.command
def move(
    tenant: str,
    shard: Annotated[str, Parameter(help="target shard")],
    *,
    common: Common = NOTHING,
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
    if common.json:
        output.print_json(done)
    else:
        moved = f"{output.counted(done['jobs'], 'job')} and {output.counted(done['rows'], 'row')} of history"
        along = f", moved {moved}" if done["jobs"] else ""
        output.print_line(f"{done['tenant']}: on {done['target']}{along}")


def _addresses(common: Common) -> Mapping[str, str]:
    shards = common.settings.shards
    if not shards:
        alone = " for one database alone: leave out --database" if common.database else ""
        raise Invalid(f"the settings name no shards{alone}; see docs/how-to/shard.md", pointer="/shards")
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
