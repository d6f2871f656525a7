"""Counts and lists of the overview read no job that they do not count, however many others wait."""

from __future__ import annotations

import re

import pytest

from interlock.storage.parts import attention, registry
from interlock.storage.sqlite.connection import Connection
from interlock.storage.sqlite.store import SQLiteStore

# A walk over all jobs of a tenant: an index or a table of jobs that is entered by the tenant alone.
WALK = re.compile(r"SCAN (job|job_body|j|b|n)\b|SEARCH (j|b|n) USING (INDEX job_id|PRIMARY KEY) \(tenant=\?\)$")
STATEMENTS = {
    f"{part.__name__.rpartition('.')[2]}.{name}": part.SQL[name]
    for part, names in (
        (registry, ("later", "waiting_for_slot", "awaiting", "awaiting_message")),
        (attention, ("failures", "keys_of_waiting_jobs", "newest_of_keys", "some_of_keys")),
    )
    for name in names
}


@pytest.mark.parametrize("name", STATEMENTS)
async def test_on_sqlite_no_count_walks_over_all_jobs(name: str) -> None:
    store = await SQLiteStore.open(":memory:")
    statement = STATEMENTS[name]
    values = dict.fromkeys((*statement.parameters, "tenant", "now"), 1) | {"keys": "[1]"}

    def plan(connection: Connection) -> list[str]:
        return [row[-1] for row in connection.rows(f"EXPLAIN QUERY PLAN {statement.sqlite}", values)]

    try:
        found = await store._read(plan)
        assert [step for step in found if WALK.search(step)] == []
        assert found
    finally:
        await store.close()
