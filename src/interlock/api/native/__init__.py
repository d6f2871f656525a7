"""The native API."""

from __future__ import annotations

from interlock.api.native import (
    approvals,
    artifacts,
    jobs,
    operations,
    progress,
    queues,
    registry,
    schedules,
    subscriptions,
    tokens,
    work,
)
from interlock.api.routes import Route


def routes() -> list[Route]:
    """Return every route of the native API, in the order of the documentation."""
    modules = (
        jobs, operations, work, progress, artifacts, approvals, queues, registry, schedules, subscriptions, tokens,
    )  # fmt: skip
    return [route for module in modules for route in module.routes]
