"""Types, agents and counts on SQLite."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from interlock.domain import operator_log
from interlock.domain.registry import Agent, Defaults, JobType, Minute, QueueStats, Registry
from interlock.errors import AgentInUse
from interlock.storage.sql_files import load
from interlock.storage.sqlite import log, transition_effects
from interlock.storage.sqlite.connection import Connection

T = TypeVar("T")
_SQL: Final = load("interlock.storage.sqlite", "registry.sql")
_ENQUEUE: Final = load("interlock.storage.sqlite", "enqueue.sql")
_MOVES: Final = load("interlock.storage.sqlite", "transition_effects.sql")
RATE_MINUTES: Final = 5
KEPT_MINUTES: Final = 60


class SQLiteRegistry(ABC):
    """Type, agent and counter methods of the SQLite store."""

    @abstractmethod
    async def _write(self, verb: Callable[[Connection], T]) -> T: ...

    @abstractmethod
    async def _read(self, query: Callable[[Connection], T]) -> T: ...

    async def registry(self, tenant: str) -> Registry:
        def read(c: Connection) -> Registry:
            ((version,),) = c.rows(_ENQUEUE["registry"], {"tenant": tenant})
            return Registry(version, {row[0]: _type(row) for row in c.rows(_SQL["types"], {"tenant": tenant})})

        return await self._write(read)  # in one transaction

    async def set_type(self, tenant: str, type: JobType, *, actor: str | None = None) -> JobType:
        def write(c: Connection) -> JobType:
            c.db.execute(_SQL["raise_registry"], {"tenant": tenant})
            d = type.defaults
            facts = {
                "tenant": tenant, "name": type.name, "schema": type.schema, "requires": json.dumps(type.requires),
                "defaults": d.to_text(), "backoff": d.backoff, "lease_seconds": d.lease_seconds, "now": c.now,
            }  # fmt: skip
            if actor is not None:
                log.append(c, tenant, operator_log.set_type(actor, type))
            return _type(c.rows(_SQL["set_type"], facts)[0])

        return await self._write(write)

    async def delete_type(self, tenant: str, name: str, *, actor: str | None = None) -> bool:
        def write(c: Connection) -> bool:
            c.db.execute(_SQL["raise_registry"], {"tenant": tenant})
            gone = bool(c.rows(_SQL["drop_type"], {"tenant": tenant, "name": name}))
            if gone and actor is not None:
                log.append(c, tenant, operator_log.delete_type(actor, name))
            return gone

        return await self._write(write)

    async def set_agent(self, tenant: str, agent: Agent, *, actor: str | None = None) -> Agent:
        def write(c: Connection) -> Agent:
            if actor is not None:
                log.append(c, tenant, operator_log.set_agent(actor, agent))
            return set_agent(c, tenant, agent)

        return await self._write(write)

    async def agents(self, tenant: str, after: tuple[str, str], limit: int) -> list[Agent]:
        facts = {"tenant": tenant, "kind": after[0], "id": after[1], "limit": limit}
        return await self._read(lambda c: [_agent(row) for row in c.rows(_SQL["agents"], facts)])

    async def stalled_agents(self, tenant: str, *, limit: int) -> list[Agent]:
        def read(c: Connection) -> list[Agent]:
            facts = {"tenant": tenant, "now": c.read_clock(), "limit": limit}
            return [_agent(row) for row in c.rows(_SQL["stalled_agents"], facts)]

        return await self._read(read)

    async def agents_named(self, tenant: str, names: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Agent]:
        def read(c: Connection) -> dict[tuple[str, str], Agent]:
            rows = [row for kind, id in names
                    for row in c.rows(_SQL["agent"], {"tenant": tenant, "kind": kind, "id": id})]  # fmt: skip
            return {(row[0], row[1]): _agent(row) for row in rows}

        return await self._read(read)

    async def delete_agent(self, tenant: str, kind: str, id: str, *, actor: str | None = None) -> bool:
        def write(c: Connection) -> bool:
            rows = c.rows(_SQL["agent"], {"tenant": tenant, "kind": kind, "id": id})
            if not rows:
                return False
            facts = {"tenant": tenant, "no": rows[0][-1]}
            ((busy,),) = c.rows(_SQL["has_unfinished"], facts)
            if busy:
                raise AgentInUse(kind, id)
            if rows[0][4] is not None:
                c.db.execute(_SQL["raise_registry"], {"tenant": tenant})
            c.db.execute(_SQL["drop_agent"], facts)
            if actor is not None:
                log.append(c, tenant, operator_log.delete_agent(actor, kind, id))
            return True

        return await self._write(write)

    async def stats(self, tenant: str, type: str | None = None) -> list[QueueStats]:
        stats = await self.read_settled(tenant, lambda c: _stats(c, tenant))
        return [s for s in stats if type is None or s.type == type]

    async def minutes(self, tenant: str) -> list[Minute]:
        def read(c: Connection) -> list[Minute]:
            present = c.read_clock() // transition_effects.MINUTE * transition_effects.MINUTE
            facts = {"tenant": tenant, "since": _minutes_ago(present, KEPT_MINUTES - 1)}
            return [Minute(*row) for row in c.rows(_SQL["minutes"], facts)]

        return await self._read(read)

    async def read_settled(self, tenant: str, query: Callable[[Connection], T]) -> T:
        """Assign free concurrency slots to due jobs, then run the query, so that it sees current slots."""

        def read(c: Connection) -> tuple[bool, T | None]:
            ((due,),) = c.rows(_MOVES["any_agent_due"], {"tenant": tenant, "now": c.read_clock()})
            return (True, None) if due else (False, query(c))

        due, answer = await self._read(read)
        if due:
            await self._write(lambda c: transition_effects.fill_slots(c, tenant))
            return await self._read(query)
        return answer  # type: ignore[return-value]

    async def fill_slots(self, limit: int) -> int:
        def find(c: Connection) -> list[str]:
            rows = c.rows(_MOVES["tenants_with_due_agents"], {"now": c.read_clock(), "limit": limit})
            return [tenant for (tenant,) in rows]

        tenants = await self._read(find)
        for tenant in tenants:
            await self._write(lambda c, tenant=tenant: transition_effects.fill_slots(c, tenant))  # type: ignore[misc]
        return len(tenants)

    async def fold_counters(self, rows: int, limit: int) -> int:
        def find(c: Connection) -> list[str]:
            facts = {"before": _minutes_ago(c.read_clock(), KEPT_MINUTES), "rows": rows, "limit": limit}
            return [tenant for (tenant,) in c.rows(_SQL["long_counters"], facts)]

        def fold(c: Connection, tenant: str) -> None:
            facts = {"tenant": tenant, "before": _minutes_ago(c.now, KEPT_MINUTES)}
            c.db.execute(_SQL["fold"], facts)
            c.db.execute(_SQL["drop_folded"], facts)

        tenants = await self._read(find)
        for tenant in tenants:
            await self._write(lambda c, tenant=tenant: fold(c, tenant))  # type: ignore[misc]
        return len(tenants)


def set_agent(c: Connection, tenant: str, agent: Agent) -> Agent:
    facts = {
        "tenant": tenant, "kind": agent.kind, "id": agent.id, "max_concurrency": agent.max_concurrency,
        "strict": agent.strict, "defaults": agent.defaults.to_text(), "backoff": agent.defaults.backoff,
        "now": c.now,
    }  # fmt: skip
    name = {"tenant": tenant, "kind": agent.kind, "id": agent.id}
    before = c.rows(_SQL["agent"], name)
    if not before:
        c.db.execute(_ENQUEUE["make_agent"], name | {"now": c.now})
    if (before[0][4] if before else None) != agent.defaults.to_text():
        c.db.execute(_SQL["raise_registry"], {"tenant": tenant})
    c.db.execute(_SQL["set_agent"], facts)
    return _agent(c.rows(_SQL["agent"], name)[0])


def _stats(c: Connection, tenant: str) -> list[QueueStats]:
    """Read all counts from one snapshot, so that they are consistent."""
    with c.db:
        now = c.read_clock()
        facts = {"tenant": tenant, "now": now, "recent": now - RATE_MINUTES * transition_effects.MINUTE}
        inside: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        lately: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for type, origin, target, n, recent in c.rows(_SQL["moved"], {k: facts[k] for k in ("tenant", "recent")}):
            inside[type][target] += n
            inside[type][origin] -= n
            lately[type]["enqueued" if origin == "" else target] += recent
        delayed: dict[str, int] = defaultdict(int)
        blocked: dict[str, int] = defaultdict(int)
        oldest: dict[str, int] = {}
        here = {"tenant": tenant, "now": now}
        for type, later, due in c.rows(_SQL["later"], here):
            delayed[type] += later
            if due is not None:
                oldest[type] = min(due, oldest.get(type, due))
        for type, later, due in c.rows(_SQL["waiting_for_slot"], here):
            delayed[type] += later
            blocked[type] += due
        for type, n in c.rows(_SQL["awaiting"], {"tenant": tenant}):
            blocked[type] += n
        paused = {row[0]: row[1:] for row in c.rows(_SQL["paused"], {"tenant": tenant})}
        names = [type for (type,) in c.rows(_SQL["names_of_types"], {"tenant": tenant})]
    return [
        QueueStats(
            type,
            ready=inside[type]["queued"] + inside[type]["retry"] - delayed[type] - blocked[type],
            delayed=delayed[type],
            blocked=blocked[type],
            in_progress=inside[type]["running"],
            waiting_for_approval=inside[type]["waiting_for_approval"],
            dead_letter=inside[type]["dead_letter"],
            succeeded=inside[type]["succeeded"],
            failed=inside[type]["failed"],
            cancelled=inside[type]["cancelled"],
            oldest_ready_at=oldest.get(type),
            enqueued_per_minute=lately[type]["enqueued"] / RATE_MINUTES,
            started_per_minute=lately[type]["running"] / RATE_MINUTES,
            succeeded_per_minute=lately[type]["succeeded"] / RATE_MINUTES,
            failed_per_minute=sum(lately[type][to] for to in ("failed", "dead_letter", "retry")) / RATE_MINUTES,
            paused_at=paused.get(type, (None,) * 3)[0],
            paused_by=paused.get(type, (None,) * 3)[1],
            pause_reason=paused.get(type, (None,) * 3)[2],
        )
        for type in sorted(names)
    ]


def _minutes_ago(now: int, minutes: int) -> int:
    return now - minutes * transition_effects.MINUTE


def _type(row: Sequence[Any]) -> JobType:
    name, schema, requires, defaults, created_at, updated_at = row
    return JobType(name, schema, tuple(json.loads(requires)), Defaults.from_text(defaults), created_at, updated_at)


def _agent(row: Sequence[Any]) -> Agent:
    kind, id, limit, strict, defaults, implicit, created_at, updated_at, *_ = row
    return Agent(kind, id, limit, bool(strict), Defaults.from_text(defaults), bool(implicit), created_at, updated_at)
