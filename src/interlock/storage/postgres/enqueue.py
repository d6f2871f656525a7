"""Enqueue on PostgreSQL: arrays in, one statement for any number of jobs."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

import asyncpg

from interlock.domain.digests import of_creation
from interlock.domain.job import FIELDS, Enqueued, Kind, NewJob, Rejected
from interlock.domain.job_tree import budget_of, in_trees, may_be_in_tree
from interlock.domain.limits import flow_of
from interlock.errors import Error, IdempotencyKeyReuse, Invalid, ParentNotActive, UnknownAgent
from interlock.storage.contract import RegistryChanged, Terms
from interlock.storage.job_columns import RARE
from interlock.storage.postgres.column_arrays import array_literal, shared, some
from interlock.storage.postgres.connection import Conn, call

Key = tuple[str, str, tuple[str, ...], int, str | None, str | None, str]
# IDs are sent as one text: for an array, the driver would encode every element.
_ENQUEUE: Final = call("enqueue", 19).replace("$3", "$3::text::uuid[]")
_ENQUEUE_ONE: Final = call("enqueue_one", 11)
_INSERT_BUDGETS: Final = """
insert into interlock.flow_limit (tenant, name, rules, created_at, updated_at)
select $1, u.name, u.rules, interlock.clock(), interlock.clock() from unnest($2::text[], $3::text[]) u(name, rules)
"""
Progress = Mapping[str, dict[str, str | None]]
NO_PROGRESS: Final[Progress] = {}
REGISTRY_CHANGED: Final = "IL001"
MAX_AGENTS: Final = 100_000
MAX_ROUTES: Final = 100_000


class EligibilityKeys:
    """Cache of eligibility keys. They are never changed or deleted, so entries stay valid."""

    def __init__(self) -> None:
        self._known: dict[Key, tuple[int, int]] = {}

    async def of(self, connection: Conn, tenant: str, jobs: Sequence[NewJob]) -> list[tuple[int, int]]:
        """Return the number and base of each job's eligibility key; create missing keys."""
        keys: list[Key] = [
            (tenant, j.type, j.requires, j.priority, j.repository, j.affinity_key, flow_of(j.limits)) for j in jobs
        ]
        with contextlib.suppress(KeyError):
            return [self._known[key] for key in keys]
        known = {key: self._known[key] for key in keys if key in self._known}
        if new := sorted({key for key in keys if key not in known}, key=repr):
            columns = zip(*((type, array_literal(requires), *rest) for _, type, requires, *rest in new), strict=True)
            rows = await connection.fetch(call("ensure_eligibility_keys", 7), tenant, *columns)
            known |= {key: (row[0], row[1]) for key, row in zip(new, rows, strict=True)}
            if len(self._known) >= MAX_ROUTES:
                self._known.clear()
            self._known |= known
        return [known[key] for key in keys]

    def forget(self) -> None:
        self._known.clear()


class Agents:
    """Cache of agent numbers; the database rejects an agent that was deleted since."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], int] = {}

    async def of(self, connection: Conn, tenant: str, jobs: Sequence[NewJob], make: bool) -> list[int | None]:
        """Return the number of each job's agent; None without an agent, or if it is unknown and must not be created."""
        keys = [None if j.agent_kind is None else (tenant, j.agent_kind, str(j.agent_id)) for j in jobs]
        for key in {key for key in keys if key is not None and key not in self._known}:
            no = await connection.fetchval("select interlock.ensure_agent($1, $2, $3, $4)", *key, make)
            if no is not None:
                if len(self._known) >= MAX_AGENTS:
                    self._known.clear()
                self._known[key] = no
        return [None if key is None else self._known.get(key) for key in keys]

    def forget(self) -> None:
        self._known.clear()


class EnqueueCache:
    """Cache that a process keeps between enqueues."""

    def __init__(self) -> None:
        self.eligibility_keys = EligibilityKeys()
        self.agents = Agents()

    def forget(self) -> None:
        self.eligibility_keys.forget()
        self.agents.forget()


class StaleCache(asyncpg.SerializationError):
    """A cached eligibility key or agent no longer exists; the retry looks it up again."""


class _BatchRejected(Exception):
    """Rolls back a batch that must be added completely or not at all."""

    def __init__(self, answers: list[Enqueued | Rejected]) -> None:
        self.answers = answers


