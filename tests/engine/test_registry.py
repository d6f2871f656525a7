"""Types and agents: what is registered decides what a new job must look like and what it gets."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from interlock.domain.decide import CompleteJob, FailJob
from interlock.domain.job import Heartbeat, Job
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import Principal, local
from interlock.engine.engine import Engine
from interlock.errors import Invalid, NotFound, UnknownAgent, UnknownType
from interlock.storage.batching import batched
from interlock.storage.contract import Store
from interlock.wire import job_request
from tests.support.stores import SECOND

SCHEMA = json.dumps({
    "type": "object", "required": ["topic"], "additionalProperties": False,
    "properties": {"topic": {"type": "string", "minLength": 2}, "depth": {"type": "integer", "minimum": 1}},
})  # fmt: skip


@pytest.fixture
def who() -> Principal:
    return local("acme")


async def added(engine: Engine, who: Principal, **values: Any) -> Job:
    enqueued = await engine.jobs.enqueue(
        who, job_request({"type": "research", "payload": {"topic": "tides"}, **values})
    )
    return await engine.queries.job(who.tenant, enqueued.id)


async def test_an_invalid_payload_is_rejected_with_every_pointer(interlock_engine: Engine, who: Principal) -> None:
    await interlock_engine.registry.set_type(who, "research", schema=SCHEMA)
    await added(interlock_engine, who)
    with pytest.raises(Invalid) as caught:
        await added(interlock_engine, who, payload={"topic": "x", "depth": 0, "colour": 1})
    assert {pointer for pointer, _ in caught.value.faults} == {"/payload/topic", "/payload/depth", "/payload"}


async def test_a_rejected_payload_in_a_batch_names_the_item_and_nothing_is_added(
    interlock_engine: Engine, who: Principal
) -> None:
    await interlock_engine.registry.set_type(who, "research", schema=SCHEMA)
    good, bad = {"type": "research", "payload": {"topic": "tides"}}, {"type": "research", "payload": {"topic": 1}}
    with pytest.raises(Invalid) as caught:
        await interlock_engine.jobs.enqueue_batch(who, [job_request(good), job_request(bad)])
    assert caught.value.pointer == "/jobs/1/payload/topic"
    assert (await interlock_engine.queries.queues(who.tenant))[0].ready == 0


async def test_a_type_registered_by_another_process_applies_immediately(store: Store, who: Principal) -> None:
    one, other = Engine(batched(store)), Engine(batched(store))
    await added(one, who, payload={"anything": True})
    await other.registry.set_type(who, "research", schema=SCHEMA)
    with pytest.raises(Invalid):
        await added(one, who, payload={"anything": True})
    await other.registry.delete_type(who, "research")
    await added(one, who, payload={"anything": True})


async def test_jobs_enqueued_while_the_registry_changes_all_arrive(store: Store, who: Principal) -> None:
    one, other = Engine(batched(store)), Engine(batched(store))

    async def register() -> None:
        for n in range(5):
            await other.registry.set_type(who, f"other-{n}")

    jobs = await asyncio.gather(*(added(one, who) for _ in range(40)), register())
    assert len({job.id for job in jobs if job is not None}) == 40


async def test_defaults_come_from_the_job_then_the_agent_then_the_type_then_the_server(
    interlock_engine: Engine, who: Principal
) -> None:
    registry = interlock_engine.registry
    await registry.set_type(
        who, "research", requires=["gpu"], defaults={"max_attempts": 7, "priority": 3, "timeout_seconds": 9}
    )
    await registry.set_agent(who, "bot", "1", defaults={"priority": 5})
    plain = await added(interlock_engine, who)
    assert (plain.max_attempts, plain.priority, plain.timeout_seconds, tuple(plain.requires)) == (7, 3, 9.0, ("gpu",))
    with_agent = await added(interlock_engine, who, agent={"kind": "bot", "id": "1"})
    assert (with_agent.max_attempts, with_agent.priority) == (7, 5)
    own = await added(interlock_engine, who, agent={"kind": "bot", "id": "1"}, priority=0, requires=["net"])
    assert (own.priority, tuple(own.requires)) == (0, ("gpu", "net"))
    other = await added(interlock_engine, who, type="unknown")
    assert (other.max_attempts, other.priority, other.timeout_seconds) == (3, 0, None)


@pytest.mark.parametrize("where", ["agent", "type", "server"])
async def test_the_backoff_of_a_failure_comes_from_the_job_then_the_agent_then_the_type(
    interlock_engine: Engine, who: Principal, where: str
) -> None:
    fixed = {"kind": "fixed", "base_seconds": 50, "max_seconds": 50}
    if where == "agent":
        await interlock_engine.registry.set_agent(who, "bot", "1", backoff=fixed)
        await interlock_engine.registry.set_type(who, "research", defaults={"backoff": fixed | {"base_seconds": 9}})
    elif where == "type":
        await interlock_engine.registry.set_type(who, "research", defaults={"backoff": fixed})
    await added(interlock_engine, who, agent={"kind": "bot", "id": "1"})
    (job,) = await interlock_engine.leases.claim(who.tenant, ClaimFilter("w"))
    receipt = await interlock_engine.leases.fail(who.tenant, FailJob(job.id, job.fence, "w", '{"message":"no"}'))
    assert receipt.run_at is not None
    delay = receipt.run_at - await interlock_engine.queries.now()
    assert delay == 50 * SECOND if where != "server" else delay <= SECOND


async def test_a_lease_has_the_duration_of_its_type_unless_the_claim_has_one(
    interlock_engine: Engine, who: Principal
) -> None:
    await interlock_engine.registry.set_type(who, "research", defaults={"lease_seconds": 300})
    for asked, expected in ((None, 300), (5.0, 5)):
        await added(interlock_engine, who)
        (job,) = await interlock_engine.leases.claim(who.tenant, ClaimFilter("w", lease_seconds=asked))
        assert job.lease_expires_at == await interlock_engine.queries.now() + expected * SECOND
    await added(interlock_engine, who, type="plain")
    (job,) = await interlock_engine.leases.claim(who.tenant, ClaimFilter("w"))
    assert job.lease_expires_at == await interlock_engine.queries.now() + 60 * SECOND


async def test_only_registered_types_and_agents_are_accepted_if_required(store: Store, who: Principal) -> None:
    engine = Engine(batched(store), strict_types=True, implicit_agents=False)
    with pytest.raises(UnknownType):
        await added(engine, who)
    await engine.registry.set_type(who, "research")
    with pytest.raises(UnknownAgent):
        await added(engine, who, agent={"kind": "bot", "id": "1"})
    await engine.registry.set_agent(who, "bot", "1")
    await added(engine, who, agent={"kind": "bot", "id": "1"})


@pytest.mark.parametrize(
    ("call", "pointer"),
    [
        ({"schema": '{"type": 7}'}, "/schema"),
        ({"schema": '{"$ref": "https://example.com/schema.json"}'}, "/schema"),
        ({"schema": '{"pattern": "(a"}'}, "/schema"),
        ({"schema": '"{\\"type\\": \\"object\\"}"'}, "/schema"),
        ({"schema": '"true"'}, "/schema"),
        ({"defaults": {"max_attempts": 0}}, "/defaults/max_attempts"),
        ({"defaults": {"colour": 1}}, "/defaults"),
        ({"defaults": {"priority": 1001}}, "/defaults/priority"),
        ({"defaults": {"backoff": {"kind": "magic"}}}, "/defaults/backoff/kind"),
        ({"defaults": {"lease_seconds": 0}}, "/defaults/lease_seconds"),
        ({"requires": ["a", "a"]}, "/requires"),
    ],
)
async def test_an_invalid_registration_names_its_error(
    interlock_engine: Engine, who: Principal, call: dict[str, Any], pointer: str
) -> None:
    with pytest.raises(Invalid) as caught:
        await interlock_engine.registry.set_type(who, "research", **call)
    assert caught.value.pointer.startswith(pointer)
    assert await interlock_engine.registry.types(who.tenant) == []


async def test_an_invalid_backoff_of_an_agent_is_named_by_its_pointer(interlock_engine: Engine, who: Principal) -> None:
    for given, pointer in (
        ({"backoff": {"kind": "magic"}}, "/backoff/kind"),
        ({"backoff": {"colour": 1}}, "/backoff/colour"),
        ({"defaults": {"backoff": {"kind": "magic"}}}, "/defaults/backoff/kind"),
    ):
        with pytest.raises(Invalid) as caught:
            await interlock_engine.registry.set_agent(who, "bot", "1", **given)
        assert caught.value.pointer == pointer
    assert await interlock_engine.registry.agents(who.tenant) == []


async def test_registries_are_separate_per_tenant(interlock_engine: Engine, who: Principal) -> None:
    await interlock_engine.registry.set_type(who, "research", schema=SCHEMA)
    await interlock_engine.registry.set_agent(who, "bot", "1", max_concurrency=1)
    rival = local("rival")
    assert await interlock_engine.registry.types("rival") == []
    assert await interlock_engine.registry.agents("rival") == []
    for act in (
        interlock_engine.registry.type("rival", "research"),
        interlock_engine.registry.agent("rival", "bot", "1"),
        interlock_engine.registry.delete_agent(rival, "bot", "1"),
        interlock_engine.registry.delete_type(rival, "research"),
    ):
        with pytest.raises(NotFound):
            await act
    await added(interlock_engine, rival, payload={"free": True})


async def test_a_repeated_enqueue_returns_its_job_though_the_registry_would_reject_it_now(
    store: Store, who: Principal
) -> None:
    engine, strict = Engine(batched(store)), Engine(batched(store), strict_types=True)
    job = await added(engine, who, payload={"free": True}, idempotency_key="k")
    assert (await added(strict, who, payload={"free": True}, idempotency_key="k")).id == job.id
    with pytest.raises(UnknownType):
        await added(strict, who, idempotency_key="another")
    await engine.registry.set_type(who, "research", schema=SCHEMA)
    assert (await added(engine, who, payload={"free": True}, idempotency_key="k")).id == job.id
    with pytest.raises(Invalid) as caught:
        await added(engine, who, payload={"free": True}, idempotency_key="another")
    assert caught.value.pointer == "/payload"
    assert (await engine.queries.queues(who.tenant))[0].ready == 1


async def test_the_lease_of_a_job_with_an_agent_has_the_duration_of_the_agent_or_its_type(
    interlock_engine: Engine, who: Principal
) -> None:
    registry = interlock_engine.registry
    await registry.set_agent(who, "bot", "1", defaults={"lease_seconds": 7, "priority": 2})
    await registry.set_agent(who, "bot", "2", max_concurrency=1, defaults={"priority": 1})
    agents = [{"agent": {"kind": "bot", "id": id}} for id in ("1", "2")]
    for type_setting in (None, 300):
        if type_setting is not None:
            await registry.set_type(who, "research", defaults={"lease_seconds": type_setting})
        for wish in (*agents, {}):
            await added(interlock_engine, who, **wish)
        jobs = await interlock_engine.leases.claim(who.tenant, ClaimFilter("w", limit=3))
        now = await interlock_engine.queries.now()
        leases = [((job.lease_expires_at or 0) - now) // SECOND for job in jobs]
        assert leases == [7, type_setting or 60, type_setting or 60]
        for job in jobs:
            reply = await interlock_engine.leases.heartbeat(who.tenant, Heartbeat(job.id, job.fence, "w"))
            assert reply.lease_expires_at == job.lease_expires_at
            await interlock_engine.leases.complete(who.tenant, CompleteJob(job.id, job.fence, "w"))
    await added(interlock_engine, who, **agents[0])
    (job,) = await interlock_engine.leases.claim(who.tenant, ClaimFilter("w", lease_seconds=20.0))
    assert job.lease_expires_at == await interlock_engine.queries.now() + 20 * SECOND
