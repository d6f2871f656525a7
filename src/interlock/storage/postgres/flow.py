"""A claim on PostgreSQL that asks limits: in one transaction that locks the buckets before the jobs.

Before it, a short transaction shows parked jobs of buckets that may have room again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from interlock.domain.limits import (
    Bucket,
    Grants,
    Head,
    Limit,
    Name,
    Rank,
    demands_of,
    has_keys,
    in_turn,
    must_wait,
    names_of,
)
from interlock.domain.policy import DEFAULT_LEASE_SECONDS
from interlock.domain.retry import SECOND
from interlock.storage.postgres.connection import Conn, call
from interlock.storage.wakeup import NextLook

MAX_LOOKS: Final = 64
MOST_READ: Final = 1000
WOKEN_AT_ONCE: Final = 1000
ANSWER_COLUMNS: Final = 17  # that start_runs returns


class Candidate(NamedTuple):
    """A job that a claim may lease, and its row of ready."""

    id: str
    priority: int
    run_at: int
    seq: int
    limits: str | None
    at: str
    limit_name: str | None  # of the bucket that shows it
    limit_key: str | None

    @property
    def rank(self) -> Rank:
        return -self.priority, self.run_at, self.seq

    @property
    def shown_by(self) -> Name:
        return self.limit_name or "", self.limit_key or ""

    @property
    def keyed(self) -> list[Name]:
        """Its buckets of limits with keys."""
        return [(demand.name, demand.key) for demand in demands_of(self.limits or "[]") if demand.key]


async def wake(connection: Conn, tenant: str) -> None:
    """Show the first parked jobs of buckets that may have room."""
    row = await connection.fetchrow(call("flow_due", 2), tenant, WOKEN_AT_ONCE)
    assert row is not None
    now, found, rules, served = row
    now_served: dict[str, float] = json.loads(served or "{}")
    buckets, limits = _buckets(found), _limits(rules)
    known = {name: bucket for name, bucket in buckets.items() if name[0] in limits}
    for name, bucket in known.items():
        bucket.line_up(limits[name[0]], now, now_served.get(name[0], 0.0))
    rooms = {name: 0 if limits[name[0]].fair else bucket.shows(limits[name[0]], now) for name, bucket in known.items()}
    await _show(connection, tenant, [(name, room) for name, room in rooms.items() if room])
    wakes = {name: None if rooms[name] else bucket.wakes_at(limits[name[0]], now) for name, bucket in known.items()}
    await _save_wakes(connection, tenant, known, wakes)


async def claim(connection: Conn, asked: tuple[Any, ...], next_look: NextLook) -> list[Any]:
    """Lease the best jobs that their limits admit; return what `interlock.start_runs` returns."""
    tenant, worker, limit, seconds, types, capabilities, repositories, affinity_keys, claim_id, claimants = asked
    terms = await connection.fetchrow(call("flow_terms", 5), tenant, types, capabilities, repositories, affinity_keys)
    assert terms is not None
    keys, ranks, flows, bound, lease_set, floor, now, found, rules, served = terms
    eligible = list(zip(keys or (), ranks or (), flows or (), strict=True))
    grants = Grants(_limits(rules), _buckets(found), now, json.loads(served or "{}"))
    looks = _Looks(connection, tenant, grants, (bound, repositories is None, affinity_keys is None))
    admitted: list[Candidate] = []
    read = limit
    least = 0  # parked jobs to show at least, more than their buckets admit: other limits admitted none of the last
    for _ in range(MAX_LOOKS):
        eligible = [one for one in eligible if grants.is_open(names_of(one[2]), one[1])]
        if not eligible or len(admitted) >= limit:
            break
        new = await looks.read(eligible, read)
        before = len(admitted)
        for one in new:
            if len(admitted) >= limit:
                break
            if looks.admits(one):
                admitted.append(one)
        await looks.park()
        if new:
            fitted = len(admitted) - before
            few = 2 * fitted < min(len(new), limit - before)
            read = min(read * 4, MOST_READ) if few else limit
            least = 0 if fitted else read
        if (
            not new
            and not await looks.show_more(eligible, limit - len(admitted), least)
            and not await looks.pass_slots(eligible)
        ):
            break
    if not admitted:
        wakes_at = await connection.fetchval(call("flow_next", 1), tenant)
        times = [at for at in (wakes_at, grants.opens_at()) if at is not None]
        next_look.seconds = (min(times) - grants.now) / SECOND if times else None
        if not grants.changed:
            return [None] * ANSWER_COLUMNS
    grants.line_up()
    changed = {name: grants.buckets[name] for name in sorted(grants.changed)}
    states = [bucket.to_row() for bucket in changed.values()]
    if seconds is None and not lease_set:
        seconds = DEFAULT_LEASE_SECONDS
    row = await connection.fetchrow(
        call("flow_start", 18), tenant, [one.id for one in admitted], [one.at for one in admitted], worker, claimants,
        seconds, floor, claim_id, *_columns(changed),
        [state[0] for state in states], [state[1] for state in states], [state[2] for state in states],
        [state[4] for state in states], [bucket.parked for bucket in changed.values()],
        [bucket.wakes_at(grants.limits[name[0]], grants.now) for name, bucket in changed.items()],
        [bucket.turn for bucket in changed.values()], [bucket.served for bucket in changed.values()],
    )  # fmt: skip
    assert row is not None
    return list(row)


class _Looks:
    """The candidates of one claim: read, their buckets locked, then locked themselves."""

    def __init__(self, connection: Conn, tenant: str, grants: Grants, scope: tuple[bool, bool, bool]) -> None:
        self._connection, self._tenant, self._grants, self._scope = connection, tenant, grants, scope
        self._seen: set[str] = set()
        self._admitted: set[int] = set()  # by seq
        self._asked: set[Name] = set()  # buckets that were locked, or that another transaction holds
        self._to_park: dict[str, Name] = {}
        self._fair = [limit for limit in grants.limits.values() if limit.fair]
        self._has_agents = False  # whether it has locked agents
        self._skipped = False  # whether jobs must wait for others of this claim

    async def read(self, eligible: Sequence[tuple[int, int, str]], most: int) -> list[Candidate]:
        """Lock the next candidates whose buckets could be locked, best first; for fair limits, those in their turn."""
        if not self._fair:
            return await self._read(eligible, most)
        found: list[Candidate] = []
        some = most
        for _ in range(MAX_LOOKS):
            new = await self._read(eligible, some)
            for one in new:
                not_yet = self._grants.lacks_turn(demands_of(one.limits or "[]"), one.shown_by)
                if not_yet is None:
                    found.append(one)
                else:
                    self._to_park[one.id] = not_yet
            is_done = not self._to_park or len(found) >= most
            await self.park()
            if is_done:
                break
            some = min(some * 4, MOST_READ)
        # Without as many, all parked jobs that may run are shown before the claim ends.
        if len(found) >= most and await self._show_turns_before(found[most - 1].rank, eligible, found[:most]):
            found = sorted([*found, *await self._read(eligible, most)], key=lambda one: one.rank)
        return found

    async def _read(self, eligible: Sequence[tuple[int, int, str]], most: int) -> list[Candidate]:
        """Lock the next candidates whose buckets could be locked, best first, whatever their turn."""
        keyed = any(has_keys(one[2]) for one in eligible)
        found = await self._connection.fetch(
            call("flow_peek", 8), self._tenant, [one[0] for one in eligible], [one[1] for one in eligible],
            *self._scope, most + len(self._seen), not keyed,
        )  # fmt: skip
        new = [one for one in (Candidate(*row) for row in found) if one.id not in self._seen]
        if keyed:
            await self._lock({name for one in new for name in one.keyed})
            new = [one for one in new if all(name in self._grants.buckets for name in one.keyed)]
        self._seen.update(str(row[0]) for row in found)
        if not new or not keyed:
            return new
        ids = await self._connection.fetchval(
            call("flow_candidates", 3), self._tenant, [one.at for one in new], [one.id for one in new]
        )
        free = {str(id) for id in ids or ()}
        return [one for one in new if one.id in free]

    def admits(self, one: Candidate) -> bool:
        """Return whether the limits of a candidate admit it; note to park it if a bucket with a key has no room."""
        if one.limits is None:
            self._admitted.add(one.seq)
            return True
        demands = demands_of(one.limits)
        full = self._grants.admit(one.rank, demands, one.shown_by)
        if full is not None and self._grants.is_to_park(full, demands):
            self._to_park[one.id] = full
        elif full is not None and full[1]:
            self._skipped = True
        if full is None:
            self._admitted.add(one.seq)
        return full is None

    async def park(self) -> None:
        if not self._to_park:
            return
        rows = await self._connection.fetch(
            call("flow_park", 4), self._tenant, list(self._to_park), *_columns(self._to_park.values())
        )
        for name in self._to_park.values():
            self._grants.park(name)
        for name, key in rows:  # these buckets show fewer jobs
            self._grants.touch((name, key))
        self._seen -= self._to_park.keys()
        self._to_park.clear()

    async def show_more(self, eligible: Sequence[tuple[int, int, str]], wanted: int, least: int) -> bool:
        """Show parked jobs: of buckets that this claim charged and that have room, and the next ones of fair limits."""
        shown = await _show(self._connection, self._tenant, self._grants.to_wake(least))
        if self._fair and not shown:
            await self._line_up()
            for limit in self._fair:
                shown = await self._show_turns(limit, [one[0] for one in eligible], wanted) or shown
        return shown

    async def _show_turns_before(
        self, rank: Rank, eligible: Sequence[tuple[int, int, str]], seen: Sequence[Candidate]
    ) -> bool:
        """Show the next jobs of fair limits that come before the last of these candidates."""
        await self._line_up()
        shown = False
        for limit in self._fair:
            wanted = sum(one.limit_name != limit.name for one in seen)
            if wanted and await self._show_turns(limit, [one[0] for one in eligible], wanted, before=rank):
                shown = True
        return shown

    async def _line_up(self) -> None:
        """Give turns to buckets of fair limits in which this claim parked jobs."""
        self._grants.line_up()
        changed = {name: self._grants.buckets[name] for name in sorted(self._grants.changed)}
        wakes = {n: one.wakes_at(self._grants.limits[n[0]], self._grants.now) for n, one in changed.items()}
        if changed:
            await _save_wakes(self._connection, self._tenant, changed, wakes)

    async def pass_slots(self, eligible: Sequence[tuple[int, int, str]]) -> bool:
        """Pass slots of agents from jobs that wait for a limit to jobs that this claim may lease."""
        if self._has_agents and self._skipped:  # a job that was passed over may be in the line again
            return False
        keys, (_, *others) = [one[0] for one in eligible], self._scope
        row = await self._connection.fetchrow(call("flow_slots", 4), self._tenant, keys, *others)
        assert row is not None
        if row[0] is None:
            return False
        limits = _limits(row[2]) | self._grants.limits
        buckets = _buckets(row[1]) | self._grants.buckets
        passed: list[tuple[int, str, str]] = []
        heads: dict[int, Iterator[str]] = {}
        for no, at, priority, run_at, seq, demanded, line in json.loads(row[0]):
            rank = (-priority, run_at, seq)
            if seq not in self._admitted and must_wait(demands_of(demanded), limits, buckets, rank, self._grants.now):
                head = next(heads.setdefault(no, iter(line)), None)
                passed += [] if head is None else [(no, at, head)]
        if not passed:
            return False
        self._has_agents = True
        columns = [list(column) for column in zip(*passed, strict=True)]
        return bool(await self._connection.fetchval(call("flow_pass_slots", 4), self._tenant, *columns))

    async def _show_turns(self, limit: Limit, keys: Sequence[int], most: int, before: Rank | None = None) -> bool:
        """Show the next jobs of a fair limit that the claim may lease."""
        read, (_, *others) = most, self._scope
        while True:
            found = await self._connection.fetch(
                call("flow_turns", 7), self._tenant, limit.name, keys, *others, read, 2 * most
            )
            buckets, heads = self._heads(limit, found)
            if heads or len(buckets) < read:
                break
            read *= 4
        of_each = max(2 * most // max(len(buckets), 1), 1)
        if before is not None:
            heads = [head for head in heads if head.rank < before]
        shown = in_turn(limit, buckets, heads, most, self._grants.now, read=of_each)
        ats, seqs = [head.id for head in shown], [head.rank[2] for head in shown]
        return bool(shown and await self._connection.fetchval(call("flow_show_jobs", 3), self._tenant, ats, seqs))

    def _heads(self, limit: Limit, rows: Sequence[Any]) -> tuple[dict[str, Bucket], list[Head]]:
        buckets: dict[str, Bucket] = {}
        heads = []
        for row in rows:
            _, key, *state = json.loads(row[0])
            if key not in buckets:
                known = self._grants.buckets.setdefault((limit.name, key), Bucket.from_row(*state))
                buckets[key] = known
                self._asked.add((limit.name, key))
            if row[1] is not None:
                (cost,) = (one.cost for one in demands_of(row[5]) if one.name == limit.name)
                heads.append(Head(key, row[1], (-row[2], row[3], row[4]), cost))
        return buckets, heads

    async def _lock(self, names: set[Name]) -> None:
        wanted = sorted(names - self._asked)
        if wanted:
            columns, wait = _columns(wanted), not self._asked and not self._fair and not self._has_agents
            row = await self._connection.fetchrow(call("flow_lock", 4), self._tenant, *columns, wait)
            assert row is not None
            self._grants.now, found, rules = row
            self._grants.buckets |= _buckets(found)
            self._grants.limits |= _limits(rules)
            self._asked |= names


async def _save_wakes(
    connection: Conn, tenant: str, buckets: Mapping[Name, Bucket], wakes: Mapping[Name, int | None]
) -> None:
    turns, served = [one.turn for one in buckets.values()], [one.served for one in buckets.values()]
    columns = _columns(buckets)
    await connection.fetchrow(call("flow_wakes", 6), tenant, *columns, [wakes[name] for name in buckets], turns, served)


async def _show(connection: Conn, tenant: str, rooms: Sequence[tuple[Name, int]]) -> bool:
    if not rooms:
        return False
    columns = _columns(name for name, _ in rooms)
    return bool(await connection.fetchval(call("flow_show", 4), tenant, *columns, [room for _, room in rooms]))


def _columns(names: Iterable[Name]) -> tuple[list[str], list[str]]:
    rows = list(names)
    return [name for name, _ in rows], [key for _, key in rows]


def _buckets(text: str | None) -> dict[Name, Bucket]:
    return {(name, key): Bucket.from_row(*state) for name, key, *state in json.loads(text or "[]")}


def _limits(text: str | None) -> dict[str, Limit]:
    return {name: Limit.from_text(name, rules) for name, rules in json.loads(text or "[]")}
