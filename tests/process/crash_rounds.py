"""A process that runs jobs with approvals without end, reporting each call before it and its result after it;
and the book in which that is kept, to be compared with the store afterwards."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from hashlib import sha256
from multiprocessing.connection import Connection
from typing import Any, Final

from interlock.domain.approval import (
    Approval,
    ApprovalFilter,
    ApprovalStatus,
    CastVote,
    CreateApprovalLink,
    Decision,
    RequestApproval,
)
from interlock.domain.decide import CancelJob, CompleteJob, ExpireLease
from interlock.domain.job import Checkpoint, HistoryRow, Job, NewJob, Receipt
from interlock.domain.lifecycle import TERMINAL, Status, Verb
from interlock.domain.policy import ClaimFilter
from interlock.domain.webhook import DeliveryFilter, NewSubscription
from interlock.storage.contract import Store
from tests.process.actions import TENANT, given
from tests.process.conftest import Checker, new_id
from tests.support.forms import chance
from tests.support.workers import Place, until

VERBS: Final = ("open", "mint", "decide", "resume", "expire", "void")
LEASE_SECONDS: Final = 3.0  # time enough to request an approval on a slow disk
DECIDED: Final = {ApprovalStatus.APPROVED: Decision.APPROVE, ApprovalStatus.DENIED: Decision.DENY}
CLOSING: Final = {ApprovalStatus.EXPIRED: Verb.EXPIRE, ApprovalStatus.VOID: Verb.CANCEL}
LAST: Final = ("user:last", Decision.APPROVE)

Recorder = Callable[[str, str, Any], None]


class Rounds:
    """Jobs that request approvals, approvers that decide in different ways, and jobs that resume."""

    def __init__(self, store: Store, worker: int, record: Recorder) -> None:
        self.store, self.worker, self.record = store, worker, record
        self.dice = chance(worker)
        self.numbers = itertools.count(1)

    async def go(self) -> None:
        while True:
            id = self._id("0000")
            await self._call("enqueue", id, self.store.enqueue(TENANT, [NewJob(id, "t", max_attempts=20)]))
            ask = ClaimFilter(f"w{self.worker}", limit=2, lease_seconds=LEASE_SECONDS)
            for job in await self._call("claim", None, self.store.claim(TENANT, ask)):
                await self._work(job, ask.worker)
            for approval in await self.store.approvals.find(
                TENANT, ApprovalFilter(status=ApprovalStatus.OPEN, limit=3)
            ):
                await self.dice.choice((self._by_link, self._by_rivals, self._void))(approval)
            for tenant, job_id in await self.store.approvals.due(5):
                await self._call("expire", job_id, self.store.carry_out(tenant, [ExpireLease(job_id)]))

    async def _work(self, job: Job, worker: str) -> None:
        """A job that was decided about is finished, any other asks."""
        lease = (job.id, job.fence, worker)
        if job.id in await self.store.approvals.decisions(TENANT, [job.id]):
            await self._call("resume", lease, self.store.carry_out(TENANT, [CompleteJob(*lease, '"done"')]))
            return
        approval_id, seconds = self._id("9a7e"), self.dice.choice((0.02, 3600.0))
        saved = Checkpoint(*lease, job.fence, f'"{approval_id}"')
        order = RequestApproval(
            *lease, approval_id, "Go on?", expires_in_seconds=seconds, opened_by="token:agent", checkpoint=saved
        )
        await self._call("open", (job.id, approval_id), self.store.carry_out(TENANT, [order]))

    async def _by_link(self, approval: Approval) -> None:
        token = sha256(self._id("1117").encode()).digest()
        await self._call(
            "mint",
            (approval.id, token),
            self.store.approvals.create_link(TENANT, [CreateApprovalLink(approval.id, "user:ann", token)]),
        )
        command = CastVote(approval.id, "bearer:user:ann", self.dice.choice(tuple(Decision)), token_sha256=token)
        await self._call("decide", [command], self.store.approvals.decide(TENANT, [command]))

    async def _by_rivals(self, approval: Approval) -> None:
        """Two who want the opposite, at the same moment."""
        commands = [CastVote(approval.id, f"user:{w}{self.worker}", Decision(w)) for w in ("approve", "deny")]
        both = asyncio.gather(*(self.store.approvals.decide(TENANT, [command]) for command in commands))
        self.record("before", "decide", commands)
        self.record("after", "decide", (commands, [given(answer)[0] for answer in await both]))

    async def _void(self, approval: Approval) -> None:
        await self._call(
            "void", approval.job_id, self.store.carry_out(TENANT, [CancelJob(approval.job_id, "user:ann")])
        )

    async def _call(self, verb: str, facts: Any, call: Awaitable[Any]) -> Any:
        self.record("before", verb, facts)
        answer = await call
        self.record("after", verb, (facts, given(answer)))
        return answer

    def _id(self, mark: str) -> str:
        return f"{self.worker:08x}-{mark}-7000-8000-{next(self.numbers):012x}"


def rounds_in_a_process(pipe: Connection, place: Place, worker: int) -> None:
    """Open the store, wait for the word, and go."""

    async def work() -> None:
        store = await place.open(size=2)
        pipe.send(None)
        pipe.recv()
        await Rounds(store, worker, lambda *reported: pipe.send(reported)).go()

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
                for command in facts:
                    self.tried[command.id].add((command.actor, command.decision))
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
                for command, answer in zip(facts, answers, strict=True):
                    if isinstance(answer, Approval):
                        assert DECIDED[answer.status] == command.decision
                        self.deciders[command.id].add(command.actor)
            case "resume" | "void":
                if isinstance(answers[0], Receipt):
                    self.ended.add(answers[0].id)

    async def compare(self, checker: Checker) -> Counter[str]:
        """Every approval was closed at most once and by one cause, and everything acknowledged exists."""
        jobs = {job.id: job for job in await checker.everything()}
        assert self.enqueued <= jobs.keys(), "lost jobs"
        approvals = await all_approvals(checker.store)
        assert self.opened <= approvals.keys(), "lost approvals"
        assert all(jobs[id].status in TERMINAL for id in self.ended)
        of_job: dict[str, list[Approval]] = defaultdict(list)
        for approval in approvals.values():
            of_job[approval.job_id].append(approval)
            self._check_approval(approval)
        (full,) = [await checker.store.get(TENANT, list(jobs))]
        for job in full:
            assert job is not None
            check_job(job, of_job[job.id], await checker.store.history(TENANT, job.id))
        assert await announced(checker.store) == Counter(
            (approval.job_id, event)
            for approval in approvals.values()
            for event in ("approval.requested", "approval.decided")
            if event == "approval.requested" or approval.status in DECIDED
        )
        await checker.check(integrity=True)
        return Counter(str(approval.status) for approval in approvals.values())

    def _check_approval(self, approval: Approval) -> None:
        assert (approval.token_sha256 is not None) or approval.id not in self.linked, "a link was lost"
        assert approval.token_sha256 is None or approval.token_sha256 in self.tokens[approval.id], "an unrequested link"
        wanted = DECIDED.get(approval.status)
        assert [vote.decision for vote in approval.votes] == ([] if wanted is None else [wanted])
        assert {(vote.voter, vote.decision) for vote in approval.votes} <= {*self.tried[approval.id], LAST}
        assert self.deciders[approval.id] <= {vote.voter for vote in approval.votes}, (
            "a decision was acknowledged and lost"
        )


def check_job(job: Job, approvals: list[Approval], rows: list[HistoryRow]) -> None:
    """One row of history requested each approval and one closed it; its checkpoint came with it."""
    opened = {approval_of(row): row for row in rows if row.verb == Verb.REQUEST_APPROVAL}
    assert opened.keys() == {approval.id for approval in approvals}
    assert sum(row.verb == Verb.REQUEST_APPROVAL for row in rows) == len(approvals)
    decided = [approval_of(row) for row in rows if row.verb == Verb.DECIDE]
    assert sorted(decided) == sorted(approval.id for approval in approvals if approval.status in DECIDED), (
        "decided twice, or never"
    )
    newest = max(opened.values(), key=lambda row: row.version, default=None)
    assert job.checkpoint_seq == (None if newest is None else newest.fence)
    for approval in approvals:
        closed = next((row for row in rows if row.version == opened[approval.id].version + 1), None)
        assert (closed is None) == (approval.status is ApprovalStatus.OPEN) == (job.approval_id == approval.id)
        if closed is not None:
            assert closed.from_status is Status.WAITING_FOR_APPROVAL
            assert closed.verb is CLOSING.get(approval.status, Verb.DECIDE)


def approval_of(row: HistoryRow) -> str:
    return str(json.loads(row.metadata or "{}")["approval_id"])


async def all_approvals(store: Store) -> dict[str, Approval]:
    found: dict[str, Approval] = {}
    before = None
    while page := await store.approvals.find(TENANT, ApprovalFilter(before=before, limit=200)):
        found |= {approval.id: approval for approval in page}
        before = (page[-1].opened_at, page[-1].id)
    return found


async def listen(store: Store) -> None:
    """A subscription to all events of approvals."""
    secret = "whsec_" + "c2VjcmV0" * 4
    new = NewSubscription(new_id(), "https://hooks.example/", ("approval.requested", "approval.decided"), secret)
    await store.outbox.subscribe(TENANT, new)


async def announced(store: Store) -> Counter[tuple[str, str]]:
    """The contents of the outbox, where no process sends them."""
    reported: Counter[tuple[str, str]] = Counter()
    before = None
    while page := await store.outbox.deliveries(TENANT, DeliveryFilter(before=before, limit=200)):
        reported.update((delivery.job_id or "", delivery.event) for delivery in page)
        before = page[-1].id
    return reported


async def finish_remaining(checker: Checker) -> Counter[str]:
    """All waiting approvals are decided or expire, and another worker finishes the resumed jobs."""

    async def all_ended() -> bool:
        for tenant, job_id in await checker.store.approvals.due(100):
            await checker.store.carry_out(tenant, [ExpireLease(job_id)])
        waiting = await checker.store.approvals.find(TENANT, ApprovalFilter(status=ApprovalStatus.OPEN, limit=100))
        await checker.store.approvals.decide(TENANT, [CastVote(approval.id, *LAST) for approval in waiting])
        left = await checker.store.claim(TENANT, ClaimFilter("last", limit=100))
        await checker.store.carry_out(TENANT, [CompleteJob(job.id, job.fence, "last") for job in left])
        return not left and not waiting and all(job.status in TERMINAL for job in await checker.everything())

    await until(all_ended, "every job has ended")
    return Counter(str(job.status) for job in await checker.everything())
