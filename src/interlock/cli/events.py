"""`interlock jobs tail|wait`: follow the events of jobs and wait for their completion."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from interlock import wire
from interlock.cli import ids, output
from interlock.cli.runner import UNSUCCESSFUL, Anywhere, run
from interlock.domain import json_text
from interlock.domain.job import Job
from interlock.domain.lifecycle import TERMINAL, Status
from interlock.domain.principal import Principal
from interlock.domain.progress import EventRow
from interlock.engine.completion import MAX_WAIT_SECONDS
from interlock.engine.engine import Engine
from interlock.wire.job import job_to_dict

NOTHING = Anywhere()


def tail(
    job_id: str | None = None,
    *,
    after: Annotated[int, Parameter(help="only events of the job after this seq")] = 0,
    common: Anywhere = NOTHING,
) -> None:
    """Print events as they arrive: of one job until it is terminal, or of all jobs. JSON lines with --json.

    Parameters
    ----------
    job_id
        The job, by ID or its last 8 or more characters; default: all jobs.
    """

    async def command(engine: Engine, who: Principal) -> None:
        if job_id is not None:
            async for page in engine.progress.tail(who.tenant, await ids.job(engine, who, job_id), after=after):
                _print(page, common, with_job=False)
            return
        async for fed in engine.progress.follow(who.tenant, await engine.progress.feed_end(who.tenant)):
            _print([one.event for one in fed], common, with_job=True)

    run(common, command)


def wait(
    job_id: str,
    *,
    timeout: Annotated[
        float | None, Parameter(help="maximum seconds to wait; default: until the job is terminal")
    ] = None,
    common: Anywhere = NOTHING,
) -> None:
    """Wait until a job is terminal and print its result. Exit code 6 if it did not succeed in time."""

    async def command(engine: Engine, who: Principal) -> tuple[Job, int]:
        id = await ids.job(engine, who, job_id)
        left = wire.seconds(timeout, "timeout", 0, wire.MAX_DELAY_SECONDS)
        with output.progress("waited", unit="s") as report:
            waited = 0.0
            while True:
                turn = MAX_WAIT_SECONDS if left is None else min(MAX_WAIT_SECONDS, left - waited)
                job = await engine.waits.ended(who.tenant, id, wait_seconds=turn)
                waited += turn
                if job.status in TERMINAL or (left is not None and waited >= left):
                    return job, await engine.queries.now()
                report(round(waited))

    job, now = run(common, command)
    if common.json:
        output.print_json(job_to_dict(job, now=now))
    elif job.status is Status.SUCCEEDED:
        output.print_line(job.result if job.result is not None else "null")
    else:
        print(f"interlock: {output.escape_control(_ending(job))}", file=sys.stderr)
    if job.status is not Status.SUCCEEDED:
        sys.exit(UNSUCCESSFUL)


def _ending(job: Job) -> str:
    if job.status not in TERMINAL:
        return f"job {job.id} is not terminal yet: it is {job.status}"
    why = job.cancel_reason
    if job.error is not None:
        why = str(json_text.loads(job.error).get("message", ""))
    return f"job {job.id} is {job.status}" + (f": {why}" if why else "")


def _print(rows: list[EventRow], common: Anywhere, *, with_job: bool) -> None:
    for row in rows:
        if common.json:
            payload = None if row.payload is None else msgspec.Raw(row.payload.encode())
            times = {"at": wire.when(row.at), "received_at": wire.when(row.received_at)}
            encoded: dict[str, Any] = row._asdict() | {"payload": payload} | times
            sys.stdout.write(output.json_line(encoded))
        else:
            parts = [wire.when(row.at), *([row.job_id] if with_job else []), f"{row.level:<5}", row.message]
            output.print_line(" ".join([*parts, *([row.payload] if row.payload else [])]))
    sys.stdout.flush()
