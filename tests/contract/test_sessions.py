"""Sessions of the dashboard as a store keeps them: under a hash, for one tenant, until they end."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from interlock.domain.principal import Person
from interlock.domain.session import NewSession
from tests.contract.builders import TenantQueue, new_id
from tests.contract.connections import SqlConnection, rejection
from tests.support.stores import SECOND

ADA = "user:ada"


def new_session(**fields: Any) -> NewSession:
    id = new_id()
    values = {"id": id, "hash": hashlib.sha256(id.encode()).digest(), "actor": ADA, "life_seconds": 60.0}
    return NewSession(**{**values, **fields})


async def test_a_session_is_found_by_its_hash_with_the_person_until_it_is_ended(queue: TenantQueue) -> None:
    at = queue.clock.now - 5 * SECOND
    new = new_session(roles=("approve", "read"), person=Person("Ada", "ada@example.com", at))
    begun = await queue.store.sessions.begin(queue.tenant, new)
    assert await queue.store.sessions.begin(queue.tenant, new) == begun  # a repeated call
    found = await queue.store.sessions.find(new.hash)
    assert found is not None
    assert found.lives
    who = found.principal
    assert who is not None
    assert (who.tenant, who.actor, who.roles) == (queue.tenant, ADA, frozenset({"approve", "read"}))
    assert who.person == Person("Ada", "ada@example.com", at)
    assert await queue.store.sessions.end(queue.tenant, new.id, actor=ADA)
    assert not await queue.store.sessions.end(queue.tenant, new.id, actor=ADA)
    assert await queue.store.sessions.find(new.hash) is None
    assert [(one.actor, one.name) for one in await queue.store.sessions.people(queue.tenant, limit=10)] == [
        (ADA, "Ada")
    ]


async def test_a_session_of_a_token_has_no_roles_of_its_own(queue: TenantQueue) -> None:
    new = new_session()
    await queue.store.sessions.begin(queue.tenant, new)
    found = await queue.store.sessions.find(new.hash)
    assert found is not None
    assert found.principal is None
    assert await queue.store.sessions.page(queue.tenant) == []


async def test_expired_sessions_are_invalid_and_then_deleted(queue: TenantQueue) -> None:
    old, young = new_session(life_seconds=10.0), new_session(life_seconds=30.0)
    for new in (old, young):
        await queue.store.sessions.begin(queue.tenant, new)
    queue.clock.advance(11)
    found = await queue.store.sessions.find(old.hash)
    assert found is not None
    assert not found.lives
    await queue.store.sessions.forget(100)
    assert await queue.store.sessions.find(old.hash) is None
    assert await queue.store.sessions.find(young.hash) is not None


async def test_all_sessions_of_one_person_end_together(queue: TenantQueue) -> None:
    mine = [new_session(roles=("read",), person=Person()) for _ in range(2)]
    other = new_session(actor="user:grace", roles=("read",), person=Person())
    for new in (*mine, other):
        await queue.store.sessions.begin(queue.tenant, new)
    assert await queue.store.sessions.end_all(queue.tenant, ADA, actor="user:root") == 2
    assert [one.id for one in await queue.store.sessions.page(queue.tenant)] == [other.id]


@pytest.mark.parametrize("roles", [("work",), ("root",)])
async def test_the_database_rejects_roles_that_no_person_has(queue: TenantQueue, roles: tuple[str, ...]) -> None:
    with pytest.raises(Exception, match=r"constraint|check|role"):
        await queue.store.sessions.begin(queue.tenant, new_session(roles=roles, person=Person()))


async def test_a_session_never_changes_by_direct_sql(queue: TenantQueue, sql: SqlConnection) -> None:
    new = new_session(roles=("read",), person=Person())
    await queue.store.sessions.begin(queue.tenant, new)
    assert await rejection(sql, "UPDATE session SET actor = 'user:eve' WHERE tenant = $1", queue.tenant)
