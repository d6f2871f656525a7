"""Limits: how many jobs run concurrently, and how much of a unit they use over time.

A limit has one bucket, or one for each key. A claim leases a job only if all its buckets have room, and charges them;
the end of the lease settles the charge. The amount available of a unit is its level at `as_of` plus what was added
since, up to the burst. It is negative while the bucket is in debt.

The eligibility key of a job names its limits, and the buckets of those without keys: while one of these is closed, a
claim does not read the jobs. A limit may have many keys, so a claim first meets the jobs of all keys. A job whose
bucket has no room is then *parked* in it, which takes it out of the indexes that claims read. A later claim shows the
first jobs of a bucket again once it may have room (`wake_at`).

The keys of a fair limit are served in turn, by start-time fair queueing: a bucket that has room and parked jobs has a
`turn`, and the lowest turn is served first. Each lease raises it by the job's share of the limit, divided by the weight
of the key. All jobs of a fair limit are parked first, so that only the turns decide which keys claims see.
"""

from __future__ import annotations

import heapq
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from interlock.domain import json_text
from interlock.domain.amounts import rounded
from interlock.domain.budget import MAX_BUDGETS_OF_JOB, PREFIX, TREE, OnExceed, Period
from interlock.domain.retry import SECOND
from interlock.errors import Invalid

MAX_LIMITS_OF_JOB: Final = 4
MAX_HOLD_SECONDS: Final = 30 * 86_400
MAX_UNITS: Final = 8
MAX_AMOUNT: Final = 1e15
MAX_KEY_LENGTH: Final = 200
MAX_WEIGHTS: Final = 1000
# Parked jobs of one eligibility key that a bucket shows to claims at a time.
SHOWN_AT_ONCE: Final = 20
# How long a job that did not fit keeps its rank, after the time at which it fits, or after a claim last saw it.
TICKET_SECONDS: Final = 2
# A job that others pass because it lacks room elsewhere keeps its room for this part of the time that it has waited.
KEPT_PART: Final = 40
_TEMPLATE: Final = re.compile(r"\{([^{}]*)\}")

Name = tuple[str, str]  # of a bucket: its limit and key; an empty key for a limit without keys
Rank = tuple[int, int, int]  # of a job in the order of claims: negative priority, run_at, seq


class Limit(NamedTuple):
    """A limit: at most `concurrency` running jobs, and `units` per period with a burst."""

    name: str
    concurrency: int | None = None
    units: Mapping[str, float] = {}
    per_seconds: float = 60.0
    burst: Mapping[str, float] = {}
    keyed: bool = False
    fair: bool = False
    weights: Mapping[str, float] = {}  # of keys; 1 for the others
    budget: Period | None = None  # then `units` is the amount of a period, and nothing refills
    created_at: int = 0
    updated_at: int = 0

    def to_text(self) -> str:
        """Serialize the rules, as stored."""
        rules: dict[str, Any] = {
            "concurrency": self.concurrency,
            "units": dict(self.units),
            "per_seconds": self.per_seconds,
        }
        rules |= {"burst": dict(self.burst), "keyed": self.keyed}
        if self.fair:
            rules |= {"fair": True, "weights": dict(self.weights)}
        if self.budget is not None:
            rules["budget"] = self.budget._asdict()
        return json.dumps(rules, separators=(",", ":"))

    @classmethod
    def from_text(cls, name: str, text: str, created_at: int = 0, updated_at: int = 0) -> Limit:
        rules = json.loads(text)
        budget = Period.of(rules.pop("budget")) if "budget" in rules else None
        return cls(name=name, **rules, budget=budget, created_at=created_at, updated_at=updated_at)


class Demand(NamedTuple):
    """What a job takes from one limit while it runs: a place, and the cost of each unit."""

    name: str
    key: str
    cost: Mapping[str, float]


class Ticket(NamedTuple):
    """The rank of a job that waits for a bucket. While the ticket binds, jobs of a lower rank do not pass it.

    A job that did not fit binds the bucket until it fits. One that lacks room in another bucket holds nothing here: it
    is passed. But others could pass it for ever, so it binds the bucket for short parts of the time that it has waited,
    which begin whenever that time has doubled.
    """

    rank: Rank
    cost: Mapping[str, float]
    until: int
    since: int = 0
    is_passed: bool = False

    def binds(self, now: int) -> bool:
        if now >= self.until or not self.is_passed:
            return now < self.until
        waited = now - self.since
        doubled = 1 << max(waited, 1).bit_length() - 1
        return doubled >= SECOND and (waited - doubled) * KEPT_PART < doubled


