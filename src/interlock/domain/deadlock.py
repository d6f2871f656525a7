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


Search = Generator[Question, Rows, "_Waits | None"]


class _Waits:
    """Who waits for whom: for all of some children, or for one of the jobs that hold the slots of an agent."""

    def __init__(self, awaited: Mapping[str, Collection[str]]) -> None:
        self.awaited: dict[str, set[str]] = {id: set(some) for id, some in awaited.items()}
        self.lacks: dict[str, int] = {}
        self.holders: dict[int, set[str]] = {}

    def follow(self, new: set[str], *, known: Collection[str] = ()) -> Search:
        """Read the waits of these jobs and of all that they wait for; return None if there are too many."""
        seen: set[str] = set()
        while new:
            seen |= new
            if len(seen) > MAX_JOBS:
                return None
            waiting: list[str] = []
            for id, is_waiting, agent in (yield Question(Look.JOBS, sorted(new))):
                if is_waiting and id not in self.awaited:
                    waiting.append(str(id))
                if isinstance(agent, int):
                    self.lacks[str(id)] = agent
            found = {child for id in new for child in self.awaited.get(id, ())}
            if waiting:
                for id, child in (yield Question(Look.AWAITED, waiting)):
                    self.awaited.setdefault(str(id), set()).add(str(child))
                    found.add(str(child))
            if agents := sorted({self.lacks[id] for id in new if id in self.lacks} - set(self.holders)):
                self.holders |= {agent: set() for agent in agents}
                for agent, id in (yield Question(Look.HOLDERS, agents)):
                    assert isinstance(agent, int)
                    self.holders[agent].add(str(id))
                    found.add(str(id))
            new = found - seen - set(known)
        return self

    def stuck(self) -> set[str]:
        """Return the jobs that can never run: each waits for another of them, or for a slot that only they hold."""
        stuck = {*self.awaited, *self.lacks}
        while True:
            free = {
                id
                for id in stuck
                if stuck.isdisjoint(self.awaited.get(id, ()))
                and not (id in self.lacks and self._holders(id) and stuck.issuperset(self._holders(id)))
            }
            if not free:
                return stuck
            stuck -= free

    def next_of(self, id: str, among: set[str]) -> str:
        """Return a job that this one waits for."""
        return min((self.awaited.get(id, set()) | self._holders(id)) & among)

    def _holders(self, id: str) -> set[str]:
        return self.holders[self.lacks[id]] if id in self.lacks else set()


def starved_child(
    job_id: str, children: Collection[str], waits: Mapping[str, Collection[str]]
) -> Generator[Question, Rows, str | None]:
    """Return a child that could never run if the job waited for it, or None; `waits` are other new waits.

    Yields queries and receives their rows, so that both engines share this algorithm.
    """
    found = yield from _Waits({**waits, job_id: children}).follow(set(children), known=(job_id,))
    stuck = set() if found is None else found.stuck()
    return next((child for child in sorted(children) if child in stuck), None)


def cycle(job_id: str) -> Generator[Question, Rows, tuple[str, ...]]:
    """Return the jobs that wait for each other and for which this job waits: in order, the first one again at the end.

    Empty if the job can still run.
    """
    found = yield from _Waits({}).follow({job_id})
    stuck = set() if found is None else found.stuck()
    if found is None or job_id not in stuck:
        return ()
    path = [job_id]
    while (following := found.next_of(path[-1], stuck)) not in path:
        path.append(following)
    return (*path[path.index(following) :], following)
