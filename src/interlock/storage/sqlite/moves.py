"""What follows from every transition on SQLite: a place in an agent's line is freed, it is counted, and announced.

The verbs call this after they have written job and history; direct SQL has the triggers of 0010_agents.sql.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from interlock.domain.lifecycle import TERMINAL
from interlock.domain.lines import gives_back
from interlock.storage.sqlite.connection import Connection
from interlock.storage.sqlite.webhooks import announce
from interlock.storage.statements import load

_SQL: Final = load("interlock.storage.sqlite", "moves.sql")
MINUTE: Final = 60_000_000


class Move(NamedTuple):
    """A job that went from one status to another (None: was born), and how it stood before."""

    id: str
    seq: int
    base: int
    line: int | None
    origin: str | None
    target: str
    version: int
    blocked: int = 0
    awaiting: int = 0


def tell(connection: Connection, tenant: str, moves: Sequence[Move]) -> None:
    """Count the moves, let the lines of their agents move up, and put into the outbox what listeners are to hear."""
    edges = Counter((m.base, m.origin or "", m.target) for m in moves if m.origin != m.target)
    minute = connection.now // MINUTE * MINUTE
    connection.db.executemany(
        _SQL["count"], [(tenant, base, minute, origin, target, n) for (base, origin, target), n in edges.items()]
    )
    in_lines = [m for m in moves if m.line is not None and m.target != "running"]
    if in_lines:
        _move_up(connection, tenant, in_lines)
    announce(connection, tenant, moves)


def _move_up(connection: Connection, tenant: str, moves: Sequence[Move]) -> None:
    strict = limited(connection, tenant, {m.line for m in moves if m.line is not None})
    freed: Counter[int] = Counter(dict.fromkeys(strict, 0))
    returned = set()
    for m in moves:
        if m.line is None or m.line not in strict or m.origin is None:
            continue
        ended = m.target in TERMINAL
        if m.origin == m.target or not (ended or strict[m.line]):  # it may come before one that has a place
            returned.add(m.line)
        if m.origin != m.target:
            freed[m.line] += gives_back(
                m.origin, ended=ended, strict=strict[m.line], blocked=bool(m.blocked), awaited=m.awaiting > 0
            )
    settle(connection, tenant, [(line, n) for line, n in freed.items() if line not in returned])
    deal(connection, tenant, [(line, freed[line]) for line in returned])


def overtaken(connection: Connection, tenant: str, first_due: Mapping[int, int]) -> list[int]:
    """Lines in which a job that has a place and does not run is due later than a new one."""
    return [line for line, due in first_due.items() if connection.rows(_SQL["placed_later"], (tenant, line, due))[0][0]]


def limited(connection: Connection, tenant: str, lines: Iterable[int]) -> dict[int, bool]:
    """Those lines that have a limit, and whether they are strict."""
    rows = connection.rows(_SQL["limited"], {"tenant": tenant, "lines": json.dumps(sorted(lines))})
    return {no: bool(strict) for no, strict in rows}


def settle(connection: Connection, tenant: str, freed: Iterable[tuple[int, int]]) -> None:
    """Give back places and hand out those that are free."""
    connection.db.executemany(_SQL["settle"], [(tenant, line, n) for line, n in sorted(freed)])


def deal(connection: Connection, tenant: str, freed: Iterable[tuple[int, int]]) -> None:
    """The same, but among all that have not started: one of them may have to come before another that has a place."""
    connection.db.executemany(_SQL["deal"], [(tenant, line, n) for line, n in sorted(freed)])


def join_lines(connection: Connection, tenant: str) -> None:
    """Let jobs that have come due take the places that are free."""
    due = connection.rows(_SQL["due_lines"], {"tenant": tenant, "now": connection.now})
    settle(connection, tenant, [(line, 0) for (line,) in due])
