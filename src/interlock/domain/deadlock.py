"""Deadlock detection for jobs that wait for children which need slots of strict agents."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

MAX_JOBS: Final = 500  # bounds the search; beyond it the wait is allowed


class Look(StrEnum):
    """A query that the search sends to the store."""

    JOBS = "jobs"  # (id, whether it waits for children, the strict agent whose slot it lacks or None)
    AWAITED = "awaited"  # (id, a child it waits for)
    HOLDERS = "holders"  # (agent, a job that holds one of its slots), of strict agents without a free slot


class Question(NamedTuple):
    look: Look
    about: list[str] | list[int]


Rows = Iterable[tuple[object, ...]]


def starved_child(
    job_id: str, children: Collection[str], waits: Mapping[str, Collection[str]]
) -> Generator[Question, Rows, str | None]:
    """Return a child that could never run if the job waited for it, or None; `waits` are other new waits.

    Yields queries and receives their rows, so that both engines share this algorithm.
    """
    awaited: dict[str, set[str]] = {id: set(some) for id, some in waits.items()} | {job_id: set(children)}
    lacks: dict[str, int] = {}
    holders: dict[int, set[str]] = {}
    seen: set[str] = set()
    new = set(children)
    while new:
        seen |= new
        if len(seen) > MAX_JOBS:
            return None
        waiting: list[str] = []
        for id, is_waiting, agent in (yield Question(Look.JOBS, sorted(new))):
            if is_waiting and id not in awaited:
                waiting.append(str(id))
            if isinstance(agent, int):
                lacks[str(id)] = agent
        found = {child for id in new for child in awaited.get(id, ())}
        if waiting:
            for id, child in (yield Question(Look.AWAITED, waiting)):
                awaited.setdefault(str(id), set()).add(str(child))
                found.add(str(child))
        if agents := sorted({lacks[id] for id in new if id in lacks} - set(holders)):
            holders |= {agent: set() for agent in agents}
            for agent, id in (yield Question(Look.HOLDERS, agents)):
                assert isinstance(agent, int)
                holders[agent].add(str(id))
                found.add(str(id))
        new = found - seen - {job_id}
    stuck = _stuck(awaited, lacks, holders)
    return next((child for child in sorted(children) if child in stuck), None)


def _stuck(
    awaited: Mapping[str, Collection[str]], lacks: Mapping[str, int], holders: Mapping[int, Collection[str]]
) -> set[str]:
    """Return the jobs that can never run: each waits for another of them, or for a slot that only they hold."""
    stuck = {*awaited, *lacks}
    while True:
        free = {
            id
            for id in stuck
            if stuck.isdisjoint(awaited.get(id, ()))
            and not (id in lacks and holders[lacks[id]] and stuck.issuperset(holders[lacks[id]]))
        }
        if not free:
            return stuck
        stuck -= free
