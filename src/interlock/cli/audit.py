"""`interlock audit`: verify, head, log, export."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, BinaryIO

from cyclopts import App, Parameter

from interlock import wire
from interlock.cli import output
from interlock.cli.atomic_file import atomic_write
from interlock.cli.runner import BAD_AUDIT, Anywhere, run
from interlock.domain.audit import VerifiedPart
from interlock.domain.operator_log import LogRow
from interlock.domain.principal import Principal
from interlock.engine.audit import BATCH_SIZE, MAX_LOG_ROWS
from interlock.engine.engine import Engine
from interlock.errors import Invalid

app = App(name="audit", help="Verify and export history.")
NOTHING = Anywhere()
AllTenants = Annotated[bool, Parameter(negative=(), help="not only the one tenant")]


@app.command
def verify(
    *,
    all_tenants: AllTenants = False,
    limit: Annotated[int | None, Parameter(help="verify at most N jobs, then print a cursor")] = None,
    cursor: Annotated[str | None, Parameter(help="continue from this cursor")] = None,
    common: Anywhere = NOTHING,
) -> None:
    """Recompute all history chains and print the first row that does not verify. Exit code 7 if there is one."""

    async def command(engine: Engine, who: Principal) -> VerifiedPart:
        if not all_tenants:
            return await _verify(engine, who.tenant, limit, cursor)
        if limit is not None or cursor is not None:
            raise Invalid("--limit and --cursor are for one tenant", pointer="/limit")
        _need_database(common)
        return await _verify_all_tenants(engine)

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


async def _verify_all_tenants(engine: Engine) -> VerifiedPart:
    """Part after part, tenant after tenant."""
    total = VerifiedPart(0, 0, None, None)
    with output.progress("verified") as report:
        async for part in engine.audit.verify_all_tenants():
            total = VerifiedPart(
                total.jobs + part.jobs, total.rows + part.rows, total.first_bad or part.first_bad, None
            )
            report(total.jobs)
    return total


async def _verify(engine: Engine, tenant: str, limit: int | None, cursor: str | None) -> VerifiedPart:
    """Part after part, up to the limit."""
    total = VerifiedPart(0, 0, None, cursor)
    with output.progress("verified") as report:
        while True:
            left = BATCH_SIZE if limit is None else min(wire.whole(limit, "limit", 1, 1 << 62) - total.jobs, BATCH_SIZE)
            part = await engine.audit.verify_part(tenant, after=total.next, jobs=left)
            total = VerifiedPart(
                total.jobs + part.jobs, total.rows + part.rows, total.first_bad or part.first_bad, part.next
            )
            if total.next is None or (limit is not None and total.jobs >= limit):
                return total
            report(total.jobs)


def _need_database(common: Anywhere) -> None:
    if common.server is not None:
        raise Invalid("a server verifies one tenant only: use --database for all tenants", pointer="/server")


@app.command
def head(*, common: Anywhere = NOTHING) -> None:
    """Print one hash over the ends of all chains, to be kept elsewhere; of one tenant's with --tenant or --server."""

    async def command(engine: Engine, who: Principal) -> str:
        return await engine.queries.head(common.tenant)

    value = run(common, command)
    if common.json:
        output.print_json({"head": value})
    else:
        output.print_line(value)


@app.command
def log(
    *,
    after: Annotated[int, Parameter(help="show what comes after the row with this number")] = 0,
    limit: Annotated[int, Parameter(help="how many rows")] = 50,
    common: Anywhere = NOTHING,
) -> None:
    """List what operators did, oldest first: pauses, types, agents, tokens, subscriptions, prunes."""

    async def command(engine: Engine, who: Principal) -> list[LogRow]:
        return await engine.audit.log(who.tenant, after=wire.whole(after, "after", 0, 1 << 62), limit=limit)

    rows = run(common, command)
    if common.json:
        output.print_json({"items": [wire.log_to_dict(row) for row in rows]})
    else:
        columns = ("SEQ", "AT", "ACTOR", "ACTION", "OBJECT", "DETAILS")
        output.table(
            columns, [(row.seq, wire.when(row.at), row.actor, row.action, row.object, row.details) for row in rows]
        )


@app.command
def export(
    *,
    to: Annotated[
        Path | None, Parameter(name=["--output", "-o"], help="write to FILE (atomically) instead of standard output")
    ] = None,
    all_tenants: AllTenants = False,
    common: Anywhere = NOTHING,
) -> None:
    """Write every row of history as JSON lines, job after job in the order of arrival, to standard output or a file."""

    async def command(engine: Engine, who: Principal) -> tuple[int, int]:
        if all_tenants:
            _need_database(common)
        tenants = sorted(await engine.store.tenants()) if all_tenants else [who.tenant]
        if to is None:
            return await _export(engine, tenants, sys.stdout.buffer)
        with atomic_write(to) as file:
            return await _export(engine, tenants, file)

    jobs, rows = run(common, command)
    print(f"interlock: {output.counted(rows, 'row')} of {output.counted(jobs, 'job')} exported", file=sys.stderr)


async def _export(engine: Engine, tenants: list[str], file: BinaryIO) -> tuple[int, int]:
    jobs = rows = 0
    with output.progress("exported") as report:
        for tenant in tenants:
            async for page in engine.audit.export(tenant):
                lines: list[dict[str, Any]] = [
                    {"tenant": tenant, "job_id": row.job_id, **wire.history_to_dict(row)}
                    for one in page
                    for row in one.rows
                ]
                file.write("".join(map(output.json_line, lines)).encode())
                jobs, rows = jobs + len(page), rows + len(lines)
                report(jobs)
            rows += await _export_log(engine, tenant, file)
    file.flush()
    return jobs, rows


async def _export_log(engine: Engine, tenant: str, file: BinaryIO) -> int:
    """The audit log of a tenant, behind its histories: lines with a `seq` and no `job_id`."""
    count = after = 0
    while page := await engine.audit.log(tenant, after=after, limit=MAX_LOG_ROWS):
        lines = [{"tenant": tenant, **wire.log_to_dict(row)} for row in page]
        file.write("".join(map(output.json_line, lines)).encode())
        count, after = count + len(page), page[-1].seq
    return count
