"""Schedules, which enqueue jobs at given times."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from interlock.api.native.pagination import Page, cursor_position, page
from interlock.api.routes import Nothing, Request, RequestContext, Response, RouteTable, respond
from interlock.domain.schedule import MAX_PREVIEW
from interlock.domain.timestamps import when
from interlock.wire import responses
from interlock.wire.job import job_to_dict
from interlock.wire.schedule import ScheduleRequest, ScheduleShape, Ticks, schedule_to_dict

routes = RouteTable()


class SchedulePage(responses.Shape, frozen=True, kw_only=True):
    """Schedules, by name."""

    items: list[ScheduleShape]
    next_cursor: str | None


class Preview(Request, frozen=True, kw_only=True):
    """The number of ticks to return."""

    n: Annotated[int, Meta(ge=1, le=MAX_PREVIEW)] = 10


@routes.add(
    "PUT",
    "/v1/schedules/{name}",
    roles=["operate"],
    body=ScheduleRequest,
    answers={200: ScheduleShape, 201: ScheduleShape},
)
async def set_schedule(call: RequestContext[ScheduleRequest, Nothing]) -> Response:
    """Create or update a schedule. An update keeps its last tick."""
    kept = await call.engine.schedules.set(call.who, call.path["name"], call.body)
    return respond(schedule_to_dict(kept), 201 if kept.version == 1 else 200)


@routes.add("GET", "/v1/schedules", roles=["read"], query=Page, answers={200: SchedulePage})
async def list_schedules(call: RequestContext[None, Page]) -> Response:
    """List schedules by name."""
    at, limit = cursor_position(call, "schedules"), call.query.limit
    found = await call.engine.schedules.page(call.who.tenant, after="" if at is None else str(at[0]), limit=limit)
    return page(
        call, "schedules", [schedule_to_dict(one) for one in found], more=len(found) == limit,
        end=[one.name for one in found[-1:]],
    )  # fmt: skip


@routes.add("GET", "/v1/schedules/{name}", roles=["read"], answers={200: ScheduleShape})
async def get_schedule(call: RequestContext[None, Nothing]) -> Response:
    """Return a schedule."""
    return respond(schedule_to_dict(await call.engine.schedules.get(call.who.tenant, call.path["name"])))


@routes.add("DELETE", "/v1/schedules/{name}", roles=["operate"], answers={204: None})
async def delete_schedule(call: RequestContext[None, Nothing]) -> Response:
    """Delete a schedule. Jobs that it created remain."""
    await call.engine.schedules.delete(call.who, call.path["name"])
    return Response(204, media_type="")


@routes.add(
    "POST",
    "/v1/schedules/{name}/pause",
    roles=["operate"],
    body=Nothing,
    body_optional=True,
    answers={200: ScheduleShape},
)
async def pause_schedule(call: RequestContext[Nothing, Nothing]) -> Response:
    """Pause a schedule."""
    return respond(schedule_to_dict(await call.engine.schedules.pause(call.who, call.path["name"])))


@routes.add(
    "POST",
    "/v1/schedules/{name}/resume",
    roles=["operate"],
    body=Nothing,
    body_optional=True,
    answers={200: ScheduleShape},
)
async def resume_schedule(call: RequestContext[Nothing, Nothing]) -> Response:
    """Resume a schedule; `catch_up` determines whether ticks missed during the pause run."""
    return respond(schedule_to_dict(await call.engine.schedules.resume(call.who, call.path["name"])))


@routes.add(
    "POST",
    "/v1/schedules/{name}/run",
    roles=["operate"],
    body=Nothing,
    body_optional=True,
    answers={201: responses.Job},
)
async def run_schedule(call: RequestContext[Nothing, Nothing]) -> Response:
    """Enqueue the job of a schedule now; its ticks do not change."""
    added = await call.engine.schedules.run(call.who, call.path["name"])
    now = await call.engine.queries.now()
    return respond(job_to_dict(added.job, now=now), 201, headers={"location": f"/v1/jobs/{added.job.id}"})


@routes.add("GET", "/v1/schedules/{name}/preview", roles=["read"], query=Preview, answers={200: Ticks})
async def preview_schedule(call: RequestContext[None, Preview]) -> Response:
    """Return the next ticks of a schedule, whether it is paused or not."""
    ticks = await call.engine.schedules.preview(call.who.tenant, call.path["name"], call.query.n)
    return respond({"items": [when(tick) for tick in ticks]})
