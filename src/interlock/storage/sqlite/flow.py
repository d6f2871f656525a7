"""Limits on SQLite: which jobs of a claim they admit, and what the end of a lease settles.

The writer thread is the only one that changes a bucket, so the domain decides and one statement saves the result. A
parked job has another eligibility key, which no claim reads.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

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
        """Return the jobs that fit, in order, at most so many, and charge their buckets. Park those that lack a key."""
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
            if limits is None:
                admitted.append(seq)
            elif (
                full := self._grants.admit((-priority, run_at, seq), demands_of(limits), (shown_by[0], shown_by[1]))
            ) is None:
                self._limits_of[seq] = limits
                admitted.append(seq)
            elif full[1]:
                parked[seq] = full
        self._park(parked)
        return admitted

    def show_more(self, index_ranges: Sequence[IndexRange], wanted: int, least: int) -> bool:
        """Show parked jobs: of buckets that this claim charged and that have room, and the next ones of fair limits."""
        shown = [self._show(name, room) for name, room in self._grants.to_wake(least)]
        fair = [limit for limit in self._grants.limits.values() if limit.fair]
        if fair and not any(shown):
            self._save_changed()
            shown += [self._show_turns(limit, index_ranges, wanted) for limit in fair]
        return any(shown)

    def pass_slots(self, index_ranges: Sequence[IndexRange]) -> bool:
        """Pass slots of agents from jobs that wait for a limit to jobs that the claim may lease."""
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
                found += rows(_SQL["line"], facts | {"no": no, "now": self._connection.now, "most": most})
        return [seq for _, seq in sorted(found)[:most]]

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
        changed = {name: grants.buckets[name] for name in sorted(grants.changed)}
        _save(
            self._connection,
            self._tenant,
            changed,
            {name: bucket.wakes_at(grants.limits[name[0]], now) for name, bucket in changed.items()},
        )

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
        grants.limits |= _limits(connection, self._tenant, {row[0] for row in rows} - grants.limits.keys())
        waking: dict[Name, int | None] = {}
        for name, key, *state in rows:
            bucket = grants.buckets[name, key] = _bucket(connection, self._tenant, state)
            limit = grants.limits.get(name)
            waking[name, key] = None
            if limit is None:
                continue
            if limit.fair:
                grants.now_served.setdefault(name, _now_served(connection, self._tenant, name))
                bucket.line_up(limit, connection.now, grants.now_served[name])
                waking[name, key] = bucket.wakes_at(limit, connection.now)
            elif room := bucket.shows(limit, connection.now):
                self._show((name, key), room)
            else:
                waking[name, key] = bucket.wakes_at(limit, connection.now)
        _save(connection, self._tenant, {name: grants.buckets[name] for name in waking}, waking)

    def _show(self, name: Name, room: int) -> bool:
        """Show jobs until claims see `room` jobs of each eligibility key of the bucket."""
        rows = self._connection.rows
        facts = {"tenant": self._tenant, "name": name[0], "key": name[1]}
        keys = [no for (no,) in rows(_SQL["parked_keys"], facts)]
        self._grants.buckets[name].parked = bool(keys)
        shown = []
        for no in keys:
            key = self._eligibility_keys.shown(no)
            seen = rows(_SQL["of_bucket"], facts | {"no": key.no, "parked": 0, "most": room})
            found = rows(_SQL["of_bucket"], facts | {"no": no, "parked": 1, "most": room - len(seen)})
            shown += [self._move(seq, key, name, parked=False) for (seq,) in found]
        self._connection.db.executemany(_SQL["move"], shown)
        return bool(shown)

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
            heads, keys = self._heads(limit, list(buckets), index_ranges, of_each)
            if heads or len(found) < read:
                break
            read *= 4
        shown = in_turn(limit, buckets, heads, most, self._connection.now, read=of_each)
        moves = [self._move(head.id, keys[head.id], (limit.name, head.key), parked=False) for head in shown]
        self._connection.db.executemany(_SQL["move"], moves)
        return bool(shown)

    def _heads(
        self, limit: Limit, names: Sequence[str], index_ranges: Sequence[IndexRange], most: int
    ) -> tuple[list[Head], dict[int, EligibilityKey]]:
        """Return the first parked jobs of buckets, and the keys by which claims will find them."""
        rows = self._connection.rows
        of: dict[int, str] = {}
        keys: dict[int, EligibilityKey] = {}
        for name in names:
            facts = {"tenant": self._tenant, "name": limit.name, "key": name}
            parked = [no for (no,) in rows(_SQL["parked_keys"], facts)]
            if not parked:
                bucket = self._grants.buckets[limit.name, name]
                bucket.parked, bucket.turn = False, None
                self._grants.touch((limit.name, name))
            for no in parked:
                key = self._eligibility_keys.shown(no)
                if is_read(key, index_ranges):
                    for (seq,) in rows(_SQL["of_bucket"], facts | {"no": no, "parked": 1, "most": most}):
                        of[seq], keys[seq] = name, key
        found = rows(_SQL["heads"], {"tenant": self._tenant, "seqs": json.dumps(list(of))})
        heads = []
        for priority, run_at, seq, limits in found:
            (cost,) = (one.cost for one in demands_of(limits) if one.name == limit.name)
            heads.append(Head(of[seq], seq, (-priority, run_at, seq), cost))
        return heads, keys

    def _park(self, jobs: Mapping[int, Name]) -> None:
        if not jobs:
            return
        facts = {"tenant": self._tenant, "seqs": json.dumps(list(jobs))}
        moves = []
        for seq, no, *shown_by in self._connection.rows(_SQL["places_of"], facts):
            key = self._eligibility_keys.parked(self._connection, no)
            moves.append(self._move(seq, key, jobs[seq], parked=True))
            self._grants.park(jobs[seq])
            if shown_by[0] is not None:  # this bucket shows one job less
                self._grants.touch((shown_by[0], shown_by[1]))
        self._connection.db.executemany(_SQL["move"], moves)

    def _move(self, seq: int, key: EligibilityKey, name: Name, *, parked: bool) -> tuple[object, ...]:
        return (key.no, key.base, key.across_repositories, key.across_keys, int(parked), *name, self._tenant, seq)


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
    _save(connection, tenant, buckets, {name: connection.now if one.parked else None for name, one in buckets.items()})


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
