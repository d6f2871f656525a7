"""Budgets, which jobs name."""

from __future__ import annotations

from interlock.api import auth
from interlock.api.native.pagination import Page, cursor_position, page
from interlock.api.routes import Nothing, Request, RequestContext, Response, RouteTable, respond
from interlock.wire import responses
from interlock.wire.budgets import BudgetRequest, BudgetShape, JobBudgetShape, budget_to_dict, job_budget_to_dict

routes = RouteTable()


class BudgetPage(responses.Shape, frozen=True, kw_only=True):
    """Budgets, by name."""

    items: list[BudgetShape]
    next_cursor: str | None


class Raise(Request, frozen=True, kw_only=True):
    """What is added to the amount of a budget."""

    amount: dict[str, float]


@routes.add("PUT", "/v1/budgets/{name}", roles=["admin"], body=BudgetRequest, answers={200: BudgetShape})
async def set_budget(call: RequestContext[BudgetRequest, Nothing]) -> Response:
    """Create or update a budget. What was spent stays."""
    return respond(budget_to_dict(await call.engine.budgets.set(call.who, call.path["name"], call.body)))


@routes.add("GET", "/v1/budgets", roles=["read"], query=Page, answers={200: BudgetPage})
async def list_budgets(call: RequestContext[None, Page]) -> Response:
    """List budgets by name."""
    at, limit = cursor_position(call, "budgets"), call.query.limit
    found = await call.engine.budgets.page(call.who.tenant, after="" if at is None else str(at[0]), limit=limit)
    return page(
        call, "budgets", [budget_to_dict(one) for one in found], more=len(found) == limit,
        end=[one.name for one in found[-1:]],
    )  # fmt: skip


@routes.add("GET", "/v1/budgets/{name}", roles=["read"], answers={200: BudgetShape})
async def get_budget(call: RequestContext[None, Nothing]) -> Response:
    """Return a budget and what was spent of it."""
    return respond(budget_to_dict(await call.engine.budgets.get(call.who.tenant, call.path["name"])))


@routes.add("POST", "/v1/budgets/{name}/raise", roles=["operate"], body=Raise, answers={200: BudgetShape})
async def raise_budget(call: RequestContext[Raise, Nothing]) -> Response:
    """Add to the amount of a budget. Its waiting jobs continue as far as that goes."""
    return respond(budget_to_dict(await call.engine.budgets.raise_by(call.who, call.path["name"], call.body.amount)))


@routes.add("DELETE", "/v1/budgets/{name}", roles=["admin"], answers={204: None})
async def delete_budget(call: RequestContext[None, Nothing]) -> Response:
    """Delete a budget that no unfinished job names."""
    await call.engine.budgets.delete(call.who, call.path["name"])
    return Response(204, media_type="")


@routes.add(
    "GET", "/v1/jobs/{job_id}/budget", roles=["read"], on_condition=["work"], answers={200: JobBudgetShape}
)  # fmt: skip
async def get_job_budget(call: RequestContext[None, Nothing]) -> Response:
    """Return the budget of the tree that a job belongs to, and what was spent of it."""
    job = await auth.readable(call)
    return respond(job_budget_to_dict(await call.engine.budgets.of_job(call.who.tenant, job.id)))


@routes.add("POST", "/v1/jobs/{job_id}/budget/raise", roles=["operate"], body=Raise, answers={200: JobBudgetShape})
async def raise_job_budget(call: RequestContext[Raise, Nothing]) -> Response:
    """Add to the budget of the tree that a job belongs to. Its waiting jobs continue as far as that goes."""
    return respond(job_budget_to_dict(await call.engine.budgets.raise_of_job(call.who, call.job_id, call.body.amount)))
