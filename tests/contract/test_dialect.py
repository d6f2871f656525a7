"""Every statement of the parts is valid on both engines, with the rights of the app role."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import apsw
import asyncpg
import pytest

from interlock.storage import parts
from interlock.storage.dialect import Statement, statements
from interlock.storage.sqlite.store import SQLiteStore
from tests.support.postgres import Postgres
from tests.support.stores import APP_LOGIN, fresh_database


def every_statement() -> list[tuple[str, Statement]]:
    modules = [
        importlib.import_module(f"{parts.__name__}.{found.name}") for found in pkgutil.iter_modules(parts.__path__)
    ]
    return [
        (f"{module.__name__.rpartition('.')[2]}.{statement.name}", statement)
        for module in modules
        for statement in getattr(module, "SQL", {}).values()
    ]


async def test_postgresql_accepts_every_statement(postgres: Postgres) -> None:
    refused: dict[str, str] = {}
    async with fresh_database(postgres) as name:
        connection = await asyncpg.connect(postgres.dsn(name, user=APP_LOGIN))
        for name, statement in every_statement():
            is_read = statement.postgres.lower().startswith("select") and "for update" not in statement.postgres
            alone = [statement.postgres_alone] if is_read else []
            for text in [statement.postgres, *alone]:
                try:
                    await connection.prepare(text)
                except asyncpg.PostgresError as error:
                    refused[name] = str(error)
        await connection.close()
    assert refused == {}


async def test_sqlite_accepts_every_statement(tmp_path: Path) -> None:
    path = str(tmp_path / "jobs.db")
    store = await SQLiteStore.open(path)
    refused: dict[str, str] = {}
    connection = store._writer.connection
    for name, statement in every_statement():
        try:
            values = dict.fromkeys(re.findall(r":([a-z_][a-z0-9_]*)", statement.sqlite))
            connection.db.execute(f"EXPLAIN {statement.sqlite}", values)
        except apsw.Error as error:
            refused[name] = str(error)
    await store.close()
    assert refused == {}


def test_a_statement_of_one_dialect_alone_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"thing.sqlite.sql": {"get": "SELECT 1"}, "thing.postgres.sql": {"put": "select 1"}}
    monkeypatch.setattr("interlock.storage.dialect._read", lambda file: texts.get(file, {}))
    with pytest.raises(LookupError, match=r"thing.*'get', 'put'"):
        statements("thing")


def test_postgresql_gets_numbered_parameters_and_the_clock_of_the_database() -> None:
    statement = Statement("x", "", "select :b::text, :a, :now from interlock.job where tenant = :tenant and b = :b")
    assert (
        statement.postgres == "select $1::text, $2, interlock.clock() from interlock.job where tenant = $3 and b = $1"
    )
    assert statement.parameters == ("b", "a", "tenant")
    assert (
        "select $2::text, $3, interlock.clock() from interlock.job where tenant = t.tenant" in statement.postgres_alone
    )