async def enqueue(
    connection: Conn, known: EnqueueCache, tenant: str, jobs: Sequence[NewJob], whole: bool, terms: Terms,
    progress: Progress = NO_PROGRESS,
) -> list[Enqueued | Rejected]:  # fmt: skip
    """Add the new jobs; with `whole`, none if any is rejected. `progress`: digests of the progress some start with."""
    try:
        jobs = await _in_trees(connection, tenant, jobs)
        eligibility_keys = await known.eligibility_keys.of(connection, tenant, jobs)
        agent_nos = await known.agents.of(connection, tenant, jobs, terms.implicit_agents)
        batch = _Batch(connection, tenant, jobs, eligibility_keys, agent_nos, terms.registry, progress)
        ends = any(job.key_lifetime_seconds is not None for job in jobs)
        if not (
            ends or any(job.parent_id or job.budget for job in jobs) or (whole and _may_be_refused(jobs, agent_nos))
        ):
            return await _enqueue(batch, {})
        async with connection.transaction():
            if ends:
                batch = batch._replace(generations=await _generations(connection, tenant, jobs))
            answers = await _enqueue(batch, await _parents(connection, tenant, jobs))
            if whole and any(isinstance(answer, Rejected) for answer in answers):
                raise _BatchRejected(answers)
            return answers
    except asyncpg.ForeignKeyViolationError as error:
        known.forget()
        raise StaleCache(str(error)) from error
    except asyncpg.PostgresError as error:
        if error.sqlstate == REGISTRY_CHANGED:
            raise RegistryChanged(tenant) from None
        raise
    except _BatchRejected as refused:
        return refused.answers


async def _in_trees(connection: Conn, tenant: str, jobs: Sequence[NewJob]) -> Sequence[NewJob]:
    """Add the budgets of the trees that the jobs belong to."""
    parents = sorted({job.parent_id for job in jobs if job.parent_id is not None})
    if not any(map(may_be_in_tree, jobs)):
        return jobs
    rows = (
        await connection.fetch("select id, limits from interlock.limits_of($1, $2)", tenant, parents) if parents else ()
    )
    return in_trees(jobs, {row[0]: row[1] for row in rows})


def _may_be_refused(jobs: Sequence[NewJob], agent_nos: Sequence[int | None]) -> bool:
    """Return whether one job may be rejected after others were added; else one statement is atomic on its own."""
    return any(
        job.idempotency_key is not None or job.fault is not None or (job.agent_kind is not None and agent_no is None)
        for job, agent_no in zip(jobs, agent_nos, strict=True)
    )


class _Batch(NamedTuple):
    """Jobs to add, with their resolved eligibility keys and agents."""

    connection: Conn
    tenant: str
    jobs: Sequence[NewJob]
    eligibility_keys: Sequence[tuple[int, int]]
    agent_nos: Sequence[int | None]
    registry: int
    progress: Progress
    generations: Mapping[str, int] = {}


async def _generations(connection: Conn, tenant: str, jobs: Sequence[NewJob]) -> dict[str, int]:
    """Return the generations of keys that end, by job ID."""
    keys = {j.id: j for j in jobs if j.key_lifetime_seconds is not None and j.idempotency_key is not None}
    columns = zip(*((j.idempotency_key, j.key_lifetime_seconds) for j in keys.values()), strict=True)
    rows = await connection.fetch(call("key_generations", 3), tenant, *columns) if keys else ()
    return {id: row[0] for id, row in zip(keys, rows, strict=True)}


async def _parents(connection: Conn, tenant: str, jobs: Sequence[NewJob]) -> dict[str, bool]:
    ids = sorted({job.parent_id for job in jobs if job.parent_id is not None})
    if not ids:
        return {}
    rows = await connection.fetch("select id, is_open from interlock.open_parents($1, $2)", tenant, ids)
    return {row[0]: row[1] for row in rows}


async def _enqueue(batch: _Batch, parents: dict[str, bool]) -> list[Enqueued | Rejected]:
    connection, tenant, jobs = batch.connection, batch.tenant, batch.jobs
    faults = [
        job.fault or _parent_fault(job, parents) or _agent_fault(job, agent_no)
        for job, agent_no in zip(jobs, batch.agent_nos, strict=True)
    ]
    checked = zip(jobs, batch.eligibility_keys, batch.agent_nos, faults, strict=True)
    good = [(job, eligibility_key, agent_no) for job, eligibility_key, agent_no, fault in checked if fault is None]
    added = await _insert(connection, tenant, good, batch.registry, batch.progress, batch.generations)
    budgets = [budget_of(job.id, job.budget) for job, *_ in good if job.budget is not None and job.id in added]
    if budgets:
        names, rules = [one.name for one in budgets], [one.to_text() for one in budgets]
        await connection.execute(_INSERT_BUDGETS, tenant, names, rules)
    left = [job for job, _, _ in good if job.id not in added]
    left += [
        job for job, fault in zip(jobs, faults, strict=True) if fault is not None and job.idempotency_key is not None
    ]
    by_key: dict[tuple[str, bool], tuple[str, int, bytes | None]] = {}
    by_id: dict[str, int] = {}
    if left:
        keys = [job.idempotency_key for job in left if job.idempotency_key is not None]
        rows = await connection.fetch(
            "select key, generation > 0, id, seq, body from interlock.holders($1, $2, $3)",
            tenant, keys, [job.id for job in left],
        )  # fmt: skip
        by_key = {(row[0], row[1]): (row[2], row[3], row[4]) for row in rows if row[0] is not None}
        by_id = {row[2]: row[3] for row in rows}
    answers: list[Enqueued | Rejected] = []
    to_come = set(added)  # items apply in order: a key that a later item took was free before
    for job, fault in zip(jobs, faults, strict=True):
        key = job.idempotency_key or "", job.key_lifetime_seconds is not None
        if job.id in added:
            to_come.discard(job.id)
            seq, at = added[job.id]
            answers.append(Enqueued(job.id, seq, False, at, job.limits))
        elif job.id in by_id and (
            job.idempotency_key is None or by_key[key][0] == job.id
        ):  # added by an earlier call whose response was lost
            answers.append(Enqueued(job.id, by_id[job.id], False))
        elif key in by_key and by_key[key][0] not in to_come:
            id, seq, body = by_key[key]
            same = body == job.body_sha256
            answers.append(Enqueued(id, seq, True) if same else Rejected(IdempotencyKeyReuse(key[0], id)))
        else:
            assert fault is not None
            answers.append(Rejected(fault))
    return answers


