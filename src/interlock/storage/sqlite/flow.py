"""Limits on SQLite: which jobs of a claim they admit, and what the end of a lease settles.

The writer thread is the only one that changes a bucket, so the domain decides and one statement saves the result. A
parked job has another eligibility key, which no claim reads.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

from interlock.domain.budget import TREE
from interlock.domain.lifecycle import LOSSES
from interlock.domain.limits import (
    Bucket,
    Grants,
    Head,
    Limit,
    Name,
    charged,
    demands_of,
    free,
    in_turn,
    is_before,
    limits_of,
    must_wait,
    names_of,
    settle,
)
from interlock.domain.progress import StepRow
from interlock.domain.retry import SECOND
from interlock.domain.usage import USAGE, of_run
from interlock.storage.sql_files import load
from interlock.storage.sqlite.connection import Connection
from interlock.storage.sqlite.eligibility_keys import EligibilityKey, EligibilityKeys, IndexRange, is_read

_SQL: Final = load("interlock.storage.sqlite", "flow.sql")
NO_USAGE: Final = (None, None, 0)  # at the end of a run, during it, and in steps


class FlowClaim:
    """The limits that apply to one claim."""

    def __init__(
        self, connection: Connection, eligibility_keys: EligibilityKeys, tenant: str, index_ranges: Iterable[IndexRange]
    ) -> None:
        self._connection, self._eligibility_keys, self._tenant = connection, eligibility_keys, tenant
        names = {name for index_range in index_ranges for name in names_of(index_range.flow)}
        limits = _limits(
            connection, tenant, {name for index_range in index_ranges for name in limits_of(index_range.flow)}
        )
        self._grants = Grants(limits, _buckets(connection, tenant, names), connection.now)
        self._limits_of: dict[int, str] = {}  # of admitted jobs, by seq
        self.skipped: set[int] = set()
        self._waking: dict[Name, int | None] = {}  # buckets that were looked at, and when to look again
        self._grants.now_served = {
            name: _now_served(connection, tenant, name) for name, limit in self._grants.limits.items() if limit.fair
        }
        self._show_due()

    def open_ranges(self, index_ranges: Sequence[IndexRange]) -> list[IndexRange]:
        """Return the index ranges whose buckets have room."""
        kinds = {(r.flow, r.priority) for r in index_ranges}
        opened = {(flow, priority): self._grants.is_open(names_of(flow), priority) for flow, priority in kinds}
        return [r for r in index_ranges if opened[r.flow, r.priority]]

    def admit(self, seqs: Sequence[int], most: int) -> list[int]:
        """Return the jobs that fit, in order, at most so many, and charge their buckets. Park those that lack a key.

        Those that must wait for jobs of this claim are `skipped`.
        """
        rows = self._connection.rows(_SQL["candidates"], {"tenant": self._tenant, "seqs": json.dumps(seqs)})
        self._load(
            (demand.name, demand.key)
            for _, _, limits, _, _ in rows
            if limits is not None
            for demand in demands_of(limits)
            if demand.key
        )
        admitted: list[int] = []
        parked: dict[int, Name] = {}
        for seq, (priority, run_at, limits, *shown_by) in zip(seqs, rows, strict=True):
            if len(admitted) >= most:
                break
            demands = () if limits is None else demands_of(limits)
            full = self._grants.admit((-priority, run_at, seq), demands, (shown_by[0], shown_by[1]))
            if full is None:
                admitted.append(seq)
                if limits is not None:
                    self._limits_of[seq] = limits
            elif self._grants.is_to_park(full, demands):
                parked[seq] = full
            elif full[1]:
                self.skipped.add(seq)
        self._park(parked)
        return admitted

    def show_more(self, index_ranges: Sequence[IndexRange], wanted: int, least: int) -> bool:
        """Show parked jobs: of buckets that this claim charged and that have room, and the next ones of fair limits."""
        return self._show(dict(self._grants.to_wake(least))) or self.show_turns(index_ranges, wanted)

    def show_turns(self, index_ranges: Sequence[IndexRange], wanted: int) -> bool:
        """Show the next jobs of fair limits, until claims see as many as this one wants."""
        fair = [limit for limit in self._grants.limits.values() if limit.fair]
        if fair:
            self._save_changed()
        shown = [self._show_turns(limit, index_ranges, wanted) for limit in fair]
        return any(shown)

    def pass_slots(self, index_ranges: Sequence[IndexRange]) -> bool:
        """Pass slots of agents from jobs that wait for a limit to jobs that the claim may lease."""
        self._save_changed()  # slots that are passed on wake buckets
        connection, grants = self._connection, self._grants
        rows = connection.rows(_SQL["slot_holders"], {"tenant": self._tenant})
        demands = {row[1]: demands_of(row[-1]) for row in rows}
        named = {(one.name, one.key) for some in demands.values() for one in some}
        limits = _limits(connection, self._tenant, {name for name, _ in named}) | grants.limits
        buckets = _buckets(connection, self._tenant, named) | grants.buckets
        moves: list[tuple[int, str, int]] = []
        for agent_no, of_agent in groupby(rows, lambda row: row[0]):
            waiting = [
                (seq, shown_by)
                for _, seq, priority, run_at, *shown_by, _ in of_agent
                if must_wait(demands[seq], limits, buckets, (-priority, run_at, seq), connection.now)
            ]
            if not waiting:
                continue
            line = self._line(agent_no, index_ranges, len(waiting))
            for (seq, (name, key)), head in zip(waiting, line, strict=False):
                moves += [(1, self._tenant, seq), (0, self._tenant, head)]
                if name is not None:  # this bucket shows one job less
                    connection.db.execute(_SQL["wake"], (connection.now, self._tenant, name, key))
        connection.db.executemany(_SQL["block"], moves)
        return bool(moves)

    def _line(self, agent_no: int, index_ranges: Sequence[IndexRange], most: int) -> list[int]:
        """Return the first due jobs that wait for a slot of an agent and that the claim may lease."""
        rows = self._connection.rows
        facts = {"tenant": self._tenant, "agent_no": agent_no}
        found: list[tuple[int, int]] = []
        for (no,) in rows(_SQL["line_keys"], facts):
            if is_read(self._eligibility_keys.numbered(no), index_ranges):
                found += rows(
                    _SQL["line"], facts | {"no": no, "now": self._connection.now, "most": most + len(self.skipped)}
                )
        return [seq for _, seq in sorted(found) if seq not in self.skipped][:most]

    def save(self, leased: Iterable[int]) -> None:
        """Undo the charges of admitted jobs that were not leased after all, and write the buckets."""
        for seq in self._limits_of.keys() - set(leased):
            for demand in demands_of(self._limits_of[seq]):
                settle(self._grants.buckets[demand.name, demand.key], demand.cost, dict.fromkeys(demand.cost, 0))
        self._save_changed()

    def opens_in(self) -> float | None:
        """Return in how many seconds a limit may admit a job, as far as only time is lacking."""
        connection = self._connection
        ((wakes_at,),) = connection.rows(_SQL["next_wake"], {"tenant": self._tenant, "now": connection.now})
        times = [at for at in (wakes_at, self._grants.opens_at()) if at is not None]
        return (min(times) - connection.now) / SECOND if times else None

    def _save_changed(self) -> None:
        grants, now = self._grants, self._connection.now
        grants.line_up()
        waking = self._waking | {
            name: grants.buckets[name].wakes_at(grants.limits[name[0]], now) for name in grants.changed
        }
        _save(self._connection, self._tenant, {name: grants.buckets[name] for name in sorted(waking)}, waking)
        self._waking.clear()

    def _load(self, names: Iterable[Name]) -> None:
        missing = {*names} - self._grants.buckets.keys()
        if missing:
            self._grants.buckets |= _buckets(self._connection, self._tenant, missing)
            trees = {name for name, _ in missing if name.startswith(TREE)}
            self._grants.limits |= _limits(self._connection, self._tenant, trees)

    def _show_due(self) -> None:
        """Show the first parked jobs of buckets that may have room."""
        connection, grants = self._connection, self._grants
        rows = connection.rows(_SQL["due_buckets"], {"tenant": self._tenant, "now": connection.now})
        if not rows:
            return
        grants.limits |= _limits(connection, self._tenant, {row[0] for row in rows} - grants.limits.keys())
        rooms: dict[Name, int] = {}
        for name, key, *state in rows:
            bucket = grants.buckets[name, key] = _bucket(connection, self._tenant, state)
            limit = grants.limits.get(name)
            self._waking[name, key] = None
            if limit is None:
                continue
            if limit.fair:
                if name not in grants.now_served:
                    grants.now_served[name] = _now_served(connection, self._tenant, name)
                bucket.line_up(limit, connection.now, grants.now_served[name])
                self._waking[name, key] = bucket.wakes_at(limit, connection.now)
            elif room := bucket.shows(limit, connection.now):
                rooms[name, key] = room
            else:
                self._waking[name, key] = bucket.wakes_at(limit, connection.now)
        self._show(rooms)

    def _show(self, rooms: Mapping[Name, int]) -> bool:
        """Show jobs until claims see so many of each eligibility key of these buckets."""
        if not rooms:
            return False
        lines = self._parked_lines(list(rooms))
        for name in rooms:
            self._grants.buckets[name].parked = False
        shown: list[tuple[EligibilityKey, int]] = []
        for (name, key, _), (seen, parked) in zip(lines, self._first_of(lines, max(rooms.values())), strict=True):
            self._grants.buckets[name].parked = True
            shown += ((key, seq) for seq in parked[: max(rooms[name] - seen, 0)])
        return self._show_jobs(shown)

    def _show_jobs(self, jobs: Iterable[tuple[EligibilityKey, int]]) -> bool:
        """Show parked jobs, with the keys by which claims will find them; return whether there are any."""
        by_key: dict[EligibilityKey, list[int]] = {}
        for key, seq in jobs:
            by_key.setdefault(key, []).append(seq)
        rows = [(*key.entries, self._tenant, json.dumps(seqs)) for key, seqs in by_key.items()]
        self._connection.db.executemany(_SQL["show"], rows)
        return bool(rows)

    def _show_turns(self, limit: Limit, index_ranges: Sequence[IndexRange], most: int) -> bool:
        """Show the next jobs of a fair limit that the claim may lease."""
        rows, read = self._connection.rows, most
        facts = {"tenant": self._tenant, "name": limit.name}
        while True:
            found = rows(_SQL["first_turns"], facts | {"most": read})
            buckets = {}
            for key, *state in found:
                bucket = _bucket(self._connection, self._tenant, state)
                buckets[key] = self._grants.buckets[limit.name, key] = bucket
            of_each = max(2 * most // max(len(buckets), 1), 1)
            heads, keys, seen = self._heads(limit, list(buckets), index_ranges, of_each)
            if heads or len(found) < read:
                break
            read *= 4
        shown = in_turn(limit, buckets, heads, most, self._connection.now, read=of_each, seen=seen)
        return self._show_jobs((keys[head.id], head.id) for head in shown)

    def _heads(
        self, limit: Limit, names: Sequence[str], index_ranges: Sequence[IndexRange], most: int
    ) -> tuple[list[Head], dict[int, EligibilityKey], Counter[str]]:
        """Return the first parked jobs of buckets, the keys by which claims will find them, and how many each shows."""
        of: dict[int, str] = {}
        seen: Counter[str] = Counter()
        keys: dict[int, EligibilityKey] = {}
        lines = self._parked_lines([(limit.name, name) for name in names])
        for empty in {*names} - {name[1] for name, _, _ in lines}:
            bucket = self._grants.buckets[limit.name, empty]
            bucket.parked, bucket.turn = False, None
            self._grants.touch((limit.name, empty))
        read = [line for line in lines if is_read(line[1], index_ranges)]
        for (name, key, _), (shown, parked) in zip(read, self._first_of(read, most), strict=True):
            seen[name[1]] += shown
            for seq in parked:
                of[seq], keys[seq] = name[1], key
        found = self._connection.rows(_SQL["heads"], {"tenant": self._tenant, "seqs": json.dumps(list(of))})
        heads = []
        for priority, run_at, seq, limits in found:
            (cost,) = (one.cost for one in demands_of(limits) if one.name == limit.name)
            heads.append(Head(of[seq], seq, (-priority, run_at, seq), cost))
        return heads, keys, seen

    def _parked_lines(self, names: Sequence[Name]) -> list[tuple[Name, EligibilityKey, int]]:
        """Return the lines of these buckets: the keys by which claims find their jobs, and have them while parked."""
        facts = {"tenant": self._tenant, "buckets": json.dumps(names)}
        rows = self._connection.rows(_SQL["parked_keys"], facts)
        shown = {no: self._eligibility_keys.shown(no) for no in {no for _, no in rows}}
        return [(names[i], shown[no], no) for i, no in rows]

    def _first_of(self, lines: Sequence[tuple[Name, EligibilityKey, int]], most: int) -> list[tuple[int, list[int]]]:
        """Return how many jobs each line shows, and the first ones that are parked; up to so many of either."""
        named = json.dumps([(*name, key.no, no) for name, key, no in lines])
        rows = self._connection.rows(_SQL["lines"], {"tenant": self._tenant, "lines": named, "most": most})
        return [(seen, json.loads(parked)) for seen, parked in rows]

    def _park(self, jobs: Mapping[int, Name]) -> None:
        if not jobs:
            return
        facts = {"tenant": self._tenant, "seqs": json.dumps(list(jobs))}
        moves = []
        for seq, no, *shown_by in self._connection.rows(_SQL["places_of"], facts):
            key = self._eligibility_keys.parked(self._connection, no)
            moves.append((*key.entries, *jobs[seq], self._tenant, seq))
            self._grants.park(jobs[seq])
            if shown_by[0] is not None:  # this bucket shows one job less
                self._grants.touch((shown_by[0], shown_by[1]))
        self._connection.db.executemany(_SQL["park"], moves)


class Place(NamedTuple):
    """Where a new job of a fair limit is parked."""

    key: EligibilityKey
    name: Name


def line_up(
    connection: Connection,
    eligibility_keys: EligibilityKeys,
    tenant: str,
    jobs: Iterable[tuple[int, EligibilityKey, str]],
) -> dict[int, Place]:
    """Return where new jobs are parked, by seq: those of fair limits, whose claims take the keys in turn."""
    limits: dict[str, Limit] = {}
    looked_for: set[str] = set()
    places: dict[int, Place] = {}
    for seq, key, text in jobs:
        keyed = [demand for demand in demands_of(text) if demand.key]
        if unknown := {one.name for one in keyed} - looked_for:
            limits |= _limits(connection, tenant, unknown)
            looked_for |= unknown
        fair = next((one for one in keyed if one.name in limits and limits[one.name].fair), None)
        if fair is not None:
            places[seq] = Place(eligibility_keys.parked(connection, key.no), (fair.name, fair.key))
    _take_turns(connection, tenant, limits, {place.name for place in places.values()})
    return places


def _take_turns(connection: Connection, tenant: str, limits: Mapping[str, Limit], names: Iterable[Name]) -> None:
    """Give turns to buckets of fair limits in which jobs are parked now."""
    found = {name: Bucket() for name in sorted(names)}
    if not found:
        return
    found |= _buckets(connection, tenant, found)
    new = {name: bucket for name, bucket in found.items() if not bucket.parked or bucket.turn is None}
    served = {name: _now_served(connection, tenant, name) for name in {name for name, _ in new}}
    for name, bucket in new.items():
        bucket.parked = True
        bucket.line_up(limits[name[0]], connection.now, served[name[0]])
    _save(connection, tenant, new, {n: one.wakes_at(limits[n[0]], connection.now) for n, one in new.items()})


def flow_of_agents(connection: Connection, tenant: str) -> bool:
    """Return whether a job that waits for a limit may have the only slot of an agent."""
    ((may,),) = connection.rows(_SQL["flow_of_agents"], (tenant,))
    return bool(may)


def settle_ended(connection: Connection, tenant: str, seqs: Sequence[int]) -> None:
    """Settle the leases of these jobs, which have just ended."""
    ((any_limit,),) = connection.rows(_SQL["any_limit"], (tenant,))
    if not any_limit or not seqs:
        return
    rows = connection.rows(_SQL["ended"], {"tenant": tenant, "seqs": json.dumps(seqs)})
    if not rows:
        return
    as_estimated = Counter(row[0] for row in rows if row[5:] == NO_USAGE)
    demands = [
        (demand, row[4], *_used(connection, tenant, row))
        for row in rows
        if row[5:] != NO_USAGE
        for demand in demands_of(row[0])
    ]
    named = {(one.name, one.key) for limits in as_estimated for one in demands_of(limits)}
    buckets = _buckets(connection, tenant, named | {(one.name, one.key) for one, *_ in demands})
    for limits, n in as_estimated.items():
        for one in demands_of(limits):
            if (bucket := buckets.get((one.name, one.key))) is not None:
                free(bucket, n)
    for demand, run_started_at, during, used in demands:
        if (bucket := buckets.get((demand.name, demand.key))) is not None:
            before = is_before(demand.name, bucket, run_started_at)
            settle(bucket, charged(demand.cost, during), used, before=before)
    waking = {name: connection.now if one.parked and one.turn is None else None for name, one in buckets.items()}
    _save(connection, tenant, buckets, waking)


def _used(connection: Connection, tenant: str, row: tuple[Any, ...]) -> tuple[dict[str, float], dict[str, float]]:
    """Return what an ended run has been charged for, and what it reported; a lost run reports nothing more."""
    _, id, fence, verb, _, total, heartbeat, _ = row
    facts = {"tenant": tenant, "id": id, "name": USAGE}
    steps = [StepRow(*step) for step in connection.rows(_SQL["usage_steps"], facts)]
    during, used = of_run(id, fence, steps, total, heartbeat)
    return during, {} if verb in LOSSES else used


def wake(connection: Connection, tenant: str, seqs: Sequence[int]) -> None:
    """Let the next claim look at the buckets of jobs that no longer wait, or that wait differently."""
    ((any_limit,),) = connection.rows(_SQL["any_limit"], (tenant,))
    if not any_limit or not seqs:
        return
    rows = connection.rows(_SQL["limits_of"], {"tenant": tenant, "seqs": json.dumps(seqs)})
    names = {(demand.name, demand.key) for (limits,) in rows for demand in demands_of(limits) if demand.key}
    connection.db.executemany(_SQL["wake"], [(connection.now, tenant, *name) for name in sorted(names)])


def _now_served(connection: Connection, tenant: str, name: str) -> float:
    ((turn,),) = connection.rows(_SQL["now_served"], {"tenant": tenant, "name": name})
    return float(turn)


def _limits(connection: Connection, tenant: str, names: Iterable[str]) -> dict[str, Limit]:
    rows = connection.rows(_SQL["limits"], {"tenant": tenant, "names": json.dumps(sorted(names))})
    return {name: Limit.from_text(name, rules) for name, rules in rows}


def _buckets(connection: Connection, tenant: str, names: Iterable[Name]) -> dict[Name, Bucket]:
    rows = connection.rows(_SQL["buckets"], {"tenant": tenant, "names": json.dumps(sorted(names))})
    return {(name, key): _bucket(connection, tenant, state) for name, key, *state in rows}


def _bucket(connection: Connection, tenant: str, state: Sequence[Any]) -> Bucket:
    """Return a bucket, without a ticket whose job does not wait any more, or whose type is paused."""
    bucket = Bucket.from_row(*state)
    if bucket.ticket is not None:
        priority, run_at, seq = bucket.ticket.rank
        facts = {"tenant": tenant, "priority": -priority, "run_at": run_at, "seq": seq}
        ((waits,),) = connection.rows(_SQL["still_waits"], facts)
        bucket.ticket = bucket.ticket if waits else None
    return bucket


def _save(
    connection: Connection, tenant: str, buckets: Mapping[Name, Bucket], waking: Mapping[Name, int | None]
) -> None:
    connection.db.executemany(
        _SQL["save"],
        [
            (
                tenant,
                *name,
                *bucket.to_row(),
                int(bucket.parked),
                waking[name] if bucket.parked else None,
                bucket.turn,
                bucket.served,
            )
            for name, bucket in buckets.items()
        ],
    )
