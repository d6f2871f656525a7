"""Jobs on a server: enqueue, read, follow, cancel, redrive, audit and delete."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final
from urllib.parse import quote

from msgspec import Raw

from interlock import wire
from interlock.cli.remote import decode
from interlock.cli.remote.connection import MAX_PAGE_SIZE, ServerConnection
from interlock.client.http.decode import (  # fmt: skip
    PageShape,
    QueueShape,
    event,
    listed_job,
    queue,
    read,
    receipt,
)
from interlock.client.http.encode import selection
from interlock.client.http.errors import rebuilt
from interlock.client.http.stream import QUIET_SECONDS
from interlock.client.http.transport import HttpResponse, refusal
from interlock.domain.audit import HistoryExport, VerifiedPart
from interlock.domain.explain import Why
from interlock.domain.job import Enqueued, Filter, HistoryRow, Job, Receipt
from interlock.domain.operations import START, Action
from interlock.domain.operator_log import LogRow
from interlock.domain.principal import Principal
from interlock.domain.progress import EventRow, FeedEvent, FeedPosition, StepRow
from interlock.domain.registry import QueueStats
from interlock.domain.worker_presence import Presence
from interlock.engine.operations import Bulk, Cascade
from interlock.engine.retention import Pruned
from interlock.errors import Error, Unavailable
from interlock.wire import JobRequest, responses

BATCH_SIZE: Final = 1000
AUDIT_BATCH_SIZE: Final = 1000
PRUNE_BATCH_SIZE: Final = 10_000
NULL: Final = Raw(b"null")  # a member that is None is left out of a body
NOWHERE: Final = FeedPosition(0, 0, "", 0)


class RemoteJobs:
    def __init__(self, line: ServerConnection) -> None:
        self._line = line

    async def enqueue(self, who: Principal, request: JobRequest) -> Enqueued:
        (added,) = await self._line.client.enqueue([request])
        return added

    async def cancel(self, who: Principal, job_id: str, *, reason: str | None = None, force: bool = False) -> Receipt:
        return await self._line.client.cancel(job_id, reason=reason, force=force)

    async def edit(self, who: Principal, job_id: str, *, drop_deadline: bool = False, **values: Any) -> None:
        """The changed job is read anew, so nothing is returned."""
        body = {name: value for name, value in values.items() if value is not None}
        if drop_deadline:
            body["deadline"] = NULL
        await self._line.patch(f"/v1/jobs/{wire.job_id(job_id)}", body, job_id=job_id)

    async def run_now(self, who: Principal, job_id: str) -> None:
        await self._line.post(f"/v1/jobs/{wire.job_id(job_id)}/run-now", {}, job_id=job_id)

    async def revoke(self, who: Principal, job_id: str, *, reason: str | None = None) -> Receipt:
        return await self._line.client.revoke(job_id, reason=reason)

    async def pause(self, who: Principal, type: str, *, reason: str | None = None) -> None:
        await self._line.post(f"/v1/queues/{quote(type, safe='')}/pause", {"reason": reason})

    async def resume(self, who: Principal, type: str) -> None:
        await self._line.post(f"/v1/queues/{quote(type, safe='')}/resume", {})


class RemoteQueries:
    def __init__(self, line: ServerConnection) -> None:
        self._line = line

    async def now(self) -> int:
        """Return the time of this machine, which is precise enough to separate due jobs from scheduled ones."""
        return time.time_ns() // 1000

    async def job(self, tenant: str, job_id: str) -> Job:
        return await self._line.client.get(job_id)

    async def jobs(self, tenant: str, filter: Filter) -> list[Job]:
        return await self._line.client.find(filter)

    async def search(self, tenant: str, text: str, *, limit: int = 50) -> list[Job]:
        query = [("search", text), ("limit", str(limit))]
        page = read((await self._line.get("/v1/jobs", query)).body, PageShape)
        return [listed_job(one) for one in page.items]

    async def history(self, tenant: str, job_id: str) -> list[HistoryRow]:
        return await self._line.client.history(job_id)

    async def queues(self, tenant: str, *, after: str = "", limit: int = 50) -> list[QueueStats]:
        beyond = (lambda one: one.type > after) if after else None
        return await self._line.listed(
            "/v1/queues", lambda one: queue(read(one, QueueShape)), limit=limit, beyond=beyond
        )

    async def queue(self, tenant: str, type: str) -> QueueStats:
        return await self._line.client.queue(type)

    async def head(self, tenant: str | None = None) -> str:
        """Return the chain head of the token's tenant; a server reports no other."""
        return read(decode.members((await self._line.get("/v1/audit/head")).body)["head"], str)


