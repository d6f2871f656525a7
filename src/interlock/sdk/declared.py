"""Agents, limits, budgets and schedules that code declares, and their comparison with the registry."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import msgspec

from interlock.client.port import BudgetRequest, Client, LimitRequest, ScheduleRequest
from interlock.domain.budget import BudgetState
from interlock.domain.limits import Limit
from interlock.domain.schedule import CatchUp, Overlap
from interlock.errors import NotFound
from interlock.sdk.exceptions import in_seconds
from interlock.sdk.limit_requests import checked_limit
from interlock.sdk.tasks import Task
from interlock.sdk.values import Agent, Cron, Defaults, Schedule, value_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """A declared object that the registry has with other values: the members that differ.

    `kind` is `agent`, `limit`, `budget` or `schedule`.
    """

    kind: str
    name: str
    declared: Mapping[str, Any]
    registered: Mapping[str, Any]


class Declared(Protocol):
    """An object that code declares under a name."""

    async def register(self, client: Client, *, overwrite: bool) -> Disagreement | None:
        """Register the object if it is absent; else compare it."""
        ...


class DeclaredAgent(NamedTuple):
    """An agent that code declares."""

    kind: str
    id: str
    max_concurrency: int | None
    strict: bool
    defaults: Defaults

    async def register(self, client: Client, *, overwrite: bool) -> Disagreement | None:
        """Register the agent if it is absent or was only created by a job; else compare it."""
        try:
            found = value_of(Agent, await client.agents.get(self.kind, self.id))
        except NotFound:
            found = None
        mine = self._members(self.max_concurrency, self.strict, self.defaults)
        theirs = None if found is None else self._members(found.max_concurrency, found.strict, found.defaults)
        if theirs == mine:
            return None
        if found is None or theirs is None or found.implicit or overwrite:
            await client.agents.set(
                self.kind, self.id, max_concurrency=self.max_concurrency, strict=self.strict,
                defaults=self.defaults.to_json() or None,
            )  # fmt: skip
            return None
        return _difference("agent", f"{self.kind}/{self.id}", mine, theirs)

    @staticmethod
    def _members(max_concurrency: int | None, strict: bool, defaults: Defaults) -> dict[str, Any]:
        return {"max_concurrency": max_concurrency, "strict": strict, "defaults": defaults.to_json()}


class DeclaredLimit(NamedTuple):
    """A limit that code declares."""

    name: str
    request: LimitRequest

    async def register(self, client: Client, *, overwrite: bool) -> Disagreement | None:
        try:
            theirs = self._members((await client.limits.get(self.name)).limit)
        except NotFound:
            theirs = None
        mine = self._members(checked_limit(self.name, self.request))
        if theirs == mine:
            return None
        if theirs is None or overwrite:
            await client.limits.set(self.name, self.request)
            return None
        return _difference("limit", self.name, mine, theirs)

    @staticmethod
    def _members(limit: Limit) -> dict[str, Any]:
        return {
            "concurrency": limit.concurrency, "rate": {**limit.units} or None,
            "per": limit.per_seconds if limit.units else None, "burst": {**limit.burst} or None, "keyed": limit.keyed,
            "fair": limit.fair, "weights": {**limit.weights},
        }  # fmt: skip


class DeclaredBudget(NamedTuple):
    """A budget that code declares."""

    name: str
    request: BudgetRequest

    async def register(self, client: Client, *, overwrite: bool) -> Disagreement | None:
        try:
            theirs = self._members(await client.budgets.get(self.name))
        except NotFound:
            theirs = None
        mine = self._members(self.request)
        if theirs == mine:
            return None
        if theirs is None or overwrite:
            await client.budgets.set(self.name, self.request)
            return None
        return _difference("budget", self.name, mine, theirs)

    @staticmethod
    def _members(budget: BudgetRequest | BudgetState) -> dict[str, Any]:
        return {
            "amount": {**budget.amount}, "per": None if budget.per is None else str(budget.per),
            "timezone": budget.timezone, "on_exceed": str(budget.on_exceed),
        }  # fmt: skip


async def register_schedule(
    client: Client, task: Task[..., Any], cron: Cron, *, overwrite: bool
) -> Disagreement | None:
    """Register the schedule of a task, under the name of the task, if it is absent; else compare it."""
    request = ScheduleRequest(
        job=task._request((), {}), cron=cron.expression, timezone=cron.timezone, overlap=Overlap(cron.overlap),
        catch_up=CatchUp(cron.catch_up), jitter_seconds=in_seconds(cron.jitter) or 0, starts_at=cron.starts_at,
        ends_at=cron.ends_at,
    )  # fmt: skip
    try:
        found = value_of(Schedule, await client.schedules.get(task.name))
    except NotFound:
        await client.schedules.set(task.name, request)
        return None
    mine = {
        "cron": cron.expression, "every": None, "timezone": cron.timezone, "overlap": request.overlap,
        "catch_up": request.catch_up, "jitter": request.jitter_seconds, "starts_at": cron.starts_at,
        "ends_at": cron.ends_at, "job": json.loads(msgspec.json.encode(request.job)),
    }  # fmt: skip
    theirs = {name: getattr(found, name) for name in mine} | {"jitter": found.jitter.total_seconds()}
    if mine == theirs:
        return None
    if overwrite:
        await client.schedules.set(task.name, request)
        return None
    return _difference("schedule", task.name, mine, theirs)


def _difference(kind: str, name: str, declared: dict[str, Any], registered: dict[str, Any]) -> Disagreement:
    differing = [member for member in declared if declared[member] != registered[member]]
    return Disagreement(
        kind=kind,
        name=name,
        declared={member: declared[member] for member in differing},
        registered={member: registered[member] for member in differing},
    )
