"""Limits: their rules, holds, and the state of their buckets. Claims and the ends of leases change what is used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from itertools import islice
from typing import Final

from interlock.domain import limits, operator_log
from interlock.domain.amounts import rounded
from interlock.domain.budget import PREFIX, TREE, OnExceed
from interlock.domain.expiry import exceed_budget
from interlock.domain.limits import Bucket, BucketState, Limit, LimitState
from interlock.domain.transition import Transition
from interlock.errors import Forbidden, Invalid, LimitInUse
from interlock.storage.dialect import Database, Row, Steps, Transaction, statements
from interlock.storage.parts import registry

SQL: Final = statements("limits")
MAX_DUE_READ: Final = 500  # jobs that are read to find those of one key
MAX_TREES_READ: Final = 50  # trees with parked jobs that are read to find those whose budget is spent
MAX_PARKED_READ: Final = 20  # jobs of each of them
MAX_ANNOUNCED: Final = 500  # due and running jobs to which channels apply their filters


class FlowLimits:
    """Stores limits; see the contract."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def set(self, tenant: str, limit: Limit, *, actor: str) -> LimitState:
        def body(tx: Transaction) -> Steps[LimitState]:
            yield from tx.run(registry.SQL["raise_version"])
            row = yield from tx.one(SQL["get"], name=limit.name)
            return (yield from _put(tx, None if row is None else _limit(row), limit, actor))

        made = await self._database.write(tenant, body)
        self._database.wake(tenant)
        return made

    async def raise_budget(
        self, tenant: str, name: str, amount: Mapping[str, float], *, actor: str, job_id: str | None = None
    ) -> LimitState | None:
        def body(tx: Transaction) -> Steps[LimitState | None]:
            yield from tx.run(registry.SQL["raise_version"])
            row = yield from tx.one(SQL["get"], name=name)
            if row is None:
                return None
            old = _limit(row)
            assert old.budget is not None
            if job_id is not None and old.budget.raised_by == job_id:
                return (yield from _get(tx, name))
            for unit in amount:
                if unit not in old.units:
                    raise Invalid(f"the budget has no unit {unit!r}", pointer=f"/amount/{unit}")
            more = limits.check(old._replace(units=amount, burst={})).units
            units = {unit: rounded(had + more.get(unit, 0.0)) for unit, had in old.units.items()}
            period = old.budget if job_id is None else old.budget._replace(raised_by=job_id)
            new = limits.check(old._replace(units=units, burst={}, budget=period))
            return (yield from _put(tx, old, new, actor))

        raised = await self._database.write(tenant, body, repeatable=False)
        self._database.wake(tenant)
        return raised

    async def acting_budgets(self) -> list[tuple[str, str]]:
        return [(tenant, name) for tenant, name in await self._database.rows(None, SQL["acting_budgets"])]

    async def watched_budgets(self) -> list[tuple[str, str]]:
        return [(tenant, name) for tenant, name in await self._database.rows(None, SQL["watched_budgets"])]

    async def announce_spent(self, tenant: str, name: str) -> bool:
        return await self._database.write(tenant, lambda tx: _announce_spent(tx, name))

    async def refused(self, tenant: str, name: str, limit: int) -> list[str]:
        return await self._database.read(tenant, lambda tx: _refused(tx, name, limit))

    async def fail_refused(self, tenant: str, name: str, limit: int) -> int:
        def body(tx: Transaction) -> Steps[int]:
            jobs = yield from tx.lock_jobs((yield from _refused(tx, name, limit)))
            refused = yield from _refused(tx, name, limit)  # as of now: the budget may have been raised
            outcomes = [exceed_budget(jobs[id], name.removeprefix(PREFIX)) for id in refused if id in jobs]
            changes = [one for one in outcomes if isinstance(one, Transition)]
            yield from tx.transition(changes)
            return len(changes)

        failed = await self._database.write(tenant, body, guarded=True)
        if failed:
            self._database.wake(tenant)
        return failed

    async def due(self, tenant: str, name: str, limit: int, *, key: str | None = None) -> list[str]:
        def body(tx: Transaction) -> Steps[list[str]]:
            most = limit if key is None else MAX_DUE_READ
            found = yield from tx.rows(SQL["due_under"], name=name, limit=most)
            named = (id for id, demanded in found if key is None or _names(demanded, name, key))
            return list(islice(named, limit))

        return await self._database.read(tenant, body)

    async def held(self, tenant: str, limit: int) -> list[tuple[str, BucketState]]:
        def body(tx: Transaction) -> Steps[list[tuple[str, BucketState]]]:
            rows = yield from tx.rows(SQL["held"], limit=limit)
            return [(name, BucketState(key, used, {}, 0, *hold)) for name, key, used, *hold in rows]

        return await self._database.read(tenant, body)

    async def spent_trees(self, tenant: str, limit: int) -> list[str]:
        def body(tx: Transaction) -> Steps[list[str]]:
            found = []
            for (name,) in (yield from tx.rows(SQL["parked_trees"], limit=MAX_TREES_READ)):
                if (yield from _refuses_parked(tx, name)):
                    found.append(name)
            return found[:limit]

        return await self._database.read(tenant, body)

    async def tenants(self) -> list[str]:
        return [tenant for (tenant,) in await self._database.rows(None, SQL["tenants"])]

    async def get(self, tenant: str, name: str) -> LimitState | None:
        def body(tx: Transaction) -> Steps[LimitState | None]:
            row = yield from tx.one(SQL["get_unlocked"], name=name)
            return None if row is None else (yield from _state(tx, _limit(row)))

        return await self._database.read(tenant, body)

    async def page(self, tenant: str, *, after: str = "", limit: int = 50, budgets: bool = False) -> list[LimitState]:
        def body(tx: Transaction) -> Steps[list[LimitState]]:
            found = []
            for row in (yield from tx.rows(SQL["page"], after=after, limit=limit, budgets=int(budgets))):
                found.append((yield from _state(tx, _limit(row))))
            return found

        return await self._database.read(tenant, body)

    async def keys(self, tenant: str, name: str, *, after: str = "", limit: int = 50) -> list[BucketState]:
        def body(tx: Transaction) -> Steps[list[BucketState]]:
            row = yield from tx.one(SQL["get_unlocked"], name=name)
            if row is None:
                return []
            return (yield from _buckets(tx, _limit(row), after=after, first=not after, most=limit))

        return await self._database.read(tenant, body)

    async def delete(self, tenant: str, name: str, *, actor: str) -> bool:
        def body(tx: Transaction) -> Steps[bool]:
            yield from tx.run(registry.SQL["raise_version"])
            ((named,),) = yield from tx.rows(SQL["named"], name=name)
            if named:
                raise LimitInUse(name)
            gone = yield from tx.run(SQL["delete"], name=name)
            yield from tx.run(SQL["delete_buckets"], name=name)
            if gone:
                yield from tx.log(operator_log.delete_limit(actor, name))
            return bool(gone)

        return await self._database.write(tenant, body, repeatable=False)

    async def hold(
        self, tenant: str, name: str, *, key: str, until: int, actor: str, reason: str | None, worker: str | None = None
    ) -> LimitState | None:
        def body(tx: Transaction) -> Steps[LimitState | None]:
            found = yield from tx.one(SQL["get"], name=name)
            if found is None:
                return None
            if worker is not None:
                ((works,),) = yield from tx.rows(SQL["worker_names_it"], name=name, key=key, worker=worker)
                if not works:
                    raise Forbidden(f"a worker holds only a limit that one of its running jobs names, not {name!r}")
            if (yield from tx.run(SQL["hold"], name=name, key=key, until=until, actor=actor, reason=reason)):
                yield from tx.log(operator_log.hold_limit(actor, name, key, until, reason))
            return (yield from _get(tx, name))

        return await self._database.write(tenant, body)

    async def release(self, tenant: str, name: str, *, key: str, actor: str) -> LimitState | None:
        def body(tx: Transaction) -> Steps[LimitState | None]:
            if (yield from tx.run(SQL["release"], name=name, key=key)):
                yield from tx.log(operator_log.release_limit(actor, name, key))
            return (yield from _get(tx, name))

        found = await self._database.write(tenant, body)
        self._database.wake(tenant)
        return found

    async def forget_idle(self, limit: int) -> int:
        gone = 0
        for tenant, name in await self._database.rows(None, SQL["keyed"]):
            after: str | None = ""
            while after is not None:
                after, some = await self._database.write(tenant, partial(_forget, name=name, after=after, limit=limit))
                gone += some
        return gone