class RemoteOperations:
    def __init__(self, line: ServerConnection) -> None:
        self._line = line
        self._cursors: list[str] = []

    async def cancel_tree(
        self, who: Principal, job_id: str, *, reason: str | None = None, force: bool = False
    ) -> Cascade:  # fmt: skip
        path = f"/v1/jobs/{wire.job_id(job_id)}/cancel"
        body = {"reason": reason, "force": force, "cascade": True}
        answer = await self._line.post(path, body, job_id=job_id)
        below = read(decode.members(answer.body)["descendants"], int)
        return Cascade(receipt(read(answer.body, responses.Receipt)), below)

    async def redrive(
        self,
        who: Principal,
        job_id: str,
        *,
        start_from: str = START,
        idempotency_key: str | None = None,
        payload: bytes | None = None,
        **options: Any,
    ) -> Enqueued:
        overrides = options | ({} if payload is None else {"payload": Raw(payload)})
        path = f"/v1/jobs/{wire.job_id(job_id)}/redrive"
        name = idempotency_key or f"call/{wire.new_id()}"
        body = {"from": start_from, "overrides": overrides or None, "idempotency_key": name}
        answer = await self._line.post(path, body, job_id=job_id, key=name)
        given = decode.members(answer.body)
        is_replay = idempotency_key is not None and answer.status == 200
        return Enqueued(read(given["id"], str), read(given["seq"], int), is_replay)

    async def bulk(
        self,
        who: Principal,
        action: Action,
        *,
        ids: Sequence[str] | None = None,
        filter: Filter | None = None,
        dry_run: bool = False,
        reason: str | None = None,
        force: bool = False,
    ) -> Bulk:
        """Apply an action to jobs. The server's opaque cursor is stored under a number, because a filter needs one."""
        body: dict[str, object] = {"action": action, "dry_run": dry_run, "reason": reason, "force": force or None}
        if filter is None:
            body["ids"] = ids
        else:
            body["filter"] = selection(filter)
            body["cursor"] = None if filter.before_seq is None else self._cursors[filter.before_seq]
        given = decode.members((await self._line.post("/v1/jobs/bulk", body)).body)
        refused = tuple(_refused(one) for one in read(given["refused"], list[dict[str, Any]]))
        place = None
        if cursor := read(given.get("next_cursor", decode.NULL), str | None):  # type: ignore[arg-type]
            place = len(self._cursors)
            self._cursors.append(cursor)
        return Bulk(read(given["matched"], int), read(given["done"], int), read(given["more"], bool), place, refused)


class RemoteRetention:
    def __init__(self, line: ServerConnection) -> None:
        self._line = line

    async def prune(
        self, who: Principal, days: float, *, limit: int = BATCH_SIZE, dry_run: bool = False, after_seq: int = 0
    ) -> Pruned:
        """A server counts from the start each time, so a dry run is one call, of as many as it can count."""
        body = {"days": days, "limit": PRUNE_BATCH_SIZE if dry_run else limit, "dry_run": dry_run}
        given = decode.members((await self._line.post("/v1/prune", body)).body)
        return Pruned(read(given["deleted"], int), read(given["more"], bool), after_seq)


class RemoteExplainer:
    def __init__(self, line: ServerConnection) -> None:
        self._line = line

    async def of(self, tenant: str, job_id: str) -> Why:
        path = f"/v1/jobs/{wire.job_id(job_id)}/why"
        return decode.why((await self._line.get(path, job_id=job_id)).body)


