"""`interlock audit`: verify, head, export."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec
from cyclopts import App, Parameter

from interlock import wire
from interlock.cli import output
from interlock.cli.files import whole_or_absent
from interlock.cli.session import BAD_AUDIT, Common, run
from interlock.domain.audit import VerifiedPart
from interlock.domain.principal import Principal
from interlock.engine.audit import MOST_AT_ONCE
from interlock.engine.engine import Engine
from interlock.errors import Invalid

app = App(name="audit", help="Prove what happened.")
NOTHING = Common()
AllTenants = Annotated[bool, Parameter(negative=(), help="not only the one tenant")]


@app.command
def verify(
    *,
    all_tenants: AllTenants = False,
    limit: Annotated[int | None, Parameter(help="stop after so many jobs and tell where to go on")] = None,
    cursor: Annotated[str | None, Parameter(help="where the run before has stopped")] = None,
    common: Common = NOTHING,
) -> None:
    """Recompute the chains of history and name the first row that does not fit. Exit code 7 if there is one."""

    async def command(engine: Engine, who: Principal) -> VerifiedPart:
        if not all_tenants:
            return await _verify(engine, who.tenant, limit, cursor)
        if limit is not None or cursor is not None:
            raise Invalid("--limit and --cursor are for one tenant", pointer="/limit")
        return VerifiedPart(*await engine.reads.verify(), next=None)

    told = run(common, command)
    if common.json:
        facts = {"ok": told.first_bad is None, **told._asdict()}
        output.as_json({("next_cursor" if name == "next" else name): value for name, value in facts.items()})
    else:
        output.say(f"{told.jobs} jobs, {told.rows} rows: " + (told.first_bad or "every chain fits"))
        if told.next is not None:
            output.say(f"go on with --cursor {told.next}")
    if told.first_bad is not None:
        sys.exit(BAD_AUDIT)


async def _verify(engine: Engine, tenant: str, limit: int | None, cursor: str | None) -> VerifiedPart:
    """Part after part, up to the limit."""
    total = VerifiedPart(0, 0, None, cursor)
    with output.progress("verified") as tell:
        while True:
            left = (
                MOST_AT_ONCE
                if limit is None
                else min(wire.whole(limit, "limit", 1, 1 << 62) - total.jobs, MOST_AT_ONCE)
            )
            part = await engine.audit.verify_part(tenant, after=total.next, jobs=left)
            total = VerifiedPart(
                total.jobs + part.jobs, total.rows + part.rows, total.first_bad or part.first_bad, part.next
            )
            if total.next is None or total.jobs == limit:
                return total
            tell(total.jobs)


@app.command
def head(*, common: Common = NOTHING) -> None:
    """Print one hash over the ends of all chains, to be kept elsewhere."""

    async def command(engine: Engine, who: Principal) -> str:
        return await engine.reads.head()

    value = run(common, command)
    if common.json:
        output.as_json({"head": value})
    else:
        output.say(value)


@app.command
def export(
    *,
    to: Annotated[Path | None, Parameter(name=["--output", "-o"], help="a file, there when it is whole")] = None,
    all_tenants: AllTenants = False,
    common: Common = NOTHING,
) -> None:
    """Write every row of history as JSON lines, job after job in the order of arrival, to standard output or a file."""

    async def command(engine: Engine, who: Principal) -> tuple[int, int]:
        tenants = sorted(await engine.store.tenants()) if all_tenants else [who.tenant]
        if to is None:
            return await _export(engine, tenants, sys.stdout.buffer)
        with whole_or_absent(to) as file:
            return await _export(engine, tenants, file)

    jobs, rows = run(common, command)
    print(f"interlock: {rows} rows of {jobs} jobs exported", file=sys.stderr)


async def _export(engine: Engine, tenants: list[str], file: BinaryIO) -> tuple[int, int]:
    jobs = rows = 0
    with output.progress("exported") as tell:
        for tenant in tenants:
            async for page in engine.audit.export(tenant):
                lines: list[dict[str, Any]] = [
                    {"tenant": tenant, "job_id": row.job_id, **wire.history_to_dict(row)}
                    for one in page
                    for row in one.rows
                ]
                file.write(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
                jobs, rows = jobs + len(page), rows + len(lines)
                tell(jobs)
    file.flush()
    return jobs, rows
