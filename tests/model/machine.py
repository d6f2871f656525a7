"""What the rules of the state machine are made of: every call goes to the store and to the model, and answers must be equal."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final

from hypothesis.stateful import RuleBasedStateMachine

from interlock.domain.approval import CastVote, CreateApprovalLink, RequestApproval
from interlock.domain.decide import CancelJob, Command, CompleteJob, EnforceDeadline, ExpireLease
from interlock.domain.job import Checkpoint, Enqueued, Filter, Heartbeat, Job, NewJob, Receipt, Rejected
from interlock.domain.lifecycle import Status
from interlock.domain.policy import ClaimFilter
from interlock.domain.progress import Report, Step
from interlock.domain.registry import Agent
from interlock.storage.contract import Store
from tests.model.concurrency import Limit
from tests.model.draws import CAPABILITIES, Draft
from tests.model.job_model import ENDED, SECOND, WAITING, JobModel, Replay, by_seq, plain, plain_line
from tests.model.model import Model
from tests.model.readers import Reader
from tests.model.rig import Rig
from tests.model.words import LeaseRef, Pick, PlannedCall
from tests.support.invariants import check_history
from tests.support.stores import START

UNKNOWN: Final = "ffffffff-0000-7000-8000-000000000000"
UNKNOWN_LEASE: Final = LeaseRef(UNKNOWN, 1, "w1")
FAR: Final = 40 * 86_400.0
FEED_SECONDS: Final = 120.0
COUNTED: Final = (
    "ready", "delayed", "blocked", "in_progress", "waiting_for_approval", "dead_letter", "succeeded", "failed", "cancelled",
)  # fmt: skip
_numbers = itertools.count(1)


def unordered_id(mark: str) -> str:
    number = next(_numbers)
    return f"{number * 2_654_435_761 % (1 << 32):08x}-{mark}-7000-8000-{number:012x}"


class Script(RuleBasedStateMachine):
    """The operations, each called on both; and what must hold at the end."""

    def __init__(self, rig: Rig) -> None:
        super().__init__()
        self.rig, self.clock = rig, rig.clock
        self.clock.now = START
        self.tenant = rig.new_tenant()
        self.model = Model(self.tenant)
        self.leases: list[LeaseRef] = []
        self.last_orders: list[Command] = []
        self.last_heartbeats: list[Heartbeat] = []
        self.last_checkpoints: list[Checkpoint] = []
        self.last_reports: list[Report] = []
        self.readers = [Reader()]
        self.links: list[tuple[str, bytes]] = []
        self.step = 0
        self.unseen = False
        self.stepped_back = False

    @property
    def store(self) -> Store:
        """Another one after every restart."""
        return self.rig.store

    # Whom and what the words are about.

    def lease_ref(self, pick: Pick) -> LeaseRef:
        is_over = pick.kind == "over"
        those = [
            lease_ref
            for lease_ref in self.leases
            if self.model.jobs[lease_ref.id].leased_by(lease_ref.fence, lease_ref.worker) != is_over
        ]
        those = those or self.leases
        if pick.kind == "unknown" or not those:
            return UNKNOWN_LEASE
        lease_ref = those[pick.number % len(those)]
        if pick.kind == "other worker":
            return lease_ref._replace(worker="w1" if lease_ref.worker == "w2" else "w2")
        return lease_ref._replace(fence=lease_ref.fence + {"older fence": -1, "newer fence": 1}.get(pick.kind, 0))

    def job(self, pick: Pick) -> str:
        statuses = {
            "running": (Status.RUNNING,),
            "waiting": WAITING,
            "asking": (Status.WAITING_FOR_APPROVAL,),
            "failed": (Status.FAILED, Status.DEAD_LETTER),
            "any": tuple(Status),
            "unknown": (),
        }[pick.kind]
        those = [life.id for life in by_seq(self.model.jobs.values()) if life.status in statuses]
        return those[pick.number % len(those)] if those else UNKNOWN

    def approval(self, number: int) -> str:
        """Mostly one of the newest."""
        approvals = list(self.model.approvals)
        return approvals[-1 - number % len(approvals)] if approvals else UNKNOWN

    def planned_call(self, words: PlannedCall) -> Any:
        return words.make(self.lease_ref(words.pick) if words.of_a_lease else self.job(words.pick), *words.rest)

    # The calls.

    def _new_job(self, draft: Draft, parent_id: str | None = None) -> NewJob:
        now = self.clock.now
        run_in = draft.run_in if draft.base.delay_seconds is None else None
        return draft.base._replace(
            id=unordered_id("0000"),
            run_at=None if run_in is None else now + round(run_in * SECOND),
            deadline=None if draft.deadline_in is None else now + round(draft.deadline_in * SECOND),
            parent_id=self.job(draft.parent) if draft.parent is not None else parent_id,
            agent_kind=None if draft.agent is None else "bot",
            agent_id=draft.agent,
        )

    def _enqueue(self, batch: list[NewJob], whole: bool) -> None:
        answers = self.rig.run(self.store.enqueue(self.tenant, batch, whole=whole))
        expected = self.model.enqueue(batch, self.clock.now, whole=whole)
        self.unseen = True
        assert len(answers) == len(batch)
        refused = [code(answer) if isinstance(answer, Rejected) else None for answer in answers]
        assert refused == [answer if isinstance(answer, str) else None for answer in expected]
        self.rig.seen.update(f"enqueue: {each}" for each in refused if each)
        if whole and any(refused):
            return
        for answer, foretold in zip(answers, expected, strict=True):
            if isinstance(foretold, Replay):
                assert answer == Enqueued(foretold.id, self.model.jobs[foretold.id].seq, True)
            elif isinstance(foretold, JobModel):
                assert isinstance(answer, Enqueued)
                assert (answer.id, answer.replayed) == (foretold.id, False)
                assert answer.seq > max((life.seq for life in self.model.jobs.values()), default=0)
                foretold.seq = answer.seq

    def _claim(self, ask: ClaimFilter) -> list[LeaseRef]:
        fresh = {life.id for life in self.model.jobs.values() if life.started_at is None}
        leased = self.rig.run(self.store.claim(self.tenant, ask))
        expected = self.model.claim(ask, self.clock.now)
        self.unseen = True
        assert [job.id for job in leased] == [life.id for life in expected]
        self._compare(leased, expected)
        self._check_lines([job for job in leased if job.id in fresh])
        lease_ref = [LeaseRef(job.id, job.fence, ask.worker) for job in leased]
        self.leases += [each for each in lease_ref if each not in self.leases]
        return lease_ref

    def _heartbeat(self, heartbeats: list[Heartbeat]) -> None:
        answers = [code(answer) for answer in self.rig.run(self.store.heartbeat(self.tenant, heartbeats))]
        assert answers == self.model.heartbeat(heartbeats, self.clock.now)
        self.rig.seen.update(f"heartbeat: {answer}" for answer in answers if isinstance(answer, str))
        self.last_heartbeats = heartbeats
        self.unseen = True

    def _checkpoint(self, checkpoints: list[Checkpoint]) -> None:
        answers = [code(answer) for answer in self.rig.run(self.store.checkpoint(self.tenant, checkpoints))]
        assert answers == self.model.checkpoint(checkpoints, self.clock.now)
        self.rig.seen.update(f"checkpoint: {answer}" for answer in answers if isinstance(answer, str))
        self.last_checkpoints = checkpoints
        self.unseen = True

    def _append_events(self, reports: list[Report]) -> None:
        answers = [code(answer) for answer in self.rig.run(self.store.add_events(self.tenant, reports))]
        assert answers == self.model.append_events(reports, self.clock.now)
        self.rig.seen.update(f"append_events: {answer}" for answer in answers if isinstance(answer, str))
        self.last_reports = reports

    def _save_steps(self, steps: list[Step]) -> None:
        answers = [code(answer) for answer in self.rig.run(self.store.save_steps(self.tenant, steps))]
        assert answers == self.model.save(steps, self.clock.now)
        self.rig.seen.update(f"step: {answer}" for answer in answers if isinstance(answer, str))

    def _read_on(self, reader: Reader, limit: int) -> None:
        reader.go_on(self.rig.run(self.store.feed(self.tenant, reader.place, limit=limit)))

    def _carry_out(self, orders: list[Command]) -> None:
        answers = self.rig.run(self.store.carry_out(self.tenant, orders))
        chosen = [answer.run_at if isinstance(answer, Receipt) else None for answer in answers]
        assert [code(answer) for answer in answers] == self.model.carry_out(orders, self.clock.now, chosen)
        for order, answer in zip(orders, answers, strict=True):
            self.rig.seen[f"{order.verb}: {code(answer) if isinstance(answer, Rejected) else 'receipt'}"] += 1
        self.last_orders = orders
        self.unseen = True

    def _pause(self, type: str, paused: bool) -> None:
        actor = "user:ann" if paused else None
        self.rig.run(self.store.registry.pause(self.tenant, type, actor=actor, reason=None))
        (self.model.paused.add if paused else self.model.paused.discard)(type)

    def _limit(self, agent: str, limit: Limit) -> None:
        self.rig.run(self.store.registry.set_agent(self.tenant, Agent("bot", agent, limit.most, limit.strict)))
        self.model.set_limit(agent, limit)
        self.unseen = True

    def _ask(self, lease_ref: LeaseRef, asked: dict[str, Any]) -> str:
        approval_id = unordered_id("9a7e")
        self._carry_out(
            [
                RequestApproval(
                    lease_ref.id, lease_ref.fence, lease_ref.worker, approval_id, "Sure?", opened_by="token:w", **asked
                )
            ]
        )
        return approval_id

    def _decide(self, commands: list[CastVote]) -> None:
        answers = [
            answer.error.code
            if isinstance(answer, Rejected)
            else (answer.status, {vote.voter: vote.decision for vote in answer.votes})
            for answer in self.rig.run(self.store.approvals.decide(self.tenant, commands))
        ]
        assert answers == self.model.decide(commands, self.clock.now)
        self.rig.seen.update(f"decide: {answer if isinstance(answer, str) else answer[0]}" for answer in answers)
        self.unseen = True

    def _mint(self, approval_id: str) -> None:
        token = sha256(unordered_id("1117").encode()).digest()
        (answer,) = self.rig.run(
            self.store.approvals.create_link(self.tenant, [CreateApprovalLink(approval_id, "user:ann", token)])
        )
        given = answer.error.code if isinstance(answer, Rejected) else answer.status
        assert [given] == self.model.create_link([CreateApprovalLink(approval_id, "user:ann", token)], self.clock.now)
        self.rig.seen[f"mint: {given}"] += 1
        self.links.append((approval_id, token))

    def _sweep(self) -> None:
        now = self.clock.now
        late = [life.id for life in self.model.expired(now)]
        self._carry_out([ExpireLease(id) for id in self._due(self.rig.run(self.store.due_leases(10_000)), late)])
        late = [life.id for life in self.model.late(now)]
        self._carry_out([EnforceDeadline(id) for id in self._due(self.rig.run(self.store.due_deadlines(10_000)), late)])
        late = self.model.overdue_approvals(now)
        self._carry_out([ExpireLease(id) for id in self._due(self.rig.run(self.store.approvals.due(10_000)), late)])
        # A deleted claim whose jobs no longer run under it has no visible effect.
        self.rig.run(self.store.forget_claims(30.0, 10_000))

    def _due(self, found: Sequence[tuple[str, str]], foretold: list[str]) -> list[str]:
        mine = sorted(job_id for tenant, job_id in found if tenant == self.tenant)
        assert mine == sorted(foretold)
        return mine

    # What is seen.

    def _find(self, filter: Filter) -> None:
        found = self.rig.run(self.store.find(self.tenant, filter))
        assert [job.id for job in found] == self.model.find(filter)
        lives = [self.model.jobs[job.id] for job in found]
        self._compare(found, lives, without=("payload", "result", "checkpoint", "error"))

    def every_job_is_as_foretold(self) -> None:
        self.unseen = False
        lives = list(self.model.jobs.values())
        known = self.rig.run(self.store.get(self.tenant, [life.id for life in lives]))
        assert None not in known
        self._compare([job for job in known if job is not None], lives)

    def _compare(self, seen: Sequence[Job], lives: Sequence[JobModel], *, without: tuple[str, ...] = ()) -> None:
        if self.stepped_back:  # which of several times is the newest is then a matter of taste
            without += ("updated_at",)
        blocked = self.model.blocked(self.clock.now)
        for job, life in zip(seen, lives, strict=True):
            record = life.record(self.tenant)
            facts = plain(job)
            for name in without:
                assert name == "updated_at" or facts[name] is None
                del facts[name], record[name]
            assert facts == record
            assert job.location(self.clock.now) == self.model.location(life, self.clock.now, blocked)

    def _check_lines(self, started: Sequence[Job]) -> None:
        """No first start makes an agent exceed its limit; jobs that ran when the limit was lowered may continue."""
        for agent in {job.agent_id for job in started if job.agent_id is not None}:
            most = self.model.limit_of(agent).most
            assert most is None or self.model.running(agent) <= most

    def _count(self) -> None:
        reported = self.rig.run(self.store.registry.stats(self.tenant))
        counts = {q.type: {name: n for name in COUNTED if (n := getattr(q, name))} for q in reported}
        assert {type: some for type, some in counts.items() if some} == self.model.counts(self.clock.now)

    # The end: everything has a way out, and the record is whole.

    def teardown(self) -> None:
        try:
            if sys.exc_info()[0] is None:
                self.every_job_is_as_foretold()
                self.rig.check_invariants(self.tenant)
                self._count()
                self.find_everything()
                self.finish_everything()
                self.check_everything()
        finally:
            ends = [CancelJob(id, "user:end", force=True) for id in self.model.jobs]
            self.rig.run(self.store.carry_out(self.tenant, ends))

    def find_everything(self) -> None:
        self._find(Filter(limit=1000))
        live = tuple(status for status in Status if status not in ENDED)
        counts = [len(self.rig.run(self.store.find(self.tenant, Filter(some, limit=1000)))) for some in (ENDED, live)]
        assert counts[0] == sum(life.status in ENDED for life in self.model.jobs.values())
        assert sum(counts) == len(self.model.jobs)

    def finish_everything(self) -> None:
        """Long after, with nothing paused, a worker that may do anything gets all there is, and nothing stays behind."""
        for type in sorted(self.model.paused):
            self._pause(type, False)
        self.clock.advance(FAR)
        self._sweep()
        self.clock.advance(FAR)
        for _ in range(100):
            if not (batch := self._claim(greedy("last"))):
                break
            self._carry_out([CompleteJob(lease_ref.id, lease_ref.fence, lease_ref.worker, "1") for lease_ref in batch])
        left = [life.id for life in self.model.jobs.values() if life.status not in ENDED]
        assert not left, f"stuck: {left}"

    def check_everything(self) -> None:
        self.every_job_is_as_foretold()
        for job in self.rig.run(self.store.get(self.tenant, list(self.model.jobs))):
            assert job is not None
            rows = self.rig.run(self.store.history(self.tenant, job.id))
            assert [plain_line(row) for row in rows] == self.model.jobs[job.id].history
            check_history(job, rows)
            for row in rows:
                self.rig.seen[f"{row.from_status} → {row.to_status} by {row.verb}"] += 1
        for id, approval in zip(
            self.model.approvals,
            self.rig.run(self.store.approvals.get(self.tenant, list(self.model.approvals))),
            strict=True,
        ):
            assert approval is not None
            assert (approval.status, {vote.voter: vote.decision for vote in approval.votes}) == self.model.approvals[
                id
            ].reported()
        for _, token in self.links:
            found = self.rig.run(self.store.approvals.of_token(token))
            expected = self.model.approval_of_token(token)
            assert found == (None if expected is None else (self.tenant, expected))
        self.check_progress()
        self._count()
        verdict = self.rig.run(self.store.audit.verify(self.tenant))
        assert verdict == (len(self.model.jobs), sum(life.version for life in self.model.jobs.values()), None)
        self.rig.check_invariants(self.tenant)

    def check_progress(self) -> None:
        """Every step and event is there, read by job or by any reader of the feed."""
        ids = list(self.model.jobs)
        for id, kept in zip(ids, self.rig.run(self.store.steps(self.tenant, ids, limit=1000)), strict=True):
            assert kept == self.model.steps.get(id, [])
        for id, reported in self.model.events.items():
            assert self.rig.run(self.store.events(self.tenant, id, limit=1000)) == reported
        deadline = time.monotonic() + FEED_SECONDS
        for reader in self.readers:
            while not reader.has_all(self.model.events):  # a transaction elsewhere on the server may hold the feed back
                assert time.monotonic() < deadline, "the feed stands still"
                self._read_on(reader, 100)
            reader.check(self.model.events)


def greedy(worker: str) -> ClaimFilter:
    return ClaimFilter(worker, capabilities=frozenset(CAPABILITIES), affinity_keys=None, limit=100, lease_seconds=30.0)


def code(answer: Any) -> Any:
    return answer.error.code if isinstance(answer, Rejected) else answer
