"""The audit log on SQLite."""

from __future__ import annotations

from typing import Final

from interlock.domain.operator_log import Entry, log_hash
from interlock.storage.sql_files import load
from interlock.storage.sqlite.connection import Connection

_SQL: Final = load("interlock.storage.sqlite", "log.sql")


def append(connection: Connection, tenant: str, entry: Entry) -> None:
    """Record an operation in its transaction."""
    last = end(connection, tenant)
    seq, before = (1, None) if last is None else (last[0] + 1, last[1])
    hash = log_hash(before, tenant, seq, *entry, connection.now)
    connection.db.execute(_SQL["append"], (tenant, seq, *entry, connection.now, hash))


def end(connection: Connection, tenant: str) -> tuple[int, bytes] | None:
    """Return number and hash of the newest row."""
    found = connection.rows(_SQL["end"], (tenant,))
    return (int(found[0][0]), bytes(found[0][1])) if found else None
