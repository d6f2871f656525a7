"""No file, log or dump of either engine ever holds the text of a token."""

from __future__ import annotations

import logging
from pathlib import Path

import asyncpg
import pytest

from interlock.domain import token as shape
from interlock.domain.principal import local
from interlock.domain.token import CreatedToken, Token
from interlock.engine.tokens import (
    Tokens,
)
from interlock.errors import TokenExists, Unauthenticated
from interlock.storage.contract import Store
from interlock.storage.postgres.store import PostgresStore
from interlock.storage.sqlite.store import SQLiteStore
from interlock.wire import TokenRequest
from tests.support.postgres import PostgresServer
from tests.support.stores import APP_LOGIN, TEMPLATE, make_template


async def live_through(store: Store) -> tuple[CreatedToken, Token]:
    """Everything that happens to a token, to its end."""
    tokens = Tokens(store.tokens)
    created_link = await tokens.create(local("acme"), TokenRequest(roles=["admin"], key="k", description="d"))
    who = await tokens.authenticate(created_link.text)
    with pytest.raises(TokenExists):
        await tokens.create(who, TokenRequest(roles=["read"], key="k"))
    await tokens.close()
    revoked = await tokens.revoke(who, created_link.token.id)
    with pytest.raises(Unauthenticated):
        await tokens.authenticate(created_link.text)
    return created_link, revoked


def planted(created_link: CreatedToken) -> tuple[bytes, ...]:
    """The secret in the spellings it could be found in."""
    text = created_link.text.encode()
    secret = text[len(shape.PREFIX) :]
    return secret, secret.hex().encode(), secret.decode().encode("utf-16-le")


def grep(directory: Path, *wanted: bytes) -> list[str]:
    found = []
    for path in directory.rglob("*"):
        if path.is_file() and any(one in path.read_bytes() for one in wanted):
            found.append(path.name)
    return found


async def test_no_file_of_sqlite_ever_contains_a_token(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    store = await SQLiteStore.open(str(tmp_path / "jobs.db"))
    created_link, _ = await live_through(store)
    hash = shape.fingerprint(created_link.text)
    assert grep(tmp_path, hash) != []  # the search finds what is there, in the log of writes too
    assert grep(tmp_path, *planted(created_link)) == []
    await store.close()
    assert grep(tmp_path, hash) == ["jobs.db"]
    assert grep(tmp_path, *planted(created_link)) == []
    assert created_link.text not in caplog.text


async def test_no_file_log_or_dump_of_postgres_ever_contains_a_token(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with PostgresServer(settings={"log_statement": "all", "log_min_duration_statement": "0"}) as server:
        await make_template(server)
        store = await PostgresStore.open(server.dsn(TEMPLATE, user=APP_LOGIN), size=2)
        created_link, _ = await live_through(store)
        await store.close()
        admin = await asyncpg.connect(server.dsn(TEMPLATE))
        await admin.execute("checkpoint")
        rows = await admin.fetch("select t::text as row from interlock.token t")
        await admin.close()
        hash = shape.fingerprint(created_link.text)
        dump = "\n".join(row["row"] for row in rows)
        assert hash.hex() in dump
        assert not any(secret.decode("latin-1") in dump for secret in planted(created_link))
        assert server.home is not None
        assert grep(server.home / "data", hash) != []
        assert grep(server.home, *planted(created_link)) == []
        assert "INSERT INTO interlock.token" in server.log
    assert created_link.text not in caplog.text
