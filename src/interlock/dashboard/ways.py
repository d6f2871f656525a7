"""The pages that are led to from everywhere, and which of them somebody may look at."""

from __future__ import annotations

from typing import Final, NamedTuple

from interlock.domain.principal import Principal


class Way(NamedTuple):
    """A page that is on every page, for whoever has one of the roles; the key goes there after a g."""

    path: str
    name: str
    roles: frozenset[str]
    key: str


LOOKS: Final = frozenset({"read"})
DECIDES: Final = frozenset({"read", "approve"})
WAYS: Final = (
    Way("/", "Overview", LOOKS, "o"),
    Way("/jobs", "Jobs", LOOKS, "j"),
    Way("/approvals", "Approvals", DECIDES, "a"),
    Way("/queues", "Queues", LOOKS, "q"),
    Way("/agents", "Agents", LOOKS, "g"),
    Way("/workers", "Workers", LOOKS, "w"),
    Way("/webhooks", "Webhooks", frozenset({"operate"}), "h"),
    Way("/tokens", "Tokens", frozenset({"admin"}), "t"),
    Way("/audit", "Audit", frozenset({"admin"}), "u"),
)


def ways_of(who: Principal) -> list[Way]:
    """Where somebody may go; the first is where they begin."""
    return [way for way in WAYS if who.roles & way.roles]


def roles_that_look() -> str:
    """The roles that any page is for, in words."""
    *most, last = sorted(frozenset[str]().union(*(way.roles for way in WAYS)))
    return f"{', '.join(most)} or {last}"
