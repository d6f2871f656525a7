"""Workers as they show themselves by asking for work. What is kept of them explains; nothing depends on it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from interlock.domain.policy import ClaimFilter, Names

# A worker counts as there for this long after it asked, and for as long as it holds a lease that has not run out.
LATELY_SECONDS: Final = 60.0


class WorkerSeen(NamedTuple):
    """A worker that has just asked for work, and everything it has asked for lately."""

    worker: str
    asks: tuple[ClaimFilter, ...]


class Presence(NamedTuple):
    """A worker as it was last seen, and what it runs now; one that only leases tell of was never seen asking."""

    name: str
    asks: tuple[ClaimFilter, ...]
    first_seen_at: int | None
    last_seen_at: int | None
    running: int
    job_ids: Sequence[str]  # the first of them


class EligibleWorkers(NamedTuple):
    """Workers that are there and ask for the same."""

    asks: tuple[ClaimFilter, ...]
    names: tuple[str, ...]  # some of them, the last seen first
    size: int
    last_seen_at: int


def wanted(ask: ClaimFilter) -> ClaimFilter:
    """What an ask says of jobs, without who asks, how many and for how long."""
    return ClaimFilter("", ask.types, ask.repositories, ask.capabilities, ask.affinity_keys)


def filters_to_text(asks: Iterable[ClaimFilter]) -> str:
    """Asks as JSON; the same asks always give the same text."""
    return json.dumps(sorted((filter_to_dict(ask) for ask in asks), key=json.dumps), separators=(",", ":"))


def filters_from_text(text: str) -> tuple[ClaimFilter, ...]:
    return tuple(
        ClaimFilter(
            "", _names(one["types"]), _names(one["repositories"]), frozenset(one["capabilities"]),
            _names(one["affinity_keys"]),
        )
        for one in json.loads(text)
    )  # fmt: skip


def filter_to_dict(ask: ClaimFilter) -> dict[str, list[str] | None]:
    """What an ask says of jobs, as JSON shows it; null means any."""
    return {
        "types": _list(ask.types),
        "repositories": _list(ask.repositories),
        "capabilities": sorted(ask.capabilities),
        "affinity_keys": _list(ask.affinity_keys),
    }


def _list(names: Names | None) -> list[str] | None:
    return None if names is None else sorted(names)


def _names(value: list[str] | None) -> Names | None:
    return None if value is None else frozenset(value)