class RemoteCompletion:
    def __init__(self, line: ServerConnection) -> None:
        self._line = line

    async def ended(self, tenant: str, job_id: str, *, wait_seconds: float = 0.0) -> Job:
        return await self._line.client.wait(job_id, seconds=wait_seconds)


class RemoteProgress:
    def __init__(self, line: ServerConnection) -> None:
        self._line = line

    async def tail(self, tenant: str, job_id: str, *, after: int = 0) -> AsyncIterator[list[EventRow]]:
        async for row in self._line.client.tail(job_id, after=after):
            yield [row]

    async def events(self, tenant: str, job_id: str, *, after: int = 0, limit: int = 200) -> list[EventRow]:
        return await self._line.client.events(job_id, after=after, limit=limit)

    async def steps_of(self, tenant: str, job_ids: Sequence[str]) -> list[list[StepRow]]:
        return [await self._line.client.steps(id) for id in job_ids]

    async def feed_end(self, tenant: str) -> FeedPosition:
        """The server begins its stream there."""
        return NOWHERE

    async def follow(self, tenant: str, start: FeedPosition) -> AsyncIterator[list[FeedEvent]]:
        """Follow the event feed until the stream breaks; the caller must then check for missed events."""
        async with self._line.calls.stream("/v1/events/stream", {}, quiet_seconds=QUIET_SECONDS) as opened:
            if isinstance(opened, HttpResponse):
                raise refusal(opened, {})
            async for sent in opened:
                if sent.event == "event":
                    yield [FeedEvent(NOWHERE, event(read(sent.data.encode(), responses.Event)))]
        raise Unavailable("the event stream was interrupted")


class RemoteAudit:
    def __init__(self, line: ServerConnection) -> None:
        self._line = line

    async def verify_part(self, tenant: str, *, after: str | None = None, jobs: int | None = None) -> VerifiedPart:
        """Verify up to that number of jobs, or one batch of the server."""
        query: list[tuple[str, str | int]] = [("limit", min(jobs or AUDIT_BATCH_SIZE, AUDIT_BATCH_SIZE))]
        if after is not None:
            query.append(("cursor", after))
        given = decode.members((await self._line.get("/v1/audit/verify", query)).body)
        bad: str | None = read(given["first_bad"], str | None)  # type: ignore[arg-type]
        cursor: str | None = read(given["next_cursor"], str | None)  # type: ignore[arg-type]
        return VerifiedPart(read(given["jobs"], int), read(given["rows"], int), bad, cursor)

    async def export(self, tenant: str, *, after: int = 0) -> AsyncIterator[list[HistoryExport]]:
        """Export histories, oldest job first. The server lists newest first, so read the complete list before."""
        jobs: list[tuple[int, str]] = []
        filter = Filter(limit=MAX_PAGE_SIZE)
        while page := await self._line.client.find(filter):
            jobs += [(job.seq, job.id) for job in page]
            filter = filter._replace(before_seq=page[-1].seq)
        for seq, job_id in reversed(jobs):
            yield [HistoryExport(seq, tuple(await self._line.client.history(job_id)))]

    async def log(self, tenant: str, *, after: int = 0, limit: int = 50) -> list[LogRow]:
        """The server's pages are read from the first on, since only it knows where a number is."""
        return await self._line.listed("/v1/audit/log", decode.log_row, limit=limit, beyond=lambda row: row.seq > after)


class RemoteWorkers:
    def __init__(self, line: ServerConnection) -> None:
        self._line = line

    async def seen(self, tenant: str, *, after: str = "", limit: int = 50) -> list[Presence]:
        beyond = (lambda one: one.name > after) if after else None
        return await self._line.listed("/v1/workers", decode.presence, limit=limit, beyond=beyond)


def _refused(given: dict[str, Any]) -> tuple[str, Error]:
    problem = given.get("error") or {}
    return str(given.get("id", "")), rebuilt(problem, int(problem.get("status", 0)), {"job_id": given.get("id", "")})
