"""`interlock tokens` from outside, and the settings that name the accepted credentials."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from interlock import assemble, config
from interlock.config import Settings
from interlock.domain import token
from interlock.domain.issuer import issuers
from interlock.errors import Invalid, Unauthenticated
from tests.support.commands import run_command
from tests.support.postgres import Postgres
from tests.support.stores import APP_LOGIN, empty_database, migrated_file

ISSUER = {"issuer": "https://id.example.com", "audience": "x", "algorithms": ["RS256"], "jwks_uri": "https://h/k"}


class CLI:
    """Runs `interlock tokens` in a separate process."""

    def __init__(self, database: str, directory: Path) -> None:
        self.database, self.directory = database, directory

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        words = ("tokens", *arguments, "--database", self.database)
        return run_command(words, cwd=self.directory, env=os.environ)

    def json(self, *arguments: str) -> Any:
        done = self(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
async def cli(engine: str, tmp_path: Path, postgres: Postgres) -> AsyncIterator[CLI]:
    if engine == "sqlite":
        path = await asyncio.to_thread(migrated_file, tmp_path / "jobs.db")
        yield CLI(f"sqlite:///{path}", tmp_path)
    else:
        async with empty_database(postgres) as name:
            yield CLI(postgres.dsn(name, user=APP_LOGIN), tmp_path)


async def test_the_first_admin_token_is_created_on_the_command_line(cli: CLI) -> None:
    done = cli("create", "--role", "admin", "--role", "read", "--tenant", "acme")
    text = done.stdout.strip()
    assert token.is_whole(text), done.stderr
    async with assemble.open_engine(cli.database, artifacts=str(cli.directory)) as engine:
        who = await engine.tokens.authenticate(text)
    assert (who.tenant, who.roles) == ("acme", frozenset({"admin", "read"}))


async def test_a_token_is_created_listed_and_revoked(cli: CLI) -> None:
    made = cli.json(
        "create", "--role", "work", "--worker-id", "w1", "--type", "build", "--capability", "gpu",
        "--expires-in", "3600", "--description", "build box", "--key", "box",
    )  # fmt: skip
    text = made.pop("token")
    assert (made["worker_id"], made["types"], made["repositories"], made["capabilities"]) == (
        "w1",
        ["build"],
        None,
        ["gpu"],
    )
    assert made["expires_at"] > made["created_at"]
    assert cli.json("list") == {"items": [made]}
    listed = cli("list").stdout
    assert made["id"] in listed
    assert "active" in listed
    assert text not in listed
    again = cli("create", "--role", "read", "--key", "box")
    assert again.returncode == 4
    assert made["id"] in again.stderr
    assert cli("revoke", made["id"]).stdout == f"revoked {made['id']}\n"
    assert "revoked" in cli("list").stdout
    assert cli.json("list", "--before", made["id"]) == {"items": []}
    async with assemble.open_engine(cli.database, artifacts=str(cli.directory)) as engine:
        with pytest.raises(Unauthenticated):
            await engine.tokens.authenticate(text)


def test_exit_codes_distinguish_errors(cli: CLI) -> None:
    assert cli("revoke", "0193a1b2-ffff-7fff-8fff-ffffffffffff").returncode == 3
    assert cli("revoke", "nonsense").returncode == 3
    assert cli("create", "--role", "king").returncode == 4
    for role in ("approve", "admin", "operate"):
        assert cli("create", "--role", "work", "--role", role).returncode == 4
    assert cli("create").returncode == 2
    assert cli("list").stdout == "no tokens\n"


def load(directory: Path, text: str = "", **environ: str) -> Settings:
    (directory / config.FILE).write_text(text)
    return config.load({}, environ=environ, directory=directory)


def test_auth_is_off_by_default(tmp_path: Path) -> None:
    assert (load(tmp_path).auth, load(tmp_path).issuers) == ((), ())


@pytest.mark.parametrize(
    ("text", "auth"),
    [
        ('auth = "off"', ()),
        ('auth = "tokens"', ("tokens",)),
        ('auth = ["tokens"]', ("tokens",)),
        ('auth = "tokens, tokens"', ("tokens",)),
    ],
)
def test_auth_is_off_or_a_list(tmp_path: Path, text: str, auth: tuple[str, ...]) -> None:
    assert load(tmp_path, text).auth == auth


@pytest.mark.parametrize("text", ['auth = "on"', "auth = []", "auth = true", 'auth = ["off", "tokens"]', 'auth = ""'])
def test_invalid_auth_is_rejected(tmp_path: Path, text: str) -> None:
    with pytest.raises(Invalid) as caught:
        load(tmp_path, text)
    assert caught.value.pointer == "/auth"


def test_issuers_come_from_tables_or_json(tmp_path: Path) -> None:
    lines = "\n".join(f"{name} = {json.dumps(value)}" for name, value in ISSUER.items())
    from_file = load(tmp_path, f'auth = ["tokens", "jwt"]\n[[issuers]]\n{lines}\n')
    from_environ = load(tmp_path, INTERLOCK_AUTH="tokens,jwt", INTERLOCK_ISSUERS=json.dumps([ISSUER]))
    assert from_file == from_environ
    assert from_file.issuers == (ISSUER,)


@pytest.mark.parametrize("issuers", ["{", "{}", "[1]", '"x"'])
def test_invalid_issuers_are_rejected(tmp_path: Path, issuers: str) -> None:
    with pytest.raises(Invalid) as caught:
        load(tmp_path, INTERLOCK_ISSUERS=issuers)
    assert caught.value.pointer == "/issuers"


def test_jwt_without_an_issuer_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="no issuers are set"):
        load(tmp_path, 'auth = "jwt"')


async def test_the_settings_decide_which_credentials_are_accepted() -> None:
    async def fetch(url: str) -> bytes:
        raise OSError(url)

    assert assemble.trust(Settings(auth=("tokens",)), fetch) == (True, None)
    only_jwt = assemble.trust(Settings(auth=("jwt",), issuers=(ISSUER,)), fetch)
    assert (only_jwt.own, only_jwt.issuers is None) == (False, False)
    with pytest.raises(Invalid) as caught:
        assemble.trust(Settings(auth=("jwt",), issuers=({**ISSUER, "audience": []},)), fetch)
    assert caught.value.pointer == "/issuers/0/audience"


def test_the_settings_in_the_docs_are_valid(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "manage-credentials.md").read_text()
    blocks = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 2
    settings = load(tmp_path, "".join(blocks))
    assert settings.auth == ("tokens", "jwt")
    (issuer,) = issuers(settings.issuers)
    assert issuer.roles_of(["agent-workers"]) == frozenset({"work"})