class Bucket:
    """The state of a bucket."""

    def __init__(
        self,
        used: int = 0,
        levels: Mapping[str, float] | None = None,
        as_of: int = 0,
        held_until: int | None = None,
        ticket: Ticket | None = None,
        parked: bool = False,
        turn: float | None = None,
        served: float | None = None,
    ) -> None:
        self.used = used
        self.levels = dict(levels or {})
        self.as_of = as_of  # of a budget, the start of its period
        self.held_until = held_until
        self.ticket = ticket
        self.parked = parked  # whether jobs may be parked in it
        self.turn = turn  # of the next job, while it has room and parked jobs
        self.served = served  # the turn after the last one

    @classmethod
    def from_row(
        cls,
        used: int,
        levels: str,
        as_of: int,
        held_until: int | None,
        ticket: str | None,
        parked: bool = False,
        turn: float | None = None,
        served: float | None = None,
    ) -> Bucket:
        given = None if ticket is None else json.loads(ticket)
        found = None if given is None else Ticket((given[0][0], given[0][1], given[0][2]), *given[1:])
        amounts = {} if levels == "{}" else json.loads(levels)
        return cls(used, amounts, as_of, held_until, found, bool(parked), turn, served)

    def to_row(self) -> tuple[int, str, int, int | None, str | None]:
        ticket = None if self.ticket is None else json.dumps(self.ticket)
        return self.used, json.dumps(self.levels) if self.levels else "{}", self.as_of, self.held_until, ticket

    def available(self, limit: Limit, now: int) -> dict[str, float]:
        """Return the amount of each unit. A clock that went back adds nothing."""
        if limit.budget is not None:
            began_at = limit.budget.began_at(now)
            levels = {} if began_at is not None and self.as_of < began_at else self.levels
            return {
                unit: min(amount, rounded(levels.get(unit, amount), of=amount)) for unit, amount in limit.burst.items()
            }
        added = max(now - self.as_of, 0) / SECOND / limit.per_seconds
        return {
            unit: min(limit.burst[unit], self.levels.get(unit, limit.burst[unit]) + rate * added)
            for unit, rate in limit.units.items()
        }

    def refill(self, limit: Limit, now: int) -> None:
        if limit.units and (self.as_of != now or limit.budget is not None or not self.levels):
            self.levels = self.available(limit, now)
        at = now if limit.budget is None else limit.budget.began_at(now) or 0
        self.as_of = max(at, self.as_of)

    def add(self, unit: str, amount: float) -> None:
        """Change the level of a unit. A debt is bounded: a report of any size can be paid off by a raise."""
        if unit in self.levels:
            self.levels[unit] = max(self.levels[unit] + amount, -MAX_AMOUNT)

    def opens_at(self, limit: Limit, now: int) -> int | None:
        """Return when the bucket may have room: `now` if it has some, None if a job must end or a budget be raised."""
        at = max(now, self.held_until or 0)
        if limit.concurrency is not None and self.used >= limit.concurrency:
            return None
        cost: Mapping[str, float] = {}
        if self.ticket is not None and self.ticket.binds(now):
            cost = self.ticket.cost
        fits_at = self.fits_at(limit, cost, now)
        return None if fits_at is None else max(at, fits_at)

    def may_admit(self, limit: Limit, priority: int, now: int) -> bool:
        """Return whether jobs of a priority may have room: those that rank before a ticket do not wait for it."""
        if self.ticket is None or -priority > self.ticket.rank[0] or not self.ticket.binds(now):
            return self.opens_at(limit, now) == now
        full = limit.concurrency is not None and self.used >= limit.concurrency
        return not full and (self.held_until or 0) <= now and self.fits_at(limit, {}, now) == now

    def passed_by(self, rank: Rank, now: int) -> bool:
        """Return whether a job would pass one of a higher rank that binds the bucket."""
        return self.ticket is not None and rank > self.ticket.rank and self.ticket.binds(now)

    def bind(self, rank: Rank, cost: Mapping[str, float], fits_at: int, now: int) -> None:
        """Keep the rank of a job that does not fit. It replaces a ticket of a lower rank, and one that has expired."""
        since = now
        if self.ticket is not None and (self.ticket.rank == rank or now < self.ticket.until):
            if self.ticket.rank < rank:
                return
            since = self.ticket.since if self.ticket.rank == rank else now
        self.ticket = Ticket(rank, dict(cost), fits_at + TICKET_SECONDS * SECOND, since)

    def has_noted(self, priority: int, now: int) -> bool:
        """Return whether it has noted a job of this priority, or of a higher one, a short time ago."""
        return self.ticket is not None and self.ticket.rank[0] <= -priority and self.ticket.until - now > SECOND

    def note_passed(self, rank: Rank, cost: Mapping[str, float], now: int) -> bool:
        """Note a job that lacks room elsewhere; return whether that changes the bucket."""
        ticket, until = self.ticket, now + TICKET_SECONDS * SECOND
        if ticket is not None and ticket.rank == rank:
            if ticket.is_passed and ticket.until - now > SECOND:
                return False
            self.ticket = ticket._replace(until=until, is_passed=True)
            return True
        if ticket is not None and ticket.rank < rank and now < ticket.until:
            return False
        self.ticket = Ticket(rank, dict(cost), until, now, is_passed=True)
        return True

    def shows(self, limit: Limit, now: int) -> int:
        """Return how many parked jobs of each eligibility key claims should see."""
        opens_at = self.opens_at(limit, now)
        if opens_at is None or opens_at > now:
            return 0
        return SHOWN_AT_ONCE if limit.concurrency is None else min(limit.concurrency - self.used, SHOWN_AT_ONCE)

    def wakes_at(self, limit: Limit, now: int) -> int | None:
        """Return when to show parked jobs; None if it has a turn, or a lease must end or an operator act first."""
        return self.opens_at(limit, now) if self.parked and self.turn is None else None

    def take_turn(self, limit: Limit, key: str, cost: Mapping[str, float], now_served: float) -> None:
        """Advance the turn by one job."""
        start = max(self.served or 0.0, now_served) if self.turn is None else self.turn
        self.served = start + share(limit, key, cost)
        self.turn = None if self.turn is None else self.served

    def line_up(self, limit: Limit, now: int, now_served: float) -> None:
        """Give the bucket a turn while it has room and parked jobs."""
        if not limit.fair or not self.parked or not self.shows(limit, now):
            self.turn = None
        elif self.turn is None:
            self.turn = max(self.served or 0.0, now_served)

    def is_idle(self, limit: Limit, now: int) -> bool:
        """Return whether the bucket is as if it were new."""
        closed = self.used or self.parked or (self.held_until or 0) > now
        waits = self.ticket is not None and self.ticket.until > now
        return not closed and not waits and self.available(limit, now) == limit.burst

    def fits_at(self, limit: Limit, cost: Mapping[str, float], now: int) -> int | None:
        """Return when these amounts are available; None if a budget must be raised first.

        A cost above the burst needs a full bucket and leaves a debt. A budget also needs something left.
        """
        if limit.budget is not None:
            left = self.available(limit, now).items()
            fits = all(amount > 0 and amount - cost.get(unit, 0.0) > -1e-9 for unit, amount in left)
            return now if fits or limit.budget.on_exceed is OnExceed.WARN else limit.budget.resets_at(now)
        at = now
        for unit, available in self.available(limit, now).items():
            lacking = min(cost.get(unit, 0.0), limit.burst[unit]) - available
            if lacking > 1e-9:
                at = max(at, max(now, self.as_of) + math.ceil(lacking / limit.units[unit] * limit.per_seconds * SECOND))
        return at