def _names(demanded: str, name: str, key: str) -> bool:
    return any((one.name, one.key) == (name, key) for one in limits.demands_of(demanded))


def _forget(tx: Transaction, *, name: str, after: str, limit: int) -> Steps[tuple[str | None, int]]:
    """Delete the idle buckets among the next ones; return the last key, or None at the end, and how many."""
    row = yield from tx.one(SQL["get"], name=name)
    rows = yield from tx.rows(SQL["unused"], name=name, after=after, limit=limit)
    if row is None or not rows:
        return None, 0
    rules = _limit(row)
    found = ((key, Bucket.from_row(*state)) for key, *state in rows)
    idle = [(key, bucket.as_of) for key, bucket in found if bucket.is_idle(rules, tx.now)]
    gone = 0
    if idle:
        keys, as_ofs = [key for key, _ in idle], [as_of for _, as_of in idle]
        gone = yield from tx.run(SQL["delete_idle"], name=name, keys=keys, as_ofs=as_ofs)
    return (rows[-1][0] if len(rows) == limit else None), gone


def _refused(tx: Transaction, name: str, most: int) -> Steps[list[str]]:
    """Return due jobs that a budget refuses until it is raised or starts anew."""
    row = yield from tx.one(SQL["get_unlocked"], name=name)
    if row is None:
        return []
    limit, found = _limit(row), (yield from _only_bucket(tx, name))
    return [
        id
        for id, demanded in (yield from tx.rows(SQL["due_under"], name=name, limit=most))
        for demand in limits.demands_of(demanded)
        if demand.name == name and limits.refuses(limit, found, demand.cost, tx.now)
    ]


