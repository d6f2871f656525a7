"""Claim policy: what a worker may claim, what one claim requests, and which jobs match."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from interlock.domain.json_text import NAME_RULE, is_visible_name
from interlock.errors import Invalid

Names = frozenset[str]
ANY = "*"
DEFAULT_LEASE_SECONDS = 60.0
MAX_LEASE_SECONDS = 3600.0
MAX_NAMES: Final = 1000
MAX_NEED_BYTES: Final = 1800  # the index limit of both engines, minus the longest tenant name


class Policy(NamedTuple):
    """What a worker's credential may claim; None means any, while absent capabilities mean none.

    A job without a repository can be claimed only by a worker that is not restricted to repositories.
    """

    types: Names | None = None
    repositories: Names | None = None
    capabilities: Names = frozenset()


class ClaimFilter(NamedTuple):
    """The filter of one claim, already narrowed to the worker's policy."""

    worker: str
    types: Names | None = None
    repositories: Names | None = None
    capabilities: Names = frozenset()
    affinity_keys: Names | None = frozenset()
    limit: int = 1
    lease_seconds: float | None = None  # None: the default of the type, else DEFAULT_LEASE_SECONDS
    claim_id: str | None = None


def narrow(ask: ClaimFilter, policy: Policy) -> ClaimFilter:
    """Intersect a claim with the policy: a claim can narrow it, never widen it."""
    return ask._replace(
        types=_within(ask.types, policy.types),
        repositories=_within(ask.repositories, policy.repositories),
        capabilities=ask.capabilities & policy.capabilities,
    )


def fits(
    ask: ClaimFilter, *, type: str, requires: Iterable[str], repository: str | None, affinity_key: str | None
) -> bool:
    """Return whether this claim matches a job with these requirements."""
    return (
        (ask.types is None or type in ask.types)
        and ask.capabilities.issuperset(requires)
        and (ask.repositories is None or repository in ask.repositories)
        and (affinity_key is None or ask.affinity_keys is None or affinity_key in ask.affinity_keys)
    )


def names(values: Iterable[str], *, what: str) -> tuple[str, ...]:
    """Return the names trimmed and sorted, or raise Invalid if one is not visible or not unique."""
    if isinstance(values, str):  # iterating over it would yield its characters
        raise Invalid(f"{what} is {values!r}: expected a list of names", pointer=f"/{what}")
    cleaned: set[str] = set()
    for value in values:
        if len(cleaned) == MAX_NAMES:
            raise Invalid(f"{what} has too many entries: the limit is {MAX_NAMES}", pointer=f"/{what}")
        name = value.strip()
        if not is_visible_name(name):
            raise Invalid(f"{what} must each be {NAME_RULE}, not {value!r}", pointer=f"/{what}")
        if name in cleaned:
            raise Invalid(f"{what} names {name!r} twice", pointer=f"/{what}")
        cleaned.add(name)
    return tuple(sorted(cleaned))


def check_needs(
    type: str, requires: Sequence[str], repository: str | None = None, affinity_key: str | None = None
) -> None:
    """Reject requirements that are too long to be indexed together."""
    size = sum(
        len(name.encode()) + 8 for name in (*requires, *requires[:1], type, repository or "", affinity_key or "")
    )
    if size > MAX_NEED_BYTES:
        message = (
            f"type, requires, repository and affinity_key are {size} bytes together: the limit is {MAX_NEED_BYTES}"
        )
        raise Invalid(message, pointer="/requires" if requires else "/affinity_key" if affinity_key else "/repository")


def repository(value: str) -> str:
    """Return the canonical name of a repository. It is case-sensitive and matched exactly, not by prefix."""
    name = unicodedata.normalize("NFC", value.strip()).rstrip("/").removesuffix(".git").rstrip("/")
    # Only one .git suffix is removed. A name that still ends in .git (org/repo.git.git) would be ambiguous with
    # org/repo.git, which is another spelling of org/repo.
    if not is_visible_name(name) or name.endswith(".git"):
        raise Invalid(f"repository is {value!r}: expected a repository name", pointer="/repository")
    return name


def any_or(values: Sequence[str] | None, *, what: str) -> Names | None:
    """Return a list of names as a filter: no list, or a list with *, means any; an empty list means none."""
    if values is None:
        return None
    given = frozenset(names(values, what=what))
    return None if ANY in given else given


def _within(asked: Names | None, allowed: Names | None) -> Names | None:
    if asked is None:
        return allowed
    return asked if allowed is None else asked & allowed
