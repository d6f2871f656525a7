"""Which routes exist for a tenant, remembered between transactions.

Routes are only ever added, and here in the order of their numbers: the highest one tells whether any is missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final, NamedTuple

from interlock.domain.job import NewJob
from interlock.domain.policy import ClaimAsk, fits
from interlock.storage.sqlite.connection import Connection
from interlock.storage.statements import load

_SQL: Final = load("interlock.storage.sqlite", "enqueue.sql")

Key = tuple[str, tuple[str, ...], int, str | None, str | None]


class Route(NamedTuple):
    no: int
    base: int
    type: str
    requires: tuple[str, ...]
    priority: int
    repository: str | None
    affinity_key: str | None


class Leg(NamedTuple):
    """One index range that a claim reads: a single route, or all that share a base."""

    priority: int
    no: int
    whole_base: bool
    type: str


class Routes:
    """The routes of one tenant."""

    def __init__(self, tenant: str) -> None:
        self._tenant = tenant
        self._undone = 0
        self._last = 0
        self._all: list[Route] = []
        self._by_key: dict[Key, Route] = {}
        self._legs: dict[ClaimAsk, list[Leg]] = {}

    def refresh(self, connection: Connection, last: int) -> None:
        """Learn what other processes have added; forget what a rolled back transaction had."""
        if connection.undone != self._undone or last < self._last:
            self.__init__(self._tenant)  # type: ignore[misc]
            self._undone = connection.undone
        if last > self._last:
            rows = connection.rows(_SQL["routes"], {"tenant": self._tenant, "after": self._last})
            for no, base, type, requires, *rest in rows:
                self._add(Route(no, base, type, tuple(json.loads(requires)), *rest))

    def of(self, connection: Connection, jobs: Iterable[NewJob]) -> list[Route]:
        """The route of each job, made where it is new."""
        ((last,),) = connection.rows(_SQL["last_route"], {"tenant": self._tenant})
        self.refresh(connection, last)
        return [self._route(connection, (j.type, j.requires, j.priority, j.repository, j.affinity_key)) for j in jobs]

    def legs(self, ask: ClaimAsk) -> list[Leg]:
        """The ranges in which all jobs for this ask are found, highest priority first."""
        filter = ask._replace(worker="", limit=0, lease_seconds=0.0, claim_id=None)
        legs = self._legs.get(filter)
        if legs is None:
            if len(self._legs) > 256:
                self._legs.clear()
            legs = self._legs[filter] = sorted(self._find_legs(filter), reverse=True)
        return legs

    def _find_legs(self, ask: ClaimAsk) -> Iterable[Leg]:
        everything = ask.repositories is None and ask.affinity_keys is None
        bases_with_more = {r.base for r in self._all if r.base != r.no}
        for r in self._all:
            if everything and r.base != r.no:
                continue
            if fits(ask, type=r.type, requires=r.requires, repository=r.repository, affinity_key=r.affinity_key):
                yield Leg(r.priority, r.no, False, r.type)
                if everything and r.no in bases_with_more:
                    yield Leg(r.priority, r.no, True, r.type)

    def _route(self, connection: Connection, key: Key) -> Route:
        route = self._by_key.get(key)
        if route is not None:
            return route
        type, requires, priority, repository, affinity_key = key
        plain = repository is None and affinity_key is None
        no = self._last + 1
        base = no if plain else self._route(connection, (type, requires, priority, None, None)).no
        no = self._last + 1
        route = Route(no, base, type, requires, priority, repository, affinity_key)
        connection.db.execute(
            _SQL["insert_route"],
            (self._tenant, no, base, type, json.dumps(requires), priority, repository, affinity_key),
        )
        self._add(route)
        return route

    def _add(self, route: Route) -> None:
        self._all.append(route)
        self._by_key[route[2:]] = route
        self._last = max(self._last, route.no)
        self._legs.clear()
