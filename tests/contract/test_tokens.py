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
from tests.contract.builders import NEVER, OPERATOR, Desk, new_id
from tests.contract.connections import Door, refusal
from tests.support.stores import SECOND

_numbers = itertools.count(1)


def new_token(**fields: Any) -> NewToken:
    """A token that may read, kept under a hash of its own."""
    hash = hashlib.sha256(b"token %d of this file" % next(_numbers)).digest()
    return NewToken(**{"id": new_id(), "hash": hash, "roles": ("read",), "created_by": OPERATOR, **fields})


async def keep(remote: Desk, **fields: Any) -> tuple[Token, bytes]:
    """A kept token and its hash."""
    new = new_token(**fields)
    (kept,) = await remote.store.create_tokens(remote.tenant, [new])
    assert isinstance(kept, Token), kept
    return kept, new.hash


async def seen(remote: Desk, hash: bytes) -> TokenUse:
    seen = await remote.store.find_token(hash)
    assert seen is not None
    return seen


async def test_a_token_comes_back_as_it_was_made(remote: Desk) -> None:
    kept, hash = await keep(
        remote,
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
        tenant=remote.tenant,
        id=kept.id,
        description='a "worker", {with} \\ odd, text\nand ünicode',
        roles=("produce", "work"),
        worker_id="w1",
        types=("build", 'odd "type", {x}'),
        repositories=(),
        capabilities=("gpu", "git"),
        key="first",
        created_at=remote.clock.now,
        created_by=OPERATOR,
        expires_at=remote.after(60.5),
        last_used_at=None,
        revoked_at=None,
        revoked_by=None,
    )
    assert await seen(remote, hash) == TokenUse(kept, hash, remote.clock.now)


async def test_any_type_and_no_type_are_different_things(remote: Desk) -> None:
    anything, _ = await keep(remote)
    nothing, _ = await keep(remote, types=(), repositories=())
    assert (anything.types, anything.repositories, anything.capabilities) == (None, None, ())
    assert (nothing.types, nothing.repositories) == ((), ())


async def test_an_unknown_hash_finds_nothing(remote: Desk) -> None:
    await keep(remote)
    assert await remote.store.find_token(bytes(32)) is None
    assert await remote.store.find_token(b"") is None


async def test_a_key_makes_one_token_and_the_refusal_names_it(remote: Desk, rival: Desk) -> None:
    first, _ = await keep(remote, key="deploy")
    (again,) = await remote.store.create_tokens(remote.tenant, [new_token(key="deploy")])
    assert isinstance(again, Rejected)
    assert isinstance(again.error, TokenExists)
    assert again.error.token_id == first.id
    other, _ = await keep(rival, key="deploy")
    assert other.id != first.id
    assert [t.id for t in await remote.store.tokens(remote.tenant)] == [first.id]


async def test_in_one_batch_the_first_of_a_key_wins_and_each_answers_alone(remote: Desk) -> None:
    a, b, c = new_token(key="same"), new_token(key="same"), new_token()
    answers = await remote.store.create_tokens(remote.tenant, [a, b, c])
    first, second, third = answers
    assert isinstance(first, Token)
    assert isinstance(third, Token)
    assert isinstance(second, Rejected)
    assert isinstance(second.error, TokenExists)
    assert second.error.token_id == a.id


async def test_of_many_calls_with_one_key_exactly_one_makes_a_token(remote: Desk) -> None:
    calls = [remote.store.create_tokens(remote.tenant, [new_token(key="race")]) for _ in range(8)]
    answers = [answer for (answer,) in await asyncio.gather(*calls)]
    (made,) = [a for a in answers if isinstance(a, Token)]
    refused = [a.error for a in answers if isinstance(a, Rejected)]
    assert [e.token_id for e in refused if isinstance(e, TokenExists)] == [made.id] * 7


async def test_the_same_call_again_answers_what_it_made(remote: Desk) -> None:
    """As a store does by itself when the connection broke around the commit."""
    new = new_token(key="once")
    (first,) = await remote.store.create_tokens(remote.tenant, [new])
    remote.clock.advance(5)
    assert await remote.store.create_tokens(remote.tenant, [new]) == [first]


async def test_tokens_are_listed_newest_first_page_by_page(remote: Desk, rival: Desk) -> None:
    made = []
    for _ in range(5):
        made.append((await keep(remote))[0])
        made.append((await keep(remote))[0])
        remote.clock.advance(1)
    foreign, _ = await keep(rival)
    expected = sorted(made, key=lambda t: (t.created_at, t.id), reverse=True)
    pages: list[Token] = []
    before = None
    while page := await remote.store.tokens(remote.tenant, before=before, limit=3):
        pages += page
        before = page[-1].id
    assert pages == expected
    assert await remote.store.tokens(remote.tenant, before=foreign.id) == []


async def test_a_revoked_token_stays_as_it_was_revoked_first(remote: Desk) -> None:
    token, hash = await keep(remote)
    remote.clock.advance(3)
    (revoked,) = await remote.store.revoke_tokens(remote.tenant, [token.id], actor="user:ada")
    assert revoked == token._replace(revoked_at=remote.clock.now, revoked_by="user:ada")
    remote.clock.advance(3)
    assert await remote.store.revoke_tokens(remote.tenant, [token.id], actor="user:bob") == [revoked]
    assert (await seen(remote, hash)).token == revoked
    assert not (await seen(remote, hash)).admits(hash)


