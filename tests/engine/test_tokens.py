"""Tokens from being made to being refused, on both engines and between processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from interlock.domain import token as shape
from interlock.domain.principal import ROLES, Principal, local
from interlock.domain.token import Sighting
from interlock.engine.engine import Engine
from interlock.engine.recent import FRESH_SECONDS, MOST_REMEMBERED
from interlock.engine.tokens import (
    MOST_REFUSALS_REMEMBERED,
    Tokens,
    Trust,
)
from interlock.errors import Forbidden, Invalid, NotFound, TokenExists, TooLarge, Unauthenticated, Unavailable
from interlock.storage.contract import Store
from interlock.storage.merged import merged
from interlock.storage.postgres.store import PostgresStore
from interlock.storage.sqlite.store import SQLiteStore
from interlock.wire import TokenRequest
from tests.support.eventually import eventually
from tests.support.postgres import Postgres
from tests.support.stores import APP_LOGIN, SECOND, ManualClock, fresh_database

ADMIN = local("acme")
READER = TokenRequest(roles=["read"])


class Ticks:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Watched:
    """A store that counts what it is asked about tokens, and can be made to hesitate or fail."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.looks = 0
        self.notes = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.fault: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def find_token(self, hash: bytes) -> Sighting | None:
        self.looks += 1
        await self.gate.wait()
        if self.fault is not None:
            raise self.fault
        return await self._store.find_token(hash)

    async def touch_tokens(self, tenant: str, ids: list[str], *, older_than_seconds: float) -> int:
        self.notes += 1
        return await self._store.touch_tokens(tenant, ids, older_than_seconds=older_than_seconds)


@pytest.fixture
def ticks() -> Ticks:
    return Ticks()


@pytest.fixture
def watched(store: Store) -> Watched:
    return Watched(store)


@pytest.fixture
async def tokens(watched: Watched, ticks: Ticks) -> AsyncIterator[Tokens]:
    made = Tokens(watched, ticks=ticks)  # type: ignore[arg-type]
    yield made
    await made.close()


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
        async with fresh_database(postgres) as name:
            dsn = postgres.dsn(name, user=APP_LOGIN)
            first, second = await PostgresStore.open(dsn, size=2), await PostgresStore.open(dsn, size=2)
            try:
                yield first, second
            finally:
                await first.close()
                await second.close()


async def is_refused(tokens: Tokens, text: str) -> bool:
    try:
        await tokens.authenticate(text)
    except Unauthenticated:
        return True
    return False


async def test_a_token_lets_its_bearer_in_with_what_it_was_given(tokens: Tokens) -> None:
    minted = await tokens.create(
        ADMIN,
        TokenRequest(roles=["work", "read"], worker_id=" w1 ", types=["b", "a"], repositories=["org/x.git"],
                     capabilities=["gpu"]),
    )  # fmt: skip
    who = await tokens.authenticate(minted.text)
    assert (who.tenant, who.actor, who.worker, who.roles) == ("acme", "worker:w1", "w1", frozenset({"work", "read"}))
    assert who.policy == (frozenset({"a", "b"}), frozenset({"org/x"}), frozenset({"gpu"}))
    assert not who.unchecked
    assert minted.token.created_by == "user:local"


async def test_the_text_is_shown_once_and_never_by_accident(tokens: Tokens) -> None:
    minted = await tokens.create(ADMIN, READER)
    assert shape.is_whole(minted.text)
    assert minted.text not in repr(minted)
    assert minted.text not in f"{minted}"
    (listed,) = await tokens.list(ADMIN)
    assert listed == minted.token
    assert minted.text not in repr(listed)


async def test_two_tokens_never_have_one_text(tokens: Tokens) -> None:
    texts = {(await tokens.create(ADMIN, READER)).text for _ in range(50)}
    assert len(texts) == 50


async def test_a_token_is_of_the_tenant_of_whoever_made_it(tokens: Tokens) -> None:
    mine = await tokens.create(ADMIN, TokenRequest(roles=["admin"]))
    theirs = await tokens.create(local("rival"), READER)
    admin = await tokens.authenticate(mine.text)
    assert [t.id for t in await tokens.list(admin)] == [mine.token.id]
    with pytest.raises(NotFound, match=f"no token {theirs.token.id}"):
        await tokens.revoke(admin, theirs.token.id)
    assert (await tokens.authenticate(theirs.text)).tenant == "rival"


