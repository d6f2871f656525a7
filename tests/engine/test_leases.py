"""Results of claims, heartbeats and finishes for workers, on both engines."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from interlock.domain.decide import CompleteJob, FailJob, Finish, ReleaseJob
from interlock.domain.job import Checkpoint, Heartbeat, Rejected
from interlock.domain.lifecycle import Status
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import Principal
from interlock.engine.engine import Engine
from interlock.engine.leases import MAX_PAUSE_SECONDS
from interlock.errors import Invalid, LeaseLost, Malformed, NotFound, TooLarge
from interlock.storage.contract import Store
from interlock.wire import error_body, job_request, new_id
from tests.support.eventually import RETRY_SECONDS


async def lease(engine: Engine, who: Principal) -> tuple[str, int]:
    await engine.jobs.enqueue(who, job_request({"type": "t"}))
    (job,) = await engine.leases.claim("acme", ClaimFilter("w"))
    return job.id, job.fence


async def test_a_waiting_claim_is_woken_by_an_enqueue(interlock_engine: Engine, who: Principal) -> None:
    deadline = asyncio.get_running_loop().time() + 60
    waiting = asyncio.create_task(interlock_engine.leases.claim("acme", ClaimFilter("w"), wait_seconds=60))
    await asyncio.sleep(0)
    enqueued = await interlock_engine.jobs.enqueue(who, job_request({"type": "t"}))
    (job,) = await asyncio.wait_for(waiting, RETRY_SECONDS)
    assert job.id == enqueued.id
    assert asyncio.get_running_loop().time() < deadline, "the claim found the job only when its time was over"


async def test_wakeups_without_work_are_followed_less_and_less_often(
    interlock_engine: Engine, store: Store, who: Principal, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    claim = store.claim

    async def counted(*asked: Any, **options: Any) -> Any:
        nonlocal looks
        looks += 1
        return await claim(*asked, **options)

    monkeypatch.setattr(store, "claim", counted)
    ask = ClaimFilter("w", types=frozenset({"mine"}))
    waiting = asyncio.create_task(interlock_engine.leases.claim("acme", ask, wait_seconds=30))
    began = time.monotonic()
    for _ in range(200):
        await interlock_engine.jobs.enqueue(who, job_request({"type": "another's"}))
        await asyncio.sleep(0.002)
    allowed = 12 + (time.monotonic() - began) / MAX_PAUSE_SECONDS
    assert looks <= allowed
    enqueued = await interlock_engine.jobs.enqueue(who, job_request({"type": "mine"}))
    (job,) = await asyncio.wait_for(waiting, RETRY_SECONDS)
    assert job.id == enqueued.id


async def test_a_waiting_claim_returns_empty_after_its_timeout(interlock_engine: Engine) -> None:
    assert await interlock_engine.leases.claim("acme", ClaimFilter("w"), wait_seconds=0.05) == []


async def test_equal_concurrent_claims_get_different_jobs(interlock_engine: Engine, who: Principal) -> None:
    await interlock_engine.jobs.enqueue_batch(who, [job_request({"type": "t"}) for _ in range(10)])
    asks = [ClaimFilter("w", limit=n) for n in (1, 4, 3, 1)]
    dealt = await asyncio.gather(*(interlock_engine.leases.claim("acme", ask) for ask in asks))
    assert [len(jobs) for jobs in dealt] == [1, 4, 3, 1]
    assert len({job.id for jobs in dealt for job in jobs}) == 9


async def test_a_result_with_a_lone_surrogate_is_kept_and_marked(interlock_engine: Engine, who: Principal) -> None:
    id, fence = await lease(interlock_engine, who)
    await interlock_engine.leases.complete("acme", CompleteJob(id, fence, "w", result='{"text":"a\\ud800b"}'))
    job = await interlock_engine.queries.job("acme", id)
    assert (job.result, job.sanitized) == ('{"text":"a\\ufffdb"}', True)


async def test_an_error_of_any_text_is_stored(interlock_engine: Engine, who: Principal) -> None:
    id, fence = await lease(interlock_engine, who)
    body, sanitized = error_body("bad \ud800 text " + "x" * 100_000, kind="Boom")
    receipt = await interlock_engine.leases.fail(
        "acme", FailJob(id, fence, "w", body, retryable=False, sanitized=sanitized)
    )
    job = await interlock_engine.queries.job("acme", id)
    assert receipt.status is Status.FAILED
    assert job.sanitized
    assert job.error is not None
    assert job.error.startswith('{"message":"bad \ufffd text')


@pytest.mark.parametrize("letter", ["x", "\n", "ä", "\x00"])
def test_a_message_is_truncated_to_the_limit_of_an_error(letter: str) -> None:
    limit = 16 * 1024
    whole = "x" * (limit - len('{"message":"","kind":"Boom","details":7}'))
    assert json.loads(error_body(whole, kind="Boom", details=7)[0])["message"] == whole
    body, _ = error_body(letter * limit, kind="Boom", details=7)
    assert limit - 8 <= len(body.encode()) <= limit
    assert json.loads(body)["message"].rstrip("…") == letter * (len(json.loads(body)["message"]) - 1)
    with pytest.raises(TooLarge):
        error_body("x" * 2048, details="x" * (limit - 2048))


async def test_a_result_that_is_not_json_or_too_large_is_rejected_and_the_job_keeps_running(
    interlock_engine: Engine, who: Principal
) -> None:
    id, fence = await lease(interlock_engine, who)
    with pytest.raises(Malformed):
        await interlock_engine.leases.complete("acme", CompleteJob(id, fence, "w", result="{"))
    with pytest.raises(TooLarge):
        await interlock_engine.leases.complete("acme", CompleteJob(id, fence, "w", result='"' + "x" * 262_144 + '"'))
    assert (await interlock_engine.queries.job("acme", id)).status is Status.RUNNING


@pytest.mark.parametrize(
    "ask",
    [
        ClaimFilter(""),
        ClaimFilter("w", limit=0),
        ClaimFilter("w", limit=101),
        ClaimFilter("w", lease_seconds=0.5),
        ClaimFilter("w", lease_seconds=3601),
        ClaimFilter("w", claim_id=""),
    ],
)
async def test_a_claim_outside_the_limits_is_rejected(interlock_engine: Engine, ask: ClaimFilter) -> None:
    with pytest.raises(Invalid):
        await interlock_engine.leases.claim("acme", ask)


async def test_a_release_is_at_a_time_or_after_a_delay_not_both(interlock_engine: Engine, who: Principal) -> None:
    id, fence = await lease(interlock_engine, who)
    with pytest.raises(Invalid):
        await interlock_engine.leases.release("acme", ReleaseJob(id, fence, "w", run_at=1, delay_seconds=1.0))


async def test_a_heartbeat_with_a_checkpoint_saves_it(interlock_engine: Engine, who: Principal) -> None:
    id, fence = await lease(interlock_engine, who)
    await interlock_engine.leases.heartbeat(
        "acme", Heartbeat(id, fence, "w", checkpoint=Checkpoint(id, fence, "w", 1, "[1]"))
    )
    job = await interlock_engine.queries.job("acme", id)
    assert (job.checkpoint_seq, job.checkpoint) == (1, "[1]")


async def test_concurrent_single_finishes_each_get_their_own_result(
    interlock_engine: Engine, who: Principal, store: Store
) -> None:
    await interlock_engine.jobs.enqueue_batch(who, [job_request({"type": "t"}) for _ in range(20)])
    jobs = await interlock_engine.leases.claim("acme", ClaimFilter("w", limit=20))
    orders = [CompleteJob(job.id, job.fence + (n == 7), "w", result=str(n)) for n, job in enumerate(jobs)]
    answers = await asyncio.gather(
        *(interlock_engine.leases.complete("acme", order) for order in orders), return_exceptions=True
    )
    assert [n for n, answer in enumerate(answers) if isinstance(answer, LeaseLost)] == [7]
    assert [job.result for job in await store.get("acme", [job.id for job in jobs]) if job is not None] == [
        None if n == 7 else str(n) for n in range(20)
    ]


@pytest.mark.parametrize(
    "given",
    [
        "{",
        "[]",
        "null",
        '{"tokens":-1}',
        '{"tokens":"1"}',
        '{"tokens":true}',
        '{"":1}',
        '{"n":1e999}',
        f'{{"n":{"9" * 400}}}',
        f'{{"n":{"9" * 5000}}}',
        f'{{"{"n" * 201}":1}}',
    ],
)
async def test_usage_is_a_map_of_non_negative_numbers(interlock_engine: Engine, who: Principal, given: str) -> None:
    id, fence = await lease(interlock_engine, who)
    with pytest.raises((Invalid, Malformed)) as caught:
        await interlock_engine.leases.complete("acme", CompleteJob(id, fence, "w", usage=given))
    assert isinstance(caught.value, Malformed) or caught.value.pointer in ("/usage", "/n")
    await interlock_engine.leases.complete("acme", CompleteJob(id, fence, "w", usage='{"tokens":0,"cost":0.5}'))
    assert (await interlock_engine.queries.job("acme", id)).usage == '{"tokens":0,"cost":0.5}'


async def test_usage_has_a_limit_and_invalid_unicode_in_it_is_sanitized(
    interlock_engine: Engine, who: Principal
) -> None:
    id, fence = await lease(interlock_engine, who)
    many = json.dumps({f"{n:05}": 1 for n in range(800)}, separators=(",", ":"))
    edge = many[:-1] + " " * (8192 - len(many)) + "}"
    with pytest.raises(TooLarge):
        await interlock_engine.leases.complete("acme", CompleteJob(id, fence, "w", usage=edge[:-1] + " }"))
    await interlock_engine.leases.complete("acme", CompleteJob(id, fence, "w", usage=edge))
    id, fence = await lease(interlock_engine, who)
    await interlock_engine.leases.complete("acme", CompleteJob(id, fence, "w", usage='{"\\ud800":1,"\\udc00":2}'))
    job = await interlock_engine.queries.job("acme", id)
    assert (job.usage, job.sanitized) == ('{"\\ufffd":1,"\\ufffd":2}', True)


async def test_a_release_names_at_most_a_thousand_children(interlock_engine: Engine, who: Principal) -> None:
    id, fence = await lease(interlock_engine, who)
    created = await interlock_engine.jobs.enqueue_batch(
        who, [job_request({"type": "child", "parent_id": id}) for _ in range(1000)]
    )
    children = tuple(child.id for child in created)
    with pytest.raises(Invalid, match="at most 1000 children") as caught:
        await interlock_engine.leases.release("acme", ReleaseJob(id, fence, "w", children=(new_id(), *children)))
    assert caught.value.pointer == "/children"
    await interlock_engine.leases.release("acme", ReleaseJob(id, fence, "w", children=children))
    assert len((await interlock_engine.queries.job("acme", id)).awaiting) == 1000


@pytest.mark.parametrize("odd", ["nul \x00 byte", "lone \ud800 surrogate", "\u202ebidi"])
async def test_a_reason_of_any_text_is_stored(interlock_engine: Engine, who: Principal, odd: str) -> None:
    id, fence = await lease(interlock_engine, who)
    await interlock_engine.jobs.cancel(who, id, reason=odd)
    await interlock_engine.leases.release("acme", ReleaseJob(id, fence, "w", reason=odd))
    id, fence = await lease(interlock_engine, who)
    await interlock_engine.leases.complete("acme", CompleteJob(id, fence, "w", result_summary=odd))
    job = await interlock_engine.queries.job("acme", id)
    assert job.result_summary == odd.replace("\x00", "\ufffd").replace("\ud800", "\ufffd")


async def test_an_invalid_id_is_treated_like_an_unknown_job(interlock_engine: Engine, who: Principal) -> None:
    id, fence = await lease(interlock_engine, who)
    for wrong in ("", "nonsense", "\x00", id + "0"):
        with pytest.raises(NotFound):
            await interlock_engine.jobs.cancel(who, wrong)
        with pytest.raises(NotFound):
            await interlock_engine.leases.checkpoint("acme", Checkpoint(wrong, fence, "w", 1, "1"))
    orders: list[Finish] = [
        CompleteJob("nonsense", 1, "w"),
        CompleteJob(id.upper(), fence, "w"),
        FailJob(id, fence, "w", "{"),
    ]
    answers = await interlock_engine.leases.finishes("acme", orders)
    assert [getattr(getattr(a, "error", None), "code", "done") for a in answers] == ["not_found", "done", "malformed"]
    (heartbeat,) = await interlock_engine.leases.heartbeats("acme", [Heartbeat("nonsense", 1, "w")])
    assert isinstance(heartbeat, Rejected)
