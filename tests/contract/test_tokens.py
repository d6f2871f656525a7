"""Tokens as a store keeps them: under a hash, for one tenant, settled but for their end."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from typing import Any

import pytest

from interlock.domain.job import Refused
from interlock.domain.token import NewToken, Sighting, Token
from interlock.errors import NotFound, TokenExists
from tests.contract.builders import NEVER, OPERATOR, Desk, new_id
from tests.contract.connections import Door, refusal
from tests.support.stores import SECOND

_numbers = itertools.count(1)


def new_token(**fields: Any) -> NewToken:
    """A token that may read, kept under a hash of its own."""
    hash = hashlib.sha256(b"token %d of this file" % next(_numbers)).digest()
    return NewToken(**{"id": new_id(), "hash": hash, "roles": ("read",), "created_by": OPERATOR, **fields})


async def keep(desk: Desk, **fields: Any) -> tuple[Token, bytes]:
    """A kept token and its hash."""
    new = new_token(**fields)
    (kept,) = await desk.store.create_tokens(desk.tenant, [new])
    assert isinstance(kept, Token), kept
    return kept, new.hash


async def seen(desk: Desk, hash: bytes) -> Sighting:
    sighting = await desk.store.find_token(hash)
    assert sighting is not None
    return sighting


async def test_a_token_comes_back_as_it_was_made(desk: Desk) -> None:
    kept, hash = await keep(
        desk,
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
        tenant=desk.tenant,
        id=kept.id,
        description='a "worker", {with} \\ odd, text\nand ünicode',
        roles=("produce", "work"),
        worker_id="w1",
        types=("build", 'odd "type", {x}'),
        repositories=(),
        capabilities=("gpu", "git"),
        key="first",
        created_at=desk.clock.now,
        created_by=OPERATOR,
        expires_at=desk.after(60.5),
        last_used_at=None,
        revoked_at=None,
        revoked_by=None,
    )
    assert await seen(desk, hash) == Sighting(kept, hash, desk.clock.now)


async def test_any_type_and_no_type_are_different_things(desk: Desk) -> None:
    anything, _ = await keep(desk)
    nothing, _ = await keep(desk, types=(), repositories=())
    assert (anything.types, anything.repositories, anything.capabilities) == (None, None, ())
    assert (nothing.types, nothing.repositories) == ((), ())


async def test_an_unknown_hash_finds_nothing(desk: Desk) -> None:
    await keep(desk)
    assert await desk.store.find_token(bytes(32)) is None
    assert await desk.store.find_token(b"") is None


async def test_a_key_makes_one_token_and_the_refusal_names_it(desk: Desk, rival: Desk) -> None:
    first, _ = await keep(desk, key="deploy")
    (again,) = await desk.store.create_tokens(desk.tenant, [new_token(key="deploy")])
    assert isinstance(again, Refused)
    assert isinstance(again.error, TokenExists)
    assert again.error.token_id == first.id
    other, _ = await keep(rival, key="deploy")
    assert other.id != first.id
    assert [t.id for t in await desk.store.tokens(desk.tenant)] == [first.id]


async def test_in_one_batch_the_first_of_a_key_wins_and_each_answers_alone(desk: Desk) -> None:
    a, b, c = new_token(key="same"), new_token(key="same"), new_token()
    answers = await desk.store.create_tokens(desk.tenant, [a, b, c])
    first, second, third = answers
    assert isinstance(first, Token)
    assert isinstance(third, Token)
    assert isinstance(second, Refused)
    assert isinstance(second.error, TokenExists)
    assert second.error.token_id == a.id


async def test_of_many_calls_with_one_key_exactly_one_makes_a_token(desk: Desk) -> None:
    calls = [desk.store.create_tokens(desk.tenant, [new_token(key="race")]) for _ in range(8)]
    answers = [answer for (answer,) in await asyncio.gather(*calls)]
    (made,) = [a for a in answers if isinstance(a, Token)]
    refused = [a.error for a in answers if isinstance(a, Refused)]
    assert [e.token_id for e in refused if isinstance(e, TokenExists)] == [made.id] * 7


async def test_the_same_call_again_answers_what_it_made(desk: Desk) -> None:
    """As a store does by itself when the connection broke around the commit."""
    new = new_token(key="once")
    (first,) = await desk.store.create_tokens(desk.tenant, [new])
    desk.clock.advance(5)
    assert await desk.store.create_tokens(desk.tenant, [new]) == [first]


async def test_tokens_are_listed_newest_first_page_by_page(desk: Desk, rival: Desk) -> None:
    made = []
    for _ in range(5):
        made.append((await keep(desk))[0])
        made.append((await keep(desk))[0])
        desk.clock.advance(1)
    foreign, _ = await keep(rival)
    expected = sorted(made, key=lambda t: (t.created_at, t.id), reverse=True)
    pages: list[Token] = []
    before = None
    while page := await desk.store.tokens(desk.tenant, before=before, limit=3):
        pages += page
        before = page[-1].id
    assert pages == expected
    assert await desk.store.tokens(desk.tenant, before=foreign.id) == []


async def test_a_revoked_token_stays_as_it_was_revoked_first(desk: Desk) -> None:
    token, hash = await keep(desk)
    desk.clock.advance(3)
    (revoked,) = await desk.store.revoke_tokens(desk.tenant, [token.id], actor="user:ada")
    assert revoked == token._replace(revoked_at=desk.clock.now, revoked_by="user:ada")
    desk.clock.advance(3)
    assert await desk.store.revoke_tokens(desk.tenant, [token.id], actor="user:bob") == [revoked]
    assert (await seen(desk, hash)).token == revoked
    assert not (await seen(desk, hash)).admits(hash)


async def test_where_only_those_of_workers_are_meant_no_other_is_revoked(desk: Desk) -> None:
    other, _ = await keep(desk)
    workers, _ = await keep(desk, worker_id="w1", roles=("work",))
    ids = [other.id, workers.id]
    unknown, ended = await desk.store.revoke_tokens(desk.tenant, ids, actor=OPERATOR, of_workers=True)
    assert isinstance(unknown, Refused)
    assert isinstance(unknown.error, NotFound)
    assert ended == workers._replace(revoked_at=desk.clock.now, revoked_by=OPERATOR)
    assert other in await desk.store.tokens(desk.tenant)


async def test_a_foreign_token_is_answered_like_an_unknown_one(desk: Desk, rival: Desk) -> None:
    theirs, hash = await keep(rival)
    mine, _ = await keep(desk)
    answers = await desk.store.revoke_tokens(desk.tenant, [theirs.id, mine.id, NEVER], actor=OPERATOR)
    foreign, own, unknown = answers
    assert isinstance(own, Token)
    for refused, id in ((foreign, theirs.id), (unknown, NEVER)):
        assert isinstance(refused, Refused)
        assert isinstance(refused.error, NotFound)
        assert str(refused.error) == f"no token {id}"
    assert (await seen(rival, hash)).token == theirs
    assert await desk.store.touch_tokens(desk.tenant, [theirs.id], older_than_seconds=0) == 0
    assert [t.id for t in await desk.store.tokens(desk.tenant)] == [mine.id]


async def test_a_hash_leads_to_its_own_tenant_only(desk: Desk, rival: Desk) -> None:
    mine, my_hash = await keep(desk)
    theirs, their_hash = await keep(rival)
    assert (await seen(desk, my_hash)).token == mine
    assert (await seen(desk, their_hash)).token == theirs
    assert (mine.tenant, theirs.tenant) == (desk.tenant, rival.tenant)


async def test_use_is_noted_at_most_once_in_a_while(desk: Desk) -> None:
    token, hash = await keep(desk)
    assert await desk.store.touch_tokens(desk.tenant, [token.id], older_than_seconds=60) == 1
    first = desk.clock.now
    desk.clock.advance(59)
    assert await desk.store.touch_tokens(desk.tenant, [token.id], older_than_seconds=60) == 0
    assert (await seen(desk, hash)).token.last_used_at == first
    desk.clock.advance(1)
    assert await desk.store.touch_tokens(desk.tenant, [token.id], older_than_seconds=60) == 1
    assert (await seen(desk, hash)).token.last_used_at == first + 60 * SECOND


async def test_a_token_ends_at_the_very_moment_it_was_given(desk: Desk) -> None:
    _, hash = await keep(desk, expires_in_seconds=10)
    desk.clock.advance(9.999999)
    assert (await seen(desk, hash)).admits(hash)
    desk.clock.advance(0.000001)
    assert not (await seen(desk, hash)).admits(hash)


async def test_tokens_that_ended_long_ago_are_forgotten_and_no_others(desk: Desk, rival: Desk) -> None:
    living, _ = await keep(desk)
    lasting, _ = await keep(desk, expires_in_seconds=1000)
    expired = [(await keep(of, expires_in_seconds=10))[0] for of in (desk, desk, rival)]
    revoked, _ = await keep(desk, expires_in_seconds=1000)
    await desk.store.revoke_tokens(desk.tenant, [revoked.id], actor=OPERATOR)
    desk.clock.advance(100)

    async def left() -> set[str]:
        return {token.id for of in (desk, rival) for token in await of.store.tokens(of.tenant)}

    await desk.store.forget_tokens(100.0, 1000)  # other tests have left theirs in the same store
    assert await left() == {living.id, lasting.id, revoked.id, *(token.id for token in expired)}
    assert await desk.store.forget_tokens(99.0, 1000) >= 1
    assert await left() == {living.id, lasting.id, *(token.id for token in expired)}
    while gone := await desk.store.forget_tokens(89.0, 2):
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
async def test_the_database_refuses_to_change_a_token_but_for_its_end(desk: Desk, door: Door, change: str) -> None:
    token, hash = await keep(desk, expires_in_seconds=60)
    await desk.store.revoke_tokens(desk.tenant, [token.id], actor=OPERATOR)
    before = await seen(desk, hash)
    postgres = door.engine == "postgres"
    roles = "'{admin}'" if postgres else "'[\"admin\"]'"
    other = "'\\x" + "00" * 32 + "'" if postgres else "x'" + "00" * 32 + "'"
    sets = change.format(roles=roles, hash=other)
    message = await refusal(door, f"UPDATE token SET {sets} WHERE tenant = $1 AND id = $2", desk.tenant, token.id)
    assert "a token never changes but to be revoked, once" in message
    assert await seen(desk, hash) == before


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
    desk: Desk, door: Door, roles: tuple[str, ...], worker_id: str | None
) -> None:
    token, _ = await keep(desk)

    def insert(roles: tuple[str, ...], worker_id: str | None) -> tuple[Any, ...]:
        named = "{" + ",".join(roles) + "}" if door.engine == "postgres" else str(list(roles)).replace("'", '"')
        statement = (
            "INSERT INTO token (tenant, id, hash, roles, worker_id, created_at, created_by) "
            f"SELECT tenant, $3, $4, '{named}', $5, created_at, created_by FROM token WHERE tenant = $1 AND id = $2"
        )
        return statement, desk.tenant, token.id, new_id(), new_token().hash, worker_id

    await refusal(door, *insert(roles, worker_id))
    await door.run(*insert(("read", "work"), "w1"))
    assert len(await desk.store.tokens(desk.tenant)) == 2
