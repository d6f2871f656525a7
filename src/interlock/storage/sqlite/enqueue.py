"""Enqueue on SQLite: one statement per table for any number of jobs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from operator import itemgetter
from typing import Any, Final, NamedTuple

from interlock.domain.audit import origins
from interlock.domain.digests import metadata_of_creation, of_options, options_of
from interlock.domain.job import Enqueued, NewJob, Rejected
from interlock.domain.job_tree import budget_of, in_trees, may_be_in_tree
from interlock.domain.retry import SECOND
from interlock.errors import Error, IdempotencyKeyReuse, Invalid, ParentNotActive, UnknownAgent
from interlock.storage.contract import RegistryChanged, Terms
from interlock.storage.job_columns import MORE
from interlock.storage.sql_files import load
from interlock.storage.sqlite import flow, transition_effects
from interlock.storage.sqlite.connection import Connection
from interlock.storage.sqlite.eligibility_keys import EligibilityKey, EligibilityKeys
from interlock.storage.sqlite.history import hash_transitions

_SQL: Final = load("interlock.storage.sqlite", "enqueue.sql")
_more: Final = itemgetter(*map(NewJob._fields.index, MORE))
_NO_MORE: Final = (None,) * len(MORE)  # omitting the columns that most jobs lack is faster than writing NULLs
_own: Final = itemgetter(*map(NewJob._fields.index, ("id", "payload", "run_at", "delay_seconds")))

Key = tuple[str, bool]  # an idempotency key, and whether it ends before its job is deleted
Agents = dict[tuple[str, str], tuple[int, int]]
Progress = Mapping[str, dict[str, str | None]]
NO_PROGRESS: Final[Progress] = {}


def enqueue(
    connection: Connection,
    eligibility_keys: EligibilityKeys,
    tenant: str,
    jobs: Sequence[NewJob],
    whole: bool,
    terms: Terms,
    progress: Progress = NO_PROGRESS,
) -> list[Enqueued | Rejected]:
    """Insert new jobs; with `whole`, none if any is rejected. `progress` holds digests of copied progress."""
    ((registry,),) = connection.rows(_SQL["registry"], {"tenant": tenant})
    if registry != terms.registry:
        raise RegistryChanged(tenant)
    parents = sorted({job.parent_id for job in jobs if job.parent_id is not None})
    if any(map(may_be_in_tree, jobs)):
        rows = connection.rows(_SQL["limits_of"], {"tenant": tenant, "ids": json.dumps(parents)})
        jobs = in_trees(jobs, dict(rows))
    agents = _agents(connection, tenant, jobs, terms.implicit_agents)
    is_plain = not any(job.idempotency_key or job.parent_id or job.fault for job in jobs)
    if is_plain and None not in agents.values():
        first = _insert(connection, eligibility_keys, tenant, jobs, _known(agents), progress, {})
        return [Enqueued(job.id, seq, False, connection.now, job.limits) for seq, job in enumerate(jobs, first)]
    answers, new, generations = _sort_out(connection, tenant, jobs, agents)
    if whole and any(isinstance(a, Rejected) for a in answers):
        return [Enqueued(job.id, 0, False) if a is None else a for job, a in zip(jobs, answers, strict=True)]
    first = _insert(connection, eligibility_keys, tenant, new, _known(agents), progress, generations) if new else 0
    fresh = {job.id: Enqueued(job.id, first + i, False, connection.now, job.limits) for i, job in enumerate(new)}
    by_key = {_key(job): fresh[job.id] for job in new if job.idempotency_key is not None}
    results: list[Enqueued | Rejected] = []
    for job, answer in zip(jobs, answers, strict=True):
        if answer is not None:
            results.append(answer)
        elif job.id in fresh:
            results.append(fresh[job.id])
        else:  # repeats the key of an earlier item in this batch
            results.append(by_key[_key(job)]._replace(replayed=True, at=None, limits=None))
    return results


def _agents(
    connection: Connection, tenant: str, jobs: Sequence[NewJob], make: bool
) -> dict[tuple[str, str], tuple[int, int] | None]:
    """Return (number, is limited) of each agent; None if it does not exist and must not be created."""
    named = {(j.agent_kind, str(j.agent_id)) for j in jobs if j.agent_kind is not None}
    if not named:
        return {}
    found = _find_agents(connection, tenant, named)
    missing = [name for name in sorted(named) if name not in found]
    if missing and make:
        rows = [{"tenant": tenant, "kind": kind, "id": id, "now": connection.now} for kind, id in missing]
        connection.db.executemany(_SQL["make_agent"], rows)
        found |= _find_agents(connection, tenant, missing)
    return {name: found.get(name) for name in named}


def _find_agents(connection: Connection, tenant: str, names: Iterable[tuple[str, str]]) -> Agents:
    rows = connection.rows(_SQL["agents"], {"tenant": tenant, "names": json.dumps(list(names))})
    return {(kind, id): (no, limited) for kind, id, no, limited in rows}


def _known(agents: Mapping[tuple[str, str], tuple[int, int] | None]) -> Agents:
    return {key: agent for key, agent in agents.items() if agent is not None}


def _sort_out(
    connection: Connection,
    tenant: str,
    jobs: Sequence[NewJob],
    agents: Mapping[tuple[str, str], tuple[int, int] | None],
) -> tuple[list[Enqueued | Rejected | None], list[NewJob], dict[str, int]]:
    """Return the replayed and rejected results by position (None if to be inserted), and the jobs to insert.

    The last value has the generations of keys that end, by job ID.
    """
    keys = [job.idempotency_key for job in jobs if job.idempotency_key is not None]
    parents = {job.parent_id for job in jobs if job.parent_id is not None}
    known: dict[Key, tuple[int, str, int, bytes | None, int]] = {}
    if keys:
        rows = connection.rows(_SQL["by_key"], {"tenant": tenant, "keys": json.dumps(keys)})
        known = {(key, generation > 0): (generation, *holder) for key, generation, *holder in rows}
    generations: dict[str, int] = {}
    open_parents: dict[str, int] = {}
    if parents:
        rows = connection.rows(_SQL["open_parents"], {"tenant": tenant, "ids": json.dumps(sorted(parents))})
        open_parents = dict(rows)
    answers: list[Enqueued | Rejected | None] = []
    new: list[NewJob] = []
    mine: dict[Key, NewJob] = {}
    for job in jobs:
        key = _key(job)
        if job.idempotency_key is not None and job.key_lifetime_seconds is not None:
            generations[job.id] = 1
            if key in known:
                generation, *_, created_at = known[key]
                if created_at <= connection.now - round(job.key_lifetime_seconds * SECOND):
                    generations[job.id] = generation + 1
                    del known[key]
        error = job.fault or _parent_fault(job, open_parents) or _agent_fault(job, agents)
        if key in known:
            _, id, seq, body, _ = known[key]
            same = body == job.body_sha256
            answers.append(Enqueued(id, seq, True) if same else Rejected(IdempotencyKeyReuse(key[0], id)))
        elif key in mine:
            twin = mine[key]
            same = twin.body_sha256 == job.body_sha256
            answers.append(None if same else Rejected(IdempotencyKeyReuse(key[0], twin.id)))
        elif error is not None:
            answers.append(Rejected(error))
        else:
            if job.idempotency_key is not None:
                mine[key] = job
            new.append(job)
            answers.append(None)
    return answers, new, generations


def _key(job: NewJob) -> Key:
    return job.idempotency_key or "", job.key_lifetime_seconds is not None


def _parent_fault(job: NewJob, open_parents: dict[str, int]) -> Error | None:
    if job.parent_id is None or open_parents.get(job.parent_id):
        return None
    if job.parent_id in open_parents:
        return ParentNotActive(job.parent_id)
    return Invalid(f"parent {job.parent_id} is not a job", pointer="/parent_id")


def _agent_fault(job: NewJob, agents: Mapping[tuple[str, str], tuple[int, int] | None]) -> Error | None:
    if job.agent_kind is None or agents[job.agent_kind, str(job.agent_id)] is not None:
        return None
    return UnknownAgent(job.agent_kind, str(job.agent_id))


class _Alike(NamedTuple):
    """What jobs with the same options share."""

    job: tuple[Any, ...]
    entries: tuple[Any, ...]
    body: tuple[Any, ...]
    more: tuple[Any, ...]
    options: str  # digest
    base: int
    limited_agent: int | None
    created_by: str


def _insert(
    connection: Connection,
    eligibility_keys: EligibilityKeys,
    tenant: str,
    jobs: Sequence[NewJob],
    agents: Agents,
    progress: Progress,
    generations: Mapping[str, int],
) -> int:
    """Insert jobs with their first history rows and return the first seq.

    The jobs of one call mostly differ in ID, payload and start only, so all else is worked out once per set of options.
    """
    now = connection.now
    ((first,),) = connection.rows(_SQL["take_seqs"], {"tenant": tenant, "count": len(jobs)})
    found = eligibility_keys.of(connection, jobs)
    alike: dict[tuple[Any, ...], _Alike] = {}
    kinds: list[_Alike] = []
    limited: list[tuple[int, EligibilityKey, str]] = []
    rows, bodies, full_bodies, metadatas = [], [], [], []
    first_due: dict[int, int] = {}
    for seq, job, eligibility_key in zip(count(first), jobs, found):
        if (kind := alike.get(options := options_of(job))) is None:
            kind = alike[options] = _kind(job, eligibility_key, agents)
        id, payload, run_at, delay = _own(job)
        due = now + round(delay * SECOND) if delay is not None else now if run_at is None else run_at
        if (agent_no := kind.limited_agent) is not None:
            first_due[agent_no] = min(due, first_due.get(agent_no, due))
        elif job.limits is not None and due == now:
            limited.append((seq, eligibility_key, job.limits))
        kinds.append(kind)
        rows.append((seq, id, due))
        if kind.more == _NO_MORE:
            bodies.append((seq, id, payload, *kind.body))
        else:
            full_bodies.append((seq, id, payload, *kind.body, *kind.more, generations.get(id, 0)))
        metadatas.append(metadata_of_creation(kind.options, payload, progress.get(id)))
    heads = _hashes(connection, tenant, first, [job.id for job in jobs], [kind.created_by for kind in kinds], metadatas)
    places = flow.line_up(connection, eligibility_keys, tenant, limited) if limited else {}
    free, parked = [], []
    for row, head, kind in zip(rows, heads, kinds, strict=True):
        if (place := places.get(row[0])) is None:
            free.append((*row, head, *kind.job, *kind.entries))
        else:
            parked.append((*row, head, *kind.job, *place.key.entries, 1, *place.name))
    connection.insert(_SQL["insert_job"], (tenant, now), free)
    connection.insert(_SQL["insert_parked_job"], (tenant, now), parked)
    connection.insert(_SQL["insert_body"], (tenant, now), bodies)
    connection.insert(_SQL["insert_full_body"], (tenant, now), full_bodies)
    budgets = [budget_of(job.id, job.budget) for job in jobs if job.budget is not None]
    connection.insert(_SQL["insert_tree_budget"], (tenant, now), [(one.name, one.to_text()) for one in budgets])
    overtaken = transition_effects.overtaken(connection, tenant, first_due)
    seqs, bases = range(first, first + len(jobs)), [kind.base for kind in kinds]
    transition_effects.record_enqueued(connection, tenant, seqs, bases, {*first_due})
    transition_effects.assign_slots(connection, tenant, [(agent_no, 0) for agent_no in overtaken])
    return int(first)


def _kind(job: NewJob, key: EligibilityKey, agents: Agents) -> _Alike:
    agent_no, limited = agents[job.agent_kind, str(job.agent_id)] if job.agent_kind is not None else (None, 0)
    return _Alike(
        (
            job.priority, agent_no, limited, job.deadline, job.timeout_seconds, job.max_attempts,
            job.created_by, json.dumps(job.tags) if job.tags else "[]",
        ),
        key.entries,
        (job.type, job.created_by, job.agent_kind, job.agent_id, json.dumps(job.requires) if job.requires else "[]"),
        _more(job),
        of_options(options_of(job)),
        key.base,
        agent_no if limited else None,
        job.created_by,
    )  # fmt: skip


def _hashes(
    connection: Connection, tenant: str, first: int, ids: list[str], creators: list[str], metadatas: list[str]
) -> list[bytes]:
    """Return the hash of the first history row of each job."""
    seqs = range(first, first + len(ids))
    new = (1, None, "queued", "enqueue")
    if len({*creators}) == 1:
        return hash_transitions(connection, seqs, origins(tenant, ids), *new, creators[0], 1, 0, metadatas)
    each = zip(seqs, origins(tenant, ids), creators, metadatas, strict=True)
    return [
        hash_transitions(connection, [seq], [origin], *new, created_by, 1, 0, [metadata])[0]
        for seq, origin, created_by, metadata in each
    ]
