"""The specification of jobs as plain Python on plain objects: no lock, no SQL, no shared code with the stores.

Time comes in as an argument. Results are those of a store, with errors as their codes. Where the rules leave room (a
delay with jitter), the model accepts the choice of the store if it is within bounds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from interlock.domain.approval import RequestApproval
from interlock.domain.decide import (
    AcknowledgeCancel,
    AcknowledgeJob,
    CancelJob,
    Command,
    CompleteJob,
    EnforceDeadline,
    ExpireLease,
    FailJob,
    Finish,
    ReleaseJob,
    RevokeLease,
)  # fmt: skip
from interlock.domain.edit import EditJob
from interlock.domain.job import Filter, NewJob, Receipt
from interlock.domain.lifecycle import Status, Verb
from interlock.domain.policy import ClaimFilter
from tests.model.approvals import ApprovalsModel
from tests.model.concurrency import Limit, SlotsModel
from tests.model.job_model import (
    ENDED,
    WAITING,
    End,
    Facts,
    HistoryLine,
    JobModel,
    Replay,
    commit_seq,
    micros,
    receipt,
    retry_delay,
)  # fmt: skip
from tests.model.messages import MessagesModel
from tests.model.progress import Progress


class Model(SlotsModel, ApprovalsModel, MessagesModel, Progress):
    """All jobs of one tenant."""

    def __init__(self, tenant: str) -> None:
        super().__init__()
        self.tenant = tenant
        self.keys: dict[str, tuple[str, bytes | None]] = {}
        self.claims: dict[tuple[str, str], list[tuple[str, int]]] = {}

    # Enqueue.

    def enqueue(self, batch: Sequence[NewJob], now: int, *, whole: bool) -> list[str | Replay | JobModel]:
        before = dict(self.jobs), dict(self.keys)
        answers = [self._enqueue(new, now) for new in batch]
        if whole and any(isinstance(answer, str) for answer in answers):
            self.jobs, self.keys = before
        return answers

    def _enqueue(self, new: NewJob, now: int) -> str | Replay | JobModel:
        key = new.idempotency_key
        if key is not None and key in self.keys:
            id, body = self.keys[key]
            return Replay(id) if body == new.body_sha256 else "idempotency_key_reuse"
        if new.parent_id is not None:
            parent = self.jobs.get(new.parent_id)
            if parent is None:
                return "invalid"
            if parent.status in ENDED or parent.cancel_requested_at is not None:
                return "parent_ended"
        life = self.jobs[new.id] = JobModel.begin(new, now)
        if key is not None:
            self.keys[key] = (new.id, new.body_sha256)
        return life

    # Claim.

    def claim(self, ask: ClaimFilter, now: int) -> list[JobModel]:
        name = (ask.worker, ask.claim_id or "")
        if ask.claim_id is not None:
            still = [
                self.jobs[id] for id, fence in self.claims.get(name, ()) if self.jobs[id].leased_by(fence, ask.worker)
            ]
            if still:
                return sorted(still, key=commit_seq)
        for life in self.expired(now):
            self._lose_lease(life, Verb.EXPIRE, "system:sweep", None, now)
        for life in self.late(now):
            if not life.awaiting and life.status in WAITING:
                self._pass_deadline(life, now)
        blocked = self.blocked(now)
        lease_seconds = ask.lease_seconds or 60.0
        best = sorted(
            (life for life in self.jobs.values() if life.id not in blocked and self._fits(life, ask, now)),
            key=commit_seq,
        )[: ask.limit]
        for life in best:
            life.fence += 1
            life.worker, life.lease_seconds = ask.worker, lease_seconds
            life.run_started_at = now
            life.started_at = life.started_at or now
            life.heartbeat_at = None
            life.lease_expires_at = min(now + micros(lease_seconds), life.run_ends_at())
            self._move(life, Status.RUNNING, Verb.CLAIM, f"worker:{ask.worker}", now)
        if ask.claim_id is not None:
            self.claims[name] = [(life.id, life.fence) for life in best]
        return best

    def _fits(self, life: JobModel, ask: ClaimFilter, now: int) -> bool:
        new = life.created
        return (
            life.status in WAITING
            and life.run_at <= now
            and not life.awaiting
            and not life.late(now)
            and new.type not in self.paused
            and (ask.types is None or new.type in ask.types)
            and set(new.requires) <= ask.capabilities
            and (ask.repositories is None or new.repository in ask.repositories)
            and (new.affinity_key is None or ask.affinity_keys is None or new.affinity_key in ask.affinity_keys)
        )

    # The clock.

    def expired(self, now: int) -> list[JobModel]:
        return [job for job in self.jobs.values() if job.lease_expires_at is not None and job.lease_expires_at <= now]

    def late(self, now: int) -> list[JobModel]:
        asleep = (*WAITING, Status.WAITING_FOR_APPROVAL)
        return [job for job in self.jobs.values() if job.status in asleep and job.late(now)]

    # Everything that has a choice in it.

    def carry_out(self, orders: Sequence[Command], now: int, chosen: Sequence[int | None]) -> list[Receipt | str]:
        """The answers; chosen are the times the store gave, taken over where the rules leave room."""
        return [self._carry_out(order, now, at) for order, at in zip(orders, chosen, strict=True)]

    def _carry_out(self, order: Command, now: int, chosen: int | None) -> Receipt | str:
        life = self.jobs.get(order.id)
        if life is None:
            return "not_found"
        match order:
            case CompleteJob() | FailJob() | ReleaseJob() | AcknowledgeCancel() | RequestApproval():
                return self._finish(order, life, now, chosen)
            case EditJob():
                return self._edit(order, life, now)
            case CancelJob():
                return self._cancel(order, life, now)
            case RevokeLease():
                if life.status != Status.RUNNING:
                    return "already_finished"
                return self._lose_lease(life, Verb.REVOKE, order.actor, order.reason, now)
            case ExpireLease() if life.status == Status.WAITING_FOR_APPROVAL:
                return self._expire_approval(life, now)
            case ExpireLease():
                if life.lease_expires_at is None or life.lease_expires_at > now:
                    return receipt(life)
                return self._lose_lease(life, Verb.EXPIRE, "system:sweep", None, now)
            case EnforceDeadline():
                if life not in self.late(now):
                    return receipt(life)
                return self._pass_deadline(life, now)
            case AcknowledgeJob():
                return self._acknowledge(order, life, now)

    def _finish(self, order: Finish | RequestApproval, life: JobModel, now: int, chosen: int | None) -> Receipt | str:
        actor = f"worker:{order.worker}"
        if not life.leased_by(order.fence, order.worker):
            end = life.ends.get(order.fence)
            if end is None or end.receipt is None or end.actor != actor:
                return "lease_lost"
            return end.receipt if end.verb == order.verb else "already_finished"
        match order:
            case CompleteJob():
                life.result, life.result_summary, life.error = order.result, order.result_summary, None
                life.usage = order.usage if order.usage is not None else life.usage
                life.sanitized |= order.sanitized
                return self._move(life, Status.SUCCEEDED, order.verb, actor, now)
            case AcknowledgeCancel():
                if life.cancel_requested_at is None:
                    return "no_cancel_requested"
                return self._give_in(life, order.verb, actor, now)
            case FailJob(retryable=False):
                life.sanitized |= order.sanitized
                return self._end_badly(life, Status.FAILED, order.verb, actor, now, None, json.loads(order.error))
            case FailJob() if life.cancel_requested_at is not None:
                life.sanitized |= order.sanitized
                life.error = json.loads(order.error)
                return self._give_in(life, order.verb, actor, now, error=life.error)
            case RequestApproval() if life.cancel_requested_at is not None:
                return "cancel_requested"
            case _ if life.cancel_requested_at is not None:
                return self._give_in(life, order.verb, actor, now)
            case RequestApproval():
                return self._request_approval(order, life, actor, now)
            case FailJob():
                life.sanitized |= order.sanitized
                least, most = retry_delay(life, order.retry_after_seconds)
                run_at = chosen if chosen is not None and now + least <= chosen <= now + most else now + least
                return self._try_again(life, order.verb, actor, now, None, json.loads(order.error), run_at)
            case ReleaseJob():
                if any(self._parent_of(child) != life.id for child in order.children):
                    return "invalid"
                awaiting = {child for child in order.children if self.jobs[child].status not in ENDED}
                if awaiting and self.would_hang(life, awaiting, now):
                    return "would_deadlock"
                due = order.run_at if order.delay_seconds is None else now + micros(order.delay_seconds)
                if order.message is not None:
                    due = self.due_after_wait(life, order.message, due, now)
                life.run_at = max(due or now, now)
                life.releases += life.run_at <= now and not order.children and order.message is None
                life.awaiting = awaiting
                facts: Facts = {"run_at": life.run_at}
                if order.children:
                    facts["awaiting_children"] = len(set(order.children))
                if order.message is not None:
                    facts["awaiting_message"] = order.message.name
                return self._move(life, Status.QUEUED, order.verb, actor, now, order.reason, facts)

    def _parent_of(self, id: str) -> str | None:
        return self.jobs[id].created.parent_id if id in self.jobs else None

    def _cancel(self, order: CancelJob, life: JobModel, now: int) -> Receipt | str:
        if life.status == Status.CANCELLED:
            return receipt(life)
        if life.status in ENDED:
            return "already_finished"
        now_or_never = life.status != Status.RUNNING or order.force
        if life.cancel_requested_at is not None and not now_or_never:
            return receipt(life)
        life.cancel_requested_at = life.cancel_requested_at or now
        life.cancel_reason = order.reason or life.cancel_reason
        target = Status.CANCELLED if now_or_never else Status.RUNNING
        return self._move(life, target, order.verb, order.actor, now, order.reason, {"why": order.reason})

    def _give_in(self, life: JobModel, verb: Verb, actor: str, now: int, **reported: Facts) -> Receipt:
        facts = {"why": life.cancel_reason, **reported}
        return self._move(life, Status.CANCELLED, verb, actor, now, life.cancel_reason, facts)

    def _lose_lease(self, life: JobModel, verb: Verb, actor: str, reason: str | None, now: int) -> Receipt:
        if life.cancel_requested_at is not None:
            return self._give_in(life, verb, actor, now)
        if verb == Verb.REVOKE:
            kind = "revoked"
        else:
            kind = reason = "timeout" if life.run_ends_at() <= (life.lease_expires_at or now) else "lease_expired"
        run_at = now + micros(life.created.expiry_delay_seconds or 0)
        return self._try_again(life, verb, actor, now, reason, {"message": "…", "kind": kind}, run_at)

    def _try_again(
        self, life: JobModel, verb: Verb, actor: str, now: int, reason: str | None, error: Facts, run_at: int
    ) -> Receipt:
        if life.attempt >= life.max_attempts:
            return self._end_badly(life, Status.DEAD_LETTER, verb, actor, now, reason, error)
        life.error, life.run_at = error, run_at
        facts = {"error": error, "attempt": life.attempt + 1, "run_at": run_at}
        return self._move(life, Status.RETRY, verb, actor, now, reason, facts)

    def _end_badly(
        self, life: JobModel, status: Status, verb: Verb, actor: str, now: int, reason: str | None, error: Facts
    ) -> Receipt:
        life.error = error
        return self._move(life, status, verb, actor, now, reason, {"error": error})

    def _edit(self, order: EditJob, life: JobModel, now: int) -> Receipt | str:
        if life.status in ENDED:
            return "already_finished"
        if life.status not in WAITING:
            return "not_editable"
        if order.max_attempts is not None and order.max_attempts < life.attempt:
            return "invalid"
        wanted = {"priority": order.priority, "run_at": order.run_at, "max_attempts": order.max_attempts}
        facts = {name: to for name, to in wanted.items() if to is not None and to != getattr(life, name)}
        if not facts:
            return receipt(life)
        vars(life).update(facts)
        return self._move(life, life.status, order.verb, order.actor, now, None, facts)

    def _acknowledge(self, order: AcknowledgeJob, life: JobModel, now: int) -> Receipt | str:
        if life.status not in (Status.FAILED, Status.DEAD_LETTER):
            return "not_failed"
        if life.acknowledged_at is not None:
            return receipt(life)
        life.acknowledged_at, life.acknowledged_by = now, order.actor
        return self._move(life, life.status, order.verb, order.actor, now, order.comment)

    def _pass_deadline(self, life: JobModel, now: int) -> Receipt:
        if life.status != Status.QUEUED:
            error = {"message": "…", "kind": "deadline"}
            return self._end_badly(life, Status.FAILED, Verb.PASS_DEADLINE, "system:sweep", now, "deadline", error)
        life.cancel_requested_at, life.cancel_reason = now, "deadline"
        facts = {"why": "deadline"}
        return self._move(life, Status.CANCELLED, Verb.PASS_DEADLINE, "system:sweep", now, "deadline", facts)

    def _move(
        self,
        life: JobModel,
        status: Status,
        verb: Verb,
        actor: str,
        now: int,
        reason: str | None = None,
        facts: Facts | None = None,
    ) -> Receipt:
        """Every transition: one line of history, one version, and what leaving or entering a status means."""
        origin, life.status = life.status, status
        life.version += 1
        life.updated_at = now
        line = HistoryLine(life.version, origin, status, verb, actor, life.attempt, life.fence, reason, facts, now)
        life.history.append(line)
        if status == Status.RETRY and origin == Status.RUNNING:
            life.attempt += 1
        if origin == Status.WAITING_FOR_APPROVAL:
            self._leave_approval(life, verb)
        if status in ENDED and origin != status:
            life.finished_at = now
            life.awaiting.clear()
            for other in self.jobs.values():
                other.awaiting.discard(life.id)
        if origin == Status.RUNNING and status != Status.RUNNING:
            life.worker = life.lease_expires_at = life.heartbeat_at = None
            limit = Limit() if life.agent is None else self.limit_of(life.agent)
            life.kept_place = limit.strict and limit.most is not None  # without a limit there is no place to keep
            by_worker = verb in (Verb.COMPLETE, Verb.FAIL, Verb.RELEASE, Verb.REQUEST_APPROVAL, Verb.CANCEL_ACK)
            life.ends[life.fence] = End(verb, actor, receipt(life) if by_worker else None)
        return receipt(life)

    # Reading.

    def find(self, filter: Filter) -> list[str]:
        f = filter
        found = [
            life
            for life in self.jobs.values()
            if (not f.statuses or life.status in f.statuses)
            and (f.type is None or life.created.type == f.type)
            and (f.worker is None or life.worker == f.worker)
            and (f.parent_id is None or life.created.parent_id == f.parent_id)
            and set(f.tags) <= set(life.created.tags)
            and (f.created_after is None or life.created_at >= f.created_after)
            and (f.created_before is None or life.created_at < f.created_before)
            and (f.before_seq is None or life.seq < f.before_seq)
        ]
        return [life.id for life in sorted(found, key=lambda life: -life.seq)[: f.limit]]