@pytest.mark.parametrize("lacking", ["nothing but admin", "no role at all"])
async def test_only_an_admin_deals_with_tokens(tokens: Tokens, lacking: str) -> None:
    roles = ROLES - {"admin"} if lacking == "nothing but admin" else frozenset[str]()
    who = Principal("acme", "token:x", roles)
    minted = await tokens.create(ADMIN, READER)
    for call in (tokens.create(who, READER), tokens.list(who), tokens.revoke(who, minted.token.id)):
        with pytest.raises(Forbidden, match="admin"):
            await call
    assert await tokens.list(ADMIN) == [minted.token]


async def test_a_key_makes_one_token_and_says_which(tokens: Tokens) -> None:
    request = TokenRequest(roles=["read"], key="deploy")
    first = await tokens.create(ADMIN, request)
    with pytest.raises(TokenExists, match=first.token.id) as caught:
        await tokens.create(ADMIN, request)
    assert (caught.value.key, caught.value.token_id) == ("deploy", first.token.id)
    assert not await is_refused(tokens, first.text)
    assert len(await tokens.list(ADMIN)) == 1


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"roles": []}, "/roles"),
        ({"roles": ["king"]}, "/roles"),
        ({"roles": ["work", "approve"]}, "/roles"),
        ({"roles": ["work", "admin"], "worker_id": "w"}, "/roles"),
        ({"roles": ["read"], "worker_id": "w"}, "/roles"),
        ({"roles": ["work"], "worker_id": "a/b"}, "/worker_id"),
        ({"roles": ["work"], "types": ["*", "a"]}, "/types"),
        ({"roles": ["work"], "repositories": [""]}, "/repositories"),
        ({"roles": ["work"], "capabilities": ["*"]}, "/capabilities"),
        ({"roles": ["read"], "expires_in_seconds": 0}, "/expires_in_seconds"),
        ({"roles": ["read"], "expires_in_seconds": -1}, "/expires_in_seconds"),
        ({"roles": ["read"], "expires_in_seconds": float("nan")}, "/expires_in_seconds"),
        ({"roles": ["read"], "expires_in_seconds": 1e12}, "/expires_in_seconds"),
        ({"roles": ["read"], "key": ""}, "/key"),
        ({"roles": ["read"], "key": "a\0b"}, "/key"),
    ],
)
async def test_what_a_token_cannot_be_is_refused_with_its_place(
    tokens: Tokens, fields: dict[str, Any], pointer: str
) -> None:
    with pytest.raises(Invalid) as caught:
        await tokens.create(ADMIN, TokenRequest(**fields))
    assert caught.value.pointer == pointer
    assert await tokens.list(ADMIN) == []


async def test_a_description_may_be_odd_but_not_endless(tokens: Tokens) -> None:
    minted = await tokens.create(ADMIN, TokenRequest(roles=["read"], description="a\0b\ud800c"))
    assert minted.token.description == "a\ufffdb\ufffdc"
    with pytest.raises(TooLarge):
        await tokens.create(ADMIN, TokenRequest(roles=["read"], description="x" * 9000))


async def test_a_list_goes_on_where_the_last_page_ended(tokens: Tokens, clock: ManualClock) -> None:
    made = []
    for _ in range(5):
        made.append((await tokens.create(ADMIN, READER)).token.id)
        clock.advance(1)
    page = await tokens.list(ADMIN, limit=2)
    rest = await tokens.list(ADMIN, before=page[-1].id, limit=200)
    assert [t.id for t in page + rest] == made[::-1]
    for limit in (0, 201):
        with pytest.raises(Invalid):
            await tokens.list(ADMIN, limit=limit)
    with pytest.raises(Invalid):
        await tokens.list(ADMIN, before="nonsense")


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
async def test_what_is_not_a_whole_token_is_refused_without_a_look(tokens: Tokens, watched: Watched, junk: Any) -> None:
    minted = await tokens.create(ADMIN, READER)
    with pytest.raises(Unauthenticated):
        await tokens.authenticate(junk(minted.text) if callable(junk) else junk)
    assert watched.looks == 0