class Grants:
    """The buckets of one claim, and which of its candidates they admit."""

    def __init__(
        self,
        limits: Mapping[str, Limit],
        buckets: Mapping[Name, Bucket],
        now: int,
        now_served: Mapping[str, float] | None = None,
    ) -> None:
        self.limits = dict(limits)
        self.now_served = dict(now_served or {})  # the turn now served, by fair limit
        self.buckets = dict(buckets)
        self.now = now
        self.changed: set[Name] = set()
        self._charged: set[Name] = set()
        self._passed_over: Counter[Name] = Counter()
        self._closed: set[Name] = set()
        self._last_demands: Sequence[Demand] | None = None
        self._last_known: tuple[Sequence[tuple[Demand, Limit, Name]], Demand | None] = ((), None)

    def is_open(self, names: Iterable[Name], priority: int) -> bool:
        """Return whether a job of this priority with these buckets could be admitted now, or should be noted."""
        closed: list[tuple[Bucket, Limit]] = []
        opened: list[tuple[Bucket, Limit]] = []
        for name in names:
            if (limit := self.limits.get(name[0])) is not None:
                if name in self._closed:
                    return False
                bucket = self._bucket(name)
                (opened if bucket.may_admit(limit, priority, self.now) else closed).append((bucket, limit))
        if not closed or not opened:
            return not closed
        if any(limit.budget is not None or (bucket.held_until or 0) > self.now for bucket, limit in closed):
            return False
        return not all(bucket.has_noted(priority, self.now) for bucket, limit in opened if limit.budget is None)

    def opens_at(self) -> int | None:
        """Return when the first of the buckets without room may have some, as far as only time is lacking."""
        known = [(bucket, self.limits[name[0]]) for name, bucket in self.buckets.items() if name[0] in self.limits]
        times = [bucket.opens_at(limit, self.now) for bucket, limit in known]
        return min((at for at in times if at is not None and at > self.now), default=None)

    def admit(self, rank: Rank, demands: Sequence[Demand], shown_by: Name | None = None) -> Name | None:
        """Charge all buckets of a job, or none: return the one without room.

        The first job that does not fit closes its bucket for later ones. If it lacks room in several, it closes the one
        that lacks it for longest. A job of a fair limit also waits for its turn, unless its bucket shows it.
        """
        if (not_yet := self.lacks_turn(demands, shown_by)) is not None:
            return not_yet
        known, turn = self._known_of(demands)
        if (lacking := self._lacking(rank, known)) is not None:
            if lacking not in self._closed:
                self._closed.add(lacking)
                self._note_passed(rank, lacking, known)
            return lacking
        for demand, limit, name in known:
            bucket = self.buckets[name]
            bucket.used += 1
            if demand is turn:
                bucket.take_turn(limit, demand.key, demand.cost, self.now_served.get(demand.name, 0.0))
            bucket.refill(limit, self.now)
            for unit in limit.units:
                bucket.levels[unit] -= demand.cost.get(unit, 0.0)
            if bucket.ticket is not None and rank == bucket.ticket.rank:
                bucket.ticket = None
            elif (ticket := bucket.ticket) is not None and rank < ticket.rank and not ticket.is_passed:
                at = bucket.fits_at(limit, ticket.cost, self.now) if ticket.binds(self.now) else None
                bucket.ticket = ticket if at is None else ticket._replace(until=at + TICKET_SECONDS * SECOND)
            self.changed.add(name)
            self._charged.add(name)
        return None

    def lacks_turn(self, demands: Sequence[Demand], shown_by: Name | None) -> Name | None:
        """Return the bucket of a fair limit whose turn a job waits for."""
        _, turn = self._known_of(demands)
        return None if turn is None or shown_by == (turn.name, turn.key) else (turn.name, turn.key)

    def is_to_park(self, name: Name, demands: Sequence[Demand]) -> bool:
        """Return whether to park a job in the bucket that does not admit it: not if this claim itself took the room.

        Its jobs may end soon, and to park a job and show it again costs more than to meet it a few times.
        """
        _, turn = self._known_of(demands)
        if name not in self._charged or turn is not None or self._passed_over[name] >= SHOWN_AT_ONCE:
            return bool(name[1])
        self._passed_over[name] += 1
        return False

    def park(self, name: Name) -> None:
        """Note that a job is parked in a bucket."""
        self.touch(name)
        self.buckets[name].parked = True

    def touch(self, name: Name) -> None:
        """Note that a bucket must be saved."""
        self._bucket(name)
        self.changed.add(name)

    def line_up(self) -> None:
        """Give turns to the changed buckets of fair limits."""
        for name in self.changed:
            limit = self.limits.get(name[0])
            if limit is not None and limit.fair:
                self.buckets[name].line_up(limit, self.now, self.now_served.get(name[0], 0.0))

    def to_wake(self, least: int) -> list[tuple[Name, int]]:
        """Return the changed buckets with parked jobs that have room, and how many of these claims should see.

        These are at least `least` jobs: more than the room, if other limits admitted none of the first ones.
        """
        found = ((name, self.buckets[name]) for name in sorted(self.changed) if not self.limits[name[0]].fair)
        rooms = [(name, bucket.shows(self.limits[name[0]], self.now)) for name, bucket in found if bucket.parked]
        return [(name, max(room, least)) for name, room in rooms if room and name not in self._closed]

    def _known_of(self, demands: Sequence[Demand]) -> tuple[Sequence[tuple[Demand, Limit, Name]], Demand | None]:
        """Return the demands whose limits exist, and the one that decides the turn. Many jobs have the same ones."""
        if demands is not self._last_demands:
            known = [(one, self.limits[one.name], (one.name, one.key)) for one in demands if one.name in self.limits]
            self._last_known = known, next((one for one, limit, _ in known if limit.fair), None)
            self._last_demands = demands
        return self._last_known

    def _lacking(self, rank: Rank, known: Sequence[tuple[Demand, Limit, Name]]) -> Name | None:
        """Return the bucket that does not admit a job; if time is all that lacks, keep the rank of the job there."""
        last: tuple[int, Name, Bucket, Demand] | None = None
        for demand, limit, name in known:
            bucket = self._bucket(name)
            full = limit.concurrency is not None and bucket.used >= limit.concurrency
            held = (bucket.held_until or 0) > self.now
            if name in self._closed or full or held or bucket.passed_by(rank, self.now):
                return name
            if not limit.units:
                continue
            at = bucket.fits_at(limit, demand.cost, self.now)
            if at is None or (at > self.now and limit.budget is not None):
                return name
            if at > self.now and (last is None or at > last[0]):
                last = at, name, bucket, demand
        if last is None:
            return None
        at, name, bucket, demand = last
        bucket.bind(rank, demand.cost, at, self.now)
        self.changed.add(name)
        return name

    def _note_passed(self, rank: Rank, lacking: Name, known: Sequence[tuple[Demand, Limit, Name]]) -> None:
        """Note a job that lacks room in one bucket in its others, where jobs of a lower rank pass it."""
        for demand, limit, name in known:
            if name != lacking and limit.budget is None and self._bucket(name).note_passed(rank, demand.cost, self.now):
                self.changed.add(name)

    def _bucket(self, name: Name) -> Bucket:
        return self.buckets.setdefault(name, Bucket())


