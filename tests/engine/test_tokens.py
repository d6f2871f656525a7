"""Tokens: who makes them, what they may be, and what of them is shown."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.domain import token as shape
from interlock.domain.principal import ROLES, Principal, local
from interlock.engine.tokens import (
    Tokens,
)
from interlock.errors import Forbidden, Invalid, NotFound, TokenExists, TooLarge
from interlock.wire import TokenRequest
from tests.engine.watched import ADMIN, READER, is_refused
from tests.support.stores import ManualClock


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
        ({"roles": ["work", "admin"]}, "/roles"),
        ({"roles": ["work", "operate"]}, "/roles"),
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
