"""Gates in the model: opened by a worker, closed by votes, by the clock, or with their job."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from interlock.domain.approval import Ballot, Decision, GateStatus, Mint, OnDeny, OpenGate
from interlock.domain.job import Receipt
from interlock.domain.lifecycle import Status, Verb
from tests.model.life import Facts, Jobs, Life, micros, receipt


@dataclass
class Gate:
    """One question to people."""

    asked: OpenGate
    expires_at: int
    status: GateStatus = GateStatus.OPEN
    votes: dict[str, Decision] = field(default_factory=dict)
    token: bytes | None = None

    def told(self) -> tuple[GateStatus, dict[str, Decision]]:
        return self.status, dict(self.votes)


class Gates(Jobs, ABC):
    """All gates that ever were."""

    def __init__(self) -> None:
        super().__init__()
        self.gates: dict[str, Gate] = {}

    def decide(self, ballots: Sequence[Ballot], now: int) -> list[tuple[GateStatus, dict[str, Decision]] | str]:
        """Each gate as it is after its ballot, or the code of a refusal."""
        return [self._decide(ballot, now) for ballot in ballots]

    def mint(self, mints: Sequence[Mint], now: int) -> list[GateStatus | str]:
        """Each gate with a new link in place of the last, or the code of a refusal."""
        return [self._mint(mint, now) for mint in mints]

    def _mint(self, mint: Mint, now: int) -> GateStatus | str:
        gate = self.gates.get(mint.id)
        if gate is None:
            return "not_found"
        if gate.asked.required > 1:
            return "invalid"
        if gate.status in (GateStatus.APPROVED, GateStatus.DENIED):
            return "already_decided"
        if gate.status != GateStatus.OPEN or gate.expires_at <= now:
            return f"gate_{GateStatus.VOID if gate.status == GateStatus.VOID else GateStatus.EXPIRED}"
        gate.token = mint.token_sha256
        return gate.status

    def gate_of_token(self, token: bytes) -> str | None:
        return next((id for id, gate in self.gates.items() if gate.token == token), None)

    def overdue_gates(self, now: int) -> list[str]:
        """The jobs that nobody decided about in time."""
        return [g.asked.id for g in self.gates.values() if g.status == GateStatus.OPEN and g.expires_at <= now]

    def _open_gate(self, order: OpenGate, life: Life, actor: str, now: int) -> Receipt:
        self.gates[order.gate_id] = Gate(order, now + micros(order.expires_in_seconds))
        life.gate_id = order.gate_id
        facts = {"gate_id": order.gate_id}
        return self._move(life, Status.WAITING_FOR_APPROVAL, order.verb, actor, now, None, facts)

    def _leave_gate(self, life: Life, verb: Verb) -> None:
        """A job that no longer waits has no open gate."""
        assert life.gate_id is not None
        gate = self.gates[life.gate_id]
        if gate.status == GateStatus.OPEN:
            gate.status = GateStatus.EXPIRED if verb == Verb.EXPIRE else GateStatus.VOID
        life.gate_id = None

    def _expire_gate(self, life: Life, now: int) -> Receipt:
        if life.id not in self.overdue_gates(now):
            return receipt(life)
        life.error = {"message": "…", "kind": "approval_expired"}
        facts = {"error": life.error, "gate_id": life.gate_id}
        return self._move(life, Status.FAILED, Verb.EXPIRE, "system:sweep", now, "approval_expired", facts)

    def _decide(self, ballot: Ballot, now: int) -> tuple[GateStatus, dict[str, Decision]] | str:
        gate = self.gates.get(ballot.id)
        if gate is None or (ballot.token_sha256 is not None and ballot.token_sha256 != gate.token):
            return "not_found"
        life = self.jobs[gate.asked.id]
        if gate.status == GateStatus.OPEN and ballot.actor not in gate.votes:
            if life.late(now):
                self._pass_deadline(life, now)
            else:
                self._expire_gate(life, now)
        if gate.status in (GateStatus.EXPIRED, GateStatus.VOID):
            return f"gate_{gate.status}"
        if gate.status != GateStatus.OPEN or ballot.actor in gate.votes:
            return gate.told() if gate.votes.get(ballot.actor) == ballot.decision else "already_decided"
        gate.votes[ballot.actor] = ballot.decision
        self._count(gate, life, ballot, now)
        return gate.told()

    def _count(self, gate: Gate, life: Life, ballot: Ballot, now: int) -> None:
        """One denial decides; approvals decide when there are enough."""
        facts: Facts = {"gate_id": ballot.id, "decision": str(ballot.decision)}
        if ballot.decision == Decision.DENY:
            gate.status = GateStatus.DENIED
        elif len(gate.votes) >= gate.asked.required:
            gate.status = GateStatus.APPROVED
        else:
            return
        if gate.status == GateStatus.DENIED and gate.asked.on_deny == OnDeny.FAIL:
            life.error = facts["error"] = {"message": "…", "kind": "approval_denied"}
            self._move(life, Status.FAILED, Verb.DECIDE, ballot.actor, now, ballot.comment, facts)
        else:
            life.run_at = facts["run_at"] = now
            self._move(life, Status.QUEUED, Verb.DECIDE, ballot.actor, now, ballot.comment, facts)

    @abstractmethod
    def _move(
        self,
        life: Life,
        status: Status,
        verb: Verb,
        actor: str,
        now: int,
        reason: str | None = None,
        facts: Facts | None = None,
    ) -> Receipt: ...

    @abstractmethod
    def _pass_deadline(self, life: Life, now: int) -> Receipt: ...
