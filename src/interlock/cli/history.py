"""`interlock history`: list, partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from interlock import wire
from interlock.assemble import POSTGRES
from interlock.cli import output
from interlock.cli.runner import Common, guard
from interlock.errors import Invalid

if TYPE_CHECKING:
    from interlock.storage.postgres.history_partitions import HistoryPart

app = App(name="history", help="List history partitions; partition the history table.")
NOTHING = Common()


@app.command(name="list")
def list_(*, common: Common = NOTHING) -> None:
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
        {
            "shard": shard,
            "name": part.name,
            "first": None if part.first is None else wire.when(part.first),
            "before": None if part.before is None else wire.when(part.before),
            "bytes": part.bytes,
            "state": part.state,
        }
        for shard, part in guard(common, command)
    ]
    if common.json:
        output.print_json({"items": found})
        return
    columns = ("shard", "name", "first", "before", "bytes", "state")
    encoded = columns if any(part["shard"] for part in found) else columns[1:]
    output.table(encoded, [[part[column] for column in encoded] for part in found])


@app.command
def partition(
    *,
    days: Annotated[float, Parameter(help="days per partition")],
    common: Common = NOTHING,
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
    """The names and addresses of all shards, or the address of the one database."""
    settings = common.settings
    if settings.shards:
        return [*settings.shards.items()]
    if not settings.database.startswith(POSTGRES):
        raise Invalid("only PostgreSQL keeps history in partitions", pointer="/database")
    return [(None, settings.database)]