class Head(NamedTuple):
    """A parked job of a fair limit that is among the first of its bucket."""

    key: str
    id: Any
    rank: Rank
    cost: Mapping[str, float]


def in_turn(
    limit: Limit,
    buckets: Mapping[str, Bucket],
    heads: Iterable[Head],
    most: int,
    now: int,
    *,
    read: int,
    seen: Mapping[str, int] | None = None,
) -> list[Head]:
    """Return the jobs to show next: the buckets in turn, and the best jobs of each, until claims see `most`.

    Claims see `seen` jobs of each bucket already. A bucket of which at least `read` jobs were read may have more: stop
    at the end of these, and look again.
    """
    seen = seen or {}
    waiting: dict[str, list[Head]] = {}
    for head in sorted(heads, key=lambda head: head.rank):
        waiting.setdefault(head.key, []).append(head)
    queue = [
        (bucket.turn + seen.get(key, 0) * share(limit, key, waiting[key][0].cost), key)
        for key, bucket in buckets.items()
        if bucket.turn is not None and key in waiting and seen.get(key, 0) < bucket.shows(limit, now)
    ]
    heapq.heapify(queue)
    shown: list[Head] = []
    most -= sum(seen.values())
    taken: Counter[str] = Counter()
    while queue and len(shown) < most:
        turn, key = heapq.heappop(queue)
        head = waiting[key][taken[key]]
        taken[key] += 1
        shown.append(head)
        if taken[key] + seen.get(key, 0) >= buckets[key].shows(limit, now):
            continue
        if taken[key] == len(waiting[key]):
            if taken[key] >= read:
                break
            continue
        heapq.heappush(queue, (turn + share(limit, key, head.cost), key))
    return shown


