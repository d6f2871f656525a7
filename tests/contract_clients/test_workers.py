"""Workers: claim, stay alive, save progress, ask, finish; the same from every client."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from interlock.domain.approval import ApprovalStatus, Decision, OnDeny, RequestApproval
from interlock.domain.artifact import File, Link
from interlock.domain.decide import AcknowledgeCancel, CompleteJob, FailJob, Finish, ReleaseJob
from interlock.domain.job import Checkpoint, Heartbeat
from interlock.domain.lifecycle import Status, Verb
from interlock.domain.policy import ClaimFilter
from interlock.domain.progress import Event, Level, Report, Step
from interlock.errors import (
    AlreadyFinished,
    CheckpointConflict,
    Invalid,
    LeaseLost,
    Malformed,
    NoCancelRequested,
    NotFound,
    NotRunning,
    TooLarge,
)
from interlock.wire import Limits, error_body, new_id
from tests.contract_clients.remote_cli import NEVER, ClientUnderTest, given, held, holder, refused, request, same
from tests.support.stores import SECOND

LARGEST_FILE = Limits().artifact
ODD = '"\\ud800 alone"'
SANITIZED = '"\ufffd alone"'


def event(message: str = "so far", **fields: Any) -> Event:
    return Event(new_id(), Level.INFO, message, **fields)


async def test_a_claim_returns_the_best_jobs_with_their_leases(remote: ClientUnderTest) -> None:
    await remote.add(payload="1")
    best = await remote.add(payload="2", priority=5)
    (lease,) = await remote.claim()
    assert same(lease.job) == same(await remote.truth(best))
    assert lease.job.fence == 1
    assert (lease.job.worker, lease.job.payload, list(lease.steps), list(lease.approvals)) == ("w1", "2", [], [])
    assert lease.job.lease_expires_at == remote.clock.now + 60 * SECOND
    assert len(await remote.claim(limit=10)) == 1
    assert await remote.claim() == []


async def test_a_claim_waits_for_its_first_job(remote: ClientUnderTest) -> None:
    ask = ClaimFilter("w1", types=frozenset({"work"}), lease_seconds=60.0)
    waiting = asyncio.create_task(remote.client.work.claim(ask, wait_seconds=30))
    id = await remote.add()
    (lease,) = await waiting
    assert lease.job.id == id
    assert await remote.client.work.claim(ask, wait_seconds=0.05) == []


async def test_a_claim_repeated_under_its_id_gets_the_same_jobs_until_they_end(remote: ClientUnderTest) -> None:
    await remote.client.jobs.enqueue([request(), request()])
    (first,) = await remote.claim(claim_id="one")
    (again,) = await remote.claim(claim_id="one")
    assert again == first
    await remote.complete(first.job)
    (next_one,) = await remote.claim(claim_id="one")
    assert next_one.job.id != first.job.id


async def test_a_claim_leases_only_jobs_that_match_the_worker(remote: ClientUnderTest) -> None:
    plain = await remote.add()
    able = await remote.add(requires=["gpu"])
    bound = await remote.add(affinity_key="box")
    assert [lease.job.id for lease in await remote.claim(limit=9)] == [plain]
    assert [lease.job.id for lease in await remote.claim(capabilities=frozenset({"gpu", "x"}), limit=9)] == [able]
    assert await remote.claim(affinity_keys=frozenset({"other"})) == []
    assert [lease.job.id for lease in await remote.claim(affinity_keys=None)] == [bound]


async def test_a_claim_for_no_type_gets_nothing_and_one_for_any_type_gets_all(remote: ClientUnderTest) -> None:
    await remote.add("a")
    assert await remote.client.work.claim(ClaimFilter("w1", types=frozenset(), lease_seconds=60.0)) == []
    assert len(await remote.client.work.claim(ClaimFilter("w1", types=None, lease_seconds=60.0))) == 1


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [({"limit": 0}, "/limit"), ({"limit": 501}, "/limit"), ({"lease_seconds": 0.5}, "/lease_seconds"),
     ({"lease_seconds": float("inf")}, "/lease_seconds"), ({"worker": ""}, "/worker")],
)  # fmt: skip
async def test_an_invalid_claim_is_rejected(remote: ClientUnderTest, fields: dict[str, Any], pointer: str) -> None:
    with pytest.raises(Invalid) as caught:
        await remote.claim(**fields)
    assert caught.value.pointer == pointer
    with pytest.raises(Invalid):
        await remote.client.work.claim(ClaimFilter("w1", lease_seconds=60.0), wait_seconds=61)


async def test_heartbeats_extend_leases_and_each_has_its_own_result(remote: ClientUnderTest) -> None:
    one, other = await remote.running("one"), await remote.running("other")
    await remote.client.jobs.cancel(other.id, reason="enough")
    remote.clock.advance(10)
    checkpoint = Checkpoint(*holder(one), 1, '{"at":1}')
    first, second, third, fourth = await remote.client.work.heartbeats(
        [
            Heartbeat(*holder(one), 30.0, checkpoint, (event("a"), event("b", payload='{"n":1}'))),
            Heartbeat(*holder(other)),
            Heartbeat(one.id, one.fence + 1, "w1"),
            Heartbeat(NEVER, 1, "w1"),
        ]
    )
    assert given(first).lease_expires_at == remote.clock.now + 30 * SECOND
    assert (given(second).cancel_requested, given(second).cancel_reason) == (True, "enough")
    lost = refused(third)
    assert isinstance(lost, LeaseLost)
    assert (lost.job_id, lost.fence) == (one.id, one.fence + 1)
    assert isinstance(refused(fourth), NotFound | LeaseLost)
    assert (await remote.client.jobs.get(one.id)).checkpoint == '{"at":1}'
    assert [row.message for row in await remote.client.jobs.events(one.id)] == ["a", "b"]


async def test_one_bad_item_of_a_batch_affects_no_other(remote: ClientUnderTest) -> None:
    jobs = [await remote.running(f"t{n}") for n in range(5)]
    heartbeats = [Heartbeat(*holder(job)) for job in jobs]
    heartbeats[1] = Heartbeat(*holder(jobs[1]), lease_seconds=0.1)
    heartbeats[3] = Heartbeat("no-id", 1, "w1")
    answers = await remote.client.work.heartbeats(heartbeats)
    assert isinstance(refused(answers[1]), Invalid)
    assert isinstance(refused(answers[3]), NotFound)
    assert [given(answers[n]).id for n in (0, 2, 4)] == [jobs[n].id for n in (0, 2, 4)]
    orders = [CompleteJob(*holder(job), "1") for job in jobs]
    orders[2] = CompleteJob(*holder(jobs[2]), '1}],"x":[{')
    orders[4] = CompleteJob(*holder(jobs[4]), json.dumps("x" * 300_000))
    receipts = await remote.client.work.finishes(orders)
    assert isinstance(refused(receipts[2]), Malformed)
    assert isinstance(refused(receipts[4]), TooLarge)
    assert [given(receipts[n]).status for n in (0, 1, 3)] == [Status.SUCCEEDED] * 3


async def test_every_finish_returns_a_receipt_and_a_repeat_the_same_one(remote: ClientUnderTest) -> None:
    done, failed, final, back, stopped = [await remote.running(f"t{n}") for n in range(5)]
    await remote.client.jobs.cancel(stopped.id)
    error, _ = error_body("broke", kind="OSError", details={"n": 1})
    orders: list[Finish] = [
        CompleteJob(*holder(done), '{"a": 1.0}', "fine", '{"tokens":7}'),
        FailJob(*holder(failed), error, True, 30.0),
        AcknowledgeCancel(*holder(stopped)),
        FailJob(*holder(final), error, False),
        ReleaseJob(*holder(back), reason="quota", delay_seconds=5.0),
    ]
    receipts = [given(answer) for answer in await remote.client.work.finishes(orders)]
    assert [receipt.status for receipt in receipts] == [
        Status.SUCCEEDED, Status.RETRY, Status.CANCELLED, Status.FAILED, Status.QUEUED,
    ]  # fmt: skip
    assert receipts[1].run_at == remote.clock.now + 30 * SECOND
    assert await remote.client.work.finishes(orders) == receipts
    job = await remote.client.jobs.get(done.id)
    assert (job.result, job.result_summary, json.loads(job.usage or "")) == ('{"a": 1.0}', "fine", {"tokens": 7})
    assert (await remote.client.jobs.get(final.id)).error == error
    other = refused((await remote.client.work.finishes([CompleteJob(*holder(failed))]))[0])
    assert isinstance(other, AlreadyFinished)
    assert other.job_id == failed.id


async def test_a_result_may_be_null_or_absent(remote: ClientUnderTest) -> None:
    for result in (None, "null"):
        job = await remote.running()
        await remote.complete(job, result)
        assert (await remote.client.jobs.get(job.id)).result in (None, "null")


async def test_a_release_waits_for_children_or_for_a_time(remote: ClientUnderTest) -> None:
    parent = await remote.running()
    child = await remote.add("child", parent_id=parent.id)
    await remote.client.work.finishes([ReleaseJob(*holder(parent), children=(child,))])
    assert list((await remote.client.jobs.get(parent.id)).awaiting) == [child]
    other = await remote.running("other")
    at = remote.clock.now + 77 * SECOND + 1
    (receipt,) = await remote.client.work.finishes([ReleaseJob(*holder(other), run_at=at)])
    assert given(receipt).run_at == at


async def test_acknowledging_a_cancel_that_was_not_requested_is_rejected(remote: ClientUnderTest) -> None:
    job = await remote.running()
    error = refused((await remote.client.work.finishes([AcknowledgeCancel(*holder(job))]))[0])
    assert isinstance(error, NoCancelRequested)
    assert error.job_id == job.id


async def test_invalid_unicode_of_a_worker_is_sanitized_marked_and_never_rejected(remote: ClientUnderTest) -> None:
    one, other, plain = [await remote.running(f"t{n}") for n in range(3)]
    error, _ = error_body("fine")
    await remote.client.work.finishes(
        [
            CompleteJob(*holder(one), ODD),
            CompleteJob(*holder(other), '"\ud800 alone"', "odd \ud800"),
            FailJob(*holder(plain), error),
        ]
    )
    for job_id in (one.id, other.id):
        job = await remote.client.jobs.get(job_id)
        assert json.loads(job.result or "") == json.loads(SANITIZED)
        assert job.sanitized
    assert not (await remote.client.jobs.get(plain.id)).sanitized


async def test_a_checkpoint_is_stored_and_its_number_must_rise(remote: ClientUnderTest) -> None:
    job = await remote.running()
    data = '{ "n": 1.50 }'
    assert await remote.client.work.checkpoint(Checkpoint(*holder(job), 3, data)) == 3
    assert await remote.client.work.checkpoint(Checkpoint(*holder(job), 3, data)) == 3
    assert (await remote.client.jobs.get(job.id)).checkpoint == data
    with pytest.raises(CheckpointConflict) as caught:
        await remote.client.work.checkpoint(Checkpoint(*holder(job), 2, "1"))
    assert (caught.value.job_id, caught.value.seq) == (job.id, 2)
    with pytest.raises(LeaseLost):
        await remote.client.work.checkpoint(Checkpoint(job.id, job.fence + 1, "w1", 4, "1"))
    await remote.complete(job)
    with pytest.raises(NotRunning) as over:
        await remote.client.work.checkpoint(Checkpoint(*holder(job), 4, "1"))
    assert (over.value.job_id, over.value.fence) == (job.id, job.fence)


async def test_the_first_result_of_a_step_wins_and_is_returned_by_the_next_claim(remote: ClientUnderTest) -> None:
    job = await remote.running()
    step = Step(*holder(job), "search the web", 0, '{"a": 1.0}', "module.search")
    first = await remote.client.work.save_step(step)
    again = await remote.client.work.save_step(step._replace(result="2"))
    null = await remote.client.work.save_step(step._replace(occurrence=1, result="null", function=None))
    assert again == first
    assert (first.result, first.function, first.job_id, null.result) == ('{"a": 1.0}', "module.search", job.id, "null")
    assert await remote.client.jobs.steps(job.id) == [first, null]
    await remote.client.work.finishes([ReleaseJob(*holder(job))])
    (lease,) = await remote.claim()
    assert list(lease.steps) == [first, null]


async def test_more_steps_than_a_page_are_returned_completely(remote: ClientUnderTest) -> None:
    job = await remote.running()
    for n in range(205):
        await remote.engine.progress.save_step(remote.tenant, Step(*holder(job), "s", n, str(n)))
    assert [row.occurrence for row in await remote.client.jobs.steps(job.id)] == list(range(205))


async def test_events_are_numbered_and_a_repeated_id_adds_nothing(remote: ClientUnderTest) -> None:
    job = await remote.running()
    one, two = event("one", payload='{"n": 1.0}'), event("odd \ud800")
    assert await remote.client.work.add_events([Report(*holder(job), (one, two))]) == [(1, 2)]
    answers = await remote.client.work.add_events(
        [Report(*holder(job), (two, event("three"))), Report(job.id, 99, "w1", (event(),)), Report(*holder(job), ())]
    )
    assert answers[0] == (2, 3)
    assert isinstance(refused(answers[1]), LeaseLost)
    assert isinstance(refused(answers[2]), Invalid)
    rows = await remote.client.jobs.events(job.id)
    assert rows == await remote.engine.progress.events(remote.tenant, job.id)
    assert [(row.message, row.payload) for row in rows] == [
        ("one", '{"n": 1.0}'), ("odd \ufffd", None), ("three", None),
    ]  # fmt: skip


async def test_a_long_message_is_truncated_and_neither_lost_nor_rejected(remote: ClientUnderTest) -> None:
    job = await remote.running()
    assert await remote.client.work.add_events([Report(*holder(job), (event("é" * 5000),))]) == [(1,)]
    (reply,) = await remote.client.work.heartbeats(
        [Heartbeat(*holder(job), events=(event("x" * 8193, payload="[1]"),))]
    )
    assert given(reply).id == job.id
    assert [row.message for row in await remote.client.jobs.events(job.id)] == ["é" * 4094 + "…", "x" * 8186 + "…"]


async def test_an_event_has_the_time_of_its_recording(remote: ClientUnderTest) -> None:
    job = await remote.running()
    began = remote.clock.now
    remote.clock.advance(4)
    reported = Report(*holder(job), (event(at=began + SECOND), event(at=began - SECOND), event()))
    assert await remote.client.work.add_events([reported]) == [(1, 2, 3)]
    (answer,) = await remote.client.work.heartbeats([Heartbeat(*holder(job), events=(event(at=began + 2 * SECOND),))])
    assert given(answer).id == job.id
    rows = await remote.client.jobs.events(job.id)
    assert [(row.at - began) // SECOND for row in rows] == [1, 0, 4, 2]
    assert [(row.received_at - began) // SECOND for row in rows] == [4] * 4


async def test_events_are_read_from_any_number(remote: ClientUnderTest) -> None:
    job = await remote.running()
    for start in range(0, 450, 150):
        events = tuple(event(str(n)) for n in range(start, start + 150))
        await remote.engine.progress.add_events(remote.tenant, Report(*holder(job), events))
    seen: list[int] = []
    while page := await remote.client.jobs.events(job.id, after=seen[-1] if seen else 0):
        seen += [row.seq for row in page]
    assert seen == list(range(1, 451))
    assert [row.seq for row in await remote.client.jobs.events(job.id, after=333, limit=2)] == [334, 335]
    assert await remote.client.jobs.events(job.id, after=450) == []
    await remote.client.work.add_events([Report(*holder(job), (event("late"),))])
    assert [row.message for row in await remote.client.jobs.events(job.id, after=450)] == ["late"]


async def test_a_tail_returns_each_event_once_and_ends_with_the_job(remote: ClientUnderTest) -> None:
    job = await remote.running()
    await remote.client.work.add_events([Report(*holder(job), (event("before"), event("first")))])
    tail = remote.client.jobs.tail(job.id, after=1)
    assert (await anext(tail)).message == "first"
    await remote.client.work.add_events([Report(*holder(job), (event("second"),))])
    assert (await anext(tail)).message == "second"
    await remote.complete(job)
    assert [row async for row in tail] == []
    with pytest.raises(NotFound):
        await anext(remote.client.jobs.tail(NEVER))


async def test_more_events_than_fit_one_request_are_all_stored_in_order(remote: ClientUnderTest) -> None:
    job = await remote.running()
    events = tuple(event(f"{n} " + "é" * 3000) for n in range(250))
    (reported,) = await remote.client.work.add_events([Report(*holder(job), events[:125])])
    assert reported == tuple(range(1, 126))
    (reply,) = await remote.client.work.heartbeats([Heartbeat(*holder(job), events=events[125:])])
    assert given(reply).id == job.id
    rows = [row async for page in _pages(remote, job.id) for row in page]
    assert [row.id for row in rows] == [one.id for one in events]


async def _pages(remote: ClientUnderTest, job_id: str) -> Any:
    after = 0
    while page := await remote.client.jobs.events(job_id, after=after):
        after = page[-1].seq
        yield page


async def test_an_approval_suspends_a_job_and_its_decision_is_returned_by_the_next_claim(
    remote: ClientUnderTest,
) -> None:
    job = await remote.running(payload='{"a":1}')
    schema = '{"type":"object"}'
    pending = RequestApproval(
        *holder(job), "", "Go on?", '{"n": 1.0}', "high", schema, on_deny=OnDeny.RESUME, name="go", occurrence=3
    )
    receipt = await remote.client.work.request_approval(pending)
    assert receipt.status is Status.WAITING_FOR_APPROVAL
    assert await remote.client.work.request_approval(pending) == receipt
    waiting = await remote.client.jobs.get(job.id)
    assert waiting.approval_id is not None
    decided = await remote.engine.approvals.decide(
        remote.operator, waiting.approval_id, Decision.APPROVE, comment="fine", data='{"b": 2.0}'
    )
    (lease,) = await remote.claim()
    (approval,) = lease.approvals
    for name in (
        "id",
        "name",
        "occurrence",
        "job_id",
        "status",
        "prompt",
        "details",
        "schema",
        "comment",
        "data",
        "digest",
        "closed_at",
    ):
        assert getattr(approval, name) == getattr(decided, name), name
    assert approval.status is ApprovalStatus.APPROVED
    assert (approval.details, approval.data) == ('{"n": 1.0}', '{"b": 2.0}')


async def test_a_file_is_attached_completely_and_the_same_name_replaces_it(remote: ClientUnderTest) -> None:
    job = await remote.running()
    content = bytes(range(256)) * 5000
    await remote.client.work.attach(held(job), File("bericht für Ada.bin", b"old", "text/plain; charset=utf-8"))
    id = await remote.client.work.attach(held(job), File("bericht für Ada.bin", content, "text/plain; charset=utf-8"))
    (found,) = await remote.engine.artifacts.list(remote.tenant, job.id)
    assert (found.id, found.name, found.size) == (id, "bericht für Ada.bin", len(content))
    assert found.content_type == "text/plain; charset=utf-8"
    download = await remote.engine.artifacts.read(remote.tenant, job.id, id)
    assert b"".join([piece async for piece in download.chunks]) == content
    empty = await remote.client.work.attach(held(job), File("empty", b""))
    assert (await remote.engine.artifacts.get(remote.tenant, job.id, empty)).size == 0
    with pytest.raises(LeaseLost):
        await remote.client.work.attach(held(job)._replace(fence=job.fence + 1), File("late", b"x"))


async def test_a_file_of_any_size_above_the_limit_is_rejected_as_too_large(remote: ClientUnderTest) -> None:
    job = await remote.running()
    for size in (LARGEST_FILE + 1, LARGEST_FILE * 3):
        with pytest.raises(TooLarge):
            await remote.client.work.attach(held(job), File("big", bytes(size)))
    assert await remote.engine.artifacts.list(remote.tenant, job.id) == []


async def test_a_large_file_under_a_lost_lease_is_rejected_as_lease_lost(remote: ClientUnderTest) -> None:
    job = await remote.running()
    await remote.engine.jobs.revoke(remote.operator, job.id)
    with pytest.raises(LeaseLost):
        await remote.client.work.attach(held(job), File("big", bytes(LARGEST_FILE)))


async def test_a_link_is_attached_and_never_fetched(remote: ClientUnderTest) -> None:
    job = await remote.running()
    id = await remote.client.work.attach(held(job), Link("site", "https://example.com/a?b=c"))
    found = await remote.engine.artifacts.get(remote.tenant, job.id, id)
    assert (found.name, found.url, found.size) == ("site", "https://example.com/a?b=c", None)
    with pytest.raises(Invalid):
        await remote.client.work.attach(held(job), Link("bad", "javascript:alert(1)"))


async def test_empty_batches_are_rejected(remote: ClientUnderTest) -> None:
    for call in (remote.client.work.heartbeats([]), remote.client.work.finishes([]), remote.client.work.add_events([])):
        with pytest.raises(Invalid):
            await call


async def test_the_history_of_a_run_names_its_worker(remote: ClientUnderTest) -> None:
    job = await remote.running()
    await remote.complete(job)
    rows = await remote.client.jobs.history(job.id)
    assert [(row.verb, row.actor) for row in rows[1:]] == [(Verb.CLAIM, "worker:w1"), (Verb.COMPLETE, "worker:w1")]
