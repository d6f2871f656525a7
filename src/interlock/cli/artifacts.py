"""`interlock artifacts`: list, get."""

from __future__ import annotations

import sys
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, BinaryIO

from cyclopts import App, Parameter

from interlock import wire
from interlock.cli import ids, output
from interlock.cli.atomic_file import atomic_write
from interlock.cli.runner import Anywhere, run
from interlock.domain.artifact import Artifact
from interlock.domain.principal import Principal
from interlock.engine.artifacts import MAX_PAGE_SIZE
from interlock.engine.engine import Engine
from interlock.errors import Invalid
from interlock.wire.encode import artifact_to_dict

app = App(name="artifacts", help="List and download the artifacts of jobs.")
NOTHING = Anywhere()


@app.command(name="list")
def list_(
    job_id: str,
    *,
    limit: Annotated[int, Parameter(help="1 to 200")] = 50,
    before: Annotated[str | None, Parameter(help="only artifacts older than this one, to page on")] = None,
    common: Anywhere = NOTHING,
) -> None:
    """List the artifacts of a job, newest first."""

    async def command(engine: Engine, who: Principal) -> list[Artifact]:
        id = await ids.job(engine, who, job_id)
        last = None if before is None else await _named(engine, who.tenant, id, before)
        place = None if last is None else (last.created_at, last.id)
        return await engine.artifacts.list(who.tenant, id, before=place, limit=limit)

    found = run(common, command)
    if common.json:
        output.print_json({"items": [artifact_to_dict(one) for one in found]})
    elif not found:
        output.print_line("no artifacts")
    else:
        output.table(
            ("id", "name", "size", "type", "added", "url"),
            ((a.id, a.name, a.size, a.content_type, wire.when(a.created_at)[:19] + "Z", a.url) for a in found),
        )


@app.command
def get(
    job_id: str,
    artifact: str,
    *,
    to: Annotated[
        Path | None, Parameter(name=["--output", "-o"], help="write to FILE (atomically) instead of standard output")
    ] = None,
    common: Anywhere = NOTHING,
) -> None:
    """Download a file of a job by name or ID, and verify its hash.

    Parameters
    ----------
    artifact
        The name or ID. A name is never used as a path: set the target with --output.
    """

    async def command(engine: Engine, who: Principal) -> Artifact:
        if to is None and (common.json or sys.stdout.isatty()):
            raise Invalid("standard output is a terminal, or prints JSON: use --output FILE", pointer="/output")
        found = await _named(engine, who.tenant, await ids.job(engine, who, job_id), artifact)
        if to is None:
            await _copy(engine, who.tenant, found, sys.stdout.buffer)
        else:
            with atomic_write(to) as file:
                await _copy(engine, who.tenant, found, file)
        return found

    found = run(common, command)
    if common.json:
        output.print_json(artifact_to_dict(found) | {"output": str(to)})
    elif to is not None:
        output.print_line(f"{to}: {output.counted(found.size or 0, 'byte')}, sha256 {(found.sha256 or b'').hex()}")


async def _named(engine: Engine, tenant: str, job_id: str, artifact: str) -> Artifact:
    """The artifact with this name or ID, else the only one whose ID ends with these characters."""
    place: tuple[int, str] | None = None
    ending: list[Artifact] = []
    while page := await engine.artifacts.list(tenant, job_id, before=place, limit=MAX_PAGE_SIZE):
        for one in page:
            if artifact in (one.name, one.id):
                return one
        ending += [one for one in page if ids.ends(one.id, artifact)]
        place = (page[-1].created_at, page[-1].id)
    id = ids.only(artifact, [one.id for one in ending], "artifact")
    return next(one for one in ending if one.id == id)


async def _copy(engine: Engine, tenant: str, found: Artifact, file: BinaryIO) -> None:
    done = 0
    download = await engine.artifacts.read(tenant, found.job_id, found.id)
    with output.progress("fetched", unit="bytes") as report:
        async with aclosing(download.chunks) as chunks:
            async for chunk in chunks:
                file.write(chunk)
                done += len(chunk)
                report(done)
    file.flush()