def _refuses_parked(tx: Transaction, name: str) -> Steps[bool]:
    """Return whether the budget of a tree refuses one of the jobs that a claim parked because of it."""
    row = yield from tx.one(SQL["get_unlocked"], name=name)
    if row is None:
        return False
    limit, found = _limit(row), (yield from _only_bucket(tx, name))
    return any(
        demand.name == name and limits.refuses(limit, found, demand.cost, tx.now)
        for _, demanded in (yield from tx.rows(SQL["parked_under"], name=name, limit=MAX_PARKED_READ))
        for demand in limits.demands_of(demanded)
    )


def _only_bucket(tx: Transaction, name: str) -> Steps[Bucket]:
    """Return the bucket of a limit without keys, or of a tree's budget."""
    found = Bucket()
    for _, *state, _, _ in (yield from tx.rows(SQL["buckets"], name=name, after="", first=1, limit=1)):
        found = Bucket.from_row(*state)
    return found


def _reserved(tx: Transaction, name: str, since: int) -> Steps[Counter[str]]:
    found: Counter[str] = Counter()
    for (demanded,) in (yield from tx.rows(SQL["running"], name=name, since=since)):
        for demand in limits.demands_of(demanded):
            if demand.name == name:
                found.update(demand.cost)
    return found


def _announce_spent(tx: Transaction, name: str) -> Steps[bool]:
    """Deliver the event of a budget that is used up, or has too little left for a due job though none runs."""
    row = yield from tx.one(SQL["get_unlocked"], name=name)
    if row is None or (period := (limit := _limit(row)).budget) is None:
        return False
    since = period.began_at(tx.now) or 0
    if (yield from tx.one(SQL["unannounced"], name=name, since=since)) is None:
        return False
    statement = SQL["parked_under" if name.startswith(TREE) else "due_under"]
    due = dict((yield from tx.rows(statement, name=name, limit=MAX_ANNOUNCED)))
    bucket, reserved = (yield from _only_bucket(tx, name)), (yield from _reserved(tx, name, since))
    left = bucket.available(limit, tx.now)
    if all(amount + reserved[unit] > 0 for unit, amount in left.items()) and (
        bucket.used
        or period.on_exceed is OnExceed.WARN
        or not any(
            limits.refuses(limit, bucket, demand.cost, tx.now)
            for demanded in due.values()
            for demand in limits.demands_of(demanded)
            if demand.name == name
        )
    ):
        return False
    if not (yield from tx.run(SQL["mark_announced"], name=name, since=since)):
        return False
    if name.startswith(TREE):
        ids = [name.removeprefix(TREE)]
    else:
        running = yield from tx.rows(SQL["running_ids"], name=name, limit=MAX_ANNOUNCED)
        ids = [*due, *(id for (id,) in running)]
    yield from tx.rows(SQL["announce_spent"], name=name, ids=ids)
    return True


