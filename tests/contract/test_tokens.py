"""Tokens as a store keeps them: under a hash, for one tenant, settled but for their end."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from typing import Any

import pytest

from interlock.domain.job import Rejected
from interlock.domain.token import NewToken, Token, TokenUse
from interlock.errors import NotFound, TokenExists
from tests.contract.builders import NEVER, OPERATOR, TenantQueue, new_id
from tests.contract.connections import SqlConnection, rejection
from tests.support.stores import SECOND

_numbers = itertools.count(1)


def new_token(**fields: Any) -> NewToken:
    """A token that may read, stored under its own hash."""
    hash = hashlib.sha256(b"token %d of this file" % next(_numbers)).digest()
    return NewToken(**{"id": new_id(), "hash": hash, "roles": ("read",), "created_by": OPERATOR, **fields})


async def keep(queue: TenantQueue, **fields: Any) -> tuple[Token, bytes]:
    """A kept token and its hash."""
    new = new_token(**fields)
    (kept,) = await queue.store.tokens.create(queue.tenant, [new])
    assert isinstance(kept, Token), kept
    return kept, new.hash


async def seen(queue: TenantQueue, hash: bytes) -> TokenUse:
    seen = await queue.store.tokens.find(hash)
    assert seen is not None
    return seen


async def test_a_token_is_returned_as_created(queue: TenantQueue) -> None:
    kept, hash = await keep(
        queue,
        roles=("produce", "work"),
        description='a "worker", {with} \\ odd, text\nand ünicode',
        worker_id="w1",
        types=("build", 'odd "type", {x}'),
        repositories=(),
        capabilities=("gpu", "git"),
        expires_in_seconds=60.5,
        key="first",
    )
    assert kept == Token(
        tenant=queue.tenant,
        id=kept.id,
        description='a "worker", {with} \\ odd, text\nand ünicode',
        roles=("produce", "work"),
        worker_id="w1",
        types=("build", 'odd "type", {x}'),
        repositories=(),
        capabilities=("gpu", "git"),
        key="first",
        created_at=queue.clock.now,
        created_by=OPERATOR,
        expires_at=queue.after(60.5),
        last_used_at=None,
        revoked_at=None,
        revoked_by=None,
    )
    assert await seen(queue, hash) == TokenUse(kept, hash, queue.clock.now)


async def test_any_type_and_no_type_differ(queue: TenantQueue) -> None:
    anything, _ = await keep(queue)
    nothing, _ = await keep(queue, types=(), repositories=())
    assert (anything.types, anything.repositories, anything.capabilities) == (None, None, ())
    assert (nothing.types, nothing.repositories) == ((), ())


async def test_an_unknown_hash_finds_nothing(queue: TenantQueue) -> None:
    await keep(queue)
    assert await queue.store.tokens.find(bytes(32)) is None
    assert await queue.store.tokens.find(b"") is None


async def test_a_key_creates_one_token_and_the_rejection_names_it(queue: TenantQueue, rival: TenantQueue) -> None:
    first, _ = await keep(queue, key="deploy")
    (again,) = await queue.store.tokens.create(queue.tenant, [new_token(key="deploy")])
    assert isinstance(again, Rejected)
    assert isinstance(again.error, TokenExists)
    assert again.error.token_id == first.id
    other, _ = await keep(rival, key="deploy")
    assert other.id != first.id
    assert [t.id for t in await queue.store.tokens.page(queue.tenant)] == [first.id]


async def test_in_one_batch_the_first_use_of_a_key_wins_and_each_item_has_its_own_result(queue: TenantQueue) -> None:
    a, b, c = new_token(key="same"), new_token(key="same"), new_token()
    answers = await queue.store.tokens.create(queue.tenant, [a, b, c])
    first, second, third = answers
    assert isinstance(first, Token)
    assert isinstance(third, Token)
    assert isinstance(second, Rejected)
    assert isinstance(second.error, TokenExists)
    assert second.error.token_id == a.id


async def test_exactly_one_of_many_calls_with_one_key_creates_a_token(queue: TenantQueue) -> None:
    calls = [queue.store.tokens.create(queue.tenant, [new_token(key="race")]) for _ in range(8)]
    answers = [answer for (answer,) in await asyncio.gather(*calls)]
    (made,) = [a for a in answers if isinstance(a, Token)]
    refused = [a.error for a in answers if isinstance(a, Rejected)]
    assert [e.token_id for e in refused if isinstance(e, TokenExists)] == [made.id] * 7


async def test_a_repeated_call_returns_the_token_it_created(queue: TenantQueue) -> None:
    """As a store does by itself when the connection broke around the commit."""
    new = new_token(key="once")
    (first,) = await queue.store.tokens.create(queue.tenant, [new])
    queue.clock.advance(5)
    assert await queue.store.tokens.create(queue.tenant, [new]) == [first]


async def test_tokens_are_listed_newest_first_in_pages(queue: TenantQueue, rival: TenantQueue) -> None:
    made = []
    for _ in range(5):
        made.append((await keep(queue))[0])
        made.append((await keep(queue))[0])
        queue.clock.advance(1)
    foreign, _ = await keep(rival)
    expected = sorted(made, key=lambda t: (t.created_at, t.id), reverse=True)
    pages: list[Token] = []
    before = None
    while page := await queue.store.tokens.page(queue.tenant, before=before, limit=3):
        pages += page
        before = page[-1].id
    assert pages == expected
    assert await queue.store.tokens.page(queue.tenant, before=foreign.id) == []


async def test_a_revoked_token_keeps_its_first_revocation(queue: TenantQueue) -> None:
    token, hash = await keep(queue)
    queue.clock.advance(3)
    (revoked,) = await queue.store.tokens.revoke(queue.tenant, [token.id], actor="user:ada")
    assert revoked == token._replace(revoked_at=queue.clock.now, revoked_by="user:ada")
    queue.clock.advance(3)
    assert await queue.store.tokens.revoke(queue.tenant, [token.id], actor="user:bob") == [revoked]
    assert (await seen(queue, hash)).token == revoked
    assert not (await seen(queue, hash)).admits(hash)


async def test_a_revocation_limited_to_worker_tokens_revokes_no_other(queue: TenantQueue) -> None:
    other, _ = await keep(queue)
    workers, _ = await keep(queue, worker_id="w1", roles=("work",))
    ids = [other.id, workers.id]
    unknown, ended = await queue.store.tokens.revoke(queue.tenant, ids, actor=OPERATOR, of_workers=True)
    assert isinstance(unknown, Rejected)
    assert isinstance(unknown.error, NotFound)
    assert ended == workers._replace(revoked_at=queue.clock.now, revoked_by=OPERATOR)
    assert other in await queue.store.tokens.page(queue.tenant)


async def test_a_foreign_token_is_treated_like_an_unknown_one(queue: TenantQueue, rival: TenantQueue) -> None:
    theirs, hash = await keep(rival)
    mine, _ = await keep(queue)
    answers = await queue.store.tokens.revoke(queue.tenant, [theirs.id, mine.id, NEVER], actor=OPERATOR)
    foreign, own, unknown = answers
    assert isinstance(own, Token)
    for refused, id in ((foreign, theirs.id), (unknown, NEVER)):
        assert isinstance(refused, Rejected)
        assert isinstance(refused.error, NotFound)
        assert str(refused.error) == f"no token {id}"
    assert (await seen(rival, hash)).token == theirs
    assert await queue.store.tokens.touch(queue.tenant, [theirs.id], older_than_seconds=0) == 0
    assert [t.id for t in await queue.store.tokens.page(queue.tenant)] == [mine.id]


async def test_a_hash_is_found_only_in_its_tenant(queue: TenantQueue, rival: TenantQueue) -> None:
    mine, my_hash = await keep(queue)
    theirs, their_hash = await keep(rival)
    assert (await seen(queue, my_hash)).token == mine
    assert (await seen(queue, their_hash)).token == theirs
    assert (mine.tenant, theirs.tenant) == (queue.tenant, rival.tenant)


async def test_token_use_is_recorded_at_most_once_per_interval(queue: TenantQueue) -> None:
    token, hash = await keep(queue)
    assert await queue.store.tokens.touch(queue.tenant, [token.id], older_than_seconds=60) == 1
    first = queue.clock.now
    queue.clock.advance(59)
    assert await queue.store.tokens.touch(queue.tenant, [token.id], older_than_seconds=60) == 0
    assert (await seen(queue, hash)).token.last_used_at == first
    queue.clock.advance(1)
    assert await queue.store.tokens.touch(queue.tenant, [token.id], older_than_seconds=60) == 1
    assert (await seen(queue, hash)).token.last_used_at == first + 60 * SECOND


async def test_a_token_expires_exactly_at_its_time(queue: TenantQueue) -> None:
    _, hash = await keep(queue, expires_in_seconds=10)
    queue.clock.advance(9.999999)
    assert (await seen(queue, hash)).admits(hash)
    queue.clock.advance(0.000001)
    assert not (await seen(queue, hash)).admits(hash)


async def test_tokens_that_ended_long_ago_are_deleted_and_no_others(queue: TenantQueue, rival: TenantQueue) -> None:
    living, _ = await keep(queue)
    lasting, _ = await keep(queue, expires_in_seconds=1000)
    expired = [(await keep(of, expires_in_seconds=10))[0] for of in (queue, queue, rival)]
    revoked, _ = await keep(queue, expires_in_seconds=1000)
    await queue.store.tokens.revoke(queue.tenant, [revoked.id], actor=OPERATOR)
    queue.clock.advance(100)

    async def left() -> set[str]:
        return {token.id for of in (queue, rival) for token in await of.store.tokens.page(of.tenant)}

    await queue.store.tokens.forget(100.0, 1000)  # other tests have left theirs in the same store
    assert await left() == {living.id, lasting.id, revoked.id, *(token.id for token in expired)}
    assert await queue.store.tokens.forget(99.0, 1000) >= 1
    assert await left() == {living.id, lasting.id, *(token.id for token in expired)}
    while gone := await queue.store.tokens.forget(89.0, 2):
        assert gone <= 2
    assert await left() == {living.id, lasting.id}


@pytest.mark.parametrize(
    "change",
    [
        "roles = {roles}",
        "hash = {hash}",
        "worker_id = 'w9'",
        "expires_at = NULL",
        "tenant = 'elsewhere'",
        "capabilities = {roles}",
        "revoked_at = NULL, revoked_by = NULL",
        "revoked_by = 'user:eve'",
    ],
)
async def test_the_database_rejects_changing_a_token_except_its_end(
    queue: TenantQueue, sql: SqlConnection, change: str
) -> None:
    token, hash = await keep(queue, expires_in_seconds=60)
    await queue.store.tokens.revoke(queue.tenant, [token.id], actor=OPERATOR)
    before = await seen(queue, hash)
    postgres = sql.engine == "postgres"
    roles = "'{admin}'" if postgres else "'[\"admin\"]'"
    other = "'\\x" + "00" * 32 + "'" if postgres else "x'" + "00" * 32 + "'"
    sets = change.format(roles=roles, hash=other)
    message = await rejection(sql, f"UPDATE token SET {sets} WHERE tenant = $1 AND id = $2", queue.tenant, token.id)
    assert "a token never changes but to be revoked, once" in message
    assert await seen(queue, hash) == before


@pytest.mark.parametrize(
    ("roles", "worker_id"),
    [
        ((), None),
        (("king",), None),
        (("approve", "work"), None),
        (("admin", "work"), None),
        (("operate", "work"), None),
        (("admin", "work"), "w1"),
        (("operate", "work"), "w1"),
        (("approve",), "w1"),
        (("read",), "w1"),
    ],
)
async def test_the_database_rejects_incompatible_roles(
    queue: TenantQueue, sql: SqlConnection, roles: tuple[str, ...], worker_id: str | None
) -> None:
    token, _ = await keep(queue)

    def insert(roles: tuple[str, ...], worker_id: str | None) -> tuple[Any, ...]:
        named = "{" + ",".join(roles) + "}" if sql.engine == "postgres" else str(list(roles)).replace("'", '"')
        statement = (
            "INSERT INTO token (tenant, id, hash, roles, worker_id, created_at, created_by) "
            f"SELECT tenant, $3, $4, '{named}', $5, created_at, created_by FROM token WHERE tenant = $1 AND id = $2"
        )
        return statement, queue.tenant, token.id, new_id(), new_token().hash, worker_id

    await rejection(sql, *insert(roles, worker_id))
    await sql.run(*insert(("read", "work"), "w1"))
    assert len(await queue.store.tokens.page(queue.tenant)) == 2
