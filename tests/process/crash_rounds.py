"""A process that leads jobs through gates without end, telling before and after each call what it does and what it got;
and the book in which that is kept, to be compared with the store afterwards."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from hashlib import sha256
from multiprocessing.connection import Connection
from typing import Any, Final

from interlock.domain.approval import Approval, Ballot, Decision, GateFilter, GateStatus, Mint, OpenGate
from interlock.domain.decide import Cancel, Complete, Expire
from interlock.domain.job import Checkpoint, HistoryRow, Job, NewJob, Receipt
from interlock.domain.lifecycle import TERMINAL, Status, Verb
from interlock.domain.policy import ClaimAsk
from interlock.domain.webhook import DeliveryFilter, NewSubscription
from interlock.storage.contract import Store
from tests.process.acts import TENANT, said
from tests.process.conftest import Judge, new_id
from tests.support.workers import Place, until

VERBS: Final = ("open", "mint", "decide", "resume", "expire", "void")
LEASE_SECONDS: Final = 3.0  # time enough to open a gate on a slow disk
DECIDED: Final = {GateStatus.APPROVED: Decision.APPROVE, GateStatus.DENIED: Decision.DENY}
CLOSING: Final = {GateStatus.EXPIRED: Verb.EXPIRE, GateStatus.VOID: Verb.CANCEL}
LAST: Final = ("user:last", Decision.APPROVE)

Tell = Callable[[str, str, Any], None]


class Rounds:
    """Jobs that ask, people that answer in different ways, and jobs that go on."""

    def __init__(self, store: Store, worker: int, tell: Tell) -> None:
        self.store, self.worker, self.tell = store, worker, tell
        self.dice = random.Random()
        self.numbers = itertools.count(1)

    async def go(self) -> None:
        while True:
            id = self._id("0000")
            await self._call("enqueue", id, self.store.enqueue(TENANT, [NewJob(id, "t", max_attempts=20)]))
            ask = ClaimAsk(f"w{self.worker}", limit=2, lease_seconds=LEASE_SECONDS)
            for job in await self._call("claim", None, self.store.claim(TENANT, ask)):
                await self._work(job, ask.worker)
            for gate in await self.store.find_approvals(TENANT, GateFilter(status=GateStatus.OPEN, limit=3)):
                await self.dice.choice((self._by_link, self._by_rivals, self._void))(gate)
            for tenant, job_id in await self.store.due_gates(5):
                await self._call("expire", job_id, self.store.carry_out(tenant, [Expire(job_id)]))

    async def _work(self, job: Job, worker: str) -> None:
        """A job that was decided about is finished, any other asks."""
        grant = (job.id, job.fence, worker)
        if job.id in await self.store.decisions(TENANT, [job.id]):
            await self._call("resume", grant, self.store.carry_out(TENANT, [Complete(*grant, '"done"')]))
            return
        gate_id, seconds = self._id("9a7e"), self.dice.choice((0.02, 3600.0))
        saved = Checkpoint(*grant, job.fence, f'"{gate_id}"')
        order = OpenGate(
            *grant, gate_id, "Go on?", expires_in_seconds=seconds, opened_by="token:agent", checkpoint=saved
        )
        await self._call("open", (job.id, gate_id), self.store.carry_out(TENANT, [order]))

    async def _by_link(self, gate: Approval) -> None:
        token = sha256(self._id("1117").encode()).digest()
        await self._call("mint", (gate.id, token), self.store.mint(TENANT, [Mint(gate.id, "user:ann", token)]))
        ballot = Ballot(gate.id, "bearer:user:ann", self.dice.choice(tuple(Decision)), token_sha256=token)
        await self._call("decide", [ballot], self.store.decide(TENANT, [ballot]))

    async def _by_rivals(self, gate: Approval) -> None:
        """Two who want the opposite, at the same moment."""
        ballots = [Ballot(gate.id, f"user:{w}{self.worker}", Decision(w)) for w in ("approve", "deny")]
        both = asyncio.gather(*(self.store.decide(TENANT, [ballot]) for ballot in ballots))
        self.tell("before", "decide", ballots)
        self.tell("after", "decide", (ballots, [said(answer)[0] for answer in await both]))

    async def _void(self, gate: Approval) -> None:
        await self._call("void", gate.job_id, self.store.carry_out(TENANT, [Cancel(gate.job_id, "user:ann")]))

    async def _call(self, verb: str, facts: Any, call: Awaitable[Any]) -> Any:
        self.tell("before", verb, facts)
        answer = await call
        self.tell("after", verb, (facts, said(answer)))
        return answer

    def _id(self, mark: str) -> str:
        return f"{self.worker:08x}-{mark}-7000-8000-{next(self.numbers):012x}"


def rounds_in_a_process(pipe: Connection, place: Place, worker: int) -> None:
    """Open the store, wait for the word, and go."""

    async def work() -> None:
        store = await place.open(size=2)
        pipe.send(None)
        pipe.recv()
        await Rounds(store, worker, lambda *told: pipe.send(told)).go()

    asyncio.run(work())


class Ledger:
    """What was acknowledged, and what may have happened besides."""

    def __init__(self) -> None:
        self.enqueued: set[str] = set()
        self.opened: set[str] = set()
        self.tokens: dict[str, set[bytes]] = defaultdict(set)
        self.linked: set[str] = set()
        self.tried: dict[str, set[tuple[str, Decision]]] = defaultdict(set)
        self.deciders: dict[str, set[str]] = defaultdict(set)
        self.ended: set[str] = set()
        self.answers = 0

    def note(self, when: str, verb: str, facts: Any) -> None:
        match when, verb:
            case "before", "mint":
                self.tokens[facts[0]].add(facts[1])
            case "before", "decide":
                for ballot in facts:
                    self.tried[ballot.id].add((ballot.actor, ballot.decision))
            case "after", _:
                self.answers += 1
                self._answered(verb, *facts)

    def _answered(self, verb: str, facts: Any, answers: list[Any]) -> None:
        match verb:
            case "enqueue":
                self.enqueued.add(facts)
            case "open":
                if isinstance(answers[0], Receipt):
                    self.opened.add(facts[1])
            case "mint":
                if isinstance(answers[0], Approval):
                    self.linked.add(facts[0])
            case "decide":
                for ballot, answer in zip(facts, answers, strict=True):
                    if isinstance(answer, Approval):
                        assert DECIDED[answer.status] == ballot.decision
                        self.deciders[ballot.id].add(ballot.actor)
            case "resume" | "void":
                if isinstance(answers[0], Receipt):
                    self.ended.add(answers[0].id)

    async def compare(self, judge: Judge) -> Counter[str]:
        """Every gate was closed at most once and by one cause, and what was acknowledged is there."""
        jobs = {job.id: job for job in await judge.everything()}
        assert self.enqueued <= jobs.keys(), "lost jobs"
        gates = await all_gates(judge.store)
        assert self.opened <= gates.keys(), "lost gates"
        assert all(jobs[id].status in TERMINAL for id in self.ended)
        of_job: dict[str, list[Approval]] = defaultdict(list)
        for gate in gates.values():
            of_job[gate.job_id].append(gate)
            self._check_gate(gate)
        (full,) = [await judge.store.get(TENANT, list(jobs))]
        for job in full:
            assert job is not None
            check_job(job, of_job[job.id], await judge.store.history(TENANT, job.id))
        assert await announced(judge.store) == Counter(
            (gate.job_id, event)
            for gate in gates.values()
            for event in ("approval.requested", "approval.decided")
            if event == "approval.requested" or gate.status in DECIDED
        )
        await judge.check(integrity=True)
        return Counter(str(gate.status) for gate in gates.values())

    def _check_gate(self, gate: Approval) -> None:
        assert (gate.token_sha256 is not None) or gate.id not in self.linked, "a link was lost"
        assert gate.token_sha256 is None or gate.token_sha256 in self.tokens[gate.id], "a link nobody asked for"
        wanted = DECIDED.get(gate.status)
        assert [vote.decision for vote in gate.votes] == ([] if wanted is None else [wanted])
        assert {(vote.voter, vote.decision) for vote in gate.votes} <= {*self.tried[gate.id], LAST}
        assert self.deciders[gate.id] <= {vote.voter for vote in gate.votes}, "a decision was acknowledged and lost"


def check_job(job: Job, gates: list[Approval], rows: list[HistoryRow]) -> None:
    """One row of history opened each gate and one closed it; its checkpoint came with it."""
    opened = {gate_of(row): row for row in rows if row.verb == Verb.OPEN_GATE}
    assert opened.keys() == {gate.id for gate in gates}
    assert sum(row.verb == Verb.OPEN_GATE for row in rows) == len(gates)
    decided = [gate_of(row) for row in rows if row.verb == Verb.DECIDE]
    assert sorted(decided) == sorted(gate.id for gate in gates if gate.status in DECIDED), "decided twice, or never"
    newest = max(opened.values(), key=lambda row: row.version, default=None)
    assert job.checkpoint_seq == (None if newest is None else newest.fence)
    for gate in gates:
        closed = next((row for row in rows if row.version == opened[gate.id].version + 1), None)
        assert (closed is None) == (gate.status is GateStatus.OPEN) == (job.gate_id == gate.id)
        if closed is not None:
            assert closed.from_status is Status.WAITING_FOR_APPROVAL
            assert closed.verb is CLOSING.get(gate.status, Verb.DECIDE)


def gate_of(row: HistoryRow) -> str:
    return str(json.loads(row.metadata or "{}")["gate_id"])


async def all_gates(store: Store) -> dict[str, Approval]:
    found: dict[str, Approval] = {}
    before = None
    while page := await store.find_approvals(TENANT, GateFilter(before=before, limit=200)):
        found |= {gate.id: gate for gate in page}
        before = (page[-1].opened_at, page[-1].id)
    return found


async def listen(store: Store) -> None:
    """Somebody wants to be told of every gate."""
    secret = "whsec_" + "c2VjcmV0" * 4
    new = NewSubscription(new_id(), "https://hooks.example/", ("approval.requested", "approval.decided"), secret)
    await store.outbox.subscribe(TENANT, new)


async def announced(store: Store) -> Counter[tuple[str, str]]:
    """What is in the outbox, where nobody sends it."""
    told: Counter[tuple[str, str]] = Counter()
    before = None
    while page := await store.outbox.deliveries(TENANT, DeliveryFilter(before=before, limit=200)):
        told.update((delivery.job_id or "", delivery.event) for delivery in page)
        before = page[-1].id
    return told


async def finish_what_is_left(judge: Judge) -> Counter[str]:
    """Everything that waits is approved or expires, and everything that was decided is done by somebody else."""

    async def all_ended() -> bool:
        for tenant, job_id in await judge.store.due_gates(100):
            await judge.store.carry_out(tenant, [Expire(job_id)])
        waiting = await judge.store.find_approvals(TENANT, GateFilter(status=GateStatus.OPEN, limit=100))
        await judge.store.decide(TENANT, [Ballot(gate.id, *LAST) for gate in waiting])
        left = await judge.store.claim(TENANT, ClaimAsk("last", limit=100))
        await judge.store.carry_out(TENANT, [Complete(job.id, job.fence, "last") for job in left])
        return not left and not waiting and all(job.status in TERMINAL for job in await judge.everything())

    await until(all_ended, "every job has ended")
    return Counter(str(job.status) for job in await judge.everything())
