"""`interlock jobs cancel|revoke|redrive` and `interlock prune`: for one job, several, or all that fit."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, NoReturn

from cyclopts import Parameter

from interlock import wire
from interlock.cli import ids as short
from interlock.cli import jobs, output
from interlock.cli.runner import REFUSED, Anywhere, guard, run
from interlock.domain.job import Filter, Job, Receipt
from interlock.domain.lifecycle import Status
from interlock.domain.operations import START, Action
from interlock.domain.principal import Principal
from interlock.engine.engine import Engine
from interlock.engine.operations import Bulk
from interlock.engine.retention import Pruned
from interlock.errors import Invalid
from interlock.wire.job import job_to_dict

NOTHING = Anywhere()
Reason = Annotated[str | None, Parameter(help="reason, kept in the history")]
Yes = Annotated[bool, Parameter(name=["--yes", "-y"], negative=(), help="skip the confirmation prompt")]
DryRun = Annotated[bool, Parameter(negative=(), help="show how many jobs would be affected")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Which:
    """Filter for jobs that are not given by ID; all criteria must match."""

    status: Annotated[tuple[Status, ...], Parameter(help="may be repeated")] = ()
    type: str | None = None
    agent: Annotated[str | None, Parameter(help="agent, as KIND/ID")] = None
    worker: str | None = None
    parent: str | None = None
    tag: Annotated[tuple[str, ...], Parameter(help="may be repeated; all must match")] = ()
    created_after: datetime | None = None
    created_before: datetime | None = None

    async def filter(self, engine: Engine, who: Principal) -> Filter | None:
        """The filter, or None if no option was given."""
        if self == ANY:
            return None
        agent = None if self.agent is None else jobs.agent_name(self.agent)
        return Filter(
            statuses=self.status,
            type=self.type,
            agent=None if agent is None else (agent.kind, agent.id),
            worker=self.worker,
            parent_id=None if self.parent is None else await short.job(engine, who, self.parent, "parent"),
            tags=self.tag,
            created_after=wire.instant(self.created_after, "created_after"),
            created_before=wire.instant(self.created_before, "created_before"),
        )


ANY = Which()
NOT_BOTH = "give either IDs or filters, not both"


@jobs.app.command
def cancel(
    *ids: str,
    reason: Reason = None,
    force: Annotated[bool, Parameter(negative=(), help="revoke the lease immediately")] = False,
    cascade: Annotated[bool, Parameter(negative=(), help="also cancel all descendants")] = False,
    which: Which = ANY,
    dry_run: DryRun = False,
    yes: Yes = False,
    common: Anywhere = NOTHING,
) -> None:
    """Cancel jobs. A running job stops when its worker acknowledges, or immediately with --force.

    Parameters
    ----------
    ids
        The jobs, by ID or its last 8 or more characters; without any, those that match the filters.
    """
    if len(ids) != 1 or dry_run:
        if cascade:
            _refuse(common, "--cascade requires exactly one job")
        _many(common, Action.CANCEL, ids, which, dry_run=dry_run, yes=yes, reason=reason, force=force)
        return
    if which != ANY:
        _refuse(common, NOT_BOTH)

    async def command(engine: Engine, who: Principal) -> tuple[Receipt, int]:
        id = await short.job(engine, who, ids[0])
        if not cascade:
            return await engine.jobs.cancel(who, id, reason=reason, force=force), 0
        return await engine.operations.cancel_tree(who, id, reason=reason, force=force)

    receipt, below = run(common, command)
    if common.json:
        output.print_json(
            {"id": receipt.id, "status": receipt.status, "version": receipt.version, "descendants": below}
        )
        return
    given = "cancel requested" if receipt.status is Status.RUNNING else str(receipt.status)
    output.print_line(f"{receipt.id}: {given}" + (f", and {below} descendants" if cascade else ""))


@jobs.app.command
def revoke(job_id: str, *, reason: Reason = None, common: Anywhere = NOTHING) -> None:
    """End a lease now, as if it had expired: the job is retried if attempts are left."""

    async def command(engine: Engine, who: Principal) -> Receipt:
        return await engine.jobs.revoke(who, await short.job(engine, who, job_id), reason=reason)

    receipt = run(common, command)
    if common.json:
        output.print_json({"id": receipt.id, "status": receipt.status, "version": receipt.version})
    else:
        output.print_line(f"{receipt.id}: {receipt.status}")


@jobs.app.command
def redrive(
    *ids: str,
    origin: Annotated[str, Parameter(name="--from", help="start, checkpoint, or the step to continue after")] = START,
    priority: int | None = None,
    delay: Annotated[float | None, Parameter(help="seconds before it may start")] = None,
    run_at: datetime | None = None,
    max_attempts: int | None = None,
    retag: Annotated[
        tuple[str, ...] | None, Parameter(help="tags of the new job, instead of the old ones; may be repeated")
    ] = None,
    payload: Annotated[str | None, Parameter(help="payload of the new job: JSON text, @FILE or -")] = None,
    key: Annotated[str | None, Parameter(help="idempotency key: a repeated call returns the same job")] = None,
    which: Which = ANY,
    dry_run: DryRun = False,
    yes: Yes = False,
    common: Anywhere = NOTHING,
) -> None:
    """Create a new job from each terminal job. In bulk, jobs that were redriven before are skipped.

    Parameters
    ----------
    ids
        The jobs, by ID or its last 8 or more characters; without any, those that match the filters. Options
        that change the new job require exactly one.
    """
    options: dict[str, Any] = {
        "priority": priority, "delay_seconds": delay, "run_at": run_at, "max_attempts": max_attempts, "tags": retag,
        "idempotency_key": key, "payload": payload,
    }  # fmt: skip
    given = {name: value for name, value in options.items() if value is not None}
    if len(ids) != 1 or dry_run:
        if given or origin != START:
            _refuse(common, "--from and options that change the new job require exactly one job")
        _many(common, Action.REDRIVE, ids, which, dry_run=dry_run, yes=yes)
        return
    if which != ANY:
        _refuse(common, NOT_BOTH)

    async def command(engine: Engine, who: Principal) -> tuple[Job, bool, int]:
        if payload is not None:
            given["payload"] = jobs.payload_bytes(payload)
        results = await engine.operations.redrive(who, await short.job(engine, who, ids[0]), start_from=origin, **given)
        return await engine.queries.job(who.tenant, results.id), results.replayed, await engine.queries.now()

    job, replayed, now = run(common, command)
    if common.json:
        output.print_json(job_to_dict(job, now=now) | {"replayed": replayed})
    else:
        output.print_line(f"{job.id}{' (replayed)' if replayed else ''}")


def prune(
    *,
    days: Annotated[float, Parameter(help="delete jobs that finished more than this many days ago")],
    dry_run: DryRun = False,
    yes: Yes = False,
    common: Anywhere = NOTHING,
) -> None:
    """Delete terminal jobs with their history, steps, events, approvals and artifacts. This is irreversible."""

    async def command(engine: Engine, who: Principal, dry_run: bool) -> Pruned:
        deleted, after_seq = 0, 0
        with output.progress("counted" if dry_run else "deleted") as report:
            while True:
                done = await engine.retention.prune(who, days, limit=1000, dry_run=dry_run, after_seq=after_seq)
                cannot_go_on = dry_run and done.last_seq == after_seq  # a server always counts from the start
                deleted, after_seq = deleted + done.deleted, done.last_seq
                report(deleted)
                if not done.more or cannot_go_on:
                    return Pruned(deleted, done.more, after_seq)

    if not dry_run and not yes:
        found = run(common, lambda engine, who: command(engine, who, True)).deleted
        whose = "on the server" if common.server is not None else f"of tenant {common.who.tenant}"
        _confirm(common, f"delete {output.counted(found, 'job')} {whose} permanently")
    done = run(common, lambda engine, who: command(engine, who, dry_run))
    if common.json:
        output.print_json({"deleted": 0 if dry_run else done.deleted, "matched": done.deleted, "more": done.more})
    else:
        verb = "would be" if dry_run else "was" if done.deleted == 1 and not done.more else "were"
        output.print_line(f"{output.counted(done.deleted, 'job')}{' or more' if done.more else ''} {verb} deleted")


def _many(
    common: Anywhere,
    action: Action,
    ids: tuple[str, ...],
    which: Which,
    *,
    dry_run: bool,
    yes: bool,
    **options: Any,
) -> None:
    """Apply an action to all given or matching jobs, a thousand per call, and print each that was rejected."""

    async def command(engine: Engine, who: Principal, dry_run: bool) -> Bulk:
        filter = await which.filter(engine, who)
        if (filter is None) == (not ids):
            raise Invalid(NOT_BOTH)
        if ids:
            named = await short.jobs(engine, who, ids)
            return await engine.operations.bulk(who, action, ids=named, dry_run=dry_run, **options)
        assert filter is not None
        return await _all_that_fit(
            filter, lambda f: engine.operations.bulk(who, action, filter=f, dry_run=dry_run, **options)
        )

    if not dry_run and not yes:
        found = run(common, lambda engine, who: command(engine, who, True)).matched
        _confirm(common, f"{action} {output.counted(found, 'job')}")
    results = run(common, lambda engine, who: command(engine, who, dry_run))
    if common.json:
        refused = [{"id": id, **wire.error_to_dict(error)} for id, error in results.refused]
        output.print_json({"matched": results.matched, "done": results.done, "more": results.more, "refused": refused})
    else:
        for _, error in results.refused:
            print(f"interlock: {output.escape_control(error)}", file=sys.stderr)
        output.print_line(
            f"{results.matched}{' or more' if results.more else ''} matched"
            if dry_run
            else f"{results.done} of {results.matched} done"
        )
    if results.refused:
        sys.exit(REFUSED)


async def _all_that_fit(filter: Filter, act: Callable[[Filter], Awaitable[Bulk]]) -> Bulk:
    """Repeat the call, each time from where the last one ended; without a position, repeat the same call."""
    total = Bulk(0, 0, False)
    with output.progress("done with") as report:
        while True:
            results = await act(filter)
            total = Bulk(
                total.matched + results.matched,
                total.done + results.done,
                results.more,
                None,
                total.refused + results.refused,
            )
            report(total.matched)
            if not results.more or (results.before_seq is None and not results.done):
                return total
            filter = filter._replace(before_seq=results.before_seq)


def _confirm(common: Anywhere, what: str) -> None:
    """Ask for confirmation; without a terminal, require --yes."""
    if not sys.stdin.isatty() or common.json:
        _refuse(common, f"this would {what}: use --yes to confirm, or --dry-run to count the jobs")
    if input(f"{what}? [y/N] ").strip().lower() not in ("y", "yes"):
        _refuse(common, "cancelled, nothing was changed")


def _refuse(common: Anywhere, why: str) -> NoReturn:
    async def refuse() -> NoReturn:
        raise Invalid(why)

    guard(common, refuse)
    raise AssertionError(why)
