"""Approvals in the model: requested by a worker, closed by votes, by the clock, or with their job."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from interlock.domain.approval import ApprovalStatus, CastVote, CreateApprovalLink, Decision, OnDeny, RequestApproval
from interlock.domain.job import Receipt
from interlock.domain.lifecycle import Status, Verb
from tests.model.job_model import Facts, JobModel, Jobs, micros, receipt


@dataclass
class ApprovalModel:
    """One question to people."""

    asked: RequestApproval
    expires_at: int
    status: ApprovalStatus = ApprovalStatus.OPEN
    votes: dict[str, Decision] = field(default_factory=dict)
    token: bytes | None = None

    def reported(self) -> tuple[ApprovalStatus, dict[str, Decision]]:
        return self.status, dict(self.votes)


class ApprovalsModel(Jobs, ABC):
    """All approvals, open and closed."""

    def __init__(self) -> None:
        super().__init__()
        self.approvals: dict[str, ApprovalModel] = {}

    def decide(self, commands: Sequence[CastVote], now: int) -> list[tuple[ApprovalStatus, dict[str, Decision]] | str]:
        """Each approval after its vote, or the code of an error."""
        return [self._decide(command, now) for command in commands]

    def create_link(self, link_requests: Sequence[CreateApprovalLink], now: int) -> list[ApprovalStatus | str]:
        """Each approval with a new link that replaces the last, or the code of an error."""
        return [self._mint(create_link, now) for create_link in link_requests]

    def _mint(self, create_link: CreateApprovalLink, now: int) -> ApprovalStatus | str:
        approval = self.approvals.get(create_link.id)
        if approval is None:
            return "not_found"
        if approval.asked.required > 1:
            return "invalid"
        if approval.status in (ApprovalStatus.APPROVED, ApprovalStatus.DENIED):
            return "already_decided"
        if approval.status != ApprovalStatus.OPEN or approval.expires_at <= now:
            return (
                f"approval_{ApprovalStatus.VOID if approval.status == ApprovalStatus.VOID else ApprovalStatus.EXPIRED}"
            )
        approval.token = create_link.token_sha256
        return approval.status

    def approval_of_token(self, token: bytes) -> str | None:
        return next((id for id, approval in self.approvals.items() if approval.token == token), None)

    def overdue_approvals(self, now: int) -> list[str]:
        """The jobs whose approval was not decided in time."""
        return [g.asked.id for g in self.approvals.values() if g.status == ApprovalStatus.OPEN and g.expires_at <= now]

    def _request_approval(self, order: RequestApproval, life: JobModel, actor: str, now: int) -> Receipt:
        self.approvals[order.approval_id] = ApprovalModel(order, now + micros(order.expires_in_seconds))
        life.approval_id = order.approval_id
        facts = {"approval_id": order.approval_id}
        return self._move(life, Status.WAITING_FOR_APPROVAL, order.verb, actor, now, None, facts)

    def _leave_approval(self, life: JobModel, verb: Verb) -> None:
        """A job that no longer waits has no open approval."""
        assert life.approval_id is not None
        approval = self.approvals[life.approval_id]
        if approval.status == ApprovalStatus.OPEN:
            approval.status = ApprovalStatus.EXPIRED if verb == Verb.EXPIRE else ApprovalStatus.VOID
        life.approval_id = None

    def _expire_approval(self, life: JobModel, now: int) -> Receipt:
        if life.id not in self.overdue_approvals(now):
            return receipt(life)
        life.error = {"message": "…", "kind": "approval_expired"}
        facts = {"error": life.error, "approval_id": life.approval_id}
        return self._move(life, Status.FAILED, Verb.EXPIRE, "system:sweep", now, "approval_expired", facts)

    def _decide(self, command: CastVote, now: int) -> tuple[ApprovalStatus, dict[str, Decision]] | str:
        approval = self.approvals.get(command.id)
        if approval is None or (command.token_sha256 is not None and command.token_sha256 != approval.token):
            return "not_found"
        life = self.jobs[approval.asked.id]
        if approval.status == ApprovalStatus.OPEN and command.actor not in approval.votes:
            if life.late(now):
                self._pass_deadline(life, now)
            else:
                self._expire_approval(life, now)
        if approval.status in (ApprovalStatus.EXPIRED, ApprovalStatus.VOID):
            return f"approval_{approval.status}"
        if approval.status != ApprovalStatus.OPEN or command.actor in approval.votes:
            return approval.reported() if approval.votes.get(command.actor) == command.decision else "already_decided"
        approval.votes[command.actor] = command.decision
        self._count(approval, life, command, now)
        return approval.reported()

    def _count(self, approval: ApprovalModel, life: JobModel, command: CastVote, now: int) -> None:
        """One denial decides; approvals decide when there are enough."""
        facts: Facts = {"approval_id": command.id, "decision": str(command.decision)}
        if command.decision == Decision.DENY:
            approval.status = ApprovalStatus.DENIED
        elif len(approval.votes) >= approval.asked.required:
            approval.status = ApprovalStatus.APPROVED
        else:
            return
        if approval.status == ApprovalStatus.DENIED and approval.asked.on_deny == OnDeny.FAIL:
            life.error = facts["error"] = {"message": "…", "kind": "approval_denied"}
            self._move(life, Status.FAILED, Verb.DECIDE, command.actor, now, command.comment, facts)
        else:
            life.run_at = facts["run_at"] = now
            self._move(life, Status.QUEUED, Verb.DECIDE, command.actor, now, command.comment, facts)

    @abstractmethod
    def _move(
        self,
        life: JobModel,
        status: Status,
        verb: Verb,
        actor: str,
        now: int,
        reason: str | None = None,
        facts: Facts | None = None,
    ) -> Receipt: ...

    @abstractmethod
    def _pass_deadline(self, life: JobModel, now: int) -> Receipt: ...
