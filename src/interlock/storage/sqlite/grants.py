"""Granting jobs on SQLite: what was chosen is read in ranges, and written together with its history."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final

from interlock.domain import principal
from interlock.domain.decide import PassDeadline
from interlock.domain.job import Job
from interlock.domain.lifecycle import Status
from interlock.domain.policy import DEFAULT_LEASE_SECONDS
from interlock.domain.retry import SECOND
from interlock.storage.sqlite import moves
from interlock.storage.sqlite.alike import Alike
from interlock.storage.sqlite.connection import Connection
from interlock.storage.sqlite.held import Held
from interlock.storage.sqlite.job_view import AT, to_job
from interlock.storage.sqlite.routes import Routes
from interlock.storage.statements import load

_SQL: Final = load("interlock.storage.sqlite", "claim.sql")
_ID, _SEQ, _TYPE, _KIND, _AGENT = AT["id"], AT["seq"], AT["type"], AT["agent_kind"], AT["agent_id"]
_STATUS, _DEADLINE, _TIMEOUT, _ATTEMPT = AT["status"], AT["deadline"], AT["timeout_seconds"], AT["attempt"]
_VERSION, _FENCE, _WORKER, _EXPIRES = AT["version"], AT["fence"], AT["worker"], AT["lease_expires_at"]
_HEARTBEAT, _STARTED, _RUN_STARTED, _UPDATED = (
    AT[name] for name in ("heartbeat_at", "started_at", "run_started_at", "updated_at")
)
_RUNNING: Final = Status.RUNNING

# A job that stands as it was born and has nothing that most jobs lack: few columns of three tables tell all of it.
Born = tuple[tuple[Any, ...], tuple[Any, ...], tuple[bytes]]


class Grants:
    """The jobs that one claim grants, each to the next worker, and all that has to be written for them together."""

    def __init__(
        self, connection: Connection, tenant: str, lease_seconds: float | None, floor: int, workers: Iterator[str]
    ) -> None:
        self._connection, self._tenant, self._now = connection, tenant, connection.now
        self._floor, self._workers = floor, workers
        self._lease_seconds = lease_seconds
        self._by_type: dict[str, float] = {}
        self._by_agent: dict[tuple[str, str], float] = {}
        self._alike: dict[tuple[str, float, str, int, int, int], Alike] = {}
        self._held: dict[str, Held] = {}
        self._edges: dict[tuple[int, str], int] = {}

    def take(self, routes: Routes, seqs: Sequence[int]) -> tuple[list[Job], list[PassDeadline]]:
        """These jobs as granted, save for those whose deadline has passed: they are to end."""
        born = self._as_born(seqs)
        changed = self._changed([seq for seq in seqs if seq not in born]) if len(born) < len(seqs) else {}
        if self._lease_seconds is None:
            self._learn_leases(born, changed)
        granted, late = [], []
        for seq in seqs:
            if (facts := born.get(seq)) is not None:
                granted.append(self._grant_born(routes, facts))
            elif (row := changed.get(seq)) is not None:
                if row[_DEADLINE] is not None and row[_DEADLINE] <= self._now:
                    late.append(PassDeadline(row[_ID]))
                else:
                    granted.append(self._grant_changed(row))
        self._write()
        return granted, late

    def _as_born(self, seqs: Sequence[int]) -> dict[int, Born]:
        born: dict[int, Born] = {}
        for first, last in self._connection.ranges(seqs):
            where = (self._tenant, first, last)
            read = (self._connection.rows(_SQL[name], where) for name in ("unchanged", "bodies", "births"))
            for facts in zip(*read, strict=True):
                job, body, _ = facts
                if job[0] and body[0]:
                    born[job[1]] = facts
        return born

    def _changed(self, seqs: Sequence[int]) -> dict[int, tuple[Any, ...]]:
        """All columns of other jobs, with base, line and the newest hash behind."""
        rows = self._connection.rows(_SQL["to_grant"], {"tenant": self._tenant, "seqs": json.dumps(seqs)})
        return {row[_SEQ]: row for row in rows}

    def _learn_leases(self, born: dict[int, Born], changed: dict[int, tuple[Any, ...]]) -> None:
        """How long leases are where the claim does not say: by the agents of these jobs, else by their types."""
        connection, facts = self._connection, {"tenant": self._tenant}
        self._by_type = dict(connection.rows(_SQL["leases_of_types"], facts))
        ((any_of_agents,),) = connection.rows(_SQL["any_leases_of_agents"], facts)
        if any_of_agents:
            named = {body[1:3] for _, body, _ in born.values()} | {(r[_KIND], r[_AGENT]) for r in changed.values()}
            names = json.dumps([name for name in named if name[0] is not None])
            for kind, id, seconds in connection.rows(_SQL["leases_of_agents"], facts | {"names": names}):
                self._by_agent[kind, id] = seconds

    def _lease(self, type: str, agent_kind: str | None, agent_id: str | None) -> float:
        if self._lease_seconds is not None:
            return self._lease_seconds
        by_type = self._by_type.get(type, DEFAULT_LEASE_SECONDS)
        return self._by_agent.get((agent_kind or "", agent_id or ""), by_type) if self._by_agent else by_type

    def _grant_born(self, routes: Routes, facts: Born) -> Job:
        (
            (_, seq, id, priority, route, line, run_at, max_attempts),
            (_, agent_kind, agent_id, created_by, created_at, payload),
            (birth,),
        ) = facts  # fmt: skip
        _, base, _, _, type, requires, _, repository, affinity_key = routes.numbered(route)
        lease, now = self._lease(type, agent_kind, agent_id), self._now
        worker, fence = self._add(seq, id, base, line, lease, "queued", 1, 1, 0, birth)
        # In the order of the fields: to name each of them costs more than all the rest of a claim.
        return tuple.__new__(Job, (
            self._tenant, id, seq, type, _RUNNING, priority, payload, None, None, (), agent_kind, agent_id,
            affinity_key, repository, requires, None, None, None, None, created_by, None, run_at, None, None, None,
            None, 1, max_attempts, worker, fence, now + round(lease * SECOND), None, None, (), None, None, None, None,
            None, None, None, None, False, 2, 0, created_at, now, now, now, None, False,
        ))  # fmt: skip

    def _grant_changed(self, row: tuple[Any, ...]) -> Job:
        *values, base, line, head = row
        now, timeout = self._now, values[_TIMEOUT]
        lease = self._lease(values[_TYPE], values[_KIND], values[_AGENT])
        worker, fence = self._add(
            values[_SEQ], values[_ID], base, line, lease, values[_STATUS], values[_VERSION], values[_ATTEMPT],
            values[_FENCE], head,
        )  # fmt: skip
        values[_STATUS], values[_WORKER], values[_FENCE] = "running", worker, fence
        values[_EXPIRES] = now + round((lease if timeout is None else min(lease, timeout)) * SECOND)
        values[_VERSION] += 1
        values[_HEARTBEAT], values[_STARTED] = None, values[_STARTED] or now
        values[_RUN_STARTED] = values[_UPDATED] = now
        return to_job(values)

    def _add(
        self, seq: int, id: str, base: int, line: int | None, lease: float, origin: str, version: int, attempt: int,
        fence: int, head: bytes,
    ) -> tuple[str, int]:  # fmt: skip
        """One more to be written, with its worker and its fence."""
        worker, version, fence = next(self._workers), version + 1, max(fence, self._floor) + 1
        move = (worker, lease, origin, version, attempt, fence)
        alike = self._alike.get(move)
        if alike is None:
            actor = principal.worker(worker)
            alike = Alike(self._connection, version, origin, "running", "claim", actor, attempt, fence)
            self._alike[move] = alike
        hash = alike.add(seq, head)
        known = (id, seq, "running", fence, worker, version, attempt, base, line, hash)
        self._held[id] = tuple.__new__(Held, known)
        edge = (base, origin)
        self._edges[edge] = self._edges.get(edge, 0) + 1
        return worker, fence

    def _write(self) -> None:
        connection, tenant = self._connection, self._tenant
        for (worker, lease), group in groupby(sorted(self._alike.items()), lambda item: item[0][:2]):
            facts = {
                "tenant": tenant, "floor": self._floor, "worker": worker, "actor": principal.worker(worker),
                "now": self._now, "lease": round(lease * SECOND), "lease_seconds": lease,
            }  # fmt: skip
            connection.update(_SQL["grant"], facts, [seq for _, alike in group for seq in alike.seqs])
        connection.granted.remember(tenant, self._held, connection.undone)
        started = ((seq, move[2]) for move, alike in self._alike.items() for seq in alike.seqs)
        moves.tell_granted(connection, tenant, self._edges, started)
