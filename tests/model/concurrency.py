"""The concurrency slots of agents with a limit, computed from rule 5 on every call."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from interlock.domain.lifecycle import Location, Status
from tests.model.job_model import ENDED, WAITING, JobModel, Jobs


class Limit(NamedTuple):
    """How many jobs of an agent run at once; without a number all of them."""

    most: int | None = None
    strict: bool = False


class SlotsModel(Jobs):
    """Agents, and where their jobs stand."""

    def __init__(self) -> None:
        super().__init__()
        self.limits: dict[str, Limit] = {}

    def limit_of(self, agent: str) -> Limit:
        return self.limits.get(agent, Limit())

    def set_limit(self, agent: str, limit: Limit) -> None:
        if self.limit_of(agent).strict and not limit.strict:
            for life in self.jobs.values():
                life.kept_place = life.kept_place and life.agent != agent
        self.limits[agent] = limit

    def running(self, agent: str) -> int:
        return sum(life.status == Status.RUNNING for life in self.jobs.values() if life.agent == agent)

    def blocked(self, now: int) -> set[str]:
        """The jobs that are due and wait for a worker, but have no concurrency slot of their agent."""
        lives = defaultdict(list)
        for life in self.jobs.values():
            if life.agent is not None and life.status not in ENDED:
                lives[life.agent].append(life)
        return {life.id for agent, theirs in lives.items() for life in without_slot(theirs, self.limit_of(agent), now)}

    def would_hang(self, parent: JobModel, children: set[str], now: int) -> bool:
        """Whether one of the children could never run if its parent waited: the slots it needs are all kept by waits."""
        alive = [life for life in self.jobs.values() if life.status not in ENDED]
        awaits = {life.id: life.awaiting for life in alive} | {parent.id: children}
        blocked = self.blocked(now)

        def has_slot(life: JobModel, limit: Limit) -> bool:
            if life.status == Status.RUNNING or (limit.strict and life.kept_place):
                return True
            is_waiting = life.status not in WAITING or life.awaiting
            return not is_waiting and life.run_at <= now and life.id not in blocked

        def lacks(life: JobModel) -> bool:
            limit = Limit() if life.agent is None else self.limit_of(life.agent)
            if not limit.strict or limit.most is None or life.status not in WAITING or life.awaiting:
                return False
            holders = [other for other in alive if other.agent == life.agent and has_slot(other, limit)]
            return not has_slot(life, limit) and len(holders) >= limit.most and all(h.id in stuck for h in holders)

        stuck = {life.id for life in alive}
        while free := {
            life.id for life in alive if life.id in stuck and not awaits[life.id] & stuck and not lacks(life)
        }:
            stuck -= free
        return bool(children & stuck)

    def location(self, life: JobModel, now: int, blocked: set[str]) -> Location:
        if life.status == Status.RUNNING:
            return Location.IN_PROGRESS
        if life.status in ENDED:
            return Location.DEAD_LETTER if life.status == Status.DEAD_LETTER else Location.NONE
        if life.awaiting or life.status == Status.WAITING_FOR_APPROVAL:
            return Location.BLOCKED
        if life.run_at > now:
            return Location.DELAYED
        return Location.BLOCKED if life.id in blocked else Location.READY

    def counts(self, now: int) -> dict[str, Counter[str]]:
        """How many jobs of each type are where, as queue stats name it."""
        blocked = self.blocked(now)
        found: dict[str, Counter[str]] = defaultdict(Counter)
        for life in self.jobs.values():
            reported = life.status in ENDED or life.status == Status.WAITING_FOR_APPROVAL
            found[life.created.type][str(life.status if reported else self.location(life, now, blocked))] += 1
        return dict(found)


def without_slot(alive: Sequence[JobModel], limit: Limit, now: int) -> list[JobModel]:
    """Those of an agent's unfinished jobs that could run if the line were wider."""
    if limit.most is None:
        return []
    keeps = [life for life in alive if life.status == Status.RUNNING or (limit.strict and life.kept_place)]
    line = [
        life
        for life in alive
        if life.status in WAITING and not life.awaiting and life.run_at <= now and life not in keeps
    ]
    return sorted(line, key=lambda life: (life.run_at, life.seq))[max(limit.most - len(keeps), 0) :]
