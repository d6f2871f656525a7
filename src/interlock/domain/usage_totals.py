"""Usage of finished jobs, summed by type, agent, day or tree of jobs."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

from interlock.domain.amounts import rounded

MAX_DAYS: Final = 366
DEFAULT_DAYS: Final = 30


class By(StrEnum):
    """What usage is summed by."""

    TYPE = "type"
    AGENT = "agent"
    DAY = "day"
    TREE = "tree"


Key: TypeAlias = tuple[str, str]  # of a group, in list order: the kind and ID of an agent, or one text


class Sum(NamedTuple):
    """The usage that some jobs reported together, or a part of it."""

    key: Key
    jobs: int
    usage: dict[str, float]


class UsageTotal(NamedTuple):
    """The usage of the jobs of one type, agent, day in UTC, or tree with this root; the other members are None."""

    type: str | None
    agent: tuple[str, str] | None
    day: str | None
    tree: str | None
    jobs: int
    usage: dict[str, float]

    @property
    def key(self) -> Key:
        """The position in a list; jobs without an agent come first."""
        return self.agent or (self.type or self.day or self.tree or "", "")


def total(by: By, found: Sum) -> UsageTotal:
    """Return a sum as a total."""
    name = found.key[0]
    return UsageTotal(
        name if by is By.TYPE else None, found.key if by is By.AGENT and name else None,
        name if by is By.DAY else None, name if by is By.TREE else None, found.jobs, found.usage,
    )  # fmt: skip


def merged(parts: Iterable[Sum]) -> list[Sum]:
    """Add up the parts of each group, and sort the groups."""
    jobs: dict[Key, int] = {}
    usage: dict[Key, dict[str, float]] = {}
    for part in parts:
        jobs[part.key] = jobs.get(part.key, 0) + part.jobs
        sums = usage.setdefault(part.key, {})
        for unit, amount in part.usage.items():
            sums[unit] = min(sums.get(unit, 0.0) + amount, sys.float_info.max)
    return [
        Sum(key, jobs[key], {unit: rounded(amount) for unit, amount in sorted(usage[key].items())})
        for key in sorted(jobs)
    ]