def share(limit: Limit, key: str, cost: Mapping[str, float]) -> float:
    """Return how far a job advances the turn of its key."""
    part = max((cost.get(unit, 0.0) / amount for unit, amount in limit.units.items()), default=1.0)
    return max(part, 1e-6) / limit.weights.get(key, 1.0)


class Wait(NamedTuple):
    """Why a limit does not admit a job: a hold, a unit that lacks, or a job of a higher rank that waits for one."""

    name: str
    key: str
    unit: str | None  # `concurrency` or a unit of the rate; None for a hold
    available: float | None
    needed: float | None
    opens_at: int | None  # None if a running job must end or a budget be raised first
    hold_reason: str | None = None
    ahead: int = 0  # waiting jobs of a higher rank


def wait_of(
    demand: Demand, limit: Limit, bucket: Bucket, rank: Rank, now: int, *, reason: str | None = None, ahead: int = 0
) -> Wait | None:
    """Return why a bucket does not admit a job now, or None if it does."""

    def wait(unit: str | None, available: float | None, needed: float | None, opens_at: int | None) -> Wait:
        held = reason if unit is None else None
        return Wait(demand.name, demand.key, unit, available, needed, opens_at, held, ahead)

    if bucket.held_until is not None and bucket.held_until > now:
        return wait(None, None, None, bucket.held_until)
    if limit.concurrency is not None and bucket.used >= limit.concurrency:
        return wait("concurrency", limit.concurrency - bucket.used, 1, None)
    passed = bucket.passed_by(rank, now)
    cost = bucket.ticket.cost if bucket.ticket is not None and passed else demand.cost
    opens_at = bucket.fits_at(limit, cost, now)
    if opens_at is not None and opens_at <= now and not passed:
        return None
    available = bucket.available(limit, now)
    unit = max(available, key=lambda unit: min(cost.get(unit, 0.0), limit.burst[unit]) - available[unit])
    return wait(unit, available[unit], cost.get(unit, 0.0), opens_at)


