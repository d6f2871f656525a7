"""`interlock shards` from outside: two databases become shards, and a tenant moves between them."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from interlock import config
from interlock.errors import Invalid
from tests.cli.test_cli import CLI
from tests.support.postgres import OWNER, Postgres
from tests.support.stores import fresh_database


@pytest.fixture
async def databases(postgres: Postgres) -> AsyncIterator[dict[str, str]]:
    async with fresh_database(postgres) as one, fresh_database(postgres) as other:
        yield {"one": postgres.dsn(one), "other": postgres.dsn(other)}


class Shards(CLI):
    """Runs `interlock` with shards in the settings."""

    def __init__(self, databases: dict[str, str], directory: Path) -> None:
        super().__init__(next(iter(databases.values())), directory)
        self.shards = json.dumps(databases)

    def given(self, *arguments: str) -> str:
        done = self(*arguments, INTERLOCK_SHARDS=self.shards)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def refused(self, *arguments: str) -> tuple[int, str]:
        done = self(*arguments, INTERLOCK_SHARDS=self.shards)
        return done.returncode, done.stderr


def test_databases_become_shards_and_a_tenant_moves_between_them(databases: dict[str, str], tmp_path: Path) -> None:
    cli = Shards(databases, tmp_path)
    before = cli("jobs", "add", "early").stdout.strip()  # the only database there is, as yet
    code, why = cli.refused("jobs", "list")
    assert (code, "it is no shard yet; run interlock shards add one" in why) == (4, True)
    assert (cli.refused("shards", "add", "other")[0], cli.given("shards", "add", "one")) == (4, "one is shard 0")
    code, why = cli.refused("jobs", "list")
    assert (code, "a shard 'other' that the directory lacks" in why) == (4, True)
    assert cli.given("shards", "add", "other") == "other is shard 1"
    assert cli.given("shards", "add", "other") == "other is shard 1"

    added = cli.given("jobs", "add", "late", "--key", "k")
    assert cli.given("shards", "move", "default", "other").startswith("default: on other, moved 2 jobs and 2 rows")
    listed = json.loads(cli.given("shards", "list", "--json"))
    assert [(shard["name"], shard["number"], shard["tenants"]) for shard in listed["shards"]] == [
        ("one", 0, 0),
        ("other", 1, 1),
    ]
    assert listed["moves"] == []
    assert "answers" in cli.given("shards", "list")
    assert {job["id"] for job in json.loads(cli.given("jobs", "list", "--json"))["items"]} == {before, added}
    assert cli.given("jobs", "add", "late", "--key", "k").startswith(added)
    assert json.loads(cli.given("audit", "verify", "--json"))["ok"] is True
    assert (cli.refused("shards", "move", "nobody", "other")[0], cli.refused("shards", "move", "default", "z")[0]) == (
        3,
        4,
    )
    assert json.loads(cli.given("jobs", "list", "--json", "--database", databases["one"]))["items"] == []


async def test_an_unmigrated_database_is_named_and_does_not_become_a_shard(
    databases: dict[str, str], postgres: Postgres, tmp_path: Path
) -> None:
    name = f"interlock_bare_{os.getpid()}"
    admin = await asyncpg.connect(postgres.dsn())
    try:
        await admin.execute(f"create database {name} owner {OWNER}")
        cli = Shards({"one": databases["one"], "bare": postgres.dsn(name, user=OWNER)}, tmp_path)
        for shard in ("one", "bare"):
            code, why = cli.refused("shards", "add", shard)
            assert (code, why.count("shard bare: the database has no schema for Interlock yet")) == (1, 1)
        assert cli.given("shards", "list").count("not added yet") == 2
    finally:
        await admin.execute(f"drop database if exists {name} with (force)")
        await admin.close()


def test_tenants_of_a_custom_supplier_are_not_moved(databases: dict[str, str], tmp_path: Path) -> None:
    cli = Shards(databases, tmp_path)
    done = cli("shards", "move", "default", "other", INTERLOCK_SHARDS=cli.shards, INTERLOCK_SHARD_SUPPLIER="ours")
    assert (done.returncode, "the shard supplier 'ours' places tenants" in done.stderr) == (4, True)


def test_without_shards_in_the_settings_there_is_nothing_to_list(tmp_path: Path) -> None:
    done = CLI("sqlite:///jobs.db", tmp_path)("shards", "list")
    assert (done.returncode, "the settings have no shards;" in done.stderr) == (4, True)


def test_a_database_flag_is_not_mistaken_for_missing_shards(databases: dict[str, str], tmp_path: Path) -> None:
    cli = Shards(databases, tmp_path)
    code, why = cli.refused("shards", "list", "--database", databases["one"])
    assert (code, "leave out --database" in why) == (4, True)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "must be a table"),
        ('{"a b": "postgresql://x/y"}', "cannot name a shard"),
        ('{"a": "sqlite:///x"}', "must be a database of PostgreSQL"),
        ('{"a": "postgresql://x/y", "b": "postgresql://x/y"}', "the same database URL"),
    ],
)
def test_shards_are_databases_of_postgresql_by_name(tmp_path: Path, value: str, why: str) -> None:
    with pytest.raises(Invalid, match=why):
        config.load({}, environ={"INTERLOCK_SHARDS": value}, directory=tmp_path)


def test_a_database_flag_overrides_the_shards_of_the_settings(tmp_path: Path) -> None:
    (tmp_path / "interlock.toml").write_text('[shards]\na = "postgresql://x/a"\nb = "postgresql://x/b"\n')
    both = config.load({}, environ={}, directory=tmp_path)
    assert (list(both.shards), both.database) == (["a", "b"], "postgresql://x/a")
    for flags, environ in (({"database": "sqlite:///x"}, {}), ({}, {"INTERLOCK_DATABASE": "sqlite:///x"})):
        alone = config.load(flags, environ=environ, directory=tmp_path)
        assert (alone.shards, alone.database) == ({}, "sqlite:///x")