async def test_where_only_those_of_workers_are_meant_no_other_is_revoked(remote: Desk) -> None:
    other, _ = await keep(remote)
    workers, _ = await keep(remote, worker_id="w1", roles=("work",))
    ids = [other.id, workers.id]
    unknown, ended = await remote.store.revoke_tokens(remote.tenant, ids, actor=OPERATOR, of_workers=True)
    assert isinstance(unknown, Rejected)
    assert isinstance(unknown.error, NotFound)
    assert ended == workers._replace(revoked_at=remote.clock.now, revoked_by=OPERATOR)
    assert other in await remote.store.tokens(remote.tenant)


async def test_a_foreign_token_is_answered_like_an_unknown_one(remote: Desk, rival: Desk) -> None:
    theirs, hash = await keep(rival)
    mine, _ = await keep(remote)
    answers = await remote.store.revoke_tokens(remote.tenant, [theirs.id, mine.id, NEVER], actor=OPERATOR)
    foreign, own, unknown = answers
    assert isinstance(own, Token)
    for refused, id in ((foreign, theirs.id), (unknown, NEVER)):
        assert isinstance(refused, Rejected)
        assert isinstance(refused.error, NotFound)
        assert str(refused.error) == f"no token {id}"
    assert (await seen(rival, hash)).token == theirs
    assert await remote.store.touch_tokens(remote.tenant, [theirs.id], older_than_seconds=0) == 0
    assert [t.id for t in await remote.store.tokens(remote.tenant)] == [mine.id]


async def test_a_hash_leads_to_its_own_tenant_only(remote: Desk, rival: Desk) -> None:
    mine, my_hash = await keep(remote)
    theirs, their_hash = await keep(rival)
    assert (await seen(remote, my_hash)).token == mine
    assert (await seen(remote, their_hash)).token == theirs
    assert (mine.tenant, theirs.tenant) == (remote.tenant, rival.tenant)


async def test_use_is_noted_at_most_once_in_a_while(remote: Desk) -> None:
    token, hash = await keep(remote)
    assert await remote.store.touch_tokens(remote.tenant, [token.id], older_than_seconds=60) == 1
    first = remote.clock.now
    remote.clock.advance(59)
    assert await remote.store.touch_tokens(remote.tenant, [token.id], older_than_seconds=60) == 0
    assert (await seen(remote, hash)).token.last_used_at == first
    remote.clock.advance(1)
    assert await remote.store.touch_tokens(remote.tenant, [token.id], older_than_seconds=60) == 1
    assert (await seen(remote, hash)).token.last_used_at == first + 60 * SECOND


async def test_a_token_ends_at_the_very_moment_it_was_given(remote: Desk) -> None:
    _, hash = await keep(remote, expires_in_seconds=10)
    remote.clock.advance(9.999999)
    assert (await seen(remote, hash)).admits(hash)
    remote.clock.advance(0.000001)
    assert not (await seen(remote, hash)).admits(hash)


async def test_tokens_that_ended_long_ago_are_forgotten_and_no_others(remote: Desk, rival: Desk) -> None:
    living, _ = await keep(remote)
    lasting, _ = await keep(remote, expires_in_seconds=1000)
    expired = [(await keep(of, expires_in_seconds=10))[0] for of in (remote, remote, rival)]
    revoked, _ = await keep(remote, expires_in_seconds=1000)
    await remote.store.revoke_tokens(remote.tenant, [revoked.id], actor=OPERATOR)
    remote.clock.advance(100)

    async def left() -> set[str]:
        return {token.id for of in (remote, rival) for token in await of.store.tokens(of.tenant)}

    await remote.store.forget_tokens(100.0, 1000)  # other tests have left theirs in the same store
    assert await left() == {living.id, lasting.id, revoked.id, *(token.id for token in expired)}
    assert await remote.store.forget_tokens(99.0, 1000) >= 1
    assert await left() == {living.id, lasting.id, *(token.id for token in expired)}
    while gone := await remote.store.forget_tokens(89.0, 2):
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
async def test_the_database_refuses_to_change_a_token_but_for_its_end(remote: Desk, adapter: Door, change: str) -> None:
    token, hash = await keep(remote, expires_in_seconds=60)
    await remote.store.revoke_tokens(remote.tenant, [token.id], actor=OPERATOR)
    before = await seen(remote, hash)
    postgres = adapter.engine == "postgres"
    roles = "'{admin}'" if postgres else "'[\"admin\"]'"
    other = "'\\x" + "00" * 32 + "'" if postgres else "x'" + "00" * 32 + "'"
    sets = change.format(roles=roles, hash=other)
    message = await refusal(adapter, f"UPDATE token SET {sets} WHERE tenant = $1 AND id = $2", remote.tenant, token.id)
    assert "a token never changes but to be revoked, once" in message
    assert await seen(remote, hash) == before


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
async def test_the_database_refuses_roles_that_never_go_together(
    remote: Desk, adapter: Door, roles: tuple[str, ...], worker_id: str | None
) -> None:
    token, _ = await keep(remote)

    def insert(roles: tuple[str, ...], worker_id: str | None) -> tuple[Any, ...]:
        named = "{" + ",".join(roles) + "}" if adapter.engine == "postgres" else str(list(roles)).replace("'", '"')
        statement = (
            "INSERT INTO token (tenant, id, hash, roles, worker_id, created_at, created_by) "
            f"SELECT tenant, $3, $4, '{named}', $5, created_at, created_by FROM token WHERE tenant = $1 AND id = $2"
        )
        return statement, remote.tenant, token.id, new_id(), new_token().hash, worker_id

    await refusal(adapter, *insert(roles, worker_id))
    await adapter.run(*insert(("read", "work"), "w1"))
    assert len(await remote.store.tokens(remote.tenant)) == 2
