"""Who may claim what: a worker's policy, what one claim asks for, and when a job fits."""

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
MAX_NEED_BYTES: Final = 1800  # what an index of either engine can hold, beside the longest name of a tenant


class Policy(NamedTuple):
    """What a worker's credential allows; None means any, and an absent list of capabilities means none.

    A job that names no repository is only for a worker that may have any.
    """

    types: Names | None = None
    repositories: Names | None = None
    capabilities: Names = frozenset()


class ClaimFilter(NamedTuple):
    """One request for work, already narrowed to what the worker's policy allows."""

    worker: str
    types: Names | None = None
    repositories: Names | None = None
    capabilities: Names = frozenset()
    affinity_keys: Names | None = frozenset()
    limit: int = 1
    lease_seconds: float | None = None  # None: what the type says, else DEFAULT_LEASE_SECONDS
    claim_id: str | None = None


def narrow(ask: ClaimFilter, policy: Policy) -> ClaimFilter:
    """The ask cut down to the policy: a claim narrows, never widens."""
    return ask._replace(
        types=_within(ask.types, policy.types),
        repositories=_within(ask.repositories, policy.repositories),
        capabilities=ask.capabilities & policy.capabilities,
    )


def fits(
    ask: ClaimFilter, *, type: str, requires: Iterable[str], repository: str | None, affinity_key: str | None
) -> bool:
    """Whether this ask may be given a job with these needs."""
    return (
        (ask.types is None or type in ask.types)
        and ask.capabilities.issuperset(requires)
        and (ask.repositories is None or repository in ask.repositories)
        and (affinity_key is None or ask.affinity_keys is None or affinity_key in ask.affinity_keys)
    )


def names(values: Iterable[str], *, what: str) -> tuple[str, ...]:
    """Trimmed, visible, unique names in sorted order, or Invalid."""
    if isinstance(values, str):  # which would be taken apart into its letters
        raise Invalid(f"{what} is a list of names, not {values!r}", pointer=f"/{what}")
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
    """Refuse needs that are together too long for a job to be found by them."""
    size = sum(
        len(name.encode()) + 8 for name in (*requires, *requires[:1], type, repository or "", affinity_key or "")
    )
    if size > MAX_NEED_BYTES:
        message = (
            f"type, requires, repository and affinity_key are {size} bytes together: the limit is {MAX_NEED_BYTES}"
        )
        raise Invalid(message, pointer="/requires" if requires else "/affinity_key" if affinity_key else "/repository")


def repository(value: str) -> str:
    """The one spelling under which a repository is stored and matched; case counts, nothing is a prefix."""
    name = unicodedata.normalize("NFC", value.strip()).rstrip("/").removesuffix(".git").rstrip("/")
    # org/repo.git.git is no spelling of org/repo, and org/repo.git already is: what is left has no spelling of its own.
    if not is_visible_name(name) or name.endswith(".git"):
        raise Invalid(f"{value!r} is not the name of a repository", pointer="/repository")
    return name


def any_or(values: Sequence[str] | None, *, what: str) -> Names | None:
    """A list of names as a filter; none given, or * among them, means any, an empty list none."""
    if values is None:
        return None
    given = frozenset(names(values, what=what))
    return None if ANY in given else given


def _within(asked: Names | None, allowed: Names | None) -> Names | None:
    if asked is None:
        return allowed
    return asked if allowed is None else asked & allowed
