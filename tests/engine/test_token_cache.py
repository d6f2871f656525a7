"""Token checks: looked up once a second, rejected uniformly, revoked within a second, on both engines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from interlock.domain import token as shape
from interlock.domain.principal import Principal
from interlock.engine.engine import Engine
from interlock.engine.tokens import (
    MAX_REFUSALS_REMEMBERED,
    Tokens,
    Trust,
)
from interlock.engine.ttl_cache import FRESH_SECONDS, MAX_REMEMBERED
from interlock.errors import NotFound, Unauthenticated, Unavailable
from interlock.storage.batching import batched
from interlock.storage.contract import Store
from interlock.storage.postgres.store import PostgresStore
from interlock.storage.sqlite.store import SQLiteStore
from interlock.wire import TokenRequest
from tests.engine.watched import ADMIN, READER, Ticks, Watched, is_rejected
from tests.support.eventually import eventually
from tests.support.postgres import Postgres
from tests.support.stores import APP_LOGIN, SECOND, ManualClock, empty_database


@asynccontextmanager
async def two_stores(engine: str, directory: Path, postgres: Postgres) -> AsyncIterator[tuple[Store, Store]]:
    """One database, opened twice, as two processes do."""
    first: Store
    second: Store
    if engine == "sqlite":
        path = str(directory / "shared.db")
        first, second = await SQLiteStore.open(path), await SQLiteStore.open(path)
        try:
            yield first, second
        finally:
            await first.close()
            await second.close()
    else:
        async with empty_database(postgres) as name:
            dsn = postgres.dsn(name, user=APP_LOGIN)
            first, second = await PostgresStore.open(dsn, size=2), await PostgresStore.open(dsn, size=2)
            try:
                yield first, second
            finally:
                await first.close()
                await second.close()


JUNK = {
    "nothing": "",
    "a word": "nothing",
    "a guess": "ilk_" + "A" * 49,
    "cut": lambda text: text[:-1],
    "cut at the front": lambda text: text[1:],
    "longer": lambda text: text + "A",
    "another case": lambda text: text.swapcase(),
    "upper case": lambda text: text.upper(),
    "a null byte": lambda text: text[:-1] + "\0",
    "a newline": lambda text: text + "\n",
    "padded": lambda text: f" {text} ",
    "with its scheme": lambda text: f"Bearer {text}",
    "twice": lambda text: f"{text},{text}",
    "very long": "ilk_" + "A" * 1_000_000,
    "another alphabet": lambda text: text[:-1] + "é",
    "a lone surrogate": lambda text: text[:-1] + "\ud800",
    "one character changed": lambda text: text[:20] + ("A" if text[20] != "A" else "B") + text[21:],
}


@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK)
async def test_a_malformed_token_is_rejected_without_a_lookup(tokens: Tokens, watched: Watched, junk: Any) -> None:
    created_link = await tokens.create(ADMIN, READER)
    with pytest.raises(Unauthenticated):
        await tokens.authenticate(junk(created_link.text) if callable(junk) else junk)
    assert watched.looks == 0


async def test_every_rejection_has_the_same_text(tokens: Tokens, clock: ManualClock) -> None:
    revoked = await tokens.create(ADMIN, READER)
    await tokens.revoke(ADMIN, revoked.token.id)
    expired = await tokens.create(ADMIN, TokenRequest(roles=["read"], expires_in_seconds=1))
    clock.advance(1)
    reported = set()
    for bad in ("", "junk", revoked.text, expired.text, shape.spell(bytes(32)), "a.b.c"):
        with pytest.raises(Unauthenticated) as caught:
            await tokens.authenticate(bad)
        reported.add((caught.value.code, caught.value.status, str(caught.value)))
    assert len(reported) == 1


async def test_a_well_formed_unknown_token_is_rejected(tokens: Tokens) -> None:
    await tokens.create(ADMIN, READER)
    assert await is_rejected(tokens, shape.spell(b"\x01" * 32))


async def test_with_tokens_disabled_every_token_is_rejected(store: Store) -> None:
    maker = Tokens(store.tokens)
    created_link = await maker.create(ADMIN, READER)
    assert await is_rejected(Tokens(store.tokens, Trust(own=False)), created_link.text)
    await maker.close()


async def test_a_hot_token_is_looked_up_about_once_a_second(tokens: Tokens, watched: Watched, ticks: Ticks) -> None:
    created_link = await tokens.create(ADMIN, READER)
    for _ in range(1000):
        await tokens.authenticate(created_link.text)
        ticks.now += 0.01
    assert watched.looks <= 10 / FRESH_SECONDS + 1


async def test_concurrent_callers_share_one_lookup(tokens: Tokens, watched: Watched) -> None:
    created_link = await tokens.create(ADMIN, READER)
    watched.approval.clear()
    callers = [asyncio.create_task(tokens.authenticate(created_link.text)) for _ in range(100)]
    await eventually(lambda: _true(watched.looks > 0))
    callers[0].cancel()
    watched.approval.set()
    answers = await asyncio.gather(*callers, return_exceptions=True)
    assert isinstance(answers[0], asyncio.CancelledError)
    assert all(isinstance(answer, Principal) for answer in answers[1:])
    assert watched.looks == 1


async def test_a_lookup_that_began_too_long_ago_is_not_shared(tokens: Tokens, watched: Watched, ticks: Ticks) -> None:
    created_link = await tokens.create(ADMIN, READER)
    watched.approval.clear()
    early = asyncio.create_task(tokens.authenticate(created_link.text))
    await eventually(lambda: _true(watched.looks == 1))
    ticks.now += FRESH_SECONDS
    late = asyncio.create_task(tokens.authenticate(created_link.text))
    await eventually(lambda: _true(watched.looks == 2))
    watched.approval.set()
    await asyncio.gather(early, late)


async def test_an_unavailable_database_is_not_a_rejection_and_not_cached(tokens: Tokens, watched: Watched) -> None:
    created_link = await tokens.create(ADMIN, READER)
    watched.fault = Unavailable("away")
    with pytest.raises(Unavailable):
        await tokens.authenticate(created_link.text)
    watched.fault = None
    assert (await tokens.authenticate(created_link.text)).tenant == "acme"


async def test_unknown_tokens_are_cached_briefly_and_evict_no_valid_one(
    tokens: Tokens, watched: Watched, ticks: Ticks
) -> None:
    created_link = await tokens.create(ADMIN, READER)
    await tokens.authenticate(created_link.text)
    guess = shape.spell(bytes(32))
    for _ in range(10):
        assert await is_rejected(tokens, guess)
    assert watched.looks == 2
    for i in range(MAX_REFUSALS_REMEMBERED + 10):
        assert await is_rejected(tokens, shape.spell(i.to_bytes(32)))
    before = watched.looks
    await tokens.authenticate(created_link.text)
    assert watched.looks == before
    assert len(tokens._unknown) <= MAX_REFUSALS_REMEMBERED
    assert len(tokens._known) <= MAX_REMEMBERED
    ticks.now += FRESH_SECONDS
    assert await is_rejected(tokens, guess)
    assert watched.looks > before


async def test_a_revoked_token_is_rejected_immediately_in_the_same_process(tokens: Tokens) -> None:
    created_link = await tokens.create(ADMIN, READER)
    other = await tokens.create(ADMIN, READER)
    await tokens.authenticate(created_link.text)
    revoked = await tokens.revoke(ADMIN, created_link.token.id)
    assert (revoked.revoked_by, revoked.lives(0)) == ("user:local", False)
    assert await is_rejected(tokens, created_link.text)
    assert not await is_rejected(tokens, other.text)
    again = await tokens.revoke(ADMIN, created_link.token.id)  # The use above may be recorded in between.
    assert (again.revoked_at, again.revoked_by) == (revoked.revoked_at, revoked.revoked_by)


@pytest.mark.parametrize("id", ["nonsense", "0193a1b2-ffff-7fff-8fff-ffffffffffff", "a\0b"])
async def test_revoking_an_unknown_token_is_not_found(tokens: Tokens, id: str) -> None:
    with pytest.raises(NotFound) as caught:
        await tokens.revoke(ADMIN, id)
    assert str(caught.value) == f"no token {id}"


async def test_a_revoked_token_is_rejected_by_another_process_within_a_second(
    engine: str, tmp_path: Path, postgres: Postgres
) -> None:
    async with two_stores(engine, tmp_path, postgres) as (first, second):
        ticks = Ticks()
        here, there = Tokens(first.tokens), Tokens(second.tokens, ticks=ticks)
        created_link = await here.create(ADMIN, READER)
        await there.authenticate(created_link.text)
        await here.revoke(ADMIN, created_link.token.id)
        ticks.now += 0.999
        assert await is_rejected(there, created_link.text)
        await here.close()
        await there.close()


async def test_two_engines_of_one_database_agree_within_a_second(
    engine: str, tmp_path: Path, postgres: Postgres
) -> None:
    """With real time: the other engine keeps checking the token, as a busy worker would."""
    async with two_stores(engine, tmp_path, postgres) as (first, second):
        here, there = Engine(batched(first)), Engine(batched(second))
        created_link = await here.tokens.create(ADMIN, READER)
        assert (await there.tokens.authenticate(created_link.text)).tenant == "acme"
        await here.tokens.revoke(ADMIN, created_link.token.id)
        revoked = time.monotonic()
        while True:
            asked = time.monotonic()
            if await is_rejected(there.tokens, created_link.text):
                break
            assert asked < revoked + 1.0
            await asyncio.sleep(0.01)  # as often as a busy worker asks
        await here.close()
        await there.close()


async def test_a_token_expires_by_the_clock_of_the_database(tokens: Tokens, clock: ManualClock, ticks: Ticks) -> None:
    created_link = await tokens.create(ADMIN, TokenRequest(roles=["read"], expires_in_seconds=60))
    assert created_link.token.expires_at == clock.now + 60 * SECOND
    clock.advance(59.9)
    await tokens.authenticate(created_link.text)
    clock.advance(0.1)
    ticks.now += 0.1  # less than an answer is otherwise good for
    assert await is_rejected(tokens, created_link.text)


async def test_token_use_is_recorded_once_a_minute_without_delaying_callers(
    tokens: Tokens, watched: Watched, clock: ManualClock, ticks: Ticks
) -> None:
    created_link = await tokens.create(ADMIN, READER)

    async def noted_at(time: int) -> bool:
        (token,) = await tokens.list(ADMIN)
        return token.last_used_at == time

    await tokens.authenticate(created_link.text)
    first = clock.now
    await eventually(lambda: noted_at(first))
    for _ in range(59):
        clock.advance(1)
        ticks.now += 1
        await tokens.authenticate(created_link.text)
    assert await noted_at(first)
    assert watched.notes == 1
    clock.advance(1)
    ticks.now += 1
    await tokens.authenticate(created_link.text)
    await eventually(lambda: noted_at(first + 60 * SECOND))
    assert watched.notes == 2


async def test_failing_to_record_token_use_rejects_no_caller(
    tokens: Tokens, watched: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    created_link = await tokens.create(ADMIN, READER)

    async def away(*_: object, **__: object) -> int:
        raise Unavailable("the disk is full")

    monkeypatch.setattr(watched, "touch", away)
    assert (await tokens.authenticate(created_link.text)).tenant == "acme"
    await eventually(lambda: _true("could not be noted" in caplog.text))
    assert created_link.text not in caplog.text


async def _true(value: bool) -> bool:
    return value
