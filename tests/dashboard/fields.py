"""Every text of every record that pages are made from, read from the records themselves: what holds the corpus, and what cannot."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Final, get_args, get_type_hints

from interlock.domain.approval import Approval, ApprovalFilter, Vote
from interlock.domain.artifact import Artifact
from interlock.domain.job import Filter, HistoryRow, Job
from interlock.domain.limits import BucketState, Limit
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import Principal
from interlock.domain.progress import EventRow, StepRow
from interlock.domain.registry import Agent, QueueStats
from interlock.domain.token import Token
from interlock.domain.webhook import Delivery, Subscription
from interlock.domain.worker_presence import Presence
from interlock.engine.engine import Engine
from interlock.engine.queries import MAX_PAGE_SIZE
from tests.dashboard.hostile import Planted, as_address, as_worker

RECORDS: Final[tuple[Any, ...]] = (
    Job, HistoryRow, StepRow, EventRow, Approval, Vote, Artifact, Subscription, Delivery, Token, Agent, QueueStats,
    Presence, ClaimFilter, Limit, BucketState,
)  # fmt: skip

# Generated, or of a fixed format: IDs, hashes, our own words, and values that are not text.
NOT_CHOSEN: Final = {
    "Job": {"id", "parent_id", "redrive_of", "approval_id", "awaiting", "traceparent", "backoff", "tenant"},
    "HistoryRow": {"job_id"},
    "StepRow": {"job_id"},
    "EventRow": {"job_id", "id"},
    "Approval": {"id", "job_id", "digest", "tenant"},
    "Artifact": {"job_id", "id", "content_type", "key"},
    "Subscription": {"id", "events", "ended_reason"},
    "Delivery": {"id", "event", "job_id", "subscription_id", "last_error"},
    "Token": {"id", "roles", "tenant"},
    "Presence": {"job_ids"},
    "ClaimFilter": {"worker", "claim_id"},  # as it is kept with a worker it has neither
}


def texts_in(record: Any) -> set[str]:
    """The names of the fields that hold text, one or many."""
    return {name for name, hint in get_type_hints(record).items() if str in _parts(hint)}


def chosen() -> set[str]:
    """Every field whose text comes from outside."""
    all = {record.__name__: texts_in(record) for record in RECORDS}
    return {f"{name}.{text}" for name, texts in all.items() for text in texts - NOT_CHOSEN.get(name, set())}


def stale() -> set[str]:
    """Rows above about fields that are no longer there."""
    all = {record.__name__: texts_in(record) for record in RECORDS}
    return {f"{name}.{text}" for name, texts in NOT_CHOSEN.items() for text in texts - all[name]}


async def lacking(engine: Engine, who: Principal, planted: Planted, names: Sequence[str]) -> dict[str, list[str]]:
    """The fields into which some name was not put, with those that are missing."""
    found: dict[str, set[str]] = defaultdict(set)
    async for record in _records(engine, who, planted):
        for name in texts_in(type(record)):
            found[f"{type(record).__name__}.{name}"].update(_texts(getattr(record, name)))
    missing = {}
    for field in sorted(chosen()):
        all = "\0".join(found[field])
        out = [name for name in names if not any(form in all for form in _spellings(name))]
        if out:
            missing[field] = out
    return missing


async def _records(engine: Engine, who: Principal, planted: Planted) -> AsyncIterator[Any]:
    tenant, before = who.tenant, None
    while jobs := await engine.queries.jobs(tenant, Filter(limit=MAX_PAGE_SIZE, before_seq=before)):
        before = jobs[-1].seq
        for job in await engine.queries.some(tenant, [job.id for job in jobs]):
            yield job
    async for page in engine.audit.export(tenant):
        for export in page:
            for row in export.rows:
                yield row
    for id in planted.reported:
        for some in (
            await engine.progress.steps(tenant, id),
            await engine.progress.events(tenant, id),
            await engine.artifacts.list(tenant, id, limit=MAX_PAGE_SIZE),
        ):
            for one in some:
                yield one
    place: tuple[int, str] | None = None
    while approvals := await engine.approvals.list(tenant, ApprovalFilter(before=place, limit=MAX_PAGE_SIZE)):
        place = (approvals[-1].opened_at, approvals[-1].id)
        for approval in approvals:
            yield approval
            for vote in approval.votes:
                yield vote
    for several in (
        await engine.webhooks.subscriptions(who, limit=MAX_PAGE_SIZE),
        await engine.tokens.list(who, limit=MAX_PAGE_SIZE),
        await engine.registry.agents(tenant, limit=MAX_PAGE_SIZE),
        await engine.queries.queues(tenant),
    ):
        for it in several:
            yield it
    last = ""
    while limits := await engine.flow.page(tenant, after=last, limit=MAX_PAGE_SIZE):
        last = limits[-1].limit.name
        for found in limits:
            yield found.limit
            yield found.state
    for state in await engine.flow.keys(tenant, "per customer", limit=MAX_PAGE_SIZE):
        yield state
    last = ""
    while workers := await engine.workers.seen(tenant, after=last, limit=MAX_PAGE_SIZE):
        last = workers[-1].name
        for worker in workers:
            yield worker
            for ask in worker.asks:
                yield ask


def _texts(value: Any) -> Iterable[str]:
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else value


def _spellings(name: str) -> tuple[str, ...]:
    """A name as it is, in JSON, in an address, and as a worker may be called."""
    return name, json.dumps(name)[1:-1], as_address(name), as_worker(name)


def _parts(hint: Any) -> set[Any]:
    """What an annotation is made of."""
    return {hint}.union(*(_parts(part) for part in get_args(hint)))