async def test_every_refusal_says_the_same(tokens: Tokens, clock: ManualClock) -> None:
    revoked = await tokens.create(ADMIN, READER)
    await tokens.revoke(ADMIN, revoked.token.id)
    expired = await tokens.create(ADMIN, TokenRequest(roles=["read"], expires_in_seconds=1))
    clock.advance(1)
    told = set()
    for bad in ("", "junk", revoked.text, expired.text, shape.spell(bytes(32)), "a.b.c"):
        with pytest.raises(Unauthenticated) as caught:
            await tokens.authenticate(bad)
        told.add((caught.value.code, caught.value.status, str(caught.value)))
    assert len(told) == 1


async def test_a_whole_token_that_nobody_made_is_refused(tokens: Tokens) -> None:
    await tokens.create(ADMIN, READER)
    assert await is_refused(tokens, shape.spell(b"\x01" * 32))


async def test_where_tokens_do_not_count_none_lets_anybody_in(store: Store) -> None:
    maker = Tokens(store)
    minted = await maker.create(ADMIN, READER)
    assert await is_refused(Tokens(store, Trust(own=False)), minted.text)
    await maker.close()


async def test_a_hot_token_is_looked_up_about_once_a_second(tokens: Tokens, watched: Watched, ticks: Ticks) -> None:
    minted = await tokens.create(ADMIN, READER)
    for _ in range(1000):
        await tokens.authenticate(minted.text)
        ticks.now += 0.01
    assert watched.looks <= 10 / FRESH_SECONDS + 1


async def test_callers_at_once_share_one_look(tokens: Tokens, watched: Watched) -> None:
    minted = await tokens.create(ADMIN, READER)
    watched.gate.clear()
    callers = [asyncio.create_task(tokens.authenticate(minted.text)) for _ in range(100)]
    await eventually(lambda: _true(watched.looks > 0))
    callers[0].cancel()
    watched.gate.set()
    answers = await asyncio.gather(*callers, return_exceptions=True)
    assert isinstance(answers[0], asyncio.CancelledError)
    assert all(isinstance(answer, Principal) for answer in answers[1:])
    assert watched.looks == 1


async def test_nobody_shares_a_look_that_began_too_long_ago(tokens: Tokens, watched: Watched, ticks: Ticks) -> None:
    minted = await tokens.create(ADMIN, READER)
    watched.gate.clear()
    early = asyncio.create_task(tokens.authenticate(minted.text))
    await eventually(lambda: _true(watched.looks == 1))
    ticks.now += FRESH_SECONDS
    late = asyncio.create_task(tokens.authenticate(minted.text))
    await eventually(lambda: _true(watched.looks == 2))
    watched.gate.set()
    await asyncio.gather(early, late)


async def test_a_database_that_is_away_is_no_refusal_and_not_remembered(tokens: Tokens, watched: Watched) -> None:
    minted = await tokens.create(ADMIN, READER)
    watched.fault = Unavailable("away")
    with pytest.raises(Unavailable):
        await tokens.authenticate(minted.text)
    watched.fault = None
    assert (await tokens.authenticate(minted.text)).tenant == "acme"


async def test_guesses_are_remembered_briefly_and_drive_out_nobody(
    tokens: Tokens, watched: Watched, ticks: Ticks
) -> None:
    minted = await tokens.create(ADMIN, READER)
    await tokens.authenticate(minted.text)
    guess = shape.spell(bytes(32))
    for _ in range(10):
        assert await is_refused(tokens, guess)
    assert watched.looks == 2
    for i in range(MOST_REFUSALS_REMEMBERED + 10):
        assert await is_refused(tokens, shape.spell(i.to_bytes(32)))
    before = watched.looks
    await tokens.authenticate(minted.text)
    assert watched.looks == before
    assert len(tokens._unknown) <= MOST_REFUSALS_REMEMBERED
    assert len(tokens._known) <= MOST_REMEMBERED
    ticks.now += FRESH_SECONDS
    assert await is_refused(tokens, guess)
    assert watched.looks > before