def _parent_fault(job: NewJob, parents: dict[str, bool]) -> Error | None:
    if job.parent_id is None or parents.get(job.parent_id):
        return None
    if job.parent_id in parents:
        return ParentNotActive(job.parent_id)
    return Invalid(f"parent {job.parent_id} is not a job", pointer="/parent_id")


def _agent_fault(job: NewJob, agent_no: int | None) -> Error | None:
    return UnknownAgent(job.agent_kind, str(job.agent_id)) if job.agent_kind is not None and agent_no is None else None


async def _insert(
    connection: Conn,
    tenant: str,
    jobs: Sequence[tuple[NewJob, tuple[int, int], int | None]],
    registry: int,
    progress: Progress,
    generations: Mapping[str, int],
) -> dict[str, tuple[int, int]]:
    """Insert the jobs and return the number and time of each one added, by ID."""
    if not jobs:
        return {}
    if len(jobs) == 1 and _is_plain(*jobs[0], generations):
        return await _insert_one(connection, tenant, *jobs[0], registry, progress)
    in_order = [job.id for job, _, _ in jobs]
    metadatas = [of_creation(job, progress.get(job.id)) for job, _, _ in jobs]
    positions = None
    if any(job.idempotency_key is not None for job, _, _ in jobs):
        positions, jobs = zip(
            *sorted(enumerate(jobs, 1), key=lambda has_slot: has_slot[1][0].idempotency_key or ""), strict=True
        )
    rows = (
        (j.id, j.type, j.payload, j.priority, no, base, agent_no, j.max_attempts, j.created_by, j.idempotency_key,
         j.body_sha256, j.agent_kind, j.agent_id, j.limits, _rest(j, generations.get(j.id)))
        for j, (no, base), agent_no in jobs
    )  # fmt: skip
    ids, types, payloads, priorities, eligibility_keys, bases, agent_nos, attempts, creators, *rare = zip(
        *rows, strict=True
    )
    answer = await connection.fetchrow(
        _ENQUEUE,
        tenant,
        registry,
        "{" + ",".join(ids) + "}",
        shared(types),
        payloads,
        shared(priorities),
        shared(eligibility_keys),
        shared(bases),
        some(agent_nos),
        shared(attempts),
        shared(creators),
        *map(some, rare),
        metadatas,
        positions,
    )
    assert answer is not None
    seqs, added, at = answer
    if added is None:
        return {id: (seq, at) for id, seq in zip(in_order, sorted(seqs), strict=True)}
    return {id: (seq, at) for id, seq in zip(added.split(), seqs, strict=True)}


def _is_plain(job: NewJob, _: tuple[int, int], agent_no: int | None, generations: Mapping[str, int]) -> bool:
    rare = job.idempotency_key, job.limits, _rest(job, generations.get(job.id))
    return agent_no is None and rare == (None, None, None)


async def _insert_one(
    connection: Conn,
    tenant: str,
    job: NewJob,
    key: tuple[int, int],
    _: int | None,
    registry: int,
    progress: Progress,
) -> dict[str, tuple[int, int]]:
    answer = await connection.fetchrow(
        _ENQUEUE_ONE, tenant, registry, job.id, job.type, job.payload, job.priority, *key, job.max_attempts,
        job.created_by, of_creation(job, progress.get(job.id)),
    )  # fmt: skip
    assert answer is not None
    seq, at = answer
    return {} if seq is None else {job.id: (seq, at)}


# The less common options, sent as one JSON object: when the job is due, and the rare ones.
_RARE: Final = ("run_at", "delay_seconds", *(name for name in RARE if name != "limits"))
_LISTS: Final = tuple(name for name in RARE if FIELDS[name].kind is Kind.NAMES)
_rare: Final = attrgetter(*_RARE)
_NOTHING: Final = _rare(NewJob("", ""))


def _rest(job: NewJob, key_generation: int | None) -> str | None:
    """Encode the less common options as one JSON object, so that a plain job is a short row."""
    values = _rare(job)
    if values == _NOTHING and key_generation is None:
        return None
    rest = {name: value for name, value in zip(_RARE, values, strict=True) if value is not None}
    lists = {name: array_literal(rest[name]) for name in _LISTS}
    return json.dumps(rest | lists | {"key_generation": key_generation})
