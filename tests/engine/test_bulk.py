"""Results of operations on many jobs, on both engines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from interlock.config import load
from interlock.domain.decide import CompleteJob, FailJob
from interlock.domain.job import Filter, Job
from interlock.domain.lifecycle import Status
from interlock.domain.operations import CHECKPOINT, Action, Bulk, Needs
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import Principal
from interlock.engine import operations
from interlock.engine.engine import Engine
from interlock.errors import (
    AlreadyFinished,
    Forbidden,
    IdempotencyKeyReuse,
    Invalid,
    Malformed,
    NotFailed,
    NotFound,
    NotTerminal,
    UnknownType,
)
from interlock.storage.batching import batched
from interlock.storage.contract import Store
from interlock.wire import TokenRequest, job_request
from tests.support.eventually import eventually
from tests.support.stores import ManualClock

NEVER = "0193a1b2-ffff-7fff-8fff-ffffffffffff"
DAY = 86_400


@pytest.fixture
def engine_(interlock_engine: Engine) -> Engine:
    return interlock_engine


async def add(engine: Engine, who: Principal, count: int = 1, **fields: Any) -> list[str]:
    request = job_request({"type": "t", **fields})
    return [(await engine.jobs.enqueue(who, request)).id for _ in range(count)]


async def ended(engine: Engine, who: Principal, count: int = 1, **fields: Any) -> list[str]:
    ids = await add(engine, who, count, **fields)
    for id in ids:
        await engine.jobs.cancel(who, id)
    return ids


async def running(store: Store, engine: Engine, who: Principal, **fields: Any) -> Job:
    await add(engine, who, **fields)
    (job,) = await store.claim(who.tenant, ClaimFilter("w", types=frozenset({fields.get("type", "t")})))
    return job


async def jobs(engine: Engine, who: Principal, **fields: Any) -> list[Job]:
    return await engine.queries.jobs(who.tenant, Filter(limit=200, **fields))


async def test_jobs_that_need_nothing_are_skipped_by_the_page(
    engine_: Engine, who: Principal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "BATCH_SIZE", 4)
    monkeypatch.setattr(operations, "MAX_PAGES", 2)
    (oldest,) = await ended(engine_, who)
    for id in await ended(engine_, who, 9):
        await engine_.operations.redrive(who, id, delay_seconds=DAY)
    looks: list[Filter] = []
    find = engine_.store.find

    async def counted(tenant: str, filter: Filter) -> Any:
        looks.append(filter)
        return await find(tenant, filter)

    monkeypatch.setattr(engine_.store, "find", counted)
    done = Filter(statuses=(Status.CANCELLED,))
    reported = await engine_.operations.bulk(who, Action.REDRIVE, filter=done, limit=1)
    assert (reported.matched, reported.done, reported.more, len(looks)) == (0, 0, True, 2)
    rest = await engine_.operations.bulk(
        who, Action.REDRIVE, filter=done._replace(before_seq=reported.before_seq), limit=1
    )
    assert (rest.matched, rest.done, rest.more, len(looks)) == (1, 1, False, 3)
    newest, *_ = await jobs(engine_, who)
    assert newest.redrive_of == oldest


async def test_a_dry_run_counts_and_does_nothing(engine_: Engine, who: Principal) -> None:
    ids = await add(engine_, who, 3)
    reported = await engine_.operations.bulk(who, Action.CANCEL, filter=Filter(type="t"), dry_run=True)
    assert reported == Bulk(3, 0, False, ids=tuple(reversed(ids)))
    assert {job.status for job in await jobs(engine_, who)} == {Status.QUEUED}


async def test_jobs_of_a_filter_are_cancelled_newest_first_and_resume_from_a_cursor(
    engine_: Engine, who: Principal
) -> None:
    ids = await add(engine_, who, 5)
    (other,) = await add(engine_, who, type="other")
    first = await engine_.operations.bulk(who, Action.CANCEL, filter=Filter(type="t"), limit=2, reason="enough")
    assert (first.matched, first.done, first.more) == (2, 2, True)
    left = await jobs(engine_, who, statuses=(Status.QUEUED,))
    assert [job.id for job in left] == [other, *ids[2::-1]]
    again = await engine_.operations.bulk(who, Action.CANCEL, filter=Filter(type="t"), limit=3)
    assert (again.matched, again.done, again.more) == (3, 3, False)
    assert (await engine_.queries.job(who.tenant, ids[-1])).cancel_reason == "enough"


async def test_a_job_with_a_pending_cancel_is_skipped_unless_forced(
    store: Store, engine_: Engine, who: Principal
) -> None:
    job = await running(store, engine_, who)
    for matched in (1, 0):
        reported = await engine_.operations.bulk(who, Action.CANCEL, filter=Filter())
        assert (reported.matched, reported.done) == (matched, matched)
    reported = await engine_.operations.bulk(who, Action.CANCEL, filter=Filter(), force=True)
    assert (reported.matched, reported.done) == (1, 1)
    assert (await engine_.queries.job(who.tenant, job.id)).status is Status.CANCELLED


async def test_a_repeated_bulk_redrive_redrives_nothing_twice(engine_: Engine, who: Principal) -> None:
    """G12."""
    ids = await ended(engine_, who, 5)
    await add(engine_, who, type="live")
    filter = Filter(statuses=(Status.CANCELLED,))
    first = await engine_.operations.bulk(who, Action.REDRIVE, filter=filter, limit=3)
    assert (first.matched, first.done, first.more) == (3, 3, True)
    second = await engine_.operations.bulk(who, Action.REDRIVE, filter=filter, limit=3)
    assert (second.matched, second.done, second.more) == (2, 2, False)
    assert await engine_.operations.bulk(who, Action.REDRIVE, filter=filter) == Bulk(0, 0, False)
    assert sorted(str(job.redrive_of) for job in await jobs(engine_, who, type="t") if job.redrive_of) == sorted(ids)


async def test_failures_are_acknowledged_once_and_others_rejected(
    store: Store, engine_: Engine, who: Principal
) -> None:
    failed = []
    for _ in range(3):
        job = await running(store, engine_, who)
        await engine_.leases.fail(who.tenant, FailJob(job.id, job.fence, "w", '{"message": "no"}', retryable=False))
        failed.append(job.id)
    await engine_.operations.redrive(who, failed[0])
    (live,) = await add(engine_, who, type="live")
    reported = await engine_.operations.bulk(who, Action.ACKNOWLEDGE, filter=Filter(), limit=1, reason="known")
    assert (reported.matched, reported.done, reported.more) == (1, 1, True)
    assert await engine_.operations.bulk(who, Action.ACKNOWLEDGE, filter=Filter()) == Bulk(
        1, 1, False, ids=(failed[1],)
    )
    assert await engine_.operations.bulk(who, Action.ACKNOWLEDGE, filter=Filter()) == Bulk(0, 0, False)
    acknowledged = [(await engine_.queries.job(who.tenant, id)).acknowledged_at is not None for id in failed]
    assert acknowledged == [False, True, True]
    assert (await engine_.queries.history(who.tenant, failed[2]))[-1].reason == "known"
    named = await engine_.operations.bulk(who, Action.ACKNOWLEDGE, ids=[live, failed[0]])
    assert (named.done, [type(error) for _, error in named.refused]) == (1, [NotFailed])


async def test_the_next_page_begins_where_the_list_ended(engine_: Engine, who: Principal) -> None:
    ids = await add(engine_, who, 3)
    first = await engine_.operations.bulk(who, Action.CANCEL, filter=Filter(), limit=2, dry_run=True)
    rest = Filter(before_seq=first.before_seq)
    reported = await engine_.operations.bulk(who, Action.CANCEL, filter=rest, limit=2, dry_run=True)
    assert reported == Bulk(1, 0, False, ids=(ids[0],))


async def test_a_failed_item_stops_no_other_and_is_named(store: Store, engine_: Engine, who: Principal) -> None:
    job = await running(store, engine_, who, type="done")
    await store.carry_out(who.tenant, [CompleteJob(job.id, job.fence, "w")])
    (waiting,) = await add(engine_, who)
    reported = await engine_.operations.bulk(who, Action.CANCEL, ids=[NEVER, job.id, "nonsense", waiting, waiting])
    assert (reported.matched, reported.done, reported.more) == (1, 1, False)
    assert {id: type(error) for id, error in reported.refused} == {
        NEVER: NotFound, job.id: AlreadyFinished, "nonsense": NotFound,
    }  # fmt: skip
    (live,) = await add(engine_, who)
    reported = await engine_.operations.bulk(who, Action.REDRIVE, ids=[live, waiting])
    assert (reported.matched, reported.done, [(id, type(error)) for id, error in reported.refused]) == (
        1,
        1,
        [(live, NotTerminal)],
    )


@pytest.mark.parametrize(
    "wish",
    [{}, {"ids": [NEVER], "filter": Filter()}, {"filter": Filter(), "limit": 0}, {"filter": Filter(), "limit": 1001}],
)
async def test_a_bulk_call_names_jobs_or_a_filter_within_a_limit(
    engine_: Engine, who: Principal, wish: dict[str, Any]
) -> None:
    with pytest.raises(Invalid):
        await engine_.operations.bulk(who, Action.CANCEL, **wish)
    with pytest.raises(Invalid):
        await engine_.operations.bulk(who, Action.CANCEL, ids=[NEVER] * 1001)


async def test_only_operators_act_in_bulk_and_only_admins_delete(engine_: Engine, who: Principal) -> None:
    producer = who._replace(roles=frozenset({"produce", "read"}))
    (old,) = await ended(engine_, who)
    with pytest.raises(Forbidden):
        await engine_.operations.bulk(producer, Action.CANCEL, filter=Filter())
    with pytest.raises(Forbidden):
        await engine_.operations.redrive(producer, old)
    with pytest.raises(Forbidden):
        await engine_.retention.prune(who._replace(roles=frozenset({"operate"})), 1)


async def test_a_redrive_is_validated_like_a_new_job(engine_: Engine, who: Principal) -> None:
    schema = json.dumps({"type": "object", "required": ["topic"]})
    (old,) = await ended(engine_, who)
    await engine_.registry.set_type(who, "t", schema=schema)
    redrive = engine_.operations.redrive
    with pytest.raises(Invalid) as refused:
        await redrive(who, old, payload=b'{"topc": 1}')
    assert str(refused.value.pointer).startswith("/overrides/payload")
    for wrong in ({"priority": 1001}, {"max_attempts": 0}, {"delay_seconds": -1.0}, {"tags": [""]}):
        with pytest.raises(Invalid) as refused:
            await redrive(who, old, **wrong)
        assert str(refused.value.pointer).startswith(f"/overrides/{next(iter(wrong))}")
    with pytest.raises(Malformed):
        await redrive(who, old, payload=b"{broken")
    new = await redrive(who, old, payload=b'{"topic": 1}', priority=3, tags=["b", "a"])
    job = await engine_.queries.job(who.tenant, new.id)
    assert (job.payload, job.priority, list(job.tags), job.redrive_of) == ('{"topic": 1}', 3, ["a", "b"], old)
    unchanged = await redrive(who, old)  # what was taken once is not checked against a newer schema
    assert (await engine_.queries.job(who.tenant, unchanged.id)).payload == "{}"


async def test_a_redrive_with_other_requirements_keeps_those_of_its_type(engine_: Engine, who: Principal) -> None:
    (old,) = await ended(engine_, who)
    await engine_.registry.set_type(who, "t", requires=["gpu"])
    new = await engine_.operations.redrive(who, old, needs=Needs("acme/site.git", (" git ",)))
    job = await engine_.queries.job(who.tenant, new.id)
    assert (job.repository, list(job.requires)) == ("acme/site", ["git", "gpu"])
    for wrong in (Needs("", ()), Needs(None, ("",)), Needs(None, tuple(f"{n:0200}" for n in range(20)))):
        with pytest.raises(Invalid) as refused:
            await engine_.operations.redrive(who, old, needs=wrong)
        assert str(refused.value.pointer).startswith("/overrides/re")


async def test_a_redrive_with_a_key_is_created_once(engine_: Engine, who: Principal) -> None:
    (old,) = await ended(engine_, who)
    first = await engine_.operations.redrive(who, old, idempotency_key="k", priority=2)
    again = await engine_.operations.redrive(who, old, idempotency_key="k", priority=2)
    assert (again.id, again.replayed, first.replayed) == (first.id, True, False)
    with pytest.raises(IdempotencyKeyReuse):
        await engine_.operations.redrive(who, old, idempotency_key="k", priority=3)
    with pytest.raises(Invalid):
        await engine_.operations.redrive(who, old, start_from=CHECKPOINT)


async def test_with_strict_types_a_deleted_type_is_not_redriven(store: Store, who: Principal) -> None:
    strict = Engine(batched(store), strict_types=True)
    await strict.registry.set_type(who, "t")
    (old,) = await ended(strict, who)
    await strict.registry.delete_type(who, "t")
    with pytest.raises(UnknownType):
        await strict.operations.redrive(who, old)


async def test_a_prune_continues_until_its_limit_and_reports_whether_more_is_left(
    engine_: Engine, who: Principal, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.engine.retention.STEP", 2)
    await ended(engine_, who, 5)
    clock.advance(2 * DAY)
    await add(engine_, who, 3)
    assert (await engine_.retention.prune(who, 3)).deleted == 0
    counted = await engine_.retention.prune(who, 1, dry_run=True)
    assert (counted.deleted, counted.more) == (5, False)
    first = await engine_.retention.prune(who, 1, limit=4)
    assert (first.deleted, first.more) == (4, True)
    rest = await engine_.retention.prune(who, 1, after_seq=first.last_seq)
    assert (rest.deleted, rest.more) == (1, False)
    assert sum(reported.jobs for reported in await engine_.retention.prunes(who.tenant)) == 5
    assert (await engine_.queries.verify(who.tenant)).first_bad is None
    for days in (-1.0, float("nan"), 1e9):
        with pytest.raises(Invalid):
            await engine_.retention.prune(who, days)


async def test_nothing_is_deleted_without_a_request(engine_: Engine, who: Principal, clock: ManualClock) -> None:
    (old,) = await ended(engine_, who)
    clock.advance(9999 * DAY)
    assert await engine_.retention.retain() == 0
    assert (await engine_.queries.job(who.tenant, old)).status is Status.CANCELLED


async def test_a_retention_deletes_for_every_tenant_in_the_background(
    store: Store, who: Principal, clock: ManualClock
) -> None:
    keeper = Engine(batched(store), retention_days=1.5)
    tenants = [who, who._replace(tenant="other")]
    for tenant in tenants:
        await ended(keeper, tenant, 2)
        for life in (DAY / 100, None):
            await keeper.tokens.create(tenant, TokenRequest(roles=["read"], expires_in_seconds=life))
    clock.advance(1.6 * DAY)
    assert "retention" in [task.name for task in keeper.maintenance.tasks]
    await keeper.retention.retain_aside()

    async def gone() -> bool:
        tokens = [token for tenant in tenants for token in await keeper.tokens.list(tenant)]
        return len(tokens) == 2 and not any([await jobs(keeper, tenant) for tenant in tenants])

    await eventually(gone)
    await keeper.retention.stop()
    (reported,) = await keeper.retention.prunes("other")
    assert (reported.actor, reported.jobs) == ("system:retention", 2)


@pytest.mark.parametrize("wrong", ["0", "-1", "soon", "1e9"])
def test_a_retention_is_a_number_of_days(wrong: str, tmp_path: Path) -> None:
    assert load({}, environ={"INTERLOCK_RETENTION_DAYS": "0.5"}, directory=tmp_path).retention_days == 0.5
    assert load({}, environ={}, directory=tmp_path).retention_days is None
    with pytest.raises(Invalid) as refused:
        load({}, environ={"INTERLOCK_RETENTION_DAYS": wrong}, directory=tmp_path)
    assert refused.value.pointer == "/retention_days"
