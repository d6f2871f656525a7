"""`interlock approvals`: list, show, approve, deny, answer, decline, link."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from interlock.cli import ids, output
from interlock.cli.runner import ANYWHERE, Anywhere, Limit, run
from interlock.client.port import Client
from interlock.domain.approval import Approval, ApprovalFilter, ApprovalKind, ApprovalLink, ApprovalStatus, Decision
from interlock.wire.encode import approval_to_dict

app = App(name="approvals", help="List and decide approvals.")

Comment = Annotated[str | None, Parameter(help="comment; passed to the job and kept in its history")]
Digest = Annotated[str | None, Parameter(help="expected digest; fail if the request has changed")]


@app.default
@app.command(name="list")
def list_(
    *,
    status: Annotated[ApprovalStatus | None, Parameter(help="filter by status (default: open)")] = None,
    everything: Annotated[bool, Parameter(name="--all", negative=(), help="any status")] = False,
    job: Annotated[str | None, Parameter(help="only approvals of this job")] = None,
    limit: Limit = 50,
    before: Annotated[str | None, Parameter(help="only approvals older than this ID, to page on")] = None,
    common: Anywhere = ANYWHERE,
) -> None:
    """List approvals, newest first."""

    async def command(client: Client) -> list[Approval]:
        last = None if before is None else await client.approvals.get(await ids.approval(client, before))
        of = None if job is None else await ids.job(client, job, "job")
        if of is not None:
            await client.jobs.get(of)  # an unknown job is an error, not an empty list
        filter = ApprovalFilter(
            status=None if everything else status or ApprovalStatus.OPEN,
            job_id=of,
            before=None if last is None else (last.opened_at, last.id),
            limit=limit,
        )
        return await client.approvals.list(filter)

    common.show_list(
        "approvals",
        run(common, command),
        approval_to_dict,
        ("id", "job", "kind", "status", "votes", "risk", "expires", "prompt"),
        lambda g: (
            g.id, g.job_id, g.kind, g.status, f"{_in_favour(g)}/{g.required}", g.risk, output.time(g.expires_at),
            g.prompt[:80],
        ),
    )  # fmt: skip


@app.command
def show(approval_id: str, *, common: Anywhere = ANYWHERE) -> None:
    """Show one approval: prompt, details, payload of the job and votes."""

    async def command(client: Client) -> tuple[Approval, str | None]:
        approval = await client.approvals.get(await ids.approval(client, approval_id))
        return approval, (await client.jobs.get(approval.job_id)).payload

    approval, payload = run(common, command)
    common.show_facts(approval_to_dict(approval), payload=payload)


@app.command
def approve(
    approval_id: str,
    *,
    comment: Comment = None,
    data: Annotated[str | None, Parameter(help="JSON that is valid against the schema of the approval")] = None,
    digest: Digest = None,
    common: Anywhere = ANYWHERE,
) -> None:
    """Approve a pending approval; its job resumes."""
    _decide(common, approval_id, Decision.APPROVE, comment, data, digest)


@app.command
def deny(approval_id: str, *, comment: Comment = None, digest: Digest = None, common: Anywhere = ANYWHERE) -> None:
    """Deny a pending approval; its job fails, or resumes if on_deny is resume."""
    _decide(common, approval_id, Decision.DENY, comment, None, digest)


@app.command
def answer(
    approval_id: str,
    data: Annotated[str, Parameter(help="the answer: JSON that is valid against the schema of the question")],
    *,
    comment: Comment = None,
    digest: Digest = None,
    common: Anywhere = ANYWHERE,
) -> None:
    """Answer a pending question; its job resumes with the answer."""
    _decide(common, approval_id, Decision.APPROVE, comment, data, digest)


@app.command
def decline(approval_id: str, *, comment: Comment = None, digest: Digest = None, common: Anywhere = ANYWHERE) -> None:
    """Decline to answer a pending question; its job resumes without an answer."""
    _decide(common, approval_id, Decision.DENY, comment, None, digest)


@app.command
def link(
    approval_id: str,
    *,
    url: Annotated[
        str | None, Parameter(help="address of the dashboard; default: --server, else host and port")
    ] = None,
    common: Anywhere = ANYWHERE,
) -> None:
    """Create the approval link and print it (shown only once). It decides without any other credential.

    The link before it stops working.

    Parameters
    ----------
    approval_id
        The ID, or its last 8 or more characters.
    """

    async def command(client: Client) -> ApprovalLink:
        return await client.approvals.create_link(await ids.approval(client, approval_id))

    minted = run(common, command)
    address = f"{(url or _dashboard(common)).rstrip('/')}/approve#{minted.token}"
    approval = approval_to_dict(minted.approval)
    common.show({"link": address, "token": minted.token, "approval": approval}, address)


def _dashboard(common: Anywhere) -> str:
    settings = common.settings
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return common.server or f"http://{host}:{settings.port}"


def _decide(
    common: Anywhere, approval_id: str, decision: Decision, comment: str | None, data: str | None, digest: str | None
) -> None:
    async def command(client: Client) -> Approval:
        kept = None if data is None else data.encode("utf-8", "surrogateescape")
        id = await ids.approval(client, approval_id)
        return await client.approvals.decide(id, decision, comment=comment, data=kept, digest=digest)

    approval = run(common, command)
    votes = f"vote recorded: {_in_favour(approval)} of {output.counted(approval.required, 'vote')}"
    line = votes if approval.status is ApprovalStatus.OPEN else _outcome(approval)
    common.show(approval_to_dict(approval), line)


def _outcome(approval: Approval) -> str:
    """Return the decision in the words of its command: a question is answered or declined."""
    if approval.kind is ApprovalKind.QUESTION:
        return "answered" if approval.status is ApprovalStatus.APPROVED else "declined"
    return str(approval.status)


def _in_favour(approval: Approval) -> int:
    return sum(vote.decision is Decision.APPROVE for vote in approval.votes)