async def test_a_revoked_token_is_refused_at_once_where_it_was_revoked(tokens: Tokens) -> None:
    minted = await tokens.create(ADMIN, READER)
    other = await tokens.create(ADMIN, READER)
    await tokens.authenticate(minted.text)
    revoked = await tokens.revoke(ADMIN, minted.token.id)
    assert (revoked.revoked_by, revoked.lives(0)) == ("user:local", False)
    assert await is_refused(tokens, minted.text)
    assert not await is_refused(tokens, other.text)
    assert await tokens.revoke(ADMIN, minted.token.id) == revoked


@pytest.mark.parametrize("id", ["nonsense", "0193a1b2-ffff-7fff-8fff-ffffffffffff", "a\0b"])
async def test_revoking_what_does_not_exist_is_not_found(tokens: Tokens, id: str) -> None:
    with pytest.raises(NotFound) as caught:
        await tokens.revoke(ADMIN, id)
    assert str(caught.value) == f"no token {id}"


async def test_a_revoked_token_is_refused_by_another_process_before_a_second_has_passed(
    engine: str, tmp_path: Path, postgres: Postgres
) -> None:
    async with two_stores(engine, tmp_path, postgres) as (first, second):
        ticks = Ticks()
        here, there = Tokens(first), Tokens(second, ticks=ticks)
        minted = await here.create(ADMIN, READER)
        await there.authenticate(minted.text)
        await here.revoke(ADMIN, minted.token.id)
        ticks.now += 0.999
        assert await is_refused(there, minted.text)
        await here.close()
        await there.close()


async def test_two_engines_of_one_database_agree_within_a_second(
    engine: str, tmp_path: Path, postgres: Postgres
) -> None:
    """With real time: the other engine goes on asking, as a busy worker would."""
    async with two_stores(engine, tmp_path, postgres) as (first, second):
        here, there = Engine(merged(first)), Engine(merged(second))
        minted = await here.tokens.create(ADMIN, READER)
        assert (await there.tokens.authenticate(minted.text)).tenant == "acme"
        await here.tokens.revoke(ADMIN, minted.token.id)
        await eventually(lambda: is_refused(there.tokens, minted.text), within=1.0)
        await here.close()
        await there.close()


async def test_a_token_expires_by_the_databases_clock(tokens: Tokens, clock: ManualClock, ticks: Ticks) -> None:
    minted = await tokens.create(ADMIN, TokenRequest(roles=["read"], expires_in_seconds=60))
    assert minted.token.expires_at == clock.now + 60 * SECOND
    clock.advance(59.9)
    await tokens.authenticate(minted.text)
    clock.advance(0.1)
    ticks.now += 0.1  # less than an answer is otherwise good for
    assert await is_refused(tokens, minted.text)


async def test_use_is_noted_once_a_minute_and_nobody_waits_for_it(
    tokens: Tokens, watched: Watched, clock: ManualClock, ticks: Ticks
) -> None:
    minted = await tokens.create(ADMIN, READER)

    async def noted_at(time: int) -> bool:
        (token,) = await tokens.list(ADMIN)
        return token.last_used_at == time

    await tokens.authenticate(minted.text)
    first = clock.now
    await eventually(lambda: noted_at(first))
    for _ in range(59):
        clock.advance(1)
        ticks.now += 1
        await tokens.authenticate(minted.text)
    assert await noted_at(first)
    assert watched.notes == 1
    clock.advance(1)
    ticks.now += 1
    await tokens.authenticate(minted.text)
    await eventually(lambda: noted_at(first + 60 * SECOND))
    assert watched.notes == 2


async def test_use_that_cannot_be_noted_keeps_nobody_out(
    tokens: Tokens, watched: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    minted = await tokens.create(ADMIN, READER)

    async def away(*_: object, **__: object) -> int:
        raise Unavailable("the disk is full")

    monkeypatch.setattr(watched, "touch_tokens", away)
    assert (await tokens.authenticate(minted.text)).tenant == "acme"
    await eventually(lambda: _true("could not be noted" in caplog.text))
    assert minted.text not in caplog.text


async def _true(value: bool) -> bool:
    return value
