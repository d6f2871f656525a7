"""The native API."""

from __future__ import annotations

from interlock.api.native import (
    approvals,
    artifacts,
    budgets,
    channels,
    effects,
    jobs,
    limits,
    messages,
    operations,
    progress,
    queues,
    registry,
    schedules,
    streams,
    subscriptions,
    tokens,
    usage,
    work,
)
from interlock.api.routes import Route


def routes() -> list[Route]:
    """Return every route of the native API, in the order of the documentation."""
    modules = (
        jobs, operations, work, progress, messages, streams, effects, artifacts, approvals, queues, registry, schedules,
        limits, budgets, usage, subscriptions, channels, tokens,
    )  # fmt: skip
    return [route for module in modules for route in module.routes]