def must_wait(
    demands: Iterable[Demand], limits: Mapping[str, Limit], buckets: Mapping[Name, Bucket], rank: Rank, now: int
) -> bool:
    """Return whether a limit does not admit a job now."""
    known = [
        (one, limits[one.name], buckets.get((one.name, one.key), Bucket())) for one in demands if one.name in limits
    ]
    return any(wait_of(demand, limit, bucket, rank, now) for demand, limit, bucket in known)


def settle(bucket: Bucket, cost: Mapping[str, float], usage: Mapping[str, Any], *, before: bool = False) -> None:
    """End one lease in a bucket: free its place, and replace the estimate by the usage that was reported.

    With `before`, a budget has started anew since the lease began. The estimate was of the earlier period, so only what
    exceeds it counts.
    """
    free(bucket, 1)
    for unit, estimate in cost.items():
        if unit in usage:
            change = estimate - min(float(usage[unit]), MAX_AMOUNT)
            bucket.add(unit, min(change, 0.0) if before else change)


def free(bucket: Bucket, places: int) -> None:
    """Free the places of leases that have ended; their estimates stand."""
    bucket.used = max(bucket.used - places, 0)


def is_before(name: str, bucket: Bucket, run_started_at: int) -> bool:
    """Return whether a budget has started anew since a run of one of its jobs began."""
    return name.startswith(PREFIX) and run_started_at < bucket.as_of


def charged(cost: Mapping[str, float], during: Mapping[str, float]) -> dict[str, float]:
    """Return what a running job takes: its estimate, or what it has reported so far if that is more."""
    return {unit: max(estimate, min(during.get(unit, 0.0), MAX_AMOUNT)) for unit, estimate in cost.items()}


def is_exceeded(limit: Limit, bucket: Bucket, cost: Mapping[str, float], during: Mapping[str, float], now: int) -> bool:
    """Return whether a running job must stop: its budget is spent, and nothing is left of its estimate."""
    if limit.budget is None or limit.budget.on_exceed is OnExceed.WARN:
        return False
    available = bucket.available(limit, now)
    return any(
        rounded(left + max(cost.get(unit, 0.0) - during.get(unit, 0.0), 0.0), of=limit.burst[unit]) <= 0
        for unit, left in available.items()
    )


def refuses(limit: Limit, bucket: Bucket, cost: Mapping[str, float], now: int) -> bool:
    """Return whether a budget refuses a job for longer than until running jobs settle their estimates."""
    if any(amount <= 0 for amount in bucket.available(limit, now).values()):
        return True
    at = bucket.fits_at(limit, cost, now)
    return bucket.used == 0 and (at is None or at > now)


def rescale(bucket: Bucket, old: Limit, new: Limit, now: int) -> None:
    """Apply new rules: keep what is available, up to the new burst; of a budget, keep what was spent."""
    bucket.refill(old, now)
    if new.budget is not None:
        bucket.levels = {
            unit: amount - old.burst[unit] + bucket.levels[unit] if unit in old.burst else amount
            for unit, amount in new.burst.items()
        }
        began_at = new.budget.began_at(now)
        bucket.as_of = 0 if began_at is None else max(bucket.as_of, began_at)
        return
    bucket.levels = {unit: min(level, new.burst[unit]) for unit, level in bucket.levels.items() if unit in new.burst}
    bucket.ticket = None


@lru_cache(4096)
def demands_of(text: str) -> tuple[Demand, ...]:
    """Parse the limits of a job, as stored."""
    return tuple(Demand(one["name"], one.get("key") or "", one["cost"]) for one in json.loads(text))


def flow_of(text: str | None) -> str:
    """Return the limits of a job as part of its eligibility key; empty without limits.

    A limit without keys is a pair with an empty key. Keys are left out: many keys would be many eligibility keys. For
    the same reason all trees with a budget have one name here.
    """
    if text is None:
        return ""
    return _flow_of(tuple((term_of(one.name), bool(one.key)) for one in demands_of(text)))


def term_of(name: str) -> str:
    """Return the name of a limit in eligibility keys."""
    return TREE if name.startswith(TREE) else name


@lru_cache(4096)
def _flow_of(names: tuple[tuple[str, bool], ...]) -> str:
    return json.dumps([[name] if keyed else [name, ""] for name, keyed in sorted({*names})], separators=(",", ":"))


@lru_cache(4096)
def names_of(flow: str) -> tuple[Name, ...]:
    """Return the buckets that an eligibility key names: those of limits without keys."""
    return tuple((one[0], "") for one in json.loads(flow) if len(one) == 2) if flow else ()


@lru_cache(4096)
def limits_of(flow: str) -> tuple[str, ...]:
    """Return the limits that an eligibility key names."""
    return tuple(one[0] for one in json.loads(flow) if one) if flow else ()


