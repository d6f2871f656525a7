"""Cache of a tenant's eligibility keys, kept between transactions.

Keys are only added, in ascending order, so comparing the highest number shows whether the cache is complete.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from enum import IntEnum
from itertools import product
from typing import Final, NamedTuple

from interlock.domain.job import NewJob
from interlock.domain.limits import flow_of, is_parked
from interlock.domain.limits import parked as parked_flow
from interlock.domain.policy import ClaimFilter, Names, fits
from interlock.storage.sql_files import load
from interlock.storage.sqlite.connection import Connection

_SQL: Final = load("interlock.storage.sqlite", "enqueue.sql")
MAX_ASKS: Final = 256

Key = tuple[str, tuple[str, ...], int, str | None, str | None, str]


class EligibilityKey(NamedTuple):
    no: int
    base: int
    across_repositories: int | None  # this key without its repository, if it has one
    across_keys: int | None  # this key without its affinity key, if it has one
    type: str
    requires: tuple[str, ...]
    priority: int
    repository: str | None
    affinity_key: str | None
    flow: str  # the buckets that its jobs need, as JSON; empty without limits

    @property
    def entries(self) -> tuple[int, int, int | None, int | None]:
        """The columns by which claims find its jobs."""
        return self.no, self.base, self.across_repositories, self.across_keys


class Span(IntEnum):
    """The extent of an index range: one key, or all keys that differ only in fields the worker does not filter."""

    ROUTE = 0
    ACROSS_REPOSITORIES = 1
    ACROSS_KEYS = 2
    BASE = 3


class IndexRange(NamedTuple):
    """An index range that a claim reads."""

    priority: int
    no: int
    span: Span
    type: str
    flow: str


def is_read(key: EligibilityKey, index_ranges: Iterable[IndexRange]) -> bool:
    """Return whether one of these index ranges has the jobs of a key."""
    found = {
        (Span.ROUTE, key.no),
        (Span.BASE, key.base if key.no != key.base else None),
        (Span.ACROSS_REPOSITORIES, key.across_repositories),
        (Span.ACROSS_KEYS, key.across_keys),
    }
    return any((one.span, one.no) in found for one in index_ranges)


class EligibilityKeys:
    """The eligibility keys of one tenant."""

    def __init__(self, tenant: str) -> None:
        self._tenant = tenant
        self._rollbacks = 0
        self._last = 0
        self._by_key: dict[Key, EligibilityKey] = {}
        self._by_no: dict[int, EligibilityKey] = {}
        # Fields of each key that a leased job needs: base, type, requires, repository, affinity key.
        self.encoded: dict[int, tuple[int, str, tuple[str, ...], str | None, str | None]] = {}
        # By affinity key, repository and first requirement, to skip most keys that the worker cannot claim.
        # A worker that meets all requirements meets the first.
        self._by_needs: dict[tuple[str | None, str | None, str | None], list[EligibilityKey]] = defaultdict(list)
        self._reached: dict[Span, set[int]] = {span: set() for span in Span}  # keys at which such a range starts
        self._index_ranges: dict[ClaimFilter, list[IndexRange]] = {}

    def refresh(self, connection: Connection, last: int) -> None:
        """Load keys that other processes added; drop the cache after a rollback."""
        if connection.rollbacks != self._rollbacks or last < self._last:
            self.__init__(self._tenant)  # type: ignore[misc]
            self._rollbacks = connection.rollbacks
        if last > self._last:
            rows = connection.rows(_SQL["eligibility_keys"], {"tenant": self._tenant, "after": self._last})
            for no, _, type, requires, *rest in rows:
                self._add(no, (type, tuple(json.loads(requires)), *rest))

    def of(self, connection: Connection, jobs: Iterable[NewJob]) -> list[EligibilityKey]:
        """Return the eligibility key of each job; insert missing keys."""
        ((last,),) = connection.rows(_SQL["last_eligibility_key"], {"tenant": self._tenant})
        self.refresh(connection, last)
        return [
            self._key(connection, (j.type, j.requires, j.priority, j.repository, j.affinity_key, flow_of(j.limits)))
            for j in jobs
        ]

    def parked(self, connection: Connection, no: int) -> EligibilityKey:
        """Return the key of parked jobs that otherwise have this key; insert it if it is missing."""
        key = self._by_no[no]
        return self._key(
            connection,
            (key.type, key.requires, key.priority, key.repository, key.affinity_key, parked_flow(key.flow)),
        )

    def numbered(self, no: int) -> EligibilityKey:
        return self._by_no[no]

    def shown(self, no: int) -> EligibilityKey:
        """Return the key by which claims find jobs that have this key while they are parked."""
        key = self._by_no[no]
        flow = f"[{key.flow[len('[[],') :]}"
        return self._by_key[key.type, key.requires, key.priority, key.repository, key.affinity_key, flow]

    def index_ranges(self, ask: ClaimFilter) -> list[IndexRange]:
        """Return the index ranges of all jobs that match the filter, highest priority first."""
        filter = ask._replace(worker="", limit=0, lease_seconds=0.0, claim_id=None)
        index_ranges = self._index_ranges.get(filter)
        if index_ranges is None:
            if len(self._index_ranges) > MAX_ASKS:
                self._index_ranges.clear()
            index_ranges = self._index_ranges[filter] = sorted(self._find_ranges(filter), reverse=True)
        return index_ranges

    def _find_ranges(self, ask: ClaimFilter) -> Iterator[IndexRange]:
        span = _span(ask)
        repositories = (None,) if ask.repositories is None else ask.repositories
        for needs in product(_or_none(ask.affinity_keys), repositories, _or_none(ask.capabilities)):
            for r in self._by_needs.get(needs, ()):
                if fits(ask, type=r.type, requires=r.requires, repository=r.repository, affinity_key=r.affinity_key):
                    yield IndexRange(r.priority, r.no, Span.ROUTE, r.type, r.flow)
                    if span is not Span.ROUTE and r.no in self._reached[span]:
                        yield IndexRange(r.priority, r.no, span, r.type, r.flow)

    def _key(self, connection: Connection, key: Key) -> EligibilityKey:
        if (eligibility_key := self._by_key.get(key)) is not None:
            return eligibility_key
        type, requires, priority, repository, affinity_key, flow = key
        if repository is not None:
            self._key(connection, (type, requires, priority, None, affinity_key, flow))
        if affinity_key is not None:
            self._key(connection, (type, requires, priority, repository, None, flow))
        eligibility_key = self._add(self._last + 1, key)
        connection.db.execute(
            _SQL["insert_eligibility_key"],
            (
                self._tenant,
                eligibility_key.no,
                eligibility_key.base,
                type,
                json.dumps(requires),
                priority,
                repository,
                affinity_key,
                flow,
            ),
        )
        return eligibility_key

    def _add(self, no: int, key: Key) -> EligibilityKey:
        """Add a key to the cache. Its wider keys exist: they are inserted first and have lower numbers."""
        type, requires, priority, repository, affinity_key, flow = key

        def wider(repository: str | None, affinity_key: str | None) -> int:
            return self._by_key[type, requires, priority, repository, affinity_key, flow].no

        across_repositories = None if repository is None else wider(None, affinity_key)
        across_keys = None if affinity_key is None else wider(repository, None)
        plain = repository is None and affinity_key is None
        base = no if plain else wider(None, None)
        eligibility_key = EligibilityKey(no, base, across_repositories, across_keys, *key)
        self._by_key[key] = self._by_no[no] = eligibility_key
        self.encoded[no] = (base, type, requires, repository, affinity_key)
        self._last = no
        if is_parked(flow):
            return eligibility_key
        self._by_needs[affinity_key, repository, next(iter(requires), None)].append(eligibility_key)
        if not plain:
            self._reached[Span.BASE].add(base)
        if across_repositories is not None:
            self._reached[Span.ACROSS_REPOSITORIES].add(across_repositories)
        if across_keys is not None:
            self._reached[Span.ACROSS_KEYS].add(across_keys)
        self._index_ranges.clear()
        return eligibility_key


def _span(ask: ClaimFilter) -> Span:
    """Return the span that a worker reads in addition to single keys."""
    if ask.repositories is None:
        return Span.BASE if ask.affinity_keys is None else Span.ACROSS_REPOSITORIES
    return Span.ACROSS_KEYS if ask.affinity_keys is None else Span.ROUTE


def _or_none(names: Names | None) -> list[str | None]:
    return [None, *(names or ())]
