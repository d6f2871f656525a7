"""Limits through every client: in process and over HTTP."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from interlock import wire
from interlock.domain.timestamps import micros
from interlock.errors import Invalid, LimitInUse, NotFound
from interlock.wire import LimitUse
from interlock.wire.limits import LimitRequest, Rate
from tests.contract_clients.remote_cli import ClientUnderTest

PROVIDER = LimitRequest(concurrency=1, rate=Rate(units={"tokens": 100.0}, per_seconds=60.0))


def request(**fields: object) -> wire.JobRequest:
    return wire.job_request({"type": "work", "payload": {"customer": "acme", "n": {"id": 7}}, **fields})


async def test_a_limit_is_created_used_and_deleted(remote: ClientUnderTest) -> None:
    limits = remote.client.limits
    made = await limits.set("provider", PROVIDER)
    assert made == await limits.get("provider")
    assert made.limit.burst == {"tokens": 100.0}
    use = {"name": "provider", "cost": {"tokens": 40}}
    (job,) = await remote.client.jobs.enqueue([request(limits=[use])])
    assert (await limits.get("provider")).state.waiting == 1
    with pytest.raises(LimitInUse):
        await limits.delete("provider")
    await remote.client.jobs.cancel(job.id)
    await limits.delete("provider")
    with pytest.raises(NotFound, match="limit"):
        await limits.get("provider")


async def test_a_held_limit_leases_nothing_until_it_is_released(remote: ClientUnderTest) -> None:
    await remote.client.limits.set("provider", PROVIDER)
    await remote.add(limits=[LimitUse(name="provider")])
    until = datetime.fromtimestamp(remote.clock.now / 1e6, UTC) + timedelta(minutes=5)
    held = await remote.client.limits.hold("provider", until, reason="429")
    assert (held.state.held_until, held.state.hold_reason) == (micros(until), "429")
    assert await remote.claim() == []
    assert (await remote.client.limits.release("provider")).state.held_until is None
    assert len(await remote.claim()) == 1
    assert [one.limit.name for one in await remote.client.limits.list()] == ["provider"]


@pytest.mark.parametrize(
    ("uses", "pointer"),
    [
        ([{"name": "nothing"}], "/limits/0/name"),
        ([{"name": "provider"}, {"name": "provider"}], "/limits/1/name"),
        ([{"name": "provider", "key": "a"}], "/limits/0/key"),
        ([{"name": "keyed"}], "/limits/0/key"),
        ([{"name": "keyed", "key": "{missing}"}], "/limits/0/key"),
        ([{"name": "provider", "cost": {"usd": 1}}], "/limits/0/cost/usd"),
        ([{"name": "provider", "cost": {"tokens": 101}}], "/limits/0/cost/tokens"),
        ([{"name": "provider"}] * 5, "/limits"),
    ],
)
async def test_a_job_with_invalid_limits_is_rejected(
    remote: ClientUnderTest, uses: list[dict[str, object]], pointer: str
) -> None:
    await remote.client.limits.set("provider", PROVIDER)
    await remote.client.limits.set("keyed", LimitRequest(concurrency=1, keyed=True))
    with pytest.raises(Invalid) as caught:
        await remote.client.jobs.enqueue([request(limits=uses)])
    assert (caught.value.pointer or "").endswith(pointer)


async def test_the_key_is_filled_in_from_the_payload(remote: ClientUnderTest) -> None:
    await remote.client.limits.set("keyed", LimitRequest(concurrency=1, keyed=True))
    (job,) = await remote.client.jobs.enqueue([request(limits=[{"name": "keyed", "key": "{customer}/{n.id}"}])])
    found = await remote.client.jobs.get(job.id)
    assert found.limits is not None
    assert '"acme/7"' in found.limits


async def test_a_member_of_the_payload_is_not_filled_in_again(remote: ClientUnderTest) -> None:
    await remote.client.limits.set("keyed", LimitRequest(concurrency=1, keyed=True))
    payload = {"one": "{two}", "two": "x", "a.b": "dotted", "ключ": "z"}
    for key, expected in (("{one}/{two}", "{two}/x"), ("{a.b}", "dotted"), ("{ключ}", "z")):
        use = {"name": "keyed", "key": key}
        (job,) = await remote.client.jobs.enqueue([request(limits=[use], payload=payload)])
        found = await remote.client.jobs.get(job.id)
        assert [one["key"] for one in json.loads(found.limits or "[]")] == [expected]
    for key in ("{}", "{one.two}", "{0}"):
        with pytest.raises(Invalid, match="no text or whole number"):
            await remote.client.jobs.enqueue([request(limits=[{"name": "keyed", "key": key}])])


async def test_a_redrive_needs_the_limits_of_the_job(remote: ClientUnderTest) -> None:
    await remote.client.limits.set("provider", PROVIDER)
    (job,) = await remote.client.jobs.enqueue([request(limits=[{"name": "provider"}])])
    await remote.client.jobs.cancel(job.id)
    await remote.client.limits.delete("provider")
    with pytest.raises(Invalid, match="provider"):
        await remote.client.jobs.redrive(job.id)
    await remote.client.limits.set("provider", LimitRequest(concurrency=1, keyed=True))
    with pytest.raises(Invalid, match="keys"):
        await remote.client.jobs.redrive(job.id)
    await remote.client.limits.delete("provider")
    await remote.client.limits.set("provider", PROVIDER)
    assert not (await remote.client.jobs.redrive(job.id)).replayed


async def test_an_invalid_limit_names_the_member(remote: ClientUnderTest) -> None:
    for wrong, pointer in [
        (LimitRequest(), "/concurrency"),
        (LimitRequest(concurrency=0), "/concurrency"),
        (LimitRequest(rate=Rate(units={"tokens": 0.0})), "/rate/units/tokens"),
        (LimitRequest(rate=Rate(units={"tokens": 1.0}, burst={"usd": 1.0})), "/rate/burst/usd"),
        (LimitRequest(concurrency=1, fair=True), "/fair"),
        (LimitRequest(concurrency=1, keyed=True, weights={"acme": 2.0}), "/weights"),
    ]:
        with pytest.raises(Invalid) as caught:
            await remote.client.limits.set("wrong", wrong)
        assert caught.value.pointer == pointer


async def test_a_fair_limit_shows_its_weights(remote: ClientUnderTest) -> None:
    rules = LimitRequest(concurrency=1, keyed=True, fair=True, weights={"acme": 3.0})
    await remote.client.limits.set("fair", rules)
    found = await remote.client.limits.get("fair")
    assert (found.limit.fair, found.limit.weights) == (True, {"acme": 3.0})
    await remote.client.limits.set("fair", LimitRequest(concurrency=1, keyed=True))
    found = await remote.client.limits.get("fair")
    assert (found.limit.fair, found.limit.weights) == (False, {})
