"""Budgets: named amounts that the jobs which name them may use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from interlock import wire
from interlock.domain import limits
from interlock.domain.amounts import rounded
from interlock.domain.budget import MAX_NAME_LENGTH, PREFIX, TREE, BudgetState, OnExceed
from interlock.domain.job_tree import trees_of
from interlock.domain.limits import LimitState
from interlock.domain.principal import Principal
from interlock.engine.spent_budgets import withdraw
from interlock.errors import Invalid, NotFound
from interlock.storage.contract import Store
from interlock.wire.budgets import BudgetRequest, budget_from

MAX_PAGE_SIZE: Final = 200
DUE_READ: Final = 20  # due jobs that are read to find one that a budget refuses


class Budgets:
    """Operations on budgets."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def set(self, who: Principal, name: str, request: BudgetRequest) -> BudgetState:
        """Create or update a budget. What was spent stays."""
        if len(wire.name(name, "name")) > MAX_NAME_LENGTH:
            raise Invalid(f"name is too long: expected at most {MAX_NAME_LENGTH} characters", pointer="/name")
        limit = limits.check(budget_from(name, request))
        made = await self._store.limits.set(who.tenant, limit, actor=who.actor)
        if request.on_exceed is not OnExceed.ASK:
            await withdraw(self._store, who.tenant, name, actor=who.actor)
        return await self._state(who.tenant, made)

    async def get(self, tenant: str, name: str) -> BudgetState:
        return await self._state(tenant, _found(await self._store.limits.get(tenant, PREFIX + name), name))

    async def page(self, tenant: str, *, after: str = "", limit: int = 50) -> list[BudgetState]:
        """List budgets by name, starting after `after`."""
        wire.whole(limit, "limit", 1, MAX_PAGE_SIZE)
        found = await self._store.limits.page(tenant, after=PREFIX + after, limit=limit, budgets=True)
        return [await self._state(tenant, one) for one in found]

    async def raise_by(self, who: Principal, name: str, amount: Mapping[str, float]) -> BudgetState:
        """Add to the amount of a budget; its waiting jobs continue as far as that goes."""
        return await self._raise(who, PREFIX + name, amount, name, "budget")

    async def of_job(self, tenant: str, job_id: str) -> BudgetState:
        """Return the budget of the tree that a job belongs to; of nested trees, the innermost."""
        name = await self._tree(tenant, job_id)
        return await self._state(tenant, _found(await self._store.limits.get(tenant, name), job_id, "job budget"))

    async def refuses(self, tenant: str, name: str) -> bool:
        """Return whether a budget refuses one of its due jobs until it is raised or starts anew."""
        return bool(await self._store.limits.refused(tenant, PREFIX + name, DUE_READ))

    async def spent_trees(self, tenant: str, *, limit: int = 50) -> list[tuple[str, BudgetState]]:
        """List the trees of jobs whose budget refuses a job, by the ID of the root."""
        names = await self._store.limits.spent_trees(tenant, wire.whole(limit, "limit", 1, MAX_PAGE_SIZE))
        found = [(name.removeprefix(TREE), await self._store.limits.get(tenant, name)) for name in names]
        return [(root, await self._state(tenant, one)) for root, one in found if one is not None]

    async def raise_of_job(self, who: Principal, job_id: str, amount: Mapping[str, float]) -> BudgetState:
        """Add to the budget of the tree that a job belongs to."""
        name = await self._tree(who.tenant, job_id)
        return await self._raise(who, name, amount, job_id, "job budget")

    async def _tree(self, tenant: str, job_id: str) -> str:
        (job,) = await self._store.get(tenant, [wire.job_id(job_id)])
        if job is None:
            raise NotFound(job_id)
        if not (trees := trees_of(job.limits)):
            raise NotFound(job_id, resource="job budget", hint="neither the job nor an ancestor was enqueued with one")
        return str(trees[-1]["name"])

    async def _raise(
        self, who: Principal, name: str, amount: Mapping[str, float], named: str, resource: str
    ) -> BudgetState:
        if not amount:
            raise Invalid("amount is empty: expected an amount of at least one unit", pointer="/amount")
        raised = await self._store.limits.raise_budget(who.tenant, name, amount, actor=who.actor)
        return await self._state(who.tenant, _found(raised, named, resource))

    async def delete(self, who: Principal, name: str) -> None:
        """Delete a budget that no unfinished job names."""
        if not await self._store.limits.delete(who.tenant, PREFIX + name, actor=who.actor):
            raise NotFound(name, resource="budget")
        await withdraw(self._store, who.tenant, name, actor=who.actor)

    async def _state(self, tenant: str, found: LimitState) -> BudgetState:
        limit, state, reserved = found
        period = limit.budget
        assert period is not None
        now = await self._store.now()
        held = {unit: rounded(reserved.get(unit, 0.0)) for unit in limit.units}
        spent = {
            unit: rounded(amount - state.available[unit] - held[unit], of=amount)
            for unit, amount in limit.units.items()
        }
        return BudgetState(
            limit.name.removeprefix(PREFIX), limit.units, period.per, period.timezone, period.on_exceed,
            spent, held, state.available, state.used, state.waiting, period.resets_at(now),
            limit.created_at, limit.updated_at,
        )  # fmt: skip


def _found(kept: LimitState | None, name: str, resource: str = "budget") -> LimitState:
    if kept is None:
        raise NotFound(name, resource=resource)
    return kept
