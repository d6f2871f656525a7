"""Outbox rows of transitions on SQLite."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from interlock.domain.lifecycle import TERMINAL
from interlock.storage.sql_files import load
from interlock.storage.sqlite.connection import Connection

_SQL: Final = load("interlock.storage.sqlite", "webhooks.sql")


def add_deliveries(connection: Connection, tenant: str, moves: Iterable[tuple[int, str | None, str]]) -> None:
    """Write outbox rows for transitions (seq, from, to) if there are subscribers. Requires their rows to be written."""
    ((listeners, own),) = connection.rows(_SQL["any_subscriber"], {"tenant": tenant})
    if listeners or own:
        delivery_facts = [(tenant, seq, origin, to) for seq, origin, to in moves if listeners or to in TERMINAL]
        connection.db.executemany(_SQL["deliver"], delivery_facts)
