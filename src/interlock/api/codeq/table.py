"""Every route of the codeQ face."""

from __future__ import annotations

from interlock.api.codeq import admin, subscriptions, tasks, work
from interlock.api.routes import Route


def routes() -> list[Route]:
    return [*tasks.routes, *work.routes, *subscriptions.routes, *admin.routes]
