"""Totals of usage."""

from __future__ import annotations

from datetime import datetime

from interlock.api.native.pagination import Page, cursor_position, page
from interlock.api.routes import RequestContext, Response, RouteTable
from interlock.domain.usage_totals import By
from interlock.wire import responses
from interlock.wire.usage_totals import UsageTotalShape, usage_total_to_dict

routes = RouteTable()


class UsageTotalPage(responses.Shape, frozen=True, kw_only=True):
    """Totals of usage, by the member that they are by."""

    items: list[UsageTotalShape]
    next_cursor: str | None


class UsageQuery(Page, frozen=True, kw_only=True, rename={"since": "from", "until": "to"}):
    """What usage is summed by, and when the jobs finished: by default in the last 30 days, at most in 366."""

    by: By = By.TYPE
    since: datetime | None = None
    until: datetime | None = None


@routes.add("GET", "/v1/usage", roles=["read"], query=UsageQuery, answers={200: UsageTotalPage})
async def list_usage(call: RequestContext[None, UsageQuery]) -> Response:
    """Sum the usage of finished jobs by type, agent, day in UTC, or tree of jobs."""
    asked, scope = call.query, f"usage {call.query.by}"
    at = cursor_position(call, scope)
    found = await call.engine.usage.page(
        call.who.tenant, asked.by, since=asked.since, until=asked.until,
        after=None if at is None else (str(at[0]), str(at[1])), limit=asked.limit,
    )  # fmt: skip
    return page(
        call, scope, [usage_total_to_dict(one) for one in found], more=len(found) == asked.limit,
        end=[*found[-1].key] if found else [],
    )  # fmt: skip
