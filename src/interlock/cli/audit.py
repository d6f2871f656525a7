"""`interlock audit`: verify, head, log, export."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any, BinaryIO

from cyclopts import App, Parameter

from interlock import wire
from interlock.cli import output
from interlock.cli.runner import ANYWHERE, BAD_AUDIT, Anywhere, run
from interlock.client.local import LocalClient
from interlock.client.port import Client
from interlock.domain.audit import VerifiedPart
from interlock.domain.operator_log import LogRow
from interlock.domain.principal import local
from interlock.engine.audit import BATCH_SIZE, MAX_LOG_ROWS
from interlock.errors import Invalid
from interlock.wire.encode import history_to_dict, log_to_dict

app = App(name="audit", help="Verify and export history.")
AllTenants = Annotated[bool, Parameter(negative=(), help="not only the one tenant")]


@app.command
def verify(
    *,
    all_tenants: AllTenants = False,
    limit: Annotated[int | None, Parameter(help="verify at most N jobs, then print a cursor")] = None,
    cursor: Annotated[str | None, Parameter(help="continue from this cursor")] = None,
    common: Anywhere = ANYWHERE,
) -> None:
    """Recompute all history chains and print the first row that does not verify. Exit code 7 if there is one."""

    async def command(client: Client) -> VerifiedPart:
        if all_tenants and (limit is not None or cursor is not None):
            raise Invalid("--limit and --cursor are for one tenant", pointer="/limit")
        total = VerifiedPart(0, 0, None, cursor)
        with output.progress("verified") as report:
            for one in await _clients(client, all_tenants):
                total = await _verify(one, total, limit, report)
        return total

    results = run(common, command)
    if common.json:
        facts = {"ok": results.first_bad is None, **results._asdict()}
        output.print_json({("next_cursor" if name == "next" else name): value for name, value in facts.items()})
    else:
        seen = f"{output.counted(results.jobs, 'job')}, {output.counted(results.rows, 'row')}"
        output.print_line(f"{seen}: {results.first_bad or 'all chains verify'}")
        if results.next is not None:
            output.print_line(f"continue with --cursor {results.next}")
    if results.first_bad is not None:
        sys.exit(BAD_AUDIT)


async def _verify(
    client: Client, total: VerifiedPart, limit: int | None, report: Callable[[int], None]
) -> VerifiedPart:
    """Part after part, up to the limit."""
    while True:
        left = BATCH_SIZE if limit is None else min(wire.whole(limit, "limit", 1, 1 << 62) - total.jobs, BATCH_SIZE)
        part = await client.audit.verify(after=total.next, jobs=left)
        bad = total.first_bad or part.first_bad
        total = VerifiedPart(total.jobs + part.jobs, total.rows + part.rows, bad, part.next)
        if total.next is None or (limit is not None and total.jobs >= limit):
            return total
        report(total.jobs)


async def _clients(client: Client, all_tenants: bool) -> list[Client]:
    """The client itself, or one for each tenant of the database."""
    if not all_tenants:
        return [client]
    if not isinstance(client, LocalClient):
        raise Invalid("a server verifies one tenant only: use --database for all tenants", pointer="/server")
    return [LocalClient(client.engine, local(tenant)) for tenant in sorted(await client.engine.store.audit.tenants())]


@app.command
def head(*, common: Anywhere = ANYWHERE) -> None:
    """Print one hash over the ends of all chains, to be kept elsewhere; of one tenant's with --tenant or --server."""

    async def command(client: Client) -> str:
        if isinstance(client, LocalClient) and common.tenant is None:
            return await client.engine.queries.head()
        return await client.audit.head()

    value = run(common, command)
    common.show({"head": value}, value)


@app.command
def log(
    *,
    after: Annotated[int, Parameter(help="show what comes after the row with this number")] = 0,
    limit: Annotated[int, Parameter(help="how many rows")] = 50,
    common: Anywhere = ANYWHERE,
) -> None:
    """List what operators did, oldest first: pauses, types, agents, tokens, subscriptions, prunes."""

    async def command(client: Client) -> list[LogRow]:
        return await client.audit.log(after=wire.whole(after, "after", 0, 1 << 62), limit=limit)

    rows = run(common, command)
    if common.json:
        output.print_json({"items": [log_to_dict(row) for row in rows]})
    else:
        columns = ("SEQ", "AT", "ACTOR", "ACTION", "OBJECT", "DETAILS")
        output.table(
            columns, [(row.seq, wire.when(row.at), row.actor, row.action, row.object, row.details) for row in rows]
        )


@app.command
def export(
    *,
    to: output.To = None,
    all_tenants: AllTenants = False,
    common: Anywhere = ANYWHERE,
) -> None:
    """Write every row of history as JSON lines, job after job in the order of arrival, to standard output or a file."""

    async def command(client: Client) -> tuple[int, int]:
        clients = await _clients(client, all_tenants)
        with output.destination(to) as file:
            return await _export(clients, file)

    jobs, rows = run(common, command)
    print(f"interlock: {output.counted(rows, 'row')} of {output.counted(jobs, 'job')} exported", file=sys.stderr)


async def _export(clients: list[Client], file: BinaryIO) -> tuple[int, int]:
    """Of each tenant the histories, then the audit log: lines with a `seq` and no `job_id`."""
    jobs = rows = 0

    def write(lines: list[dict[str, Any]]) -> None:
        nonlocal rows
        file.write("".join(map(output.json_line, lines)).encode())
        rows += len(lines)

    with output.progress("exported") as report:
        for client in clients:
            whose = {"tenant": (await client.me()).tenant}
            async for page in client.audit.export():
                history = [row for one in page for row in one.rows]
                write([{**whose, "job_id": row.job_id, **history_to_dict(row)} for row in history])
                jobs += len(page)
                report(jobs)
            after = 0
            while log := await client.audit.log(after=after, limit=MAX_LOG_ROWS):
                write([{**whose, **log_to_dict(row)} for row in log])
                after = log[-1].seq
    file.flush()
    return jobs, rows