@lru_cache(4096)
def has_keys(flow: str) -> bool:
    """Return whether an eligibility key names a limit with keys."""
    return any(len(one) == 1 for one in json.loads(flow)) if flow else False


def parked(flow: str) -> str:
    """Return the flow of the eligibility key that jobs have while they are parked."""
    return f"[[],{flow[1:]}"


def is_parked(flow: str) -> bool:
    return flow.startswith("[[],")


def check(limit: Limit) -> Limit:
    """Validate a limit, and add the default burst: the amount of one period."""
    if limit.budget is not None and not limit.units:
        raise Invalid("amount is empty: expected an amount of at least one unit", pointer="/amount")
    if limit.budget is None and limit.name.startswith((PREFIX, TREE)):
        raise Invalid(f"the name of a limit cannot begin with {PREFIX!r} or {TREE!r}: create a budget", pointer="/name")
    if limit.fair and not limit.keyed:
        raise Invalid("fair is for limits with keys: set keyed too", pointer="/fair")
    if limit.weights and not limit.fair:
        raise Invalid("weights need fair", pointer="/weights")
    if len(limit.weights) > MAX_WEIGHTS:
        raise Invalid(f"weights has {len(limit.weights)} keys: expected at most {MAX_WEIGHTS}", pointer="/weights")
    for key, weight in limit.weights.items():
        if not json_text.is_visible_name(key) or len(key) > MAX_KEY_LENGTH:
            raise Invalid(f"key {key[:50]!r} must be {json_text.NAME_RULE}", pointer="/weights")
        if not (math.isfinite(weight) and 0.001 <= weight <= 1000):
            raise Invalid(f"the weight of {key!r} is {weight:g}: expected 0.001 to 1000", pointer="/weights")
    if limit.concurrency is None and not limit.units:
        raise Invalid("a limit needs concurrency or rate", pointer="/concurrency")
    if limit.concurrency is not None and not 1 <= limit.concurrency <= 1_000_000:
        raise Invalid(f"concurrency is {limit.concurrency}: expected 1 to 1000000", pointer="/concurrency")
    if not (math.isfinite(limit.per_seconds) and 0.001 <= limit.per_seconds <= 366 * 86_400):
        raise Invalid("per_seconds must be from 0.001 to 31622400", pointer="/rate/per_seconds")
    if len(limit.units) > MAX_UNITS:
        what, at = ("limit", "/rate/units") if limit.budget is None else ("budget", "/amount")
        raise Invalid(f"a {what} has at most {MAX_UNITS} units", pointer=at)
    for member, amounts in (("units", limit.units), ("burst", limit.burst)):
        for unit, amount in amounts.items():
            at = f"/rate/{member}/{unit}" if limit.budget is None else f"/amount/{unit}"
            if not json_text.is_visible_name(unit) or unit == "concurrency":
                raise Invalid(f"{unit!r} cannot be the name of a unit", pointer=at)
            if unit not in limit.units:
                raise Invalid(f"burst names the unit {unit!r}, which has no rate", pointer=at)
            if not (math.isfinite(amount) and 0 < amount <= MAX_AMOUNT):
                raise Invalid(f"the amount of {unit} must be above 0 and at most {MAX_AMOUNT:g}", pointer=at)
    return limit._replace(burst={unit: limit.burst.get(unit, amount) for unit, amount in limit.units.items()})


def resolve(
    named: Sequence[Mapping[str, Any]], limits: Mapping[str, Limit], payload: str, budgets: Sequence[str] = ()
) -> str | None:
    """Validate the limits and budgets that a job names, fill in its keys and costs, and return them as stored."""
    if not named and not budgets:
        return None
    if len(named) > MAX_LIMITS_OF_JOB:
        raise Invalid(f"a job names at most {MAX_LIMITS_OF_JOB} limits, not {len(named)}", pointer="/limits")
    found: list[dict[str, Any]] = []
    for i, one in enumerate(named):
        at, name = f"/limits/{i}", one["name"]
        limit = limits.get(name)
        if limit is None or limit.budget is not None:
            raise Invalid(
                f"limit {name!r} does not exist: create it first, with `interlock limits set`", pointer=f"{at}/name"
            )
        if any(name == other["name"] for other in found):
            raise Invalid(f"limit {name!r} is named twice", pointer=f"{at}/name")
        key = _key(one.get("key"), limit, payload, f"{at}/key")
        found.append({"name": name, "key": key, "cost": _cost(one.get("cost") or {}, limit, f"{at}/cost")})
    return json.dumps([*found, *_budgets(budgets, limits, found)], separators=(",", ":"))


