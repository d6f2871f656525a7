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
from tests.engine.watched import ADMIN, READER, is_rejected
from tests.support.stores import ManualClock


async def test_a_token_authenticates_its_bearer_with_its_policy(tokens: Tokens) -> None:
    created_link = await tokens.create(
        ADMIN,
        TokenRequest(roles=["work", "read"], worker_id=" w1 ", types=["b", "a"], repositories=["org/x.git"],
                     capabilities=["gpu"]),
    )  # fmt: skip
    who = await tokens.authenticate(created_link.text)
    assert (who.tenant, who.actor, who.worker, who.roles) == ("acme", "worker:w1", "w1", frozenset({"work", "read"}))
    assert who.policy == (frozenset({"a", "b"}), frozenset({"org/x"}), frozenset({"gpu"}))
    assert not who.unchecked
    assert created_link.token.created_by == "user:local"


async def test_the_secret_is_shown_once_and_never_by_accident(tokens: Tokens) -> None:
    created_link = await tokens.create(ADMIN, READER)
    assert shape.is_whole(created_link.text)
    assert created_link.text not in repr(created_link)
    assert created_link.text not in f"{created_link}"
    (listed,) = await tokens.list(ADMIN)
    assert listed == created_link.token
    assert created_link.text not in repr(listed)


async def test_two_tokens_never_have_the_same_secret(tokens: Tokens) -> None:
    texts = {(await tokens.create(ADMIN, READER)).text for _ in range(50)}
    assert len(texts) == 50


async def test_a_token_belongs_to_the_tenant_of_its_creator(tokens: Tokens) -> None:
    mine = await tokens.create(ADMIN, TokenRequest(roles=["admin"]))
    theirs = await tokens.create(local("rival"), READER)
    admin = await tokens.authenticate(mine.text)
    assert [t.id for t in await tokens.list(admin)] == [mine.token.id]
    with pytest.raises(NotFound, match=f"no token {theirs.token.id}"):
        await tokens.revoke(admin, theirs.token.id)
    assert (await tokens.authenticate(theirs.text)).tenant == "rival"


@pytest.mark.parametrize("lacking", ["nothing but admin", "no role at all"])
async def test_only_an_admin_manages_tokens(tokens: Tokens, lacking: str) -> None:
    roles = ROLES - {"admin"} if lacking == "nothing but admin" else frozenset[str]()
    who = Principal("acme", "token:x", roles)
    created_link = await tokens.create(ADMIN, READER)
    for call in (tokens.create(who, READER), tokens.list(who), tokens.revoke(who, created_link.token.id)):
        with pytest.raises(Forbidden, match="admin"):
            await call
    assert await tokens.list(ADMIN) == [created_link.token]


async def test_a_key_creates_one_token_and_the_error_names_it(tokens: Tokens) -> None:
    request = TokenRequest(roles=["read"], key="deploy")
    first = await tokens.create(ADMIN, request)
    with pytest.raises(TokenExists, match=first.token.id) as caught:
        await tokens.create(ADMIN, request)
    assert (caught.value.key, caught.value.token_id) == ("deploy", first.token.id)
    assert not await is_rejected(tokens, first.text)
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
async def test_an_invalid_token_request_is_rejected_with_its_pointer(
    tokens: Tokens, fields: dict[str, Any], pointer: str
) -> None:
    with pytest.raises(Invalid) as caught:
        await tokens.create(ADMIN, TokenRequest(**fields))
    assert caught.value.pointer == pointer
    assert await tokens.list(ADMIN) == []


async def test_a_description_may_have_any_text_within_a_limit(tokens: Tokens) -> None:
    created_link = await tokens.create(ADMIN, TokenRequest(roles=["read"], description="a\0b\ud800c"))
    assert created_link.token.description == "a\ufffdb\ufffdc"
    with pytest.raises(TooLarge):
        await tokens.create(ADMIN, TokenRequest(roles=["read"], description="x" * 9000))


async def test_a_list_continues_where_the_last_page_ended(tokens: Tokens, clock: ManualClock) -> None:
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
