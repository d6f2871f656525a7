"""Enqueue on PostgreSQL: arrays in, one statement for any number of jobs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

import asyncpg

from interlock.domain.job import Enqueued, NewJob, Refused
from interlock.errors import Error, IdempotencyKeyReuse, Invalid, ParentEnded
from interlock.storage.postgres.connection import Conn, array_literal, call

Key = tuple[str, str, tuple[str, ...], int, str | None, str | None]


class Routes:
    """The routes this process has met; they are only ever added, so what is remembered stays true."""

    def __init__(self) -> None:
        self._known: dict[Key, tuple[int, int]] = {}

    async def of(self, connection: Conn, tenant: str, jobs: Sequence[NewJob]) -> list[tuple[int, int]]:
        """Number and base of each job's route, made where it is new."""
        keys: list[Key] = [(tenant, j.type, j.requires, j.priority, j.repository, j.affinity_key) for j in jobs]
        for key in {key for key in keys if key not in self._known}:
            row = await connection.fetchrow(
                "select no, base from interlock.ensure_route($1, $2, $3::text::text[], $4, $5, $6)",
                key[0], key[1], array_literal(key[2]), *key[3:],
            )  # fmt: skip
            assert row is not None
            self._known[key] = (row[0], row[1])
        return [self._known[key] for key in keys]

    def forget(self) -> None:
        self._known.clear()


class _Whole(Exception):
    """Undoes a batch that must be added whole or not at all."""

    def __init__(self, answers: list[Enqueued | Refused]) -> None:
        self.answers = answers


async def enqueue(
    connection: Conn, routes: Routes, tenant: str, jobs: Sequence[NewJob], whole: bool
) -> list[Enqueued | Refused]:
    """Add the jobs that are new; with `whole`, none if any is refused."""
    try:
        where = await routes.of(connection, tenant, jobs)
        if not whole and not any(job.parent_id for job in jobs):
            return await _enqueue(connection, tenant, jobs, where, {})
        async with connection.transaction():
            answers = await _enqueue(connection, tenant, jobs, where, await _parents(connection, tenant, jobs))
            if whole and any(isinstance(answer, Refused) for answer in answers):
                raise _Whole(answers)
            return answers
    except (
        asyncpg.ForeignKeyViolationError
    ):  # the database was restored to a time before a route that is remembered here
        routes.forget()
        return await enqueue(connection, routes, tenant, jobs, whole)
    except _Whole as refused:
        return refused.answers


async def _parents(connection: Conn, tenant: str, jobs: Sequence[NewJob]) -> dict[str, bool]:
    ids = sorted({job.parent_id for job in jobs if job.parent_id is not None})
    if not ids:
        return {}
    rows = await connection.fetch("select id, is_open from interlock.open_parents($1, $2)", tenant, ids)
    return {row[0]: row[1] for row in rows}


async def _enqueue(
    connection: Conn, tenant: str, jobs: Sequence[NewJob], where: Sequence[tuple[int, int]], parents: dict[str, bool]
) -> list[Enqueued | Refused]:
    faults = [_parent_fault(job, parents) for job in jobs]
    good = [(job, route) for job, route, fault in zip(jobs, where, faults, strict=True) if fault is None]
    added = await _insert(connection, tenant, good)
    left = [job for job, _ in good if job.id not in added]
    left += [
        job for job, fault in zip(jobs, faults, strict=True) if fault is not None and job.idempotency_key is not None
    ]
    by_key: dict[str, tuple[str, int, bytes | None]] = {}
    by_id: dict[str, int] = {}
    if left:
        keys = [job.idempotency_key for job in left if job.idempotency_key is not None]
        rows = await connection.fetch(
            "select key, id, seq, body from interlock.holders($1, $2, $3)", tenant, keys, [job.id for job in left]
        )
        by_key = {row[0]: (row[1], row[2], row[3]) for row in rows if row[0] is not None}
        by_id = {row[1]: row[2] for row in rows}
    answers: list[Enqueued | Refused] = []
    to_come = set(added)  # items take effect in their order: a key that a later one took was free until then
    for job, fault in zip(jobs, faults, strict=True):
        key = job.idempotency_key
        if job.id in added:
            to_come.discard(job.id)
            answers.append(Enqueued(job.id, added[job.id], False))
        elif job.id in by_id and (
            key is None or by_key[key][0] == job.id
        ):  # our own, from a call whose answer got lost
            answers.append(Enqueued(job.id, by_id[job.id], False))
        elif key is not None and key in by_key and by_key[key][0] not in to_come:
            id, seq, body = by_key[key]
            same = body == job.body_sha256
            answers.append(Enqueued(id, seq, True) if same else Refused(IdempotencyKeyReuse(key, id)))
        else:
            assert fault is not None
            answers.append(Refused(fault))
    return answers


def _parent_fault(job: NewJob, parents: dict[str, bool]) -> Error | None:
    if job.parent_id is None or parents.get(job.parent_id):
        return None
    if job.parent_id in parents:
        return ParentEnded(job.parent_id)
    return Invalid(f"parent {job.parent_id} is not a job", pointer="/parent_id")


async def _insert(connection: Conn, tenant: str, jobs: Sequence[tuple[NewJob, tuple[int, int]]]) -> dict[str, int]:
    if not jobs:
        return {}
    rows_in = (
        (
            j.id,
            j.type,
            j.payload,
            j.priority,
            no,
            base,
            j.max_attempts,
            j.created_by,
            j.idempotency_key,
            j.body_sha256,
            _rest(j),
        )
        for j, (no, base) in jobs
    )
    columns = list(zip(*rows_in, strict=True))
    rows = await connection.fetch(call("enqueue", 1 + len(columns)), tenant, *columns)
    return {row[0]: row[1] for row in rows}


_RARE: Final = (
    "run_at", "delay_seconds", "deadline", "timeout_seconds", "backoff", "expiry_delay_seconds", "headers",
    "traceparent", "agent_kind", "agent_id", "affinity_key", "repository", "webhook", "parent_id",
    "redrive_of", "requested_by",
)  # fmt: skip
_rare: Final = attrgetter(*_RARE, "tags", "requires")
_NOTHING: Final = (None,) * len(_RARE) + ((), ())


def _rest(job: NewJob) -> str | None:
    """What few jobs have, as one JSON object; so a plain job is a short row to send."""
    values = _rare(job)
    if values == _NOTHING:
        return None
    rest = {name: value for name, value in zip(_RARE, values, strict=False) if value is not None}
    return json.dumps(rest | {"tags": array_literal(job.tags), "requires": array_literal(job.requires)})
