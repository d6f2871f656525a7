"""The navigation bar: its pages, and which of them a caller may open."""

from __future__ import annotations

from typing import Final, NamedTuple

from interlock.domain.principal import Principal


class NavigationItem(NamedTuple):
    """A page of the navigation bar; `g` and then `key` open it."""

    path: str
    name: str
    roles: frozenset[str]
    key: str


READ_ROLES: Final = frozenset({"read"})
APPROVAL_ROLES: Final = frozenset({"read", "approve"})
NAVIGATION: Final = (
    NavigationItem("/", "Overview", READ_ROLES, "o"),
    NavigationItem("/jobs", "Jobs", READ_ROLES, "j"),
    NavigationItem("/approvals", "Approvals", APPROVAL_ROLES, "a"),
    NavigationItem("/queues", "Queues", READ_ROLES, "q"),
    NavigationItem("/schedules", "Schedules", READ_ROLES, "s"),
    NavigationItem("/limits", "Limits", READ_ROLES, "l"),
    NavigationItem("/budgets", "Budgets", READ_ROLES, "b"),
    NavigationItem("/agents", "Agents", READ_ROLES, "g"),
    NavigationItem("/workers", "Workers", READ_ROLES, "w"),
    NavigationItem("/webhooks", "Webhooks", frozenset({"operate"}), "h"),
    NavigationItem("/tokens", "Tokens", frozenset({"admin"}), "t"),
    NavigationItem("/channels", "Notifications", frozenset({"admin"}), "n"),
    NavigationItem("/audit", "Audit", frozenset({"admin"}), "u"),
)


def navigation_for(who: Principal) -> list[NavigationItem]:
    """Return the pages that a caller may open; the first is the start page."""
    return [item for item in NAVIGATION if who.roles & item.roles]


def dashboard_roles() -> str:
    """Return the roles that open at least one page, as a phrase."""
    *most, last = sorted(frozenset[str]().union(*(item.roles for item in NAVIGATION)))
    return f"{', '.join(most)} or {last}"
