"""The audit log on PostgreSQL: a change and its log row are one statement."""

from __future__ import annotations

from typing import Any

from interlock.domain.operator_log import Entry
from interlock.storage.postgres.connection import Conn


def logged(entry: Entry | None, statement: str, *values: Any, when: str = "true") -> tuple[Any, ...]:
    """Return a statement and its values, with one more column that writes a row of the log where `when` holds.

    `when` is SQL over the row `d` of the statement's result.
    """
    if entry is None:
        return statement, *values
    positions = ", ".join(f"${len(values) + i}" for i in range(1, 5))
    log = f"case when {when} then interlock.log($1, {positions}) end"
    return f"with done as materialized ({statement}) select d.*, {log} from done d", *values, *entry


async def append(connection: Conn, tenant: str, entry: Entry) -> None:
    """Record an operation in the open transaction."""
    await connection.execute("select interlock.log($1, $2, $3, $4, $5)", tenant, *entry)
