"""Every table and column of either engine is carried or deliberately left behind: a new one cannot be forgotten."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from interlock.errors import SchemaMismatch
from interlock.storage.promotion.source import SourceFile
from interlock.storage.promotion.tables import LEFT_IN_SQLITE, NOT_FILLED, SINGLE, Plan, Source, plan
from interlock.storage.promotion.target import connected
from tests.support.postgres import OWNER, Postgres
from tests.support.stores import empty_database, migrated_file

Schemas = tuple[dict[str, Source], dict[str, dict[str, str]]]


@pytest.fixture
async def schemas(tmp_path: Path, postgres: Postgres) -> Schemas:
    file = SourceFile(await asyncio.to_thread(migrated_file, tmp_path / "a.db"))
    try:
        async with (
            empty_database(postgres) as name,
            connected(postgres.dsn(name, user=OWNER)) as target,
        ):
            return file.tables(), await target.tables()
    finally:
        file.close()


def carried(schemas: Schemas) -> Plan:
    """If this fails for your new table or column, the message says where to add it: promote would leave it behind."""
    return plan(*schemas)


async def test_every_table_and_column_of_both_engines_is_accounted_for(schemas: Schemas) -> None:
    sqlite, postgres = schemas
    whole = carried(schemas)
    assert {table.name for table in whole.tables} == postgres.keys() - NOT_FILLED - set(SINGLE)
    assert sqlite.keys() >= LEFT_IN_SQLITE
    assert postgres.keys() >= NOT_FILLED
    for table in whole.tables:
        assert list(table.columns) == list(postgres[table.name])


async def test_a_table_that_both_engines_have_alike_is_carried_without_being_named(schemas: Schemas) -> None:
    sqlite, postgres = schemas
    sqlite["topic"] = Source(("tenant", "name", "at"), ("tenant", "name"))
    postgres["topic"] = {"tenant": "text", "name": "text", "at": "timestamp with time zone"}
    assert [table.name for table in plan(sqlite, postgres).groups["topic"].tables] == ["topic"]


@pytest.mark.parametrize(
    ("engine", "table", "column", "named"),
    [
        ("sqlite", "topic", "name", "name of the SQLite table topic"),
        ("sqlite", "job", "mood", "mood of the SQLite table job"),
        ("sqlite", "job_body", "mood", "mood of the SQLite table job_body"),
        ("sqlite", "token", "mood", "mood of the SQLite table token"),
        ("postgres", "topic", "name", "the PostgreSQL table topic"),
        ("postgres", "job", "mood", "mood of the PostgreSQL table job"),
        ("postgres", "lease", "mood", "mood of the PostgreSQL table lease"),
        ("postgres", "token", "mood", "mood of the PostgreSQL table token"),
    ],
)
async def test_a_forgotten_table_or_column_is_an_error_that_says_what_to_do(
    schemas: Schemas, engine: str, table: str, column: str, named: str
) -> None:
    sqlite, postgres = schemas
    if engine == "sqlite":
        known = sqlite.get(table, Source((), ("name",)))
        sqlite[table] = known._replace(columns=(*known.columns, column))
    else:
        postgres[table] = {**postgres.get(table, {}), column: "text"}
    with pytest.raises(SchemaMismatch, match=rf"{named}: state in storage/promotion/tables\.py how promote carries it"):
        plan(sqlite, postgres)


async def test_a_column_of_an_unknown_type_is_an_error(schemas: Schemas) -> None:
    sqlite, postgres = schemas
    postgres["token"]["description"] = "jsonb"
    with pytest.raises(SchemaMismatch, match=r"the type jsonb of token\.description"):
        plan(sqlite, postgres)
