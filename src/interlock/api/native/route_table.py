"""Every route of the native API, in the order of the documentation."""

from __future__ import annotations

from interlock.api.native import (
    approvals,
    artifacts,
    claims,
    finishes,
    heartbeats,
    jobs,
    me,
    operations,
    progress,
    queues,
    registry,
    results,
    subscriptions,
    tokens,
)  # fmt: skip
from interlock.api.routes import Route


def routes() -> list[Route]:
    modules = (
        jobs, operations, results, claims, heartbeats, progress, artifacts, finishes, approvals, queues, registry,
        subscriptions, tokens, me,
    )  # fmt: skip
    return [route for module in modules for route in module.routes]
