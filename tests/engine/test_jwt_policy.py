"""Tenant, roles and policy of an outside issuer's token, from configured claims."""

from __future__ import annotations

import pytest

from interlock.domain.policy import ClaimFilter, fits
from interlock.engine.tokens import Tokens, Trust
from interlock.errors import Unauthenticated
from interlock.storage.contract import Store
from tests.engine.issuers import (
    STRANGER,
    World,
    claims,
    signed,
    trusted,
)


async def test_a_worker_token_has_its_policy(world: World) -> None:
    payload = claims(
        roles=["work", "produce"], worker_id="w1", types=["build"], repositories=["org/x.git"], capabilities=["gpu"]
    )
    who = await world.enter(signed(payload))
    assert (who.actor, who.worker, who.roles) == ("worker:w1", "w1", frozenset({"work", "produce"}))
    assert who.policy == (frozenset({"build"}), frozenset({"org/x"}), frozenset({"gpu"}))


async def test_absent_types_are_any_and_absent_capabilities_none(world: World) -> None:
    who = await world.enter(signed(claims(roles=["work"], types=["*"])))
    assert who.policy == (None, None, frozenset())
    assert who.worker == "ada"  # who names no worker works under the subject's name
    nothing = await world.enter(signed(claims(roles=["work"], types=[], repositories=[])))
    assert nothing.policy == (frozenset(), frozenset(), frozenset())


@pytest.mark.parametrize(
    ("allowed", "gets"),
    [
        ({}, [None, "org/x"]),
        ({"repositories": ["*"]}, [None, "org/x"]),
        ({"repositories": ["org/x"]}, ["org/x"]),
        ({"repositories": ["org/y"]}, []),
        ({"repositories": []}, []),
    ],
)
async def test_a_policy_of_an_issuer_limits_repositories(
    world: World, allowed: dict[str, list[str]], gets: list[str | None]
) -> None:
    who = await world.enter(signed(claims(roles=["work"], **allowed)))
    ask = who.narrowed(ClaimFilter("ada", types=frozenset({"t"})))
    job = {"type": "t", "requires": (), "affinity_key": None}
    assert [name for name in (None, "org/x") if fits(ask, repository=name, **job)] == gets  # type: ignore[arg-type]


async def test_a_worker_claim_without_the_work_role_means_nothing(world: World) -> None:
    who = await world.enter(signed(claims(roles=["approve"], worker_id="w1")))
    assert (who.actor, who.worker, who.roles) == ("user:ada", None, frozenset({"approve"}))


async def test_a_subject_that_works_cannot_approve_its_own_request(world: World) -> None:
    worker = await world.enter(signed(claims(roles=["work"], worker_id="w1")))
    approver = await world.enter(signed(claims(roles=["approve"])))
    assert (worker.actor, worker.asks_as) == ("worker:w1", approver.actor)
    assert approver.asks_as == approver.actor


async def test_claims_and_roles_can_be_renamed(world: World) -> None:
    world.trust(
        trusted(
            claims={"tenant": "https://example.com/org", "roles": ["realm", "roles"], "worker_id": "azp"},
            roles={"ops": "operate", "robots": "work"},
        )
    )
    named = {"tenant": "wrong", "roles": ["admin"], "https://example.com/org": "acme"}
    who = await world.enter(signed(claims(**named, realm={"roles": ["ops", "admin", "read"]})))
    assert (who.tenant, who.roles) == ("acme", frozenset({"operate"}))
    robot = await world.enter(signed(claims(**named, realm={"roles": ["robots"]}, azp="w9")))
    assert (robot.worker, robot.roles) == ("w9", frozenset({"work"}))
    without_roles = await world.enter(signed(claims(**named, realm="roles")))
    assert without_roles.roles == frozenset()
    assert await world.rejects(signed(claims(tenant="acme")))


async def test_an_issuer_may_be_limited_to_its_tenants(world: World) -> None:
    world.trust(trusted(tenants=["acme", "beta"]))
    assert not await world.rejects(signed(claims(tenant="beta")))
    assert await world.rejects(signed(claims(tenant="rival")))


async def test_a_server_accepts_tokens_and_jwts_side_by_side(world: World, store: Store) -> None:
    both = Tokens(store.tokens, Trust(issuers=world.issuers))
    assert (await both.authenticate(signed())).actor == "user:ada"
    for bad in (signed(key=STRANGER), "ilk_" + signed(), "nothing"):
        with pytest.raises(Unauthenticated):
            await both.authenticate(bad)
    only_own = Tokens(store.tokens)
    with pytest.raises(Unauthenticated):
        await only_own.authenticate(signed())
