"""Every route of the native API, in the order of the documentation."""

from __future__ import annotations

from interlock.api.native import claims, finishes, heartbeats, jobs, me, progress, queues, results
from interlock.api.routes import Route


def routes() -> list[Route]:
    modules = (jobs, results, claims, heartbeats, progress, finishes, queues, me)
    return [route for module in modules for route in module.routes]
