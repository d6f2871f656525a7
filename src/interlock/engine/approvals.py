"""Approvals that jobs request, and the approvers who decide them."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any, Final, NamedTuple

from interlock import wire
from interlock.domain import json_text, principal
from interlock.domain.approval import (
    MAX_EXPIRY_SECONDS,
    MAX_VOTES,
    Approval,
    ApprovalFilter,
    ApprovalKind,
    ApprovalLink,
    ApprovalStatus,
    CastVote,
    CreateApprovalLink,
    Decision,
    OnDeny,
    RequestApproval,
    StepUp,
    refuse_approver,
)  # fmt: skip
from interlock.domain.job import Checkpoint, Job, Receipt
from interlock.domain.principal import Principal
from interlock.domain.progress import LARGEST_OCCURRENCE
from interlock.engine import schemas
from interlock.engine.results import answered
from interlock.errors import Conflict, Error, Forbidden, Gone, Invalid, NotFound
from interlock.storage.contract import Store
from interlock.wire import Limits

MAX_PAGE_SIZE: Final = 200
SHORTEST_EXPIRY_SECONDS: Final = 1.0
LINK_PREFIX: Final = "ilg_"
RESUMED_VERSION: Final = 5  # enqueue, claim, request, decide, claim: a decided job has at least this version


Decided = list[Approval]  # of one job, oldest first


class RequestedApproval(NamedTuple):
    """The result of requesting an approval."""

    receipt: Receipt
    approval: Approval
    token: str | None = None  # only with auth off; otherwise an approver creates the link


class Approvals:
    """Requests, decisions and links of approvals."""

    def __init__(self, store: Store, limits: Limits, step_up: StepUp | None = None) -> None:
        self._store = store
        self._limits = limits
        self._step_up = step_up

    async def open(self, who: Principal, order: RequestApproval, *, link: bool = True) -> RequestedApproval:
        """Suspend a job until a decision; a repeated call under the same lease returns the same receipt and approval.

        If the result carries a link token, a repeated call returns a new one, because only the hash of the first is
        stored. With `link=False` the result never carries a token.
        """
        checked = await self._checked(who, order)
        receipt = answered((await self._store.carry_out(who.tenant, [checked]))[0])
        opened_here = ApprovalFilter(job_id=checked.id, fence=checked.fence, limit=1)
        (approval,) = await self._store.approvals.find(who.tenant, opened_here)
        if link and who.unchecked and approval.required == 1 and approval.status is ApprovalStatus.OPEN:
            with suppress(Conflict, Gone):  # already decided or expired: the link is useless
                minted = await self.create_link(who, approval.id)
                return RequestedApproval(receipt, minted.approval, minted.token)
        return RequestedApproval(receipt, approval)

    async def get(self, tenant: str, approval_id: str) -> Approval:
        (approval,) = await self._store.approvals.get(tenant, [_approval_id(approval_id)])
        if approval is None:
            raise NotFound(approval_id, resource="approval")
        return approval

    async def list(self, tenant: str, filter: ApprovalFilter) -> list[Approval]:
        """List approvals, newest first."""
        wire.whole(filter.limit, "limit", 1, MAX_PAGE_SIZE)
        return await self._store.approvals.find(tenant, filter)

    async def decisions(self, tenant: str, jobs: Sequence[Job]) -> dict[str, Decided]:
        """Return the decisions for each of these claimed jobs; skip the query if none of them can have one."""
        again = [job.id for job in jobs if job.version >= RESUMED_VERSION]
        return await self._store.approvals.decisions(tenant, again) if again else {}

    async def create_link(self, who: Principal, approval_id: str) -> ApprovalLink:
        """Create a link token for one approval; it replaces the previous token."""
        _may_approve(who)
        if self._step_up is not None:  # the bearer of a link has not signed in, so such an approval has no link
            await self._need_fresh(who if who.unchecked else None, await self.get(who.tenant, approval_id))
        token = LINK_PREFIX + secrets.token_urlsafe(32)
        (answer,) = await self._store.approvals.create_link(
            who.tenant, [CreateApprovalLink(_approval_id(approval_id), who.actor, _hash(token))]
        )
        return ApprovalLink(answered(answer), token)

    async def decide(
        self,
        who: Principal,
        approval_id: str,
        decision: Decision,
        *,
        comment: str | None = None,
        data: str | bytes | None = None,
        digest: str | None = None,
    ) -> Approval:
        """Vote as the caller; repeating the same vote returns the same result."""
        _may_approve(who)
        approval = await self.get(who.tenant, approval_id)
        await self._need_fresh(who, approval)
        vote = CastVote(approval.id, who.actor, decision, comment, digest=digest, person=who.person)
        return await self._vote(approval, vote, data)

    def steps_up(self, approval: Approval) -> bool:
        """Return whether the risk of the approval requires a fresh sign-in, so that it has no link."""
        return self._step_up is not None and self._step_up.covers(approval.risk)

    async def needs_sign_in(self, who: Principal, approval: Approval) -> bool:
        """Return whether the caller must sign in again before a decision."""
        return await self._stale(who, approval) is not None

    async def _need_fresh(self, who: Principal | None, approval: Approval) -> None:
        """Reject a decision without a fresh sign-in, where the risk requires one."""
        if (fault := await self._stale(who, approval)) is not None:
            raise fault

    async def _stale(self, who: Principal | None, approval: Approval) -> Error | None:
        if self._step_up is None or not self.steps_up(approval):
            return None
        return self._step_up.refuse(approval.risk, who, await self._store.now())

    async def decide_by_token(
        self,
        token: str,
        decision: Decision,
        *,
        comment: str | None = None,
        data: str | bytes | None = None,
        digest: str | None = None,
        who: Principal | None = None,
    ) -> Approval:
        """Decide as the bearer of a link; reject a call that also carries a credential with the work role."""
        if who is not None and who.may("work") and not who.unchecked:
            raise Forbidden("a credential that works cannot approve")
        approval = await self.of_token(token)
        await self._need_fresh(None, approval)
        actor = principal.bearer(approval.link_created_by or "")
        vote = CastVote(approval.id, actor, decision, comment, digest=digest, token_sha256=_hash(token))
        return await self._vote(approval, vote, data)

    async def of_token(self, token: str) -> Approval:
        """Return the approval that a link belongs to, without deciding it."""
        found = await self._store.approvals.of_token(_hash(token))
        if found is None:
            raise NotFound("", resource="approval")
        return await self.get(*found)

    async def _vote(self, approval: Approval, command: CastVote, data: str | bytes | None) -> Approval:
        kept = None if data is None else json_text.check(data, what="data", limit=self._limits.payload)
        if kept is not None and approval.schema is not None:
            await schemas.check(approval.schema, kept, what="data")
        is_answer = approval.kind is ApprovalKind.QUESTION and command.decision is Decision.APPROVE
        if is_answer and kept is None and approval.schema is not None:
            raise Invalid("data is missing: expected an answer that is valid against the schema", pointer="/data")
        if is_answer and kept is not None and approval.schema is not None:
            _reject_empty_fields(json.loads(approval.schema), json.loads(kept), "/data")
        vote = command._replace(comment=wire.reason(command.comment, "comment"), data=kept)
        (answer,) = await self._store.approvals.decide(approval.tenant, [vote])
        return answered(answer)

    async def _checked(self, who: Principal, order: RequestApproval) -> RequestApproval:
        """Check the command against all limits; sanitize invalid Unicode instead of rejecting it."""
        id, worker = wire.job_id(order.id), wire.name(order.worker, "worker")
        prompt = wire.remark(order.prompt, "prompt")
        if prompt is None or json_text.is_blank(order.prompt):
            raise Invalid("prompt must not be empty", pointer="/prompt")
        if order.kind is ApprovalKind.QUESTION and (order.required != 1 or order.on_deny != OnDeny.RESUME):
            raise Invalid("a question has one answer, and its job resumes if it is declined", pointer="/kind")
        if order.required > 1 and order.schema is not None:
            raise Invalid("with several votes there is no data, and so no schema", pointer="/schema")
        details, sanitized = order.details, order.sanitized or prompt != order.prompt
        if details is not None:
            details, more = json_text.sanitize(details, what="details", limit=self._limits.payload)
            sanitized = sanitized or more
        if order.schema is not None:
            await schemas.register(json_text.check(order.schema, what="schema", limit=self._limits.payload))
        seconds = order.expires_in_seconds
        wire.seconds(seconds, "expires_in_seconds", SHORTEST_EXPIRY_SECONDS, MAX_EXPIRY_SECONDS)
        return order._replace(
            id=id,
            worker=worker,
            approval_id=wire.new_id(),
            prompt=prompt,
            details=details,
            risk=None if order.risk is None else wire.name(order.risk, "risk"),
            required=wire.whole(order.required, "required", 1, MAX_VOTES),
            on_deny=OnDeny(order.on_deny),
            opened_by=principal.worker(worker) if who.unchecked else who.asks_as,
            checkpoint=self._sanitized(order, id, worker),
            sanitized=sanitized,
            name=None if order.name is None else wire.name(order.name, "name"),
            occurrence=_occurrence(order.occurrence),
        )

    def _sanitized(self, order: RequestApproval, id: str, worker: str) -> Checkpoint | None:
        """Return the sanitized checkpoint of the command; it is saved under the lease that requests the approval."""
        if order.checkpoint is None:
            return None
        sent = order.checkpoint
        data, sanitized = json_text.sanitize(sent.data, what="checkpoint", limit=self._limits.checkpoint)
        return Checkpoint(id, order.fence, worker, sent.seq, data, sent.sanitized or sanitized)


def _occurrence(value: int | None) -> int | None:
    return None if value is None else wire.whole(value, "occurrence", 1, LARGEST_OCCURRENCE)


def _may_approve(who: Principal) -> None:
    fault = refuse_approver(who)
    if fault is not None:
        raise fault


def _approval_id(value: str) -> str:
    try:
        return wire.job_id(value)
    except NotFound:
        raise NotFound(value, resource="approval") from None


def _hash(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogatepass")).digest()


def _reject_empty_fields(schema: Any, data: Any, pointer: str) -> None:
    """Reject an answer with a required text that is empty, which most schemas do not exclude."""
    if not isinstance(schema, dict) or not isinstance(data, dict):
        return
    members, required = schema.get("properties"), schema.get("required")
    for name, form in members.items() if isinstance(members, dict) else ():
        value, place = data.get(name), f"{pointer}/{name.replace('~', '~0').replace('/', '~1')}"
        is_chosen = isinstance(form, dict) and ("enum" in form or "const" in form)
        if isinstance(value, str) and json_text.is_blank(value) and name in (required or ()) and not is_chosen:
            raise Invalid(f"{name} is empty: expected a value", pointer=place)
        _reject_empty_fields(form, value, place)
