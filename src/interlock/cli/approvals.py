"""`interlock approvals`: list, show, approve, deny, link."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from interlock import wire
from interlock.cli import ids, output
from interlock.cli.runner import Anywhere, run
from interlock.domain.approval import Approval, ApprovalFilter, ApprovalStatus, Decision
from interlock.domain.principal import Principal
from interlock.engine.approvals import ApprovalLink
from interlock.engine.engine import Engine
from interlock.wire.encode import approval_to_dict

app = App(name="approvals", help="List and decide approvals.")
NOTHING = Anywhere()

Comment = Annotated[str | None, Parameter(help="comment; passed to the job and kept in its history")]
Digest = Annotated[str | None, Parameter(help="expected digest; fail if the request has changed")]


@app.default
@app.command(name="list")
def list_(
    *,
    status: Annotated[ApprovalStatus | None, Parameter(help="filter by status (default: open)")] = None,
    everything: Annotated[bool, Parameter(name="--all", negative=(), help="any status")] = False,
    job: Annotated[str | None, Parameter(help="only approvals of this job")] = None,
    limit: Annotated[int, Parameter(help="1 to 200")] = 50,
    before: Annotated[str | None, Parameter(help="only approvals older than this ID, to page on")] = None,
    common: Anywhere = NOTHING,
) -> None:
    """List approvals, newest first."""

    async def command(engine: Engine, who: Principal) -> list[Approval]:
        last = (
            None if before is None else await engine.approvals.get(who.tenant, await ids.approval(engine, who, before))
        )
        of = None if job is None else await ids.job(engine, who, job, "job")
        if of is not None:
            await engine.queries.job(who.tenant, of)  # an unknown job is an error, not an empty list
        filter = ApprovalFilter(
            status=None if everything else status or ApprovalStatus.OPEN,
            job_id=of,
            before=None if last is None else (last.opened_at, last.id),
            limit=limit,
        )
        return await engine.approvals.list(who.tenant, filter)

    found = run(common, command)
    if common.json:
        output.print_json({"items": [approval_to_dict(approval) for approval in found]})
    elif not found:
        output.print_line("no approvals")
    else:
        output.table(
            ("id", "job", "status", "votes", "risk", "expires", "prompt"),
            (
                (g.id, g.job_id, g.status, f"{_in_favour(g)}/{g.required}", g.risk, wire.when(g.expires_at)[:19] + "Z",
                 g.prompt[:80])
                for g in found
            ),
        )  # fmt: skip


@app.command
def show(approval_id: str, *, common: Anywhere = NOTHING) -> None:
    """Show one approval: prompt, details, payload of the job and votes."""

    async def command(engine: Engine, who: Principal) -> tuple[Approval, str | None]:
        approval = await engine.approvals.get(who.tenant, await ids.approval(engine, who, approval_id))
        return approval, (await engine.queries.job(who.tenant, approval.job_id)).payload

    approval, payload = run(common, command)
    facts = approval_to_dict(approval)
    if common.json:
        output.print_json(facts)
    else:
        output.facts(facts | {"payload": payload})


@app.command
def approve(
    approval_id: str,
    *,
    comment: Comment = None,
    data: Annotated[str | None, Parameter(help="JSON that is valid against the schema of the approval")] = None,
    digest: Digest = None,
    common: Anywhere = NOTHING,
) -> None:
    """Approve a pending approval; its job resumes."""
    _decide(common, approval_id, Decision.APPROVE, comment, data, digest)


@app.command
def deny(approval_id: str, *, comment: Comment = None, digest: Digest = None, common: Anywhere = NOTHING) -> None:
    """Deny a pending approval; its job fails, or resumes if on_deny is resume."""
    _decide(common, approval_id, Decision.DENY, comment, None, digest)


@app.command
def link(
    approval_id: str,
    *,
    url: Annotated[
        str | None, Parameter(help="address of the dashboard; default: --server, else host and port")
    ] = None,
    common: Anywhere = NOTHING,
) -> None:
    """Create the approval link and print it (shown only once). It decides without any other credential.

    The link before it stops working.

    Parameters
    ----------
    approval_id
        The ID, or its last 8 or more characters.
    """

    async def command(engine: Engine, who: Principal) -> ApprovalLink:
        return await engine.approvals.create_link(who, await ids.approval(engine, who, approval_id))

    minted = run(common, command)
    address = f"{(url or _dashboard(common)).rstrip('/')}/approve#{minted.token}"
    if common.json:
        output.print_json({"link": address, "token": minted.token, "approval": approval_to_dict(minted.approval)})
    else:
        output.print_line(address)


def _dashboard(common: Anywhere) -> str:
    settings = common.settings
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return common.server or f"http://{host}:{settings.port}"


def _decide(
    common: Anywhere, approval_id: str, decision: Decision, comment: str | None, data: str | None, digest: str | None
) -> None:
    async def command(engine: Engine, who: Principal) -> Approval:
        kept = None if data is None else data.encode("utf-8", "surrogateescape")
        id = await ids.approval(engine, who, approval_id)
        return await engine.approvals.decide(who, id, decision, comment=comment, data=kept, digest=digest)

    approval = run(common, command)
    if common.json:
        output.print_json(approval_to_dict(approval))
    elif approval.status is ApprovalStatus.OPEN:
        output.print_line(f"vote recorded: {_in_favour(approval)} of {output.counted(approval.required, 'vote')}")
    else:
        output.print_line(str(approval.status))


def _in_favour(approval: Approval) -> int:
    return sum(vote.decision is Decision.APPROVE for vote in approval.votes)