def _put(tx: Transaction, old: Limit | None, limit: Limit, actor: str) -> Steps[LimitState]:
    """Write new rules, and apply them to the buckets."""
    if old is not None:
        if old.keyed != limit.keyed:
            raise Invalid("keyed of a limit never changes: delete the limit first", pointer="/keyed")
        for key, *state in (yield from tx.rows(SQL["all_buckets"], name=limit.name)):
            bucket = Bucket.from_row(*state)
            limits.rescale(bucket, old, limit, tx.now)
            _, levels, as_of, _, _ = bucket.to_row()
            yield from tx.run(SQL["save_bucket"], name=limit.name, key=key, levels=levels, as_of=as_of)
    yield from tx.run(SQL["set"], name=limit.name, rules=limit.to_text())
    yield from tx.log(operator_log.set_limit(actor, limit))
    made = yield from _get(tx, limit.name)
    assert made is not None
    return made


def _get(tx: Transaction, name: str) -> Steps[LimitState | None]:
    row = yield from tx.one(SQL["get"], name=name)
    return None if row is None else (yield from _state(tx, _limit(row)))


def _state(tx: Transaction, limit: Limit) -> Steps[LimitState]:
    if not limit.keyed:
        found = yield from _buckets(tx, limit, after="", first=True, most=1)
        fresh = limits.state_of(limit, "", Bucket(), tx.now, (yield from _waiting(tx, limit.name)), None, None)
        reserved: Mapping[str, float] = {}
        if limit.budget is not None:
            reserved = yield from _reserved(tx, limit.name, limit.budget.began_at(tx.now) or 0)
        return LimitState(limit, found[0] if found else fresh, reserved)
    ((used,),) = yield from tx.rows(SQL["sum_used"], name=limit.name)
    return LimitState(limit, BucketState("", int(used), {}, (yield from _waiting(tx, limit.name))))


def _buckets(tx: Transaction, limit: Limit, *, after: str, first: bool, most: int) -> Steps[list[BucketState]]:
    rows = yield from tx.rows(SQL["buckets"], name=limit.name, after=after, first=int(first), limit=most)
    waiting = {}
    if not limit.keyed:
        waiting = dict.fromkeys((key for key, *_ in rows), (yield from _waiting(tx, limit.name)))
    elif rows:
        counts = yield from tx.rows(SQL["waiting_by_key"], name=limit.name, first=rows[0][0], last=rows[-1][0])
        waiting = {key: int(n) for key, n in counts}
    return [
        limits.state_of(limit, key, Bucket.from_row(*state), tx.now, waiting.get(key, 0), held_by, reason)
        for key, *state, held_by, reason in rows
    ]


def _waiting(tx: Transaction, name: str) -> Steps[int]:
    if name.startswith(TREE):
        ((waiting,),) = yield from tx.rows(SQL["waiting_in_tree"], root=name.removeprefix(TREE))
    else:
        ((waiting,),) = yield from tx.rows(SQL["waiting"], name=name)
    return int(waiting)


def _limit(row: Row) -> Limit:
    return Limit.from_text(*row)
