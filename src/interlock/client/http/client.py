"""The client protocol over the native API: same operations, same errors, every call retried until a response."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from interlock import wire
from interlock.client.http import decode, encode
from interlock.client.http.batch import MAX_POLL_SECONDS, each, polled, together
from interlock.client.http.decode import read
from interlock.client.http.encode import encoded
from interlock.client.http.pages import MAX_PAGE_SIZE, Pages
from interlock.client.http.stream import follow
from interlock.client.http.transport import RETRY_SECONDS, Calls, HttpRequest, HttpResponse, Query
from interlock.client.protocol import LeasedJob
from interlock.client.tracing import claiming, enqueueing
from interlock.domain.approval import RequestApproval
from interlock.domain.artifact import File, Holder, Link
from interlock.domain.decide import AcknowledgeCancel, Finish
from interlock.domain.job import (
    Checkpoint,
    Enqueued,
    Filter,
    Heartbeat,
    HeartbeatReply,
    HistoryRow,
    Job,
    Receipt,
    Rejected,
)
from interlock.domain.policy import ClaimFilter
from interlock.domain.progress import LARGEST_NUMBER, EventRow, Report, Step, StepRow
from interlock.domain.registry import QueueStats
from interlock.errors import IdempotencyKeyReuse, Invalid
from interlock.wire import JobRequest, responses

MAX_WAIT_SECONDS: Final = 60.0
SLOWEST_UPLOAD: Final = 32 * 1024  # bytes a second
MAX_PER_CLAIM: Final = 100
JSON: Final = {"content-type": "application/json"}


class HttpClient:
    """A client for producers, observers and workers that calls a server; the credential determines the tenant."""

    most_per_claim = MAX_PER_CLAIM

    def __init__(self, url: str, *, token: str | None = None, retry_seconds: float = RETRY_SECONDS) -> None:
        self._calls = Calls(url, token=token, retry_seconds=retry_seconds)
        self._pages = Pages(self._fetch)
        self._works_as: str | None = None
        self._is_known = token is None  # without a credential any name will do

    async def enqueue(self, requests: Sequence[JobRequest], *, within: object = None) -> list[Enqueued]:
        """Enqueue jobs. A job without an idempotency key gets one, so that resending the call creates no duplicate."""
        if within is not None:
            raise Invalid(
                "within() needs a database URL: a server cannot join a transaction of the caller", pointer="/within"
            )
        keys = [request.idempotency_key or f"call/{wire.new_id()}" for request in requests]
        try:
            with enqueueing(requests) as trace:
                created = await self._enqueued(requests, keys, {} if trace is None else {"traceparent": trace})
        except IdempotencyKeyReuse as error:
            place = error.pointer.split("/")
            error.key = keys[int(place[2]) if place[1:2] == ["jobs"] else 0]
            raise
        return [
            Enqueued(one.id, one.seq, one.replayed and request.idempotency_key is not None)
            for one, request in zip(created, requests, strict=True)
        ]

    async def get(self, job_id: str) -> Job:
        answer = await self._get(_of_job(job_id), about={"job_id": job_id})
        return decode.job(answer.body)

    async def find(self, filter: Filter) -> list[Job]:
        """A place in the list that this client has not come by before is found by reading from the start."""
        return await self._pages.after(
            "/v1/jobs",
            encode.query(filter),
            None if filter.before_seq is None else -filter.before_seq,
            limit=filter.limit,
            item=decode.listed_job,
            at=lambda job: -job.seq,
        )

    async def wait(self, job_id: str, *, seconds: float) -> Job:
        path, about = _of_job(job_id, "result"), {"job_id": job_id}

        async def look(wait_seconds: float) -> Job | None:
            query = [("wait_seconds", f"{wait_seconds:.3f}")]
            answer = await self._get(path, query=query, wait_seconds=wait_seconds, about=about)
            return None if answer.status == 202 else decode.job(answer.body)

        return await polled(look, seconds) or await self.get(job_id)

    async def cancel(
        self, job_id: str, *, reason: str | None = None, force: bool = False, cascade: bool = False
    ) -> Receipt:
        body = {"reason": wire.remark(reason, "reason"), "force": force or None, "cascade": cascade or None}
        return await self._changed(job_id, "cancel", encoded(body))

    async def redrive(self, job_id: str, *, start_from: str = "start", idempotency_key: str | None = None) -> Enqueued:
        body = encoded({"from": start_from, "idempotency_key": idempotency_key or f"call/{wire.new_id()}"})
        about = {"job_id": job_id, "key": idempotency_key or ""}
        answer = await self._post(_of_job(job_id, "redrive"), body, about=about)
        job = read(answer.body, decode.EnqueuedShape)
        return Enqueued(job.id, job.seq, idempotency_key is not None and answer.status == 200)

    async def revoke(self, job_id: str, *, reason: str | None = None) -> Receipt:
        """Not repeated after an unknown outcome: it would end the next lease as well."""
        body = encoded({"reason": wire.remark(reason, "reason")})
        return await self._changed(job_id, "revoke", body, repeatable=False)

    async def queue(self, type: str) -> QueueStats:
        answer = await self._get(f"/v1/queues/{quote(wire.name(type, 'type'), safe='')}")
        return decode.queue(read(answer.body, decode.QueueShape))

    async def history(self, job_id: str) -> list[HistoryRow]:
        id = wire.job_id(job_id)
        rows = await self._pages.all(_of_job(id, "history"))
        return [decode.history(read(row, responses.HistoryRow), id) for row in rows]

    async def children(self, job_id: str) -> list[Job]:
        found = await self._pages.all(_of_job(job_id, "children"))
        return [decode.listed_job(one) for one in reversed(found)]

    async def events(self, job_id: str, *, after: int = 0, limit: int = MAX_PAGE_SIZE) -> list[EventRow]:
        wire.whole(after, "after", 0, LARGEST_NUMBER)
        return await self._pages.after(
            _of_job(job_id, "events"),
            (),
            after,
            limit=limit,
            item=lambda one: decode.event(read(one, responses.Event)),
            at=lambda event: event.seq,
        )

    def tail(self, job_id: str, *, after: int = 0) -> AsyncGenerator[EventRow, None]:
        """Follow events, each once, until the job is terminal; a broken stream is resumed."""
        return follow(self._calls, _of_job(job_id, "events/stream"), after=after, about={"job_id": job_id})

    async def steps(self, job_id: str) -> list[StepRow]:
        id = wire.job_id(job_id)
        rows = await self._pages.all(_of_job(id, "steps"))
        return [decode.step(read(row, responses.Step), id) for row in rows]

    async def claim(self, ask: ClaimFilter, *, wait_seconds: float = 0.0) -> list[LeasedJob]:
        """Claim jobs. A claim without an ID gets one, so that a resend after a lost response returns the same jobs."""
        wire.seconds(wait_seconds, "wait_seconds", 0, MAX_WAIT_SECONDS)
        worker = await self._as(ask.worker)
        ask = ask if ask.claim_id is not None else ask._replace(claim_id=wire.new_id())

        async def look(wait_seconds: float) -> list[LeasedJob] | None:
            body = encode.claim(ask, worker, wait_seconds)
            answer = await self._post("/v1/claims", body, wait_seconds=wait_seconds)
            return decode.leased_jobs(answer.body) or None

        with claiming() as leased:
            leases = await polled(look, wait_seconds) or []
            leased(len(leases))
        return leases

    async def heartbeats(self, heartbeats: Sequence[Heartbeat]) -> list[HeartbeatReply | Rejected]:
        wire.check_batch(heartbeats)
        return await each(
            await together([self._heartbeat_body(heartbeat) for heartbeat in heartbeats]),
            [_lease(heartbeat.id, heartbeat.fence) for heartbeat in heartbeats],
            partial(self._post, "/v1/heartbeats"),
            lambda one: decode.heartbeat_reply(read(one, responses.HeartbeatReply)),
        )

    async def interrupted(self, leases: Sequence[tuple[str, int]], *, wait_seconds: float = 0.0) -> list[str]:
        """In one poll: who watches begins again with other leases soon."""
        wait = min(wait_seconds, MAX_POLL_SECONDS)
        items = [{"id": id, "fence": fence} for id, fence in leases]
        body = encoded({"items": items, "wait_seconds": wait})
        answer = await self._post("/v1/leases/watch", body, wait_seconds=wait)
        return read(answer.body, decode.InterruptedShape).ids

    async def roles(self) -> frozenset[str] | None:
        return frozenset(read((await self._get("/v1/me")).body, decode.MeShape).roles)

    async def finishes(self, orders: Sequence[Finish]) -> list[Receipt | Rejected]:
        wire.check_batch(orders)
        rest = [order for order in orders if not isinstance(order, AcknowledgeCancel)]
        answers = await each(
            await together([self._finishing(order) for order in rest]),
            [_lease(order.id, order.fence) for order in rest],
            partial(self._post, "/v1/finishes"),
            lambda one: decode.receipt(read(one, responses.Receipt)),
        )
        acknowledged = await together(
            [self._acknowledge(order) for order in orders if isinstance(order, AcknowledgeCancel)]
        )
        of_rest, of_acks = iter(answers), iter(acknowledged)
        return [next(of_acks) if isinstance(order, AcknowledgeCancel) else next(of_rest) for order in orders]

    async def checkpoint(self, checkpoint: Checkpoint) -> int:
        body = encode.checkpoint(checkpoint, await self._as(checkpoint.worker))
        about = _lease(checkpoint.id, checkpoint.fence) | {"seq": checkpoint.seq}
        answer = await self._put(_of_job(checkpoint.id, "checkpoint"), body, about=about)
        return read(answer.body, decode.SavedShape).seq

    async def save_step(self, step: Step) -> StepRow:
        body = encode.step(step, await self._as(step.worker))
        answer = await self._post(_of_job(step.id, "steps"), body, about=_lease(step.id, step.fence))
        return decode.step(read(answer.body, responses.Step), wire.job_id(step.id))

    async def add_events(self, reports: Sequence[Report]) -> list[tuple[int, ...] | Rejected]:
        wire.check_batch(reports)
        return await together([self._add_events(report) for report in reports])

    async def request_approval(self, approval: RequestApproval) -> Receipt:
        body = encode.approval_request(approval, await self._as(approval.worker))
        answer = await self._post(_of_job(approval.id, "approvals"), body, about=_lease(approval.id, approval.fence))
        return decode.receipt(read(answer.body, decode.OpenedShape).receipt)

    async def attach(self, holder: Holder, thing: File | Link) -> str:
        worker, about = await self._as(holder.worker), _lease(holder.job_id, holder.fence)
        path = _of_job(holder.job_id, "artifacts")
        if isinstance(thing, Link):
            link = {"fence": holder.fence, "worker": worker, "name": thing.name, "url": thing.url}
            answer = await self._post(path, encoded(link), about=about)
        else:
            answer = await self._send(_upload(path, holder, worker, thing, about))
        return read(answer.body, decode.NamedShape).id

    async def register_type(self, name: str, definition: Mapping[str, Any]) -> None:
        path = f"/v1/types/{quote(wire.name(name, 'name'), safe='')}"
        given = {name: definition.get(name) for name in ("schema", "requires", "defaults")}
        await self._put(path, encoded(given))

    def start_maintenance(self) -> None:
        """The server does them."""

    async def close(self) -> None:
        await self._calls.close()

    async def _send(self, call: HttpRequest) -> HttpResponse:
        return await self._calls.send(call)

    async def _get(self, path: str, **more: Any) -> HttpResponse:
        return await self._send(HttpRequest(method="GET", path=path, **more))

    async def _post(
        self, path: str, body: bytes, *, headers: Mapping[str, str] | None = None, **more: Any
    ) -> HttpResponse:
        return await self._send(
            HttpRequest(method="POST", path=path, body=body, headers={**JSON, **(headers or {})}, **more)
        )

    async def _put(self, path: str, body: bytes, **more: Any) -> HttpResponse:
        return await self._send(HttpRequest(method="PUT", path=path, body=body, headers=JSON, **more))

    async def _fetch(self, path: str, query: Query) -> bytes:
        job_id = path.split("/")[3] if path.startswith("/v1/jobs/") else ""
        return (await self._get(path, query=query, about={"job_id": job_id})).body

    async def _changed(self, job_id: str, verb: str, body: bytes, *, repeatable: bool = True) -> Receipt:
        answer = await self._post(_of_job(job_id, verb), body, repeatable=repeatable, about={"job_id": job_id})
        return decode.receipt(read(answer.body, responses.Receipt))

    async def _enqueued(
        self, requests: Sequence[JobRequest], keys: Sequence[str], headers: Mapping[str, str]
    ) -> list[decode.EnqueuedShape]:
        parts = [encode.job(request, key) for request, key in zip(requests, keys, strict=True)]
        if len(parts) != 1:
            wire.check_batch(parts, field="jobs")
            answer = await self._post("/v1/jobs/batch", encode.joined("jobs", parts), headers=headers)
            return read(answer.body, decode.EnqueuedShapes).jobs
        answer = await self._post("/v1/jobs", parts[0], headers=headers, about={"job_id": requests[0].parent_id or ""})
        one = read(answer.body, decode.EnqueuedShape)
        one.replayed = answer.status == 200
        return [one]

    async def _as(self, worker: str) -> str:
        """The name to work under: a credential of a worker takes its own, and any other as an instance of it."""
        if not self._is_known:
            me = read((await self._get("/v1/me")).body, decode.MeShape)
            self._works_as, self._is_known = me.worker, True
        own = self._works_as
        if own is None or worker == own or worker.startswith(f"{own}/"):
            return worker
        return f"{own}/{worker}"

    async def _heartbeat_body(self, heartbeat: Heartbeat) -> bytes:
        """Encode a heartbeat. Events that do not fit into one body are sent first."""
        if sum(len(one.message) + len(one.payload or "") for one in heartbeat.events) * 4 > encode.LARGEST_BODY:
            await self._add_events(Report(heartbeat.id, heartbeat.fence, heartbeat.worker, heartbeat.events))
            heartbeat = heartbeat._replace(events=())
        return encode.heartbeat(heartbeat, await self._as(heartbeat.worker))

    async def _finishing(self, order: Finish) -> bytes:
        return encode.finish(order, await self._as(order.worker))

    async def _acknowledge(self, order: AcknowledgeCancel) -> Receipt:
        body = encode.finish(order, await self._as(order.worker), alone=True)
        answer = await self._post(_of_job(order.id, "cancel/ack"), body, about=_lease(order.id, order.fence))
        return decode.receipt(read(answer.body, responses.Receipt))

    async def _add_events(self, report: Report) -> tuple[int, ...]:
        """Events in as many bodies as they need, one after the other, so that they keep their order."""
        if not report.events:
            raise Invalid("events is empty: expected at least one", pointer="/events")
        parts = [encode.event(event) for event in report.events]
        lease = encoded({"fence": report.fence, "worker": await self._as(report.worker)})[:-1]
        seqs: list[int] = []
        for some in encode.gathered(parts):
            body = lease + b"," + encode.joined("events", [parts[i] for i in some])[1:]
            answer = await self._post(_of_job(report.id, "events"), body, about=_lease(report.id, report.fence))
            seqs += read(answer.body, decode.EmittedShape).seqs
        return tuple(seqs)


def _of_job(job_id: str, what: str = "") -> str:
    """The path of a job; what cannot be an id is like an unknown one."""
    return f"/v1/jobs/{wire.job_id(job_id)}{'/' if what else ''}{what}"


def _lease(job_id: str, fence: int) -> dict[str, object]:
    return {"job_id": job_id, "fence": fence}


def _upload(path: str, holder: Holder, worker: str, file: File, about: Mapping[str, object]) -> HttpRequest:
    digest = hashlib.sha256(file.content).hexdigest()
    headers = {"interlock-fence": str(holder.fence)}
    if file.content_type is not None:
        headers["content-type"] = file.content_type
    return HttpRequest(
        method="PUT",
        path=path,
        body=file.content,
        query=[("name", file.name), ("worker", worker), ("sha256", digest)],
        headers=headers,
        sending_seconds=len(file.content) / SLOWEST_UPLOAD,
        about=about,
    )