def check_copied(demanded: str | None, limits: Mapping[str, Limit]) -> None:
    """Validate the limits that a redrive copies: since the old job, one may have been deleted, or created anew."""
    for one in demands_of(demanded or "[]"):
        limit = limits.get(one.name)
        what, name = ("budget", one.name.removeprefix(PREFIX)) if one.name.startswith(PREFIX) else ("limit", one.name)
        if one.name.startswith(TREE):
            continue
        if limit is None:
            raise Invalid(f"{what} {name!r}, which the job names, does not exist any more: create it first")
        if limit.keyed != bool(one.key):
            raise Invalid(f"limit {name!r} has {'keys' if limit.keyed else 'no keys'} now: enqueue a new job")


def _budgets(
    names: Sequence[str], limits: Mapping[str, Limit], uses: Sequence[Mapping[str, Any]]
) -> Iterable[dict[str, Any]]:
    """Return the budgets of a job as stored; the estimate of a unit is its cost in the limits of the job, else 0."""
    if len(names) > MAX_BUDGETS_OF_JOB:
        raise Invalid(f"a job names at most {MAX_BUDGETS_OF_JOB} budgets, not {len(names)}", pointer="/budgets")
    for i, name in enumerate(names):
        limit = limits.get(PREFIX + name)
        if limit is None:
            raise Invalid(
                f"budget {name!r} does not exist: create it first, with `interlock budgets set`",
                pointer=f"/budgets/{i}",
            )
        if name in names[:i]:
            raise Invalid(f"budget {name!r} is named twice", pointer=f"/budgets/{i}")
        cost = {unit: max((use["cost"].get(unit, 0.0) for use in uses), default=0.0) for unit in limit.units}
        yield {"name": limit.name, "key": None, "cost": cost}


def _key(template: str | None, limit: Limit, payload: str, at: str) -> str | None:
    if not limit.keyed:
        if template is not None:
            raise Invalid(f"limit {limit.name!r} has no keys: leave out key", pointer=at)
        return None
    if template is None:
        raise Invalid(f"limit {limit.name!r} has keys: set key", pointer=at)
    key = template
    if _TEMPLATE.search(template):
        values = json_text.loads(payload)
        key = _TEMPLATE.sub(lambda found: _member(values, found[1], at), template)
    if not json_text.is_visible_name(key) or len(key) > MAX_KEY_LENGTH:
        raise Invalid(f"key {key[:50]!r} must be {json_text.NAME_RULE}", pointer=at)
    return key


def _member(payload: Any, path: str, at: str) -> str:
    """Return a member of the payload as text; a dot leads to a member of a member."""
    value = payload.get(path) if isinstance(payload, dict) else None
    if value is None:
        value = payload
        for part in path.split("."):
            value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise Invalid(f"the payload has no text or whole number at {path!r}, which key names", pointer=at)
    return str(value)


def _cost(given: Mapping[str, Any], limit: Limit, at: str) -> dict[str, float]:
    for unit, amount in given.items():
        if unit not in limit.units:
            raise Invalid(
                f"limit {limit.name!r} has no unit {unit!r}: expected a unit of its rate", pointer=f"{at}/{unit}"
            )
        if not (math.isfinite(amount) and amount >= 0):
            raise Invalid(f"the cost in {unit} is {amount}: expected 0 or more", pointer=f"{at}/{unit}")
    cost = {unit: float(given.get(unit, 1.0)) for unit in limit.units}
    for unit, amount in cost.items():
        if amount > limit.burst[unit]:
            raise Invalid(
                f"the cost is {amount:g} {unit}, above the burst of limit {limit.name!r}, {limit.burst[unit]:g}",
                pointer=f"{at}/{unit}",
            )
    return cost


class BucketState(NamedTuple):
    """A bucket as of now: running and waiting jobs, what is available, and its hold."""

    key: str
    used: int
    available: Mapping[str, float]
    waiting: int
    held_until: int | None = None
    held_by: str | None = None
    hold_reason: str | None = None


class LimitState(NamedTuple):
    """A limit and its state; with keys, `used` and `waiting` are sums, and `available` is empty.

    Of a budget, also what running jobs reserve in the current period.
    """

    limit: Limit
    state: BucketState
    reserved: Mapping[str, float] = {}


def state_of(
    limit: Limit, key: str, bucket: Bucket, now: int, waiting: int, held_by: str | None, reason: str | None
) -> BucketState:
    """Return the state of a bucket as of now."""
    available = bucket.available(limit, now)
    if limit.concurrency is not None:
        available["concurrency"] = limit.concurrency - bucket.used
    held = bucket.held_until is not None and bucket.held_until > now
    hold = (bucket.held_until, held_by, reason) if held else (None, None, None)
    return BucketState(key, bucket.used, available, waiting, *hold)
