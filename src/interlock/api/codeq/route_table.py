"""All routes of the codeQ adapter."""

from __future__ import annotations

from interlock.api.codeq import admin, subscriptions, tasks, worker_routes
from interlock.api.routes import Route


def routes() -> list[Route]:
    return [*tasks.routes, *worker_routes.routes, *subscriptions.routes, *admin.routes]
