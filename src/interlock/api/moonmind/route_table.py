"""All routes of the MoonMind adapter."""

from __future__ import annotations

from interlock.api.moonmind import artifacts, events, jobs, tokens, tools
from interlock.api.routes import Route


def routes() -> list[Route]:
    return [*jobs.routes, *artifacts.routes, *events.routes, *tokens.routes, *tools.routes]
