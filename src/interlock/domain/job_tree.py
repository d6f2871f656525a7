"""Budgets of trees: what a job and all its descendants may use together.

A tree's budget is stored as a limit named by its root. Every job of the tree names it among its limits, with the root
as its key. Named budgets are stored there too; users see both apart from limits.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from interlock.domain.budget import MAX_TREES_OF_JOB, PREFIX, TREE, Period
from interlock.domain.job import NewJob
from interlock.domain.limits import Limit
from interlock.errors import Invalid


def budget_of(root_id: str, amounts: str) -> Limit:
    """Return the budget of a tree as a limit; the amounts are JSON."""
    units = json.loads(amounts)
    return Limit(TREE + root_id, units=units, burst=units, budget=Period())


def trees_of(limits: str | None) -> list[dict[str, Any]]:
    """Return the entries of trees among the limits of a job, the outermost first."""
    found = [] if limits is None or TREE not in limits else json.loads(limits)
    return [one for one in found if one["name"].startswith(TREE)]


class Shares(NamedTuple):
    """What a job shares with others: limits as JSON, budgets by name, and trees with a budget by their root."""

    limits: str | None
    budgets: tuple[str, ...] = ()
    budget_roots: tuple[str, ...] = ()

    def stored(self) -> str | None:
        """Return them as stored with a job, without costs of budgets."""
        names = [PREFIX + name for name in self.budgets]
        if not names and not self.budget_roots:
            return self.limits
        entries = [] if self.limits is None else json.loads(self.limits)
        entries += [{"name": name, "key": None, "cost": {}} for name in names]
        entries += [{"name": TREE + root, "key": root, "cost": {}} for root in self.budget_roots]
        return json.dumps(entries, separators=(",", ":"))


def shares_of(stored: str | None) -> Shares:
    """Return what a job shares, from its limits as stored."""
    if not has_budget(stored):
        return Shares(stored)
    entries = json.loads(stored or "[]")
    limits = [one for one in entries if not one["name"].startswith((PREFIX, TREE))]
    names = [one["name"] for one in entries]
    return Shares(
        json.dumps(limits, separators=(",", ":")) if limits else None,
        tuple(name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX)),
        tuple(name.removeprefix(TREE) for name in names if name.startswith(TREE)),
    )


def has_budget(limits: str | None) -> bool:
    """Return whether a job has a budget, by name or of a tree."""
    return limits is not None and (f'"{PREFIX}' in limits or f'"{TREE}' in limits)


def may_be_in_tree(job: NewJob) -> bool:
    return job.parent_id is not None or job.budget is not None or bool(trees_of(job.limits))


def in_trees(jobs: Iterable[NewJob], limits_of: Mapping[str, str | None]) -> list[NewJob]:
    """Add to each new job the budgets of the trees that it belongs to; `limits_of` has the limits of their parents."""
    return [_in_trees(job, limits_of.get(job.parent_id or "")) for job in jobs]


def _in_trees(job: NewJob, parent: str | None) -> NewJob:
    outer = trees_of(parent)
    if not outer and job.budget is None and not trees_of(job.limits):
        return job
    entries = [] if job.limits is None else json.loads(job.limits)
    # A redriven job stays in the trees of the original, but not in the one that began with it.
    trees = [one for one in entries if one["name"].startswith(TREE) and one["name"] != TREE + (job.redrive_of or "")]
    entries = [one for one in entries if not one["name"].startswith(TREE)]
    uses = [one["cost"] for one in entries if not one["name"].startswith(PREFIX)]
    units = {one["name"]: list(one["cost"]) for one in (*trees, *outer)}
    if job.budget is not None:
        units[TREE + job.id] = list(json.loads(job.budget))
    if len(units) > MAX_TREES_OF_JOB:
        fault = Invalid(f"a job is in at most {MAX_TREES_OF_JOB} trees with a budget", pointer="/budget")
        return job._replace(fault=job.fault or fault)
    for name, names in units.items():
        cost = {unit: max((use.get(unit, 0.0) for use in uses), default=0.0) for unit in names}
        entries.append({"name": name, "key": name.removeprefix(TREE), "cost": cost})
    return job._replace(limits=json.dumps(entries, separators=(",", ":")) if entries else None)
