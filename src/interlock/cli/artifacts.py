"""`interlock artifacts`: list, get."""

from __future__ import annotations

import sys
from contextlib import aclosing
from typing import Annotated, BinaryIO

from cyclopts import App, Parameter

from interlock.cli import ids, output
from interlock.cli.runner import ANYWHERE, Anywhere, Limit, run
from interlock.client.port import Client
from interlock.domain.artifact import Artifact
from interlock.errors import Invalid
from interlock.wire.encode import artifact_to_dict

app = App(name="artifacts", help="List and download the artifacts of jobs.")


@app.command(name="list")
def list_(
    job_id: str,
    *,
    limit: Limit = 50,
    before: Annotated[str | None, Parameter(help="only artifacts older than this one, to page on")] = None,
    common: Anywhere = ANYWHERE,
) -> None:
    """List the artifacts of a job, newest first."""

    async def command(client: Client) -> list[Artifact]:
        id = await ids.job(client, job_id)
        last = None if before is None else await _named(client, id, before)
        place = None if last is None else (last.created_at, last.id)
        return await client.artifacts.list(id, before=place, limit=limit)

    common.show_list(
        "artifacts",
        run(common, command),
        artifact_to_dict,
        ("id", "name", "size", "type", "added", "url"),
        lambda a: (a.id, a.name, a.size, a.content_type, output.time(a.created_at), a.url),
    )


@app.command
def get(
    job_id: str,
    artifact: str,
    *,
    to: output.To = None,
    common: Anywhere = ANYWHERE,
) -> None:
    """Download a file of a job by name or ID, and verify its hash.

    Parameters
    ----------
    artifact
        The name or ID. A name is never used as a path: set the target with --output.
    """

    async def command(client: Client) -> Artifact:
        if to is None and (common.json or sys.stdout.isatty()):
            raise Invalid("standard output is a terminal, or prints JSON: use --output FILE", pointer="/output")
        found = await _named(client, await ids.job(client, job_id), artifact)
        with output.destination(to) as file:
            await _copy(client, found, file)
        return found

    found = run(common, command)
    if common.json:
        output.print_json(artifact_to_dict(found) | {"output": str(to)})
    elif to is not None:
        output.print_line(f"{to}: {output.counted(found.size or 0, 'byte')}, sha256 {(found.sha256 or b'').hex()}")


async def _named(client: Client, job_id: str, artifact: str) -> Artifact:
    """Return the artifact with this name or ID, else the only one whose ID ends with these characters."""
    place: tuple[int, str] | None = None
    ending: list[Artifact] = []
    while page := await client.artifacts.list(job_id, before=place, limit=ids.PAGE):
        for one in page:
            if artifact in (one.name, one.id):
                return one
        ending += [one for one in page if ids.ends(one.id, artifact)]
        place = (page[-1].created_at, page[-1].id)
    id = ids.only(artifact, [one.id for one in ending], "artifact")
    return next(one for one in ending if one.id == id)


async def _copy(client: Client, found: Artifact, file: BinaryIO) -> None:
    done = 0
    download = await client.artifacts.read(found.job_id, found.id)
    with output.progress("fetched", unit="bytes") as report:
        async with aclosing(download.chunks) as chunks:
            async for chunk in chunks:
                file.write(chunk)
                done += len(chunk)
                report(done)
    file.flush()
