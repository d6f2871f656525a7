"""`interlock schedules`: list, show, set, delete, pause, resume, run, preview."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from cyclopts import App, Parameter

from interlock import wire
from interlock.cli.runner import ANYWHERE, Anywhere, Limit, run, timed
from interlock.client.port import Client
from interlock.domain.schedule import CatchUp, Overlap, Schedule
from interlock.domain.timestamps import when
from interlock.wire.job import job_to_dict
from interlock.wire.schedule import ScheduleRequest, schedule_to_dict

app = App(name="schedules", help="Enqueue jobs at times: by a cron expression or at an interval.")


@app.default
@app.command(name="list")
def list_(
    *,
    limit: Limit = 50,
    after: Annotated[str, Parameter(help="list only schedules after this name, to continue a list")] = "",
    common: Anywhere = ANYWHERE,
) -> None:
    """List schedules by name."""
    found = run(common, lambda client: client.schedules.list(after=after, limit=limit))
    common.show_list(
        "schedules",
        found,
        schedule_to_dict,
        ("name", "when", "type", "next", "last", "last job"),
        lambda one: (one.name, one.phrase, one.type, _next(one), _time(one.last_at), one.last_job_id or ""),
    )


@app.command
def show(name: str, *, common: Anywhere = ANYWHERE) -> None:
    """Print one schedule."""
    common.show_facts(schedule_to_dict(run(common, lambda client: client.schedules.get(name))))


@app.command(name="set")
def set_(
    name: str,
    *,
    job: Annotated[str, Parameter(help='JSON of the job, as for POST /v1/jobs: {"type": "report", "payload": {}}')],
    cron: Annotated[str | None, Parameter(help="five fields: minute hour day month weekday")] = None,
    every: Annotated[float | None, Parameter(help="seconds between ticks, instead of --cron")] = None,
    timezone: Annotated[str, Parameter(help="IANA time zone of --cron, such as Europe/Berlin")] = "UTC",
    overlap: Annotated[
        Overlap,
        Parameter(help="while the previous job is not terminal: allow another one, skip the tick, or cancel it"),
    ] = Overlap.ALLOW,
    catch_up: Annotated[
        CatchUp, Parameter(help="missed ticks that create a job: none, the last one, or all")
    ] = CatchUp.NONE,
    jitter: Annotated[float, Parameter(help="delay each job by up to this many seconds")] = 0,
    starts_at: Annotated[datetime | None, Parameter(help="no tick is earlier; with an offset")] = None,
    ends_at: Annotated[datetime | None, Parameter(help="no tick is later; with an offset")] = None,
    common: Anywhere = ANYWHERE,
) -> None:
    """Create or update a schedule. An update keeps its last tick."""

    async def put(client: Client) -> Schedule:
        request = ScheduleRequest(
            job=wire.job_request(wire.json_object(job, what="job")),
            cron=cron,
            every_seconds=every,
            timezone=timezone,
            overlap=overlap,
            catch_up=catch_up,
            jitter_seconds=jitter,
            starts_at=starts_at,
            ends_at=ends_at,
        )
        return await client.schedules.set(name, request)

    made = run(common, put)
    common.show(schedule_to_dict(made), f"{name}: next tick {_next(made)}")


@app.command
def delete(name: str, *, common: Anywhere = ANYWHERE) -> None:
    """Delete a schedule. Jobs that it created remain."""
    run(common, lambda client: client.schedules.delete(name))
    common.show({"deleted": name}, f"{name}: deleted")


@app.command
def pause(name: str, *, common: Anywhere = ANYWHERE) -> None:
    """Pause a schedule."""
    common.show(schedule_to_dict(run(common, lambda client: client.schedules.pause(name))), f"{name}: paused")


@app.command
def resume(name: str, *, common: Anywhere = ANYWHERE) -> None:
    """Resume a schedule. Its catch-up setting determines whether missed ticks run."""
    resumed = run(common, lambda client: client.schedules.resume(name))
    common.show(schedule_to_dict(resumed), f"{name}: next tick {_next(resumed)}")


@app.command(name="run")
def run_(name: str, *, common: Anywhere = ANYWHERE) -> None:
    """Enqueue the job of a schedule now; its ticks do not change."""
    job, now = timed(common, lambda client: client.schedules.run(name))
    common.show(job_to_dict(job, now=now), job.id)


@app.command
def preview(
    name: str, *, n: Annotated[int, Parameter(help="number of ticks, 1 to 100")] = 10, common: Anywhere = ANYWHERE
) -> None:
    """Print the next ticks of a schedule."""
    ticks = [when(tick) for tick in run(common, lambda client: client.schedules.preview(name, n))]
    common.show_list("more ticks", ticks, lambda tick: tick, ("tick",), lambda tick: (tick,))


def _next(one: Schedule) -> str:
    return "paused" if one.paused_at is not None else _time(one.next_at) or "none"


def _time(at: int | None) -> str:
    return "" if at is None else when(at)
