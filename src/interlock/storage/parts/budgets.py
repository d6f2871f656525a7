"""Budgets of running jobs: charge what they report before they end, and find those whose budget is spent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from interlock.domain.budget import PREFIX
from interlock.domain.job import HeartbeatReply, Rejected
from interlock.domain.limits import Bucket, Limit, charged, demands_of, is_exceeded
from interlock.domain.progress import StepRow
from interlock.domain.usage import USAGE, of_run
from interlock.storage.dialect import Steps, Transaction, statements

SQL: Final = statements("budgets")


class Lease(NamedTuple):
    """The lease of a job with budgets: the limits of the job, and what the run has used, as JSON."""

    id: str
    fence: int
    limits: str
    usage: str | None


def marked(answers: Iterable[HeartbeatReply | Rejected], spent: set[str]) -> list[HeartbeatReply | Rejected]:
    """Return the replies with those marked whose jobs have spent a budget."""
    return [
        one._replace(budget_exceeded=True) if isinstance(one, HeartbeatReply) and one.id in spent else one
        for one in answers
    ]


def charge(tx: Transaction, leases: Sequence[Lease]) -> Steps[set[str]]:
    """Charge the reported usage that exceeds the estimates; return the jobs whose budget is spent.

    Requires that the leases are locked if any has usage. Buckets are locked as by claims: those without keys first.
    """
    during: dict[str, dict[str, float]] = {}
    more: dict[tuple[str, str], dict[str, float]] = {}
    for lease in leases:
        told = yield from _told(tx, lease)
        steps = yield from _steps(tx, lease)
        before, _ = of_run(lease.id, lease.fence, steps, None, told)
        during[lease.id] = before
        if lease.usage is None:
            continue
        during[lease.id], _ = of_run(lease.id, lease.fence, steps, None, lease.usage)
        yield from tx.run(SQL["tell"], id=lease.id, fence=lease.fence, usage=lease.usage)
        for demand in demands_of(lease.limits):
            was, now = charged(demand.cost, before), charged(demand.cost, during[lease.id])
            sums = more.setdefault((demand.name, demand.key), {})
            for unit in now:
                sums[unit] = sums.get(unit, 0.0) + now[unit] - was[unit]
    for name, key in sorted(more, key=lambda one: (one[1] != "", one)):
        row = yield from tx.one(SQL["lock_bucket"], name=name, key=key)
        if row is None:
            continue
        bucket = Bucket.from_row(*row)
        rules = yield from tx.one(SQL["budget"], name=name, key=key)
        if rules is not None and name.startswith(PREFIX):
            bucket.refill(Limit.from_text(name, rules[0]), tx.now)
        for unit, amount in more[name, key].items():
            bucket.add(unit, -amount)
        _, levels, as_of, *_ = bucket.to_row()
        yield from tx.run(SQL["save_levels"], name=name, key=key, levels=levels, as_of=as_of)
    spent: set[str] = set()
    for lease in leases:
        for demand in demands_of(lease.limits):
            row = yield from tx.one(SQL["budget"], name=demand.name, key=demand.key)
            if row is not None:
                rules, *bucket = row
                limit = Limit.from_text(demand.name, rules)
                if is_exceeded(limit, Bucket.from_row(*bucket), demand.cost, during[lease.id], tx.now):
                    spent.add(lease.id)
    return spent


def _told(tx: Transaction, lease: Lease) -> Steps[str | None]:
    row = yield from tx.one(SQL["told"], id=lease.id, fence=lease.fence)
    return None if row is None else str(row[0])


def _steps(tx: Transaction, lease: Lease) -> Steps[list[StepRow]]:
    rows = yield from tx.rows(SQL["usage_steps"], id=lease.id, step=USAGE)
    return [StepRow(*row) for row in rows]
