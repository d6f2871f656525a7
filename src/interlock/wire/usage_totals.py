"""Totals of usage in JSON."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, UnsetType

from interlock.domain.usage_totals import UsageTotal
from interlock.wire import responses


class UsageTotalShape(responses.Shape, frozen=True, kw_only=True):
    """The usage of the jobs of one type, agent, day or tree; `agent` is null for the jobs without one."""

    type: str | UnsetType = UNSET
    agent: responses.Agent | UnsetType | None = UNSET
    day: str | UnsetType = UNSET
    tree: str | UnsetType = UNSET
    jobs: int
    usage: dict[str, float]


def usage_total_to_dict(found: UsageTotal) -> dict[str, Any]:
    """Serialize a total with the member that it is by."""
    sums = {"jobs": found.jobs, "usage": dict(found.usage)}
    for name in ("type", "day", "tree"):
        if (value := getattr(found, name)) is not None:
            return {name: value, **sums}
    return {"agent": None if found.agent is None else {"kind": found.agent[0], "id": found.agent[1]}, **sums}
