"""What follows from every transition on SQLite: a place in an agent's line is freed, it is counted, and announced.

The verbs call this after they have written job and history; direct SQL has the triggers of 0010_agents.sql.
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
from interlock.storage.sqlite.connection import Connection
from interlock.storage.sqlite.webhooks import add_deliveries

_SQL: Final = load("interlock.storage.sqlite", "transition_effects.sql")
MINUTE: Final = 60_000_000


class StatusChange(NamedTuple):
    """A job that went from one status to another, and how it stood before."""

    seq: int
    base: int
    agent_no: int | None
    origin: str
    target: str
    has_slot: bool


class AgentSlots(NamedTuple):
    """The line of an agent with a limit: how many places are given out, and when the next job joins if one is free."""

    no: int
    strict: int
    limit: int
    used: int
    next_due: int | None


def record(connection: Connection, tenant: str, moves: Sequence[StatusChange]) -> None:
    """Count the moves, let the lines of their agents move up, and put into the outbox what listeners are to hear."""
    edges = Counter((m.base, m.origin, m.target) for m in moves if m.origin != m.target)
    _count(connection, tenant, edges, max((m.seq for m in moves if m.target == "succeeded"), default=0))
    limited_moves = [m for m in moves if m.agent_no is not None and m.target != "running"]
    if limited_moves:
        _move_up(connection, tenant, limited_moves)
    add_deliveries(connection, tenant, ((m.seq, m.origin, m.target) for m in moves))


def record_enqueued(
    connection: Connection, tenant: str, seqs: Iterable[int], bases: Iterable[int], agent_nos: set[int]
) -> None:
    """The same for new jobs; `lines` are those of agents with a limit."""
    _count(connection, tenant, {(base, "", "queued"): n for base, n in Counter(bases).items()})
    if agent_nos:
        release_slots(connection, tenant, limited(connection, tenant, agent_nos), {})
    add_deliveries(connection, tenant, zip(seqs, repeat(None), repeat("queued")))


def record_leased(
    connection: Connection, tenant: str, edges: Mapping[tuple[int, str], int], started: Iterable[tuple[int, str]]
) -> None:
    """The same for jobs that start to run: how many by base and status, and each with the status it had."""
    _count(connection, tenant, {(base, origin, "running"): n for (base, origin), n in edges.items()})
    add_deliveries(connection, tenant, ((seq, origin, "running") for seq, origin in started))


def record_succeeded(
    connection: Connection, tenant: str, seqs: Sequence[int], bases: Iterable[int], agent_nos: Iterable[int | None]
) -> None:
    """The same for jobs that ran and have succeeded."""
    edges = {(base, "running", "succeeded"): n for base, n in Counter(bases).items()}
    _count(connection, tenant, edges, max(seqs, default=0))
    freed = {agent_no: n for agent_no, n in Counter(agent_nos).items() if agent_no is not None}
    if freed:
        release_slots(connection, tenant, limited(connection, tenant, freed), freed)
    add_deliveries(connection, tenant, zip(seqs, repeat("running"), repeat("succeeded")))


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
            returned.add(m.agent_no)  # it may come before one that has a place
        if m.origin != m.target:
            freed[m.agent_no] += frees_slot(m.origin, ended=ended, strict=strict, has_slot=m.has_slot)
    release_slots(connection, tenant, {no: agent_no for no, agent_no in agent_nos.items() if no not in returned}, freed)
    assign_slots(connection, tenant, [(agent_no, freed[agent_no]) for agent_no in returned])


def overtaken(connection: Connection, tenant: str, first_due: Mapping[int, int]) -> list[int]:
    """Lines in which a job that has a place and does not run is due later than a new one."""
    if not first_due:
        return []
    facts = {"tenant": tenant, "agent_nos": json.dumps(list(first_due.items()))}
    return [agent_no for (agent_no,) in connection.rows(_SQL["slotted_later"], facts)]


def limited(connection: Connection, tenant: str, agent_nos: Iterable[int]) -> dict[int, AgentSlots]:
    """Those lines that have a limit."""
    rows = connection.rows(_SQL["limited"], {"tenant": tenant, "agent_nos": json.dumps(sorted(agent_nos))})
    return {row[0]: AgentSlots._make(row) for row in rows}


def release_slots(
    connection: Connection, tenant: str, agent_nos: Mapping[int, AgentSlots], freed: Mapping[int, int]
) -> None:
    """Give back places and hand out those that are free; the trigger release_agent_slots does so for direct SQL."""
    has_slot: list[int] = []
    changed = []
    waiting = _first_without_slot(
        connection, tenant, [no for no, n in agent_nos.items() if n.used - freed.get(no, 0) < n.limit]
    )
    for agent_no in agent_nos.values():
        used = max(agent_no.used - freed.get(agent_no.no, 0), 0)  # not below none, should it have been counted wrongly
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
    """When the first job without a place is due, and its row id, for lines that have one."""
    if not agent_nos:
        return {}
    rows = connection.rows(_SQL["first_without_slot"], {"tenant": tenant, "agent_nos": json.dumps(agent_nos)})
    return {agent_no: [(run_at, rowid)] for agent_no, run_at, rowid in rows}


def assign_slots(connection: Connection, tenant: str, freed: Iterable[tuple[int, int]]) -> None:
    """The same, but among all that have not started: one of them may have to come before another that has a place."""
    connection.db.executemany(_SQL["assign_slots"], [(tenant, agent_no, n) for agent_no, n in sorted(freed)])


def fill_slots(connection: Connection, tenant: str) -> None:
    """Let jobs that have come due take the places that are free."""
    due = connection.rows(_SQL["due_agents"], {"tenant": tenant, "now": connection.now})
    release_slots(connection, tenant, limited(connection, tenant, [agent_no for (agent_no,) in due]), {})
