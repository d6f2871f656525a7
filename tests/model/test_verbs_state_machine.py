"""Messages, topics, streams and effects against a model: for any calls in any order, both engines do the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from interlock.domain.effect import BeginEffect, Begun, Effect, EffectState, SettleEffect
from interlock.domain.job import Job, Rejected
from interlock.domain.message import AwaitMessage, Publish, Published, SendMessage, Sent
from interlock.domain.stream import Append, NewChunk
from interlock.errors import (
    AlreadyFinished,
    EffectConflict,
    MessageConflict,
    NotFound,
    StreamConflict,
    TopicConflict,
)
from tests.contract.builders import OPERATOR, TenantQueue, cancel, complete, release, revoke
from tests.model.rig import Rig, examples, open_rig
from tests.support.postgres import Postgres
from tests.support.stores import ManualClock

JOBS = st.integers(0, 2)
IDS = st.sampled_from(("m1", "m2", "m3"))
NAMES = st.sampled_from(("a", "b"))
VALUES = st.sampled_from((None, "1", "2"))
DONE = st.sampled_from((EffectState.DONE, EffectState.NOT_DONE))
BIG = 1 << 20


@dataclass
class Life:
    """What the model knows about one job."""

    id: str
    leases: list[Job] = field(default_factory=list)
    is_running: bool = False
    is_terminal: bool = False
    wait: AwaitMessage | None = None
    until: int | None = None
    inbox: list[tuple[str, str | None, str | None, str | None]] = field(
        default_factory=list
    )  # id, name, topic, payload
    streams: dict[str, list[tuple[int, bytes]]] = field(default_factory=dict)
    effects: dict[str, tuple[EffectState, str | None]] = field(default_factory=dict)

    def is_waiting(self, now: int) -> bool:
        is_over = self.until is not None and now >= self.until
        return self.wait is not None and not self.is_running and not self.is_terminal and not is_over

    def has_arrived(self, wanted: AwaitMessage) -> bool:
        found = enumerate(self.inbox, 1)
        return any(
            seq > wanted.after and (name, topic) == (wanted.name, wanted.topic) for seq, (_, name, topic, _) in found
        )

    def receive(self, message: tuple[str, str | None, str | None, str | None], now: int) -> None:
        self.inbox.append(message)
        if self.is_waiting(now) and self.wait is not None and self.has_arrived(self.wait):
            self.wait = None


class Verbs(RuleBasedStateMachine):
    """Producers, workers and operators in any order; workers also repeat calls with leases that have ended."""

    def __init__(self, rig: Rig) -> None:
        super().__init__()
        self.rig = rig
        self.tenant = rig.new_tenant()
        self.topics: dict[tuple[str, str], tuple[str | None, int, int, int]] = {}  # payload, delivered, at, expires
        self.jobs: list[Life] = []
        self.ended: list[Life] = []

    @property
    def queue(self) -> TenantQueue:
        return TenantQueue(self.rig.store, self.tenant, self.rig.clock)

    @property
    def now(self) -> int:
        return self.rig.clock.now

    @initialize()
    def begin(self) -> None:
        for _ in range(3):
            self._add()
        self.claim()

    def _add(self) -> None:
        self.jobs.append(Life(self.rig.run(self.queue.add(max_attempts=100))))

    def _running(self, number: int) -> Life | None:
        """Return a running job, if there is one or if one is due."""
        if not any(job.is_running for job in self.jobs):
            self.claim()
        running = [job for job in self.jobs if job.is_running]
        return running[number % len(running)] if running else None

    def _leased(self, number: int, *, old: bool) -> tuple[Life, Job]:
        """Return a job and its last lease, or its first one, which may have ended."""
        leased = [job for job in self.jobs if job.leases]
        job = leased[number % len(leased)] if leased else self.ended[-1]
        return job, job.leases[0 if old else -1]

    @rule(number=st.integers(0, 3), id=IDS, name=NAMES, payload=VALUES)
    def send(self, number: int, id: str, name: str, payload: str | None) -> None:
        job = [*self.jobs, *self.ended[-1:]][min(number, 2 + len(self.ended))]
        answer = self.rig.run(
            self.rig.store.messages.send(self.tenant, SendMessage(job.id, id, OPERATOR, name, payload))
        )
        known = next((one for one in job.inbox if (one[0], one[2]) == (id, None)), None)
        if known is not None and known != (id, name, None, payload):
            rejected_as(answer, MessageConflict)
        elif known is not None:
            assert isinstance(answer, Sent)
            assert (answer.is_new, job.inbox[answer.message.seq - 1]) == (False, known)
        elif job.is_terminal:
            rejected_as(answer, AlreadyFinished)
        else:
            assert isinstance(answer, Sent)
            assert (answer.is_new, answer.message.seq) == (True, len(job.inbox) + 1)
            job.receive((id, name, None, payload), self.now)

    @rule(topic=NAMES, id=IDS, payload=VALUES, retain=st.sampled_from((20.0, 0.0)))
    def publish(self, topic: str, id: str, payload: str | None, retain: float) -> None:
        answer = self.rig.run(
            self.rig.store.messages.publish(self.tenant, Publish(topic, id, OPERATOR, payload, retain))
        )
        if (topic, id) in self.topics:
            first, delivered, _, _ = self.topics[topic, id]
            if first != payload:
                rejected_as(answer, TopicConflict)
            else:
                assert answer == Published(id, delivered, is_new=False)
            return
        waiting = [
            job for job in self.jobs
            if job.is_waiting(self.now) and job.wait is not None and job.wait.topic == topic
            and not any((one[0], one[2]) == (id, topic) for one in job.inbox)
        ]  # fmt: skip
        assert answer == Published(id, len(waiting))
        for job in waiting:
            job.receive((id, None, topic, payload), self.now)
        expires = self.now + round(retain * 1_000_000)
        self.topics[topic, id] = (payload, len(waiting), self.now, expires)

    @rule()
    def claim(self) -> None:
        due = {job.id for job in self.jobs if not (job.is_running or job.is_terminal or job.is_waiting(self.now))}
        leased = self.rig.run(self.queue.claim(limit=10, lease_seconds=3600.0))
        assert {one.id for one in leased} == due
        for one in leased:
            job = next(job for job in self.jobs if job.id == one.id)
            job.leases.append(one)
            job.is_running, job.wait, job.until = True, None, None

    @rule(
        number=JOBS, name=st.sampled_from(("a", "b", "a", "b", None)), is_topic=st.booleans(), after=st.sampled_from((0, 0, 1, 3)),
        seconds=st.sampled_from((None, 10.0)),
    )  # fmt: skip
    def wait(self, number: int, name: str | None, is_topic: bool, after: int, seconds: float | None) -> None:
        job = self._running(number)
        if job is None:
            return
        wanted = None if name is None else AwaitMessage(None if is_topic else name, after, name if is_topic else None)
        until = None if seconds is None else self.queue.after(seconds)
        receipt = self.rig.run(self.queue.do(release(job.leases[-1], message=wanted, run_at=until)))
        job.is_running = False
        if wanted is None:  # a plain release, due now or at that time: modeled as a wait for nothing
            job.wait, job.until = (None, None) if until is None else (AwaitMessage("never"), until)
        elif job.has_arrived(wanted):
            job.wait = None
        else:
            job.wait, job.until = wanted, until
            had = {(one[0], one[2]) for one in job.inbox}
            kept = [
                (at, id, payload) for (topic, id), (payload, _, at, expires) in self.topics.items()
                if topic == wanted.topic and expires > self.now and (id, topic) not in had
            ]  # fmt: skip
            for _, id, payload in sorted(kept, key=lambda one: one[:2]):
                job.receive((id, None, wanted.topic, payload), self.now)
        assert receipt.attempt == job.leases[-1].attempt

    @rule(number=JOBS, topic=NAMES, id=IDS, seconds=st.sampled_from((0.0, 5.0, 20.0)))
    def publish_before_the_wait(self, number: int, topic: str, id: str, seconds: float) -> None:
        self.publish(topic, id, None, 20.0)
        self.rig.clock.advance(seconds)
        self.wait(number, topic, True, 0, None)

    @rule(seconds=st.sampled_from((5.0, 10.0)))
    def pass_time(self, seconds: float) -> None:
        self.rig.clock.advance(seconds)

    @rule(number=JOBS)
    def lose_lease(self, number: int) -> None:
        if self.jobs[number].is_running:
            self.rig.run(self.queue.do(revoke(self.jobs[number].id)))
            self.jobs[number].is_running = False

    @rule(number=JOBS, by=st.sampled_from(("worker", "operator")))
    def end(self, number: int, by: str) -> None:
        job = self.jobs[number]
        if job.is_running != (by == "worker"):
            return
        self.rig.run(self.queue.do(complete(job.leases[-1]) if by == "worker" else cancel(job.id)))
        job.is_running, job.is_terminal = False, True
        self.jobs.remove(job)
        self.ended.append(job)
        self._add()

    @rule(number=JOBS, old=st.booleans(), name=NAMES, shift=st.sampled_from((0, 0, 0, -1, -2, 1)),
          chunks=st.lists(st.sampled_from((b"x", b"y")), min_size=1, max_size=3))  # fmt: skip
    def append(self, number: int, old: bool, name: str, shift: int, chunks: list[bytes]) -> None:
        job, lease = self._leased(number, old=old)
        stored = job.streams.get(name, [])
        offset = max(0, len(stored) + shift)
        order = Append(*held(lease), name, offset, tuple(NewChunk(chunk, True) for chunk in chunks))
        answer = self.rig.run(self.rig.store.streams.append(self.tenant, order, limit=BIG))
        given = [(lease.fence, chunk) for chunk in chunks]
        if not job.is_running or lease is not job.leases[-1]:
            assert isinstance(answer, Rejected)
        elif offset == len(stored):
            job.streams[name] = [*stored, *given]
            assert answer == offset + len(chunks)
        elif stored[offset : offset + len(chunks)] == given:
            assert answer == offset + len(chunks)
        else:
            rejected_as(answer, StreamConflict)

    @rule(number=JOBS, old=st.booleans(), name=NAMES)
    def begin_effect(self, number: int, old: bool, name: str) -> None:
        job, lease = self._leased(number, old=old)
        answer = self.rig.run(self.rig.store.effects.begin(self.tenant, BeginEffect(*held(lease), name, 1, "key")))
        if not job.is_running or lease is not job.leases[-1]:
            assert isinstance(answer, Rejected)
            return
        known = job.effects.get(name, (EffectState.NOT_DONE, None))
        is_new = known[0] is EffectState.NOT_DONE
        state, result = (EffectState.STARTED, None) if is_new else known
        assert isinstance(answer, Begun)
        assert (answer.is_new, answer.effect.state, answer.effect.result) == (is_new, state, result)
        job.effects[name] = (state, result)

    @rule(number=JOBS, old=st.booleans(), name=NAMES, state=DONE, result=VALUES)
    def settle_effect(self, number: int, old: bool, name: str, state: EffectState, result: str | None) -> None:
        job, lease = self._leased(number, old=old)
        outcome = (state, result if state is EffectState.DONE else None)
        answer = self.rig.run(self.rig.store.effects.settle(self.tenant, SettleEffect(*held(lease), name, 1, *outcome)))
        known = job.effects.get(name)
        if not job.is_running or lease is not job.leases[-1]:
            assert isinstance(answer, Rejected)
        elif known is None:
            rejected_as(answer, NotFound)
        elif known in (outcome, (EffectState.STARTED, None)):
            assert isinstance(answer, Effect)
            assert (answer.state, answer.result) == outcome
            job.effects[name] = outcome
        else:
            rejected_as(answer, EffectConflict)

    @rule()
    def restart(self) -> None:
        self.rig.restart()

    @invariant()
    def everything_is_as_foretold(self) -> None:
        for job in (*self.jobs, *self.ended):
            self.rig.run(self._compare(job))

    async def _compare(self, job: Life) -> None:
        store, tenant = self.rig.store, self.tenant
        inbox = await store.messages.of_job(tenant, job.id, limit=200)
        assert [one.seq for one in inbox] == [*range(1, len(inbox) + 1)]
        assert [(one.id, one.name, one.topic, one.payload) for one in inbox] == job.inbox
        streams = {one.name: one.chunks for one in await store.streams.of_job(tenant, job.id)}
        assert streams == {name: len(chunks) for name, chunks in job.streams.items()}
        for name, expected in job.streams.items():
            chunks = await store.streams.chunks(tenant, job.id, name, after=-1, limit=200)
            assert [(one.offset, one.fence, one.data) for one in chunks] == [
                (i, *one) for i, one in enumerate(expected)
            ]
        effects = {one.name: (one.state, one.result) for one in await store.effects.of_job(tenant, job.id, limit=200)}
        assert effects == job.effects
        seen = await self.queue.job(job.id)
        assert seen.finished_at is not None if job.is_terminal else seen.finished_at is None
        assert seen.releases <= len(job.leases)

    def teardown(self) -> None:
        if self.jobs:
            self.rig.check_invariants(self.tenant)


def held(lease: Job) -> tuple[str, int, str]:
    return lease.id, lease.fence, lease.worker or ""


def rejected_as(answer: Any, kind: type[Exception]) -> None:
    assert isinstance(answer, Rejected), answer
    assert isinstance(answer.error, kind), answer.error


@pytest.fixture
def rig(engine: str, postgres: Postgres) -> Iterator[Rig]:
    with asyncio.Runner() as runner, open_rig(engine, postgres, runner, ManualClock()) as opened:
        yield opened


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_both_engines_do_what_the_model_does(rig: Rig) -> None:
    run_state_machine_as_test(lambda: Verbs(rig), settings=examples(500, 15, steps=rig.steps))  # type: ignore[arg-type]
