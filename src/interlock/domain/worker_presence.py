"""Worker presence, recorded when workers poll. It is only diagnostic: no decision depends on it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from interlock.domain.policy import ClaimFilter, Names

# A worker counts as present for this long after it polled, and while it holds a lease that has not expired.
LATELY_SECONDS: Final = 60.0


class WorkerSeen(NamedTuple):
    """A worker that has just polled, and all its recent claim filters."""

    worker: str
    asks: tuple[ClaimFilter, ...]


class Presence(NamedTuple):
    """A worker, when it last polled and what it runs now; the times are None if only its leases are known."""

    name: str
    asks: tuple[ClaimFilter, ...]
    first_seen_at: int | None
    last_seen_at: int | None
    running: int
    job_ids: Sequence[str]  # only the first ones


class EligibleWorkers(NamedTuple):
    """Present workers with the same claim filters."""

    asks: tuple[ClaimFilter, ...]
    names: tuple[str, ...]  # some of them, most recently seen first
    size: int
    last_seen_at: int


def wanted(ask: ClaimFilter) -> ClaimFilter:
    """Return the filter of a claim without its worker, limit and lease duration."""
    return ClaimFilter("", ask.types, ask.repositories, ask.capabilities, ask.affinity_keys)


def filters_to_text(asks: Iterable[ClaimFilter]) -> str:
    """Serialize claim filters; equal filters always give the same text."""
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
    """Serialize a claim filter; null means any."""
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
