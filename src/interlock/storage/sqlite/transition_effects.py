"""Side effects of a transition on SQLite: update counters, free concurrency slots, write outbox rows.

Operations call this after they have written job and history; for direct SQL the triggers of 03_agents.sql do it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import Final, NamedTuple

from interlock.domain.concurrency import frees_slot, keeps_slot
from interlock.domain.lifecycle import TERMINAL
from interlock.storage.sql_files import load
from interlock.storage.sqlite import flow
from interlock.storage.sqlite.connection import Connection

_SQL: Final = load("interlock.storage.sqlite", "transition_effects.sql")
MINUTE: Final = 60_000_000


class StatusChange(NamedTuple):
    """A status change of a job, and whether the job had a concurrency slot."""

    seq: int
    base: int
    agent_no: int | None
    origin: str
    target: str
    has_slot: bool


class AgentSlots(NamedTuple):
    """The concurrency slots of a limited agent: how many are used, and when the next job is due if one is free."""

    no: int
    strict: int
    limit: int
    used: int
    next_due: int | None


def record(connection: Connection, tenant: str, moves: Sequence[StatusChange]) -> None:
    """Count the transitions, reassign the concurrency slots of their agents, and write outbox rows."""
    edges = Counter((m.base, m.origin, m.target) for m in moves if m.origin != m.target)
    _count(connection, tenant, edges, max((m.seq for m in moves if m.target == "succeeded"), default=0))
    limited_moves = [m for m in moves if m.agent_no is not None and m.target != "running"]
    if limited_moves:
        _move_up(connection, tenant, limited_moves)
    flow.settle_ended(connection, tenant, [m.seq for m in moves if m.origin == "running" and m.target != "running"])
    flow.wake(connection, tenant, [m.seq for m in moves if m.origin in ("queued", "retry")])
    _add_deliveries(connection, tenant, ((m.seq, m.origin, m.target) for m in moves))


def record_enqueued(
    connection: Connection, tenant: str, seqs: Iterable[int], bases: Iterable[int], agent_nos: set[int]
) -> None:
    """Like `record`, for new jobs; `agent_nos` are the limited agents."""
    _count(connection, tenant, {(base, "", "queued"): n for base, n in Counter(bases).items()})
    if agent_nos:
        release_slots(connection, tenant, limited(connection, tenant, agent_nos), {})
    _add_deliveries(connection, tenant, zip(seqs, repeat(None), repeat("queued")))


def record_leased(
    connection: Connection, tenant: str, edges: Mapping[tuple[int, str], int], started: Iterable[tuple[int, str]]
) -> None:
    """Like `record`, for leased jobs: `edges` counts them by base and old status, `started` lists each."""
    _count(connection, tenant, {(base, origin, "running"): n for (base, origin), n in edges.items()})
    _add_deliveries(connection, tenant, ((seq, origin, "running") for seq, origin in started))


def record_succeeded(
    connection: Connection, tenant: str, seqs: Sequence[int], bases: Iterable[int], agent_nos: Iterable[int | None]
) -> None:
    """Like `record`, for completed jobs."""
    edges = {(base, "running", "succeeded"): n for base, n in Counter(bases).items()}
    _count(connection, tenant, edges, max(seqs, default=0))
    freed = {agent_no: n for agent_no, n in Counter(agent_nos).items() if agent_no is not None}
    if freed:
        release_slots(connection, tenant, limited(connection, tenant, freed), freed)
    flow.settle_ended(connection, tenant, seqs)
    _add_deliveries(connection, tenant, zip(seqs, repeat("running"), repeat("succeeded")))


def _count(
    connection: Connection, tenant: str, edges: Mapping[tuple[int, str, str], int], last_succeeded: int = 0
) -> None:
    minute = connection.now // MINUTE * MINUTE
    rows = [(tenant, base, minute, origin, to, n, last_succeeded) for (base, origin, to), n in edges.items()]
    connection.db.executemany(_SQL["count"], rows)


def _move_up(connection: Connection, tenant: str, moves: Sequence[StatusChange]) -> None:
    agent_nos = limited(connection, tenant, {m.agent_no for m in moves if m.agent_no is not None})
    freed: Counter[int] = Counter()
    returned = set()
    for m in moves:
        if m.agent_no is None or m.agent_no not in agent_nos:
            continue
        ended, strict = m.target in TERMINAL, bool(agent_nos[m.agent_no].strict)
        if m.origin == m.target or not (ended or keeps_slot(m.origin, strict=strict, has_slot=m.has_slot)):
            returned.add(m.agent_no)  # it may be due before a job that has a slot
        if m.origin != m.target:
            freed[m.agent_no] += frees_slot(m.origin, ended=ended, strict=strict, has_slot=m.has_slot)
    release_slots(connection, tenant, {no: agent_no for no, agent_no in agent_nos.items() if no not in returned}, freed)
    assign_slots(connection, tenant, [(agent_no, freed[agent_no]) for agent_no in returned])


def overtaken(connection: Connection, tenant: str, first_due: Mapping[int, int]) -> list[int]:
    """Return agents with a job that has a slot, does not run yet, and is due later than a new job."""
    if not first_due:
        return []
    facts = {"tenant": tenant, "agent_nos": json.dumps(list(first_due.items()))}
    return [agent_no for (agent_no,) in connection.rows(_SQL["slotted_later"], facts)]


def limited(connection: Connection, tenant: str, agent_nos: Iterable[int]) -> dict[int, AgentSlots]:
    """Return the agents that have a concurrency limit."""
    rows = connection.rows(_SQL["limited"], {"tenant": tenant, "agent_nos": json.dumps(sorted(agent_nos))})
    return {row[0]: AgentSlots._make(row) for row in rows}


def release_slots(
    connection: Connection, tenant: str, agent_nos: Mapping[int, AgentSlots], freed: Mapping[int, int]
) -> None:
    """Free slots and assign free slots to due jobs; for direct SQL the trigger release_agent_slots does it."""
    has_slot: list[int] = []
    changed = []
    waiting = _first_without_slot(
        connection, tenant, [no for no, n in agent_nos.items() if n.used - freed.get(no, 0) < n.limit]
    )
    for agent_no in agent_nos.values():
        used = max(agent_no.used - freed.get(agent_no.no, 0), 0)  # never negative, even if the counter was wrong
        next_due = None
        if agent_no.no in waiting:
            free = agent_no.limit - used
            rows = (
                waiting[agent_no.no]
                if free == 1
                else connection.rows(_SQL["without_slot"], (tenant, agent_no.no, free))
            )
            for run_at, rowid in rows:
                if run_at > connection.now:
                    next_due = run_at
                    break
                has_slot.append(rowid)
                used += 1
        if used != agent_no.used or next_due != agent_no.next_due:
            changed.append((used, next_due, tenant, agent_no.no))
    if has_slot:
        connection.db.execute(_SQL["give_slots"], (json.dumps(has_slot),))
    connection.db.executemany(_SQL["save_slots"], changed)


def _first_without_slot(
    connection: Connection, tenant: str, agent_nos: Sequence[int]
) -> dict[int, list[tuple[int, int]]]:
    """Return run_at and rowid of the first job without a slot, for each agent that has one."""
    if not agent_nos:
        return {}
    rows = connection.rows(_SQL["first_without_slot"], {"tenant": tenant, "agent_nos": json.dumps(agent_nos)})
    return {agent_no: [(run_at, rowid)] for agent_no, run_at, rowid in rows}


def assign_slots(connection: Connection, tenant: str, freed: Iterable[tuple[int, int]]) -> None:
    """Free slots, then reassign the slots of all jobs that have not started: a job with a slot may now be due later."""
    connection.db.executemany(_SQL["assign_slots"], [(tenant, agent_no, n) for agent_no, n in sorted(freed)])


def fill_slots(connection: Connection, tenant: str) -> None:
    """Assign free slots to jobs that have become due."""
    due = connection.rows(_SQL["due_agents"], {"tenant": tenant, "now": connection.now})
    release_slots(connection, tenant, limited(connection, tenant, [agent_no for (agent_no,) in due]), {})


def _add_deliveries(connection: Connection, tenant: str, moves: Iterable[tuple[int, str | None, str]]) -> None:
    """Write outbox rows for transitions (seq, from, to) if there are subscribers. Requires their rows to be written."""
    ((listeners, own),) = connection.rows(_SQL["any_subscriber"], {"tenant": tenant})
    if listeners or own:
        delivery_facts = [(tenant, seq, origin, to) for seq, origin, to in moves if listeners or to in TERMINAL]
        connection.db.executemany(_SQL["deliver"], delivery_facts)
