"""Batches with several items for one job: the items take effect one after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Final, Protocol

id_of: Final = attrgetter("id")


class _ForAJob(Protocol):
    @property
    def id(self) -> str: ...


def are_distinct(items: Sequence[_ForAJob]) -> bool:
    """Return whether no job occurs twice, the usual case."""
    return len({*map(id_of, items)}) == len(items)


def split_by_job(items: Sequence[_ForAJob]) -> Iterator[list[int]]:
    """Yield the positions of the items in batches without a repeated job; each job's items keep their order."""
    waiting = list(range(len(items)))
    if waiting and are_distinct(items):
        yield waiting
        return
    while waiting:
        batch: dict[str, int] = {}
        for i in waiting:
            batch.setdefault(items[i].id, i)
        yield list(batch.values())
        taken = set(batch.values())
        waiting = [i for i in waiting if i not in taken] if len(taken) < len(waiting) else []
