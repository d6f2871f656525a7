"""Claims leave a trace of who asks: rarely, beside the claim, and never in its way."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from interlock.domain.decide import ReleaseJob
from interlock.domain.explain import ReasonCode
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import Principal
from interlock.domain.worker_presence import LATELY_SECONDS, WorkerSeen, wanted
from interlock.engine.engine import Engine
from interlock.engine.leases import Leases
from interlock.engine.worker_presence import MAX_ASKS, NOTE_EVERY_SECONDS, Workers
from interlock.errors import Invalid, NotFound, Unavailable
from interlock.storage.contract import Store
from interlock.storage.contract.workers import WorkerStore
from interlock.wire import LIMITS, JobRequest
from interlock.wire.encode import worker_to_dict
from tests.support.eventually import eventually
from tests.support.stores import ManualClock


class Notebook:
    """Stored workers that are watched: what was noted, in order."""

    def __init__(self, workers: WorkerStore) -> None:
        self._workers = workers
        self.notes: list[tuple[str, list[WorkerSeen]]] = []
        self.page, self.forget, self.job_snapshot = workers.page, workers.forget, workers.job_snapshot

    async def note(self, tenant: str, seen_workers: Sequence[WorkerSeen]) -> None:
        await self._workers.note(tenant, seen_workers)
        self.notes.append((tenant, list(seen_workers)))


class Time:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def claims(workers: Workers, tenant: str, ask: ClaimFilter) -> None:
    with workers.claiming(tenant, ask):
        pass


@pytest.fixture
def notebook(store: Store) -> Notebook:
    return Notebook(store.workers)


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def workers(notebook: Notebook, time: Time) -> Workers:
    return Workers(notebook, clock=time)


async def test_worker_presence_is_recorded_once_per_interval(workers: Workers, notebook: Notebook, time: Time) -> None:
    for _ in range(100):
        claims(workers, "t", ClaimFilter("w1"))
        await workers.stop()
        time.now += NOTE_EVERY_SECONDS / 25
    assert len(notebook.notes) == 4
    assert notebook.notes[0] == ("t", [WorkerSeen("w1", (wanted(ClaimFilter("w1")),))])


async def test_workers_that_poll_together_are_recorded_together_by_tenant(workers: Workers, notebook: Notebook) -> None:
    for tenant, name in (("t", "w1"), ("u", "w1"), ("t", "w2")):
        claims(workers, tenant, ClaimFilter(name))
    await workers.stop()
    assert [(tenant, [s.worker for s in seen]) for tenant, seen in notebook.notes] == [
        ("t", ["w1", "w2"]),
        ("u", ["w1"]),
    ]


MAIL, RENDER, GPU = (ClaimFilter("w1", types=frozenset({name})) for name in ("mail", "render", "gpu"))


@pytest.mark.parametrize(
    ("asks", "known"),
    [
        ([MAIL], {MAIL}),
        ([MAIL, RENDER], {RENDER}),  # it changed what it accepts
        ([MAIL, RENDER, MAIL], {MAIL, RENDER}),  # it claims for both alternately
        ([MAIL, RENDER, MAIL, RENDER, RENDER], {RENDER}),
        ([MAIL, RENDER, GPU] * 2, {MAIL, RENDER, GPU}),
        ([MAIL, RENDER, GPU] * 2 + [MAIL, RENDER] * 2, {MAIL, RENDER}),
        ([MAIL, RENDER] * 2 + [GPU], {GPU}),
    ],
)
async def test_what_a_worker_no_longer_asks_for_is_out_of_date_at_its_next_claim(
    workers: Workers, notebook: Notebook, asks: list[ClaimFilter], known: set[ClaimFilter]
) -> None:
    for ask in asks:
        claims(workers, "t", ask)
        await workers.stop()
    assert set(notebook.notes[-1][1][0].asks) == {wanted(ask) for ask in known}


async def test_a_filter_counts_as_long_as_a_claim_waits_with_it(workers: Workers, notebook: Notebook) -> None:
    async def noted() -> set[ClaimFilter]:
        await workers.stop()
        return set(notebook.notes[-1][1][0].asks)

    with workers.claiming("t", MAIL):
        with workers.claiming("t", MAIL):
            for _ in range(3):
                claims(workers, "t", RENDER)
            assert await noted() == {wanted(MAIL), wanted(RENDER)}
        claims(workers, "t", RENDER)
        assert await noted() == {wanted(MAIL), wanted(RENDER)}
    assert await noted() == {wanted(RENDER)}


async def test_a_filter_that_was_last_used_long_ago_is_not_one_of_several_used_in_turn(
    workers: Workers, notebook: Notebook, time: Time
) -> None:
    for ask in (MAIL, RENDER):
        claims(workers, "t", ask)
    time.now += LATELY_SECONDS
    claims(workers, "t", MAIL)
    await workers.stop()
    assert notebook.notes[-1][1][0].asks == (wanted(MAIL),)


async def test_of_a_worker_that_asks_for_many_things_in_turn_the_last_few_are_noted(
    workers: Workers, notebook: Notebook, time: Time
) -> None:
    for n in range(50):
        time.now += 1
        with workers.claiming("t", ClaimFilter("w1", types=frozenset({f"type-{n % 10}"}))):
            claims(workers, "t", MAIL)
        await workers.stop()
    assert max(len(seen[0].asks) for _, seen in notebook.notes) <= MAX_ASKS


async def test_why_is_right_as_soon_as_a_worker_has_asked_for_something_else(
    interlock_engine: Engine, who: Principal
) -> None:
    engine = interlock_engine
    mail, render = [(await engine.jobs.enqueue(who, JobRequest(type=name))).id for name in ("mail", "render")]

    async def clauses() -> list[str]:
        return [str((await engine.why.of(who.tenant, id)).clause) for id in (mail, render)]

    async def asks(type: str, **more: Any) -> None:
        ask = ClaimFilter("w1", types=frozenset({type}), capabilities=frozenset(more))
        async with asyncio.timeout(10):
            for job in await engine.leases.claim(who.tenant, ask):
                order = ReleaseJob(job.id, job.fence, "w1", delay_seconds=0)
                await engine.leases.release(who.tenant, order)

    for type, expected in (("mail", ["ready", "no_worker_for_type"]), ("render", ["no_worker_for_type", "ready"])):
        await asks(type)
        assert await clauses() == expected
    await asks("render", gpu=True)
    assert await clauses() == ["no_worker_for_type", "ready"]
    await asks("other")
    assert await clauses() == ["no_worker_for_type"] * 2
    message = (await engine.why.of(who.tenant, mail)).reason.message
    assert message == "no worker seen in the last 60 s takes jobs of type mail"


async def test_why_says_how_long_ago_the_worker_asked(
    interlock_engine: Engine, who: Principal, clock: ManualClock
) -> None:
    engine = interlock_engine
    assert await engine.leases.claim(who.tenant, ClaimFilter("w1")) == []
    id = (await engine.jobs.enqueue(who, JobRequest(type="work"))).id
    assert (await engine.why.of(who.tenant, id)).reason.message.endswith("; w1 polled 0 s ago")
    clock.advance(42.9)
    assert (await engine.why.of(who.tenant, id)).reason.message.endswith("; w1 polled 42 s ago")


async def test_a_claim_for_no_types_deletes_the_worker_and_repeats_cost_nothing(
    workers: Workers, notebook: Notebook
) -> None:
    claims(workers, "t", ClaimFilter("w1"))
    for _ in range(3):
        claims(workers, "t", ClaimFilter("w1", types=frozenset()))
        await workers.stop()
    assert [seen[0] for _, seen in notebook.notes] == [WorkerSeen("w1", ())]
    assert await workers.seen("t") == []
    claims(workers, "t", ClaimFilter("w1"))
    await workers.stop()
    assert [one.name for one in await workers.seen("t")] == ["w1"]


async def test_every_claim_records_presence_even_an_empty_one(interlock_engine: Engine, who: Principal) -> None:
    engine = interlock_engine
    assert await engine.leases.claim(who.tenant, ClaimFilter("w1", capabilities=frozenset({"gpu"}))) == []

    async def noted() -> bool:
        return bool(await engine.workers.seen(who.tenant))

    await eventually(noted)
    (seen,) = await engine.workers.seen(who.tenant)
    encoded = worker_to_dict(seen)
    assert (encoded["name"], encoded["running"], encoded["jobs"]) == ("w1", 0, [])
    assert encoded["asks"] == [{"types": None, "repositories": None, "capabilities": ["gpu"], "affinity_keys": []}]
    assert encoded["last_seen_at"] == encoded["first_seen_at"] == "2027-01-15T08:00:00.000000Z"


async def test_a_claim_continues_when_recording_presence_fails_or_hangs(
    interlock_engine: Engine, who: Principal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.engine.worker_presence.LAST_NOTES_SECONDS", 0.01)
    engine = interlock_engine
    id = (await engine.jobs.enqueue(who, JobRequest(type="work"))).id

    async def cannot_note(tenant: str, seen_workers: Sequence[WorkerSeen]) -> None:
        if seen_workers[0].worker == "w2":
            await asyncio.Event().wait()
        raise Unavailable("no room")

    other = Engine(engine.store)
    broken = Notebook(engine.store.workers)
    monkeypatch.setattr(broken, "note", cannot_note)
    monkeypatch.setattr(other.workers, "_store", broken)
    (job,) = await other.leases.claim(who.tenant, ClaimFilter("w1"))
    assert job.id == id
    await other.workers.stop()
    assert await other.leases.claim(who.tenant, ClaimFilter("w2")) == []
    await other.workers.stop()  # does not wait indefinitely
    assert [seen.name for seen in await engine.workers.seen(who.tenant)] == ["w1"]


async def test_maintenance_deletes_workers_that_have_not_polled_for_a_day(
    interlock_engine: Engine, who: Principal, clock: ManualClock
) -> None:
    engine = interlock_engine
    await engine.store.workers.note(who.tenant, [WorkerSeen("w1", (wanted(ClaimFilter("w1")),))])
    clock.advance(86_401)
    (task,) = [task for task in engine.maintenance.tasks if task.name == "workers"]
    assert await task.run() == 1
    assert await engine.workers.seen(who.tenant) == []


async def test_a_page_of_workers_is_bounded(interlock_engine: Engine, who: Principal) -> None:
    for limit in (0, 201):
        with pytest.raises(Invalid):
            await interlock_engine.workers.seen(who.tenant, limit=limit)


async def test_why_returns_the_deciding_reason_and_unknown_jobs_are_not_found(
    interlock_engine: Engine, who: Principal
) -> None:
    engine = interlock_engine
    id = (await engine.jobs.enqueue(who, JobRequest(type="work", delay_seconds=60))).id
    reported = await engine.why.of(who.tenant, id.upper())
    assert reported.clause is ReasonCode.DUE_LATER
    assert reported.to_dict() == {
        "clause": "due_later",
        "message": "it is due at 2027-01-15T08:01:00.000000Z",
        "details": {"run_at": "2027-01-15T08:01:00.000000Z"},
        "also": [
            {
                "clause": "no_worker_for_type",
                "message": "no worker seen in the last 60 s takes jobs of type work",
                "details": {"type": "work", "workers_seen": 0},
            }
        ],
    }
    for tenant, job_id in (("other", id), (who.tenant, "nonsense"), (who.tenant, id[:-1] + "f0"[id[-1] == "f"])):
        with pytest.raises(NotFound):
            await engine.why.of(tenant, job_id)


async def test_a_waiting_claim_keeps_its_worker_present(store: Store, clock: ManualClock, time: Time) -> None:
    workers = Workers(store.workers, clock=time)
    leases = Leases(store, LIMITS, workers=workers)
    enough = asyncio.Event()
    waiting = asyncio.create_task(leases.claim("t", ClaimFilter("w1"), wait_seconds=60, enough=enough))
    for _ in range(3):

        async def noted(now: int = clock.now) -> bool:
            return [seen.last_seen_at for seen in await workers.seen("t")] == [now]

        await eventually(noted)
        clock.advance(NOTE_EVERY_SECONDS)
        time.now += NOTE_EVERY_SECONDS
    enough.set()
    assert await waiting == []
    await workers.stop()
