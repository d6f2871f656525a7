"""Producers and watchers: the same answers and the same errors from every client."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from interlock.domain.decide import FailJob
from interlock.domain.job import Filter, Receipt
from interlock.domain.lifecycle import Status, Verb
from interlock.errors import (
    AlreadyFinished,
    IdempotencyKeyReuse,
    Invalid,
    Malformed,
    NotFailed,
    NotFound,
    NotTerminal,
    ParentNotActive,
    TooLarge,
)
from interlock.wire import AgentName
from tests.contract_clients.remote_cli import NEVER, ClientUnderTest, given, holder, request, same
from tests.support.stores import START

EXACT = '{ "a": 1.10, "b": "\\u00e9 é 🧵", "c": [1e2, null], "big": 9007199254740993 }'


async def test_a_job_is_returned_byte_for_byte_as_enqueued(remote: ClientUnderTest) -> None:
    soon = datetime.fromtimestamp(START / 1_000_000, UTC) + timedelta(seconds=90, microseconds=7)
    wanted: dict[str, Any] = {
        "priority": 7,
        "run_at": soon,
        "deadline": soon + timedelta(hours=1),
        "timeout_seconds": 30.5,
        "max_attempts": 9,
        "backoff": {"kind": "fixed", "base_seconds": 2.5},
        "expiry_delay_seconds": 1.5,
        "headers": {"x": "ä"},
        "tags": ["b", "a"],
        "agent": AgentName("planner", "one/two"),
        "affinity_key": "box",
        "repository": "org/repo",
        "requires": ["gpu"],
        "idempotency_key": "key one",
        "requested_by": "Ada",
    }
    id = await remote.add("work", EXACT, **wanted)
    job = await remote.client.jobs.get(id)
    assert same(job) == same(await remote.truth(id))
    assert job.payload == EXACT
    assert job.run_at == START + 90_000_007


@pytest.mark.parametrize("payload", ["null", "0", '""', "[]", '"\\u0000"', '{"a":{"a":1}}'])
async def test_any_json_value_is_a_payload(remote: ClientUnderTest, payload: str) -> None:
    assert (await remote.client.jobs.get(await remote.add(payload=payload))).payload == payload


async def test_a_batch_returns_all_results_in_order(remote: ClientUnderTest) -> None:
    created = await remote.client.jobs.enqueue([request("work", str(n)) for n in range(50)])
    assert [(await remote.truth(one.id)).payload for one in created] == [str(n) for n in range(50)]
    assert not any(one.replayed for one in created)
    assert [one.seq for one in created] == sorted(one.seq for one in created)


async def test_a_batch_with_one_bad_job_adds_nothing_and_names_it(remote: ClientUnderTest) -> None:
    with pytest.raises(Invalid) as caught:
        await remote.client.jobs.enqueue([request(), request(priority=5000)])
    assert caught.value.pointer == "/jobs/1/priority"
    with pytest.raises(TooLarge) as larger:
        await remote.client.jobs.enqueue([request(), request(payload=f'"{"x" * 300_000}"')])
    assert larger.value.pointer == "/jobs/1"
    assert await remote.client.jobs.list(Filter()) == []


async def test_an_empty_batch_is_rejected(remote: ClientUnderTest) -> None:
    with pytest.raises(Invalid):
        await remote.client.jobs.enqueue([])


async def test_a_key_used_again_for_the_same_job_returns_that_job(remote: ClientUnderTest) -> None:
    (first,) = await remote.client.jobs.enqueue([request(idempotency_key="k")])
    (second,) = await remote.client.jobs.enqueue([request(idempotency_key="k")])
    (third, other) = await remote.client.jobs.enqueue([request(idempotency_key="k"), request()])
    assert (first.replayed, second.replayed, third.replayed, other.replayed) == (False, True, True, False)
    assert first.id == second.id == third.id != other.id
    assert first.seq == second.seq == third.seq


async def test_a_key_used_again_for_another_job_is_rejected_and_named(remote: ClientUnderTest) -> None:
    await remote.add(idempotency_key="k")
    with pytest.raises(IdempotencyKeyReuse) as caught:
        await remote.add(payload="1", idempotency_key="k")
    assert caught.value.key == "k"
    with pytest.raises(IdempotencyKeyReuse) as caught:
        await remote.client.jobs.enqueue([request(), request(payload="1", idempotency_key="k")])
    assert caught.value.key == "k"


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"type": ""}, "/type"),
        ({"max_attempts": 0}, "/max_attempts"),
        ({"delay_seconds": -1.0}, "/delay_seconds"),
        ({"delay_seconds": float("nan")}, "/delay_seconds"),
        ({"run_at": datetime(2027, 1, 1)}, "/run_at"),  # without an offset
        ({"tags": ["a", "a"]}, "/tags"),
        ({"parent_id": "no"}, "/parent_id"),
        ({"backoff": {"kind": "odd"}}, "/backoff/kind"),
    ],
)
async def test_an_invalid_value_is_rejected_with_its_pointer(
    remote: ClientUnderTest, fields: dict[str, Any], pointer: str
) -> None:
    with pytest.raises(Invalid) as caught:
        await remote.add(**fields)
    assert caught.value.pointer.startswith(pointer.rpartition("/")[0] or pointer)
    assert pointer.startswith(caught.value.pointer)


async def test_invalid_json_cannot_be_passed_as_a_payload(remote: ClientUnderTest) -> None:
    for payload in ("{", "", '1, "priority": 9', "NaN", '{"a":1,"a":2}'):
        with pytest.raises((Malformed, Invalid)):
            await remote.add(payload=payload)
    assert await remote.client.jobs.list(Filter()) == []


async def test_a_payload_beyond_the_limit_is_too_large(remote: ClientUnderTest) -> None:
    with pytest.raises(TooLarge):
        await remote.add(payload=json.dumps("x" * 300_000))


@pytest.mark.parametrize("id", [NEVER, "no-id", "", "../jobs"])
async def test_an_unknown_id_is_not_found_by_any_operation(remote: ClientUnderTest, id: str) -> None:
    client = remote.client
    for call in (
        client.jobs.get(id), client.jobs.wait(id, seconds=0), client.jobs.cancel(id), client.jobs.redrive(id), client.jobs.revoke(id),
        client.jobs.history(id), client.jobs.events(id),
    ):  # fmt: skip
        with pytest.raises(NotFound) as caught:
            await call
        assert (caught.value.id, caught.value.resource) == (id, "job")


async def test_an_unknown_parent_and_a_terminal_one_are_distinguished(remote: ClientUnderTest) -> None:
    ended = await remote.add()
    await remote.client.jobs.cancel(ended)
    with pytest.raises(ParentNotActive) as caught:
        await remote.add(parent_id=ended)
    assert caught.value.job_id == ended


async def test_a_list_is_newest_first_and_paged_by_number(remote: ClientUnderTest) -> None:
    ids = [await remote.add(payload=str(n), tags=["t"]) for n in range(7)]
    seen: list[str] = []
    filter = Filter(limit=3, tags=("t",))
    while page := await remote.client.jobs.list(filter):
        seen += [job.id for job in page]
        assert all(job.payload is None for job in page)
        filter = filter._replace(before_seq=page[-1].seq)
    assert seen == ids[::-1]


async def test_a_list_continues_from_any_number(remote: ClientUnderTest) -> None:
    created = await remote.client.jobs.enqueue([request() for _ in range(9)])
    page = await remote.client.jobs.list(Filter(limit=2, before_seq=created[4].seq))
    assert [job.id for job in page] == [created[3].id, created[2].id]


async def test_a_list_supports_every_filter(remote: ClientUnderTest) -> None:
    mine = await remote.add("mine", tags=["a", "b"], agent=AgentName("k", "i/j"))
    await remote.add("mine", tags=["a"])
    other = await remote.add("other", parent_id=mine)
    running = await remote.running("busy")
    for filter, expected in [
        (Filter(type="mine", tags=("a", "b")), [mine]),
        (Filter(agent=("k", "i/j")), [mine]),
        (Filter(parent_id=mine), [other]),
        (Filter(statuses=(Status.RUNNING,)), [running.id]),
        (Filter(worker="w1"), [running.id]),
        (Filter(statuses=(Status.RUNNING, Status.QUEUED), type="other"), [other]),
        (Filter(created_before=START), []),
    ]:
        assert [job.id for job in await remote.client.jobs.list(filter)] == expected, filter
    remote.clock.advance(100)
    assert [job.id for job in await remote.client.jobs.list(Filter(stale_seconds=99.5))] == [running.id]
    assert [job.id for job in await remote.client.jobs.list(Filter(created_after=START + 1))] == []


async def test_a_list_limit_above_the_maximum_is_rejected(remote: ClientUnderTest) -> None:
    with pytest.raises(Invalid) as caught:
        await remote.client.jobs.list(Filter(limit=201))
    assert caught.value.pointer == "/limit"


async def test_waiting_ends_when_the_job_does(remote: ClientUnderTest) -> None:
    job = await remote.running()
    waiting = asyncio.create_task(remote.client.jobs.wait(job.id, seconds=30))
    await remote.complete(job, EXACT)
    ended = await waiting
    assert (ended.status, ended.result) == (Status.SUCCEEDED, EXACT)


async def test_waiting_ends_after_its_timeout(remote: ClientUnderTest) -> None:
    id = await remote.add()
    assert (await remote.client.jobs.wait(id, seconds=0.05)).status is Status.QUEUED
    assert (await remote.client.jobs.wait(id, seconds=0)).status is Status.QUEUED


async def test_a_terminal_job_is_returned_with_its_outcome(remote: ClientUnderTest) -> None:
    job = await remote.running(payload=EXACT)
    receipt = await remote.complete(job, EXACT)
    encoded, true = await remote.client.jobs.get(job.id), await remote.truth(job.id)
    assert same(encoded) == same(true)
    assert (receipt.status, receipt.version, receipt.finished_at) == (Status.SUCCEEDED, 3, true.finished_at)


async def test_cancel_ends_a_waiting_job_and_requests_it_of_a_running_one(remote: ClientUnderTest) -> None:
    waiting, running = await remote.add("other"), await remote.running()
    assert (await remote.client.jobs.cancel(waiting, reason="no\ud800 need")).status is Status.CANCELLED
    assert (await remote.client.jobs.get(waiting)).cancel_reason == "no\ufffd need"
    assert (await remote.client.jobs.cancel(running.id)).status is Status.RUNNING
    assert (await remote.client.jobs.cancel(running.id)).version == 3
    assert (await remote.client.jobs.cancel(running.id, force=True)).status is Status.CANCELLED
    done = await remote.running("third")
    await remote.complete(done)
    with pytest.raises(AlreadyFinished) as caught:
        await remote.client.jobs.cancel(done.id)
    assert caught.value.job_id == done.id


async def test_cancel_with_cascade_reaches_all_descendants(remote: ClientUnderTest) -> None:
    top = await remote.add()
    child = await remote.add(parent_id=top)
    grandchild = await remote.add(parent_id=child)
    await remote.client.jobs.cancel_tree(top)
    for id in (top, child, grandchild):
        assert (await remote.truth(id)).status is Status.CANCELLED


async def test_redrive_creates_one_new_job_for_each_key(remote: ClientUnderTest) -> None:
    id = await remote.add(payload=EXACT)
    with pytest.raises(NotTerminal) as caught:
        await remote.client.jobs.redrive(id)
    assert caught.value.job_id == id
    await remote.client.jobs.cancel(id)
    first = await remote.client.jobs.redrive(id, idempotency_key="again")
    second = await remote.client.jobs.redrive(id, idempotency_key="again")
    third = await remote.client.jobs.redrive(id)
    assert (first.replayed, second.replayed, third.replayed) == (False, True, False)
    assert first.id == second.id != third.id
    again = await remote.client.jobs.get(first.id)
    assert (again.redrive_of, again.payload) == (id, EXACT)


async def test_an_acknowledgement_is_answered_alike_by_every_client(remote: ClientUnderTest) -> None:
    job = await remote.running()
    with pytest.raises(NotFailed) as caught:
        await remote.client.jobs.acknowledge(job.id)
    assert caught.value.job_id == job.id
    (ended,) = await remote.client.work.finishes([FailJob(*holder(job), '{"message":"no"}', retryable=False)])
    remote.clock.advance(5)
    first = await remote.client.jobs.acknowledge(job.id, comment="seen")
    assert first._replace(fence=0) == Receipt(job.id, 0, Status.FAILED, 1, given(ended).version + 1, None, None)
    assert await remote.client.jobs.acknowledge(job.id, comment="again") == first
    encoded, true = await remote.client.jobs.get(job.id), await remote.truth(job.id)
    assert same(encoded) == same(true)
    assert (true.acknowledged_at, true.finished_at) == (remote.clock.now, remote.clock.now - 5_000_000)
    newest = (await remote.client.jobs.history(job.id))[-1]
    assert (newest.verb, newest.actor, newest.reason) == (Verb.ACKNOWLEDGE, true.acknowledged_by, "seen")


async def test_what_needs_attention_is_listed_alike_by_every_client(remote: ClientUnderTest) -> None:
    job = await remote.running()
    await remote.client.work.finishes([FailJob(*holder(job), '{"message":"no"}', retryable=False)])
    waiting = [await remote.add("nobody") for _ in range(3)]
    listed = await remote.client.jobs.attention()
    assert [one.id for one in listed] == [*reversed(waiting), job.id]
    assert [one.id for one in await remote.client.jobs.attention(limit=2)] == waiting[:0:-1]
    assert [one.id for one in await remote.client.jobs.attention(search=job.id)] == [job.id]
    of_status = Filter(statuses=(Status.QUEUED,))
    assert [one.id for one in await remote.client.jobs.attention(filter=of_status)] == waiting[::-1]
    assert await remote.client.jobs.search(job.id, filter=of_status) == []
    assert [one.id for one in await remote.client.jobs.attention(before_seq=listed[1].seq)] == [waiting[0], job.id]
    await remote.client.jobs.acknowledge(job.id)
    assert job.id not in [one.id for one in await remote.client.jobs.attention()]


async def test_revoke_ends_the_lease_of_a_worker(remote: ClientUnderTest) -> None:
    job = await remote.running()
    assert (await remote.client.jobs.revoke(job.id, reason="stuck")).status is Status.RETRY
    with pytest.raises(AlreadyFinished):
        await remote.client.jobs.revoke(job.id)
    assert (await remote.client.jobs.history(job.id))[-1].verb is Verb.REVOKE


async def test_a_queue_is_counted(remote: ClientUnderTest) -> None:
    await remote.client.jobs.enqueue([request("mail/out"), request("mail/out"), request("mail/out", delay_seconds=60)])
    await remote.claim("mail/out")
    remote.clock.advance(2)
    stats = await remote.client.queues.get("mail/out")
    assert (stats.ready, stats.delayed, stats.in_progress, stats.type) == (1, 1, 1, "mail/out")
    assert stats.oldest_ready_at is not None
    with pytest.raises(Invalid):
        await remote.client.queues.get("")


async def test_history_is_complete_and_the_same_for_every_client(remote: ClientUnderTest) -> None:
    job = await remote.running()
    await remote.complete(job)
    history = await remote.client.jobs.history(job.id)
    assert history == await remote.engine.queries.history(remote.tenant, job.id)
    assert [row.verb for row in history] == [Verb.ENQUEUE, Verb.CLAIM, Verb.COMPLETE]


async def test_a_long_history_is_returned_completely(remote: ClientUnderTest) -> None:
    id = await remote.add()
    for n in range(205):
        await remote.engine.jobs.edit(remote.operator, id, priority=n % 2 + 1)
    assert [row.version for row in await remote.client.jobs.history(id)] == list(range(1, 207))


async def test_children_are_listed_oldest_first_without_payloads(remote: ClientUnderTest) -> None:
    parent = await remote.add()
    created = await remote.client.jobs.enqueue([request(payload="1", parent_id=parent) for _ in range(205)])
    children = await remote.client.jobs.children(parent)
    assert [job.id for job in children] == [one.id for one in created]
    assert {job.payload for job in children} == {None}
    assert await remote.client.jobs.children(created[0].id) == []


async def test_a_registered_type_validates_payloads_of_producers(remote: ClientUnderTest) -> None:
    schema = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}
    await remote.client.types.set("typed/one", schema=json.dumps(schema), defaults={"max_attempts": 7})
    id = await remote.add("typed/one", '{"n":1}')
    assert (await remote.client.jobs.get(id)).max_attempts == 7
    with pytest.raises(Invalid) as caught:
        await remote.add("typed/one", '{"n":"x"}')
    assert caught.value.pointer == "/payload/n"
