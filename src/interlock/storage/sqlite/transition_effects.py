"""What follows from every transition on SQLite: a place in an agent's line is freed, it is counted, and announced.

The verbs call this after they have written job and history; direct SQL has the triggers of 0010_agents.sql.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import Final, NamedTuple

from interlock.domain.concurrency import gives_back, keeps
from interlock.domain.lifecycle import TERMINAL
from interlock.storage.sql_files import load
from interlock.storage.sqlite.connection import Connection
from interlock.storage.sqlite.webhooks import announce

_SQL: Final = load("interlock.storage.sqlite", "transition_effects.sql")
MINUTE: Final = 60_000_000


class Move(NamedTuple):
    """A job that went from one status to another, and how it stood before."""

    seq: int
    base: int
    line: int | None
    origin: str
    target: str
    placed: bool


class Line(NamedTuple):
    """The line of an agent with a limit: how many places are given out, and when the next job joins if one is free."""

    no: int
    strict: int
    limit: int
    used: int
    next_due: int | None


def tell(connection: Connection, tenant: str, moves: Sequence[Move]) -> None:
    """Count the moves, let the lines of their agents move up, and put into the outbox what listeners are to hear."""
    edges = Counter((m.base, m.origin, m.target) for m in moves if m.origin != m.target)
    _count(connection, tenant, edges, max((m.seq for m in moves if m.target == "succeeded"), default=0))
    in_lines = [m for m in moves if m.line is not None and m.target != "running"]
    if in_lines:
        _move_up(connection, tenant, in_lines)
    announce(connection, tenant, ((m.seq, m.origin, m.target) for m in moves))


def tell_born(connection: Connection, tenant: str, seqs: Iterable[int], bases: Iterable[int], lines: set[int]) -> None:
    """The same for new jobs; `lines` are those of agents with a limit."""
    _count(connection, tenant, {(base, "", "queued"): n for base, n in Counter(bases).items()})
    if lines:
        settle(connection, tenant, limited(connection, tenant, lines), {})
    announce(connection, tenant, zip(seqs, repeat(None), repeat("queued")))


def tell_granted(
    connection: Connection, tenant: str, edges: Mapping[tuple[int, str], int], started: Iterable[tuple[int, str]]
) -> None:
    """The same for jobs that start to run: how many by base and status, and each with the status it had."""
    _count(connection, tenant, {(base, origin, "running"): n for (base, origin), n in edges.items()})
    announce(connection, tenant, ((seq, origin, "running") for seq, origin in started))


def tell_succeeded(
    connection: Connection, tenant: str, seqs: Sequence[int], bases: Iterable[int], lines: Iterable[int | None]
) -> None:
    """The same for jobs that ran and have succeeded."""
    edges = {(base, "running", "succeeded"): n for base, n in Counter(bases).items()}
    _count(connection, tenant, edges, max(seqs, default=0))
    freed = {line: n for line, n in Counter(lines).items() if line is not None}
    if freed:
        settle(connection, tenant, limited(connection, tenant, freed), freed)
    announce(connection, tenant, zip(seqs, repeat("running"), repeat("succeeded")))


def _count(
    connection: Connection, tenant: str, edges: Mapping[tuple[int, str, str], int], last_succeeded: int = 0
) -> None:
    minute = connection.now // MINUTE * MINUTE
    rows = [(tenant, base, minute, origin, to, n, last_succeeded) for (base, origin, to), n in edges.items()]
    connection.db.executemany(_SQL["count"], rows)


def _move_up(connection: Connection, tenant: str, moves: Sequence[Move]) -> None:
    lines = limited(connection, tenant, {m.line for m in moves if m.line is not None})
    freed: Counter[int] = Counter()
    returned = set()
    for m in moves:
        if m.line is None or m.line not in lines:
            continue
        ended, strict = m.target in TERMINAL, bool(lines[m.line].strict)
        if m.origin == m.target or not (ended or keeps(m.origin, strict=strict, placed=m.placed)):
            returned.add(m.line)  # it may come before one that has a place
        if m.origin != m.target:
            freed[m.line] += gives_back(m.origin, ended=ended, strict=strict, placed=m.placed)
    settle(connection, tenant, {no: line for no, line in lines.items() if no not in returned}, freed)
    deal(connection, tenant, [(line, freed[line]) for line in returned])


def overtaken(connection: Connection, tenant: str, first_due: Mapping[int, int]) -> list[int]:
    """Lines in which a job that has a place and does not run is due later than a new one."""
    if not first_due:
        return []
    facts = {"tenant": tenant, "lines": json.dumps(list(first_due.items()))}
    return [line for (line,) in connection.rows(_SQL["placed_later"], facts)]


def limited(connection: Connection, tenant: str, lines: Iterable[int]) -> dict[int, Line]:
    """Those lines that have a limit."""
    rows = connection.rows(_SQL["limited"], {"tenant": tenant, "lines": json.dumps(sorted(lines))})
    return {row[0]: Line._make(row) for row in rows}


def settle(connection: Connection, tenant: str, lines: Mapping[int, Line], freed: Mapping[int, int]) -> None:
    """Give back places and hand out those that are free; the trigger settle_line does the same for direct SQL."""
    placed: list[int] = []
    changed = []
    waiting = _first_in_line(connection, tenant, [no for no, n in lines.items() if n.used - freed.get(no, 0) < n.limit])
    for line in lines.values():
        used = max(line.used - freed.get(line.no, 0), 0)  # not below none, should it have been counted wrongly
        next_due = None
        if line.no in waiting:
            free = line.limit - used
            rows = waiting[line.no] if free == 1 else connection.rows(_SQL["without_place"], (tenant, line.no, free))
            for run_at, rowid in rows:
                if run_at > connection.now:
                    next_due = run_at
                    break
                placed.append(rowid)
                used += 1
        if used != line.used or next_due != line.next_due:
            changed.append((used, next_due, tenant, line.no))
    if placed:
        connection.db.execute(_SQL["give_places"], (json.dumps(placed),))
    connection.db.executemany(_SQL["keep_line"], changed)


def _first_in_line(connection: Connection, tenant: str, lines: Sequence[int]) -> dict[int, list[tuple[int, int]]]:
    """When the first job without a place is due, and its row id, for lines that have one."""
    if not lines:
        return {}
    rows = connection.rows(_SQL["first_without_place"], {"tenant": tenant, "lines": json.dumps(lines)})
    return {line: [(run_at, rowid)] for line, run_at, rowid in rows}


def deal(connection: Connection, tenant: str, freed: Iterable[tuple[int, int]]) -> None:
    """The same, but among all that have not started: one of them may have to come before another that has a place."""
    connection.db.executemany(_SQL["deal"], [(tenant, line, n) for line, n in sorted(freed)])


def join_lines(connection: Connection, tenant: str) -> None:
    """Let jobs that have come due take the places that are free."""
    due = connection.rows(_SQL["due_lines"], {"tenant": tenant, "now": connection.now})
    settle(connection, tenant, limited(connection, tenant, [line for (line,) in due]), {})
