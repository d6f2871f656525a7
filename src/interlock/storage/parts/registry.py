"""Types, agents, pauses, and the counts of jobs by type."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from interlock.domain import operator_log
from interlock.domain.limits import Limit
from interlock.domain.registry import RATE_MINUTES, Agent, Defaults, JobType, Minute, QueueStats, Registry
from interlock.errors import AgentInUse
from interlock.storage.dialect import Database, Row, Steps, Transaction, columns, reader, statements

MINUTE: Final = 60_000_000
KEPT_MINUTES: Final = 60

SQL: Final = statements(
    "registry",
    type=columns(JobType, "y."),
    agent=columns(Agent, "a."),
    type_set=columns(JobType),
    agent_set=columns(Agent),
)
_type: Final = reader(JobType, defaults=Defaults.from_text)
_agent: Final = reader(Agent, defaults=Defaults.from_text)


class TypesAndAgents:
    """Stores types and agents, and counts jobs; see the contract."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self, tenant: str) -> Registry:
        # The version first: types that changed since then make the enqueue that passes it back start over.
        ((version,),) = await self._database.rows(tenant, SQL["version"])
        types = map(_type, await self._database.rows(tenant, SQL["types"]))
        limits = [Limit.from_text(*row) for row in await self._database.rows(tenant, SQL["limits"])]
        return Registry(version, {type.name: type for type in types}, {limit.name: limit for limit in limits})

    async def set_type(self, tenant: str, type: JobType, *, actor: str | None = None) -> JobType:
        def body(tx: Transaction) -> Steps[JobType]:
            yield from tx.run(SQL["raise_version"])
            d = type.defaults
            values = {"schema": type.schema, "requires": type.requires, "defaults": d.to_text(), "backoff": d.backoff}
            row = yield from tx.one(SQL["set_type"], name=type.name, lease_seconds=d.lease_seconds, **values)
            if actor is not None:
                yield from tx.log(operator_log.set_type(actor, type))
            return _type(row)

        return await self._database.write(tenant, body)

    async def delete_type(self, tenant: str, name: str, *, actor: str | None = None) -> bool:
        def body(tx: Transaction) -> Steps[bool]:
            yield from tx.run(SQL["raise_version"])
            gone = yield from tx.run(SQL["delete_type"], name=name)
            if gone and actor is not None:
                yield from tx.log(operator_log.delete_type(actor, name))
            return bool(gone)

        return await self._database.write(tenant, body, repeatable=False)

    async def pause(
        self, tenant: str, type: str, *, actor: str | None, reason: str | None, resumed_by: str | None = None
    ) -> None:
        def body(tx: Transaction) -> Steps[None]:
            if actor is None:
                yield from tx.run(SQL["announce_ready"], type=type)
            at = None if actor is None else tx.now
            yield from tx.run(SQL["pause"], type=type, at=at, actor=actor, reason=reason)
            yield from tx.run(SQL["wake_behind_tickets"])
            if actor is not None:
                yield from tx.log(operator_log.pause(actor, type, reason))
            elif resumed_by is not None:
                yield from tx.log(operator_log.resume(resumed_by, type))

        await self._database.write(tenant, body)
        self._database.wake(tenant)

    async def set_agent(self, tenant: str, agent: Agent, *, actor: str | None = None) -> Agent:
        def body(tx: Transaction) -> Steps[Agent]:
            made = yield from set_agent(tx, agent)
            if actor is not None:
                yield from tx.log(operator_log.set_agent(actor, agent))
            return made

        return await self._database.write(tenant, body)

    async def agents(self, tenant: str, after: tuple[str, str], limit: int) -> list[Agent]:
        kind, id = after
        return [*map(_agent, await self._database.rows(tenant, SQL["agents"], kind=kind, id=id, limit=limit))]

    async def stalled_agents(self, tenant: str, *, limit: int) -> list[Agent]:
        return [*map(_agent, await self._database.rows(tenant, SQL["stalled_agents"], limit=limit))]

    async def agents_named(self, tenant: str, names: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Agent]:
        kinds, ids = [kind for kind, _ in names], [id for _, id in names]
        found = map(_agent, await self._database.rows(tenant, SQL["agents_named"], kinds=kinds, ids=ids))
        return {(agent.kind, agent.id): agent for agent in found}

    async def delete_agent(self, tenant: str, kind: str, id: str, *, actor: str | None = None) -> bool:
        def body(tx: Transaction) -> Steps[bool]:
            row = yield from tx.one(SQL["agent"], kind=kind, id=id)
            if row is None:
                return False
            no, defaults = row
            ((busy,),) = yield from tx.rows(SQL["has_unfinished"], no=no)
            if busy:
                raise AgentInUse(kind, id)
            if defaults is not None:
                yield from tx.run(SQL["raise_version"])
            yield from tx.run(SQL["delete_agent"], no=no)
            if actor is not None:
                yield from tx.log(operator_log.delete_agent(actor, kind, id))
            return True

        return await self._database.write(tenant, body, repeatable=False)

    async def stats(self, tenant: str, type: str | None = None) -> list[QueueStats]:
        await settle(self._database, tenant)
        return await self._database.read(tenant, lambda tx: _stats(tx, type))

    async def minutes(self, tenant: str) -> list[Minute]:
        since = (await self._database.now() // MINUTE - KEPT_MINUTES + 1) * MINUTE
        return [Minute(*row) for row in await self._database.rows(tenant, SQL["minutes"], since=since)]

    async def fill_slots(self, limit: int) -> int:
        tenants = await self._database.rows(None, SQL["tenants_with_due_agents"], limit=limit)
        for (tenant,) in tenants:
            await self._database.write(tenant, Transaction.fill_slots)
        return len(tenants)

    async def fold_counters(self, rows: int, limit: int) -> int:
        before = await self._database.now() - KEPT_MINUTES * MINUTE
        tenants = await self._database.rows(None, SQL["long_counters"], before=before, rows=rows, limit=limit)
        for (tenant,) in tenants:
            await self._database.write(tenant, partial(_fold, before=before))
        return len(tenants)


async def settle(database: Database, tenant: str) -> None:
    """Give free concurrency slots to due jobs, so that the next read sees them."""
    ((due,),) = await database.rows(tenant, SQL["any_agent_due"])
    if due:
        await database.write(tenant, Transaction.fill_slots)


def set_agent(tx: Transaction, agent: Agent) -> Steps[Agent]:
    """Create or update an agent; a trigger applies its new limit."""
    named = {"kind": agent.kind, "id": agent.id}
    before = yield from tx.one(SQL["agent"], **named)
    if before is None:
        yield from tx.run(SQL["create_agent"], **named)
    defaults = agent.defaults.to_text()
    if (None if before is None else before[1]) != defaults:
        yield from tx.run(SQL["raise_version"])
    row = yield from tx.one(
        SQL["set_agent"], **named, max_concurrency=agent.max_concurrency, strict=agent.strict, defaults=defaults,
        backoff=agent.defaults.backoff,
    )  # fmt: skip
    return _agent(row)


def _fold(tx: Transaction, before: int) -> Steps[None]:
    """Merge the counts of minutes before a time into one row."""
    yield from tx.run(SQL["fold"], before=before)
    yield from tx.run(SQL["delete_folded"], before=before)


def _stats(tx: Transaction, type: str | None) -> Steps[list[QueueStats]]:
    inside: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    lately: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    recent = tx.now - RATE_MINUTES * MINUTE
    for name, origin, target, n, of_late in (yield from tx.rows(SQL["moved"], type=type, recent=recent)):
        inside[name][target] += n
        inside[name][origin] -= n
        lately[name]["enqueued" if origin == "" else target] += of_late
    delayed: dict[str, int] = defaultdict(int)
    blocked: dict[str, int] = defaultdict(int)
    oldest: dict[str, int] = {}
    for name, later, due in (yield from tx.rows(SQL["later"], type=type)):
        delayed[name] += later
        if due is not None:
            oldest[name] = min(due, oldest.get(name, due))
    for name, later, due in (yield from tx.rows(SQL["waiting_for_slot"], type=type)):
        delayed[name] += later
        blocked[name] += due
    for name, n in (yield from tx.rows(SQL["awaiting"], type=type)):
        blocked[name] += n
    for name, n in (yield from tx.rows(SQL["awaiting_message"], type=type)):
        delayed[name] -= n
        blocked[name] += n
    pauses: dict[str, Row] = {name: rest for name, *rest in (yield from tx.rows(SQL["queues"], type=type))}
    known: list[Any] = yield from tx.rows(SQL["names_of_types"], type=type)
    return [
        QueueStats(
            name,
            ready=inside[name]["queued"] + inside[name]["retry"] - delayed[name] - blocked[name],
            delayed=delayed[name],
            blocked=blocked[name],
            in_progress=inside[name]["running"],
            waiting_for_approval=inside[name]["waiting_for_approval"],
            dead_letter=inside[name]["dead_letter"],
            succeeded=inside[name]["succeeded"],
            failed=inside[name]["failed"],
            cancelled=inside[name]["cancelled"],
            oldest_ready_at=oldest.get(name),
            enqueued_per_minute=lately[name]["enqueued"] / RATE_MINUTES,
            started_per_minute=lately[name]["running"] / RATE_MINUTES,
            succeeded_per_minute=lately[name]["succeeded"] / RATE_MINUTES,
            failed_per_minute=sum(lately[name][to] for to in ("failed", "dead_letter", "retry")) / RATE_MINUTES,
            paused_at=pauses.get(name, (None,) * 3)[0],
            paused_by=pauses.get(name, (None,) * 3)[1],
            pause_reason=pauses.get(name, (None,) * 3)[2],
        )
        for name in sorted({*inside, *pauses, *(name for (name,) in known)})
    ]
