"""The client over the native API: same methods, same errors, every call retried until a response."""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final, Unpack
from urllib.parse import quote

import msgspec
from msgspec import Raw

from interlock import wire
from interlock.client import codec
from interlock.client.codec import encoded, read
from interlock.client.port import Changes, Edits, LeasedJob
from interlock.client.tracing import claiming, enqueueing
from interlock.client.transport import (
    MAX_PAGE_SIZE,
    MAX_POLL_SECONDS,
    QUIET_SECONDS,
    RETRY_SECONDS,
    HttpRequest,
    HttpResponse,
    Server,
    each,
    follow,
    polled,
    refusal,
    together,
)
from interlock.domain import json_text
from interlock.domain.approval import Approval, ApprovalFilter, ApprovalLink, Decision, RequestApproval
from interlock.domain.artifact import Artifact, Download, File, Holder, Link, Stream
from interlock.domain.audit import HistoryExport, VerifiedPart
from interlock.domain.budget import BudgetState
from interlock.domain.channel import ChannelTest, NotificationChannel
from interlock.domain.decide import AcknowledgeCancel, Finish
from interlock.domain.effect import BeginEffect, Effect, SettleEffect
from interlock.domain.explain import Why
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
from interlock.domain.limits import BucketState, LimitState
from interlock.domain.message import Message, Published
from interlock.domain.operations import START, Action, Bulk, Cascade, Pruned
from interlock.domain.operator_log import LogRow
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import Principal
from interlock.domain.progress import LARGEST_NUMBER, EventRow, Report, Step, StepRow
from interlock.domain.registry import Agent, JobType, QueueStats
from interlock.domain.schedule import Schedule
from interlock.domain.stream import Append, Chunk, StreamInfo
from interlock.domain.token import CreatedToken, Token
from interlock.domain.usage_totals import By, Key, UsageTotal
from interlock.domain.webhook import CreatedSubscription, Delivery, DeliveryFilter, Subscription
from interlock.domain.worker_presence import Presence
from interlock.errors import ArtifactLost, Error, IdempotencyKeyReuse, Invalid, NotFound, Unavailable
from interlock.wire import JobRequest, SubscriptionRequest, TokenRequest
from interlock.wire.budgets import BudgetRequest
from interlock.wire.channels import ChannelRequest
from interlock.wire.limits import LimitRequest
from interlock.wire.schedule import ScheduleRequest, Ticks

MAX_WAIT_SECONDS: Final = 60.0
SLOWEST_UPLOAD: Final = 32 * 1024  # bytes a second
MAX_PER_CLAIM: Final = 100
AUDIT_BATCH_SIZE: Final = 1000
PRUNE_BATCH_SIZE: Final = 10_000
ALL: Final = 1 << 30
NULL: Final = Raw(b"null")  # a member that is None is left out of a body


class Group:
    """A group of methods that call one server."""

    def __init__(self, server: Server) -> None:
        self._server = server


class HttpJobs(Group):
    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._cursors: list[str] = []

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
        return codec.job((await self._server.get(_of_job(job_id), job_id=job_id)).body)

    async def search(self, text: str, *, limit: int = 50, filter: Filter | None = None) -> list[Job]:
        asked = [("search", text), ("limit", str(limit))]
        answer = await self._server.get("/v1/jobs", [*asked, *codec.query(filter or Filter())])
        return [codec.listed_job(one) for one in read(answer.body, codec.Page).items]

    async def attention(
        self, *, before_seq: int | None = None, limit: int = 50, filter: Filter | None = None, search: str | None = None
    ) -> list[Job]:
        place = None if before_seq is None else -before_seq
        asked = [("attention", "true"), *([] if search is None else [("search", search)])]
        query = [*asked, *codec.query(filter or Filter())]
        return await self._server.pages.after("/v1/jobs", codec.listed_job, lambda job: -job.seq, place, limit, query)

    async def wait(self, job_id: str, *, seconds: float) -> Job:
        path = _of_job(job_id, "result")

        async def look(wait_seconds: float) -> Job | None:
            query = [("wait_seconds", f"{wait_seconds:.3f}")]
            answer = await self._server.get(path, query, wait_seconds=wait_seconds, job_id=job_id)
            return None if answer.status == 202 else codec.job(answer.body)

        return await polled(look, seconds) or await self.get(job_id)

    async def edit(self, job_id: str, **edits: Unpack[Edits]) -> Receipt:
        body: dict[str, object] = {**edits}
        if body.pop("drop_deadline", False):
            body["deadline"] = NULL
        path = _of_job(job_id)
        return _receipt_of(await self._server.send("PATCH", path, encoded(body), about={"job_id": job_id}))

    async def run_now(self, job_id: str) -> Receipt:
        return _receipt_of(await self._server.post(_of_job(job_id, "run-now"), about={"job_id": job_id}))

    async def budget(self, job_id: str) -> BudgetState:
        return codec.job_budget((await self._server.get(_of_job(job_id, "budget"), about={"job_id": job_id})).body)

    async def raise_budget(self, job_id: str, amount: Mapping[str, float]) -> BudgetState:
        body, path = encoded({"amount": dict(amount)}), _of_job(job_id, "budget/raise")
        return codec.job_budget((await self._server.post(path, body, about={"job_id": job_id}, repeatable=False)).body)

    async def usage(
        self, by: By | str = By.TYPE, *, since: datetime | None = None, until: datetime | None = None,
        after: Key | None = None, limit: int = 50,
    ) -> list[UsageTotal]:  # fmt: skip
        times = {name: wire.instant(at, name) for name, at in (("from", since), ("to", until))}
        query = [("by", str(by)), *((name, wire.when(at)) for name, at in times.items() if at is not None)]
        return await self._server.pages.after("/v1/usage", codec.usage_total, lambda one: one.key, after, limit, query)

    async def acknowledge(self, job_id: str, *, comment: str | None = None) -> Receipt:
        body = encoded({"comment": wire.remark(comment, "comment")})
        answer = await self._server.post(_of_job(job_id, "acknowledge"), body, about={"job_id": job_id})
        return _receipt_of(answer)._replace(run_at=None, finished_at=None)  # times that this transition has not set

    async def cancel(self, job_id: str, *, reason: str | None = None, force: bool = False) -> Receipt:
        return codec.receipt(await self._cancel(job_id, reason, force))

    async def cancel_tree(self, job_id: str, *, reason: str | None = None, force: bool = False) -> Cascade:
        body = await self._cancel(job_id, reason, force, cascade=True)
        return Cascade(codec.receipt(body), codec.member(body, "descendants", int))

    async def revoke(self, job_id: str, *, reason: str | None = None) -> Receipt:
        """Revoke a lease. Not retried after an unknown outcome: that could end the next lease too."""
        body = encoded({"reason": wire.remark(reason, "reason")})
        about = {"job_id": job_id}
        answer = await self._server.post(_of_job(job_id, "revoke"), body, repeatable=False, about=about)
        return codec.receipt(answer.body)

    async def redrive(
        self,
        job_id: str,
        *,
        start_from: str = START,
        idempotency_key: str | None = None,
        **changes: Unpack[Changes],
    ) -> Enqueued:
        overrides = {name: value for name, value in changes.items() if value is not None}
        if (payload := changes.get("payload")) is not None:
            overrides["payload"] = Raw(payload)
        key = idempotency_key or f"call/{wire.new_id()}"
        body = encoded({"from": start_from, "overrides": overrides or None, "idempotency_key": key})
        about = {"job_id": job_id, "key": idempotency_key or ""}
        answer = await self._server.post(_of_job(job_id, "redrive"), body, about=about)
        job = read(answer.body, codec.Enqueued)
        return Enqueued(job.id, job.seq, idempotency_key is not None and answer.status == 200)

    async def bulk(
        self,
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
            body["filter"] = codec.selection(filter)
            body["cursor"] = None if filter.before_seq is None else self._cursors[filter.before_seq]
        done = read((await self._server.post("/v1/jobs/bulk", encoded(body))).body, codec.BulkResult)
        place = None
        if done.next_cursor is not None:
            place = len(self._cursors)
            self._cursors.append(done.next_cursor)
        return Bulk(done.matched, done.done, done.more, place, tuple(_refused(one) for one in done.refused))

    async def prune(self, days: float, *, limit: int = 1000, dry_run: bool = False, after_seq: int = 0) -> Pruned:
        """Prune jobs. A dry run is one call with the highest limit, because a server always counts from the start."""
        body = encoded({"days": days, "limit": PRUNE_BATCH_SIZE if dry_run else limit, "dry_run": dry_run})
        done = (await self._server.post("/v1/prune", body)).body
        return Pruned(codec.member(done, "deleted", int), codec.member(done, "more", bool), after_seq)

    async def why(self, job_id: str) -> Why:
        return codec.why((await self._server.get(_of_job(job_id, "why"), job_id=job_id)).body)

    async def history(self, job_id: str) -> list[HistoryRow]:
        id = wire.job_id(job_id)
        return await self._server.pages.all(_of_job(id, "history"), lambda row: codec.history(row)._replace(job_id=id))

    async def children(self, job_id: str) -> list[Job]:
        return (await self._server.pages.all(_of_job(job_id, "children"), codec.listed_job))[::-1]

    async def steps(self, job_id: str, *, after: int = 0, limit: int | None = None) -> list[StepRow]:
        id = wire.job_id(job_id)
        most, size = (ALL, MAX_PAGE_SIZE) if limit is None else (limit, limit)
        found = await self._server.pages.after(
            _of_job(id, "steps"), codec.step, lambda row: row.seq, after, most, size=size
        )
        return [row._replace(job_id=id) for row in found]

    async def events(self, job_id: str, *, after: int = 0, limit: int = MAX_PAGE_SIZE) -> list[EventRow]:
        wire.whole(after, "after", 0, LARGEST_NUMBER)
        path = _of_job(job_id, "events")
        return await self._server.pages.after(path, codec.event, lambda event: event.seq, after, limit)

    async def send(self, job_id: str, name: str, payload: str | None = None, *, id: str | None = None) -> Message:
        """Send a message; its ID makes it safe to repeat the request."""
        key = wire.new_id() if id is None else id
        body = encoded({"name": name, "payload": codec.raw(payload, "payload"), "id": key})
        about = {"job_id": job_id, "message_id": key}
        return codec.message((await self._server.post(_of_job(job_id, "messages"), body, about=about)).body)

    async def messages(
        self, job_id: str, *, name: str | None = None, topic: str | None = None, after: int = 0,
        limit: int = MAX_PAGE_SIZE,
    ) -> list[Message]:  # fmt: skip
        wire.whole(after, "after", 0, LARGEST_NUMBER)
        query = [(key, value) for key, value in (("name", name), ("topic", topic)) if value is not None]
        path = _of_job(job_id, "messages")
        return await self._server.pages.after(path, codec.message, lambda one: one.seq, after, limit, query)

    async def publish(
        self, topic: str, payload: str | None = None, *, id: str | None = None, retain_seconds: float = 0
    ) -> Published:
        """Publish a message; its ID makes it safe to repeat the request."""
        key = wire.new_id() if id is None else id
        body = encoded({"payload": codec.raw(payload, "payload"), "id": key, "retain_seconds": retain_seconds})
        path = _path("topics", wire.name(topic, "topic"), "messages")
        answer = await self._server.post(path, body, about={"topic": topic, "message_id": key})
        return Published(key, codec.member(answer.body, "delivered", int))

    def tail(self, job_id: str, *, after: int = 0) -> AsyncGenerator[EventRow, None]:
        """Follow events, each once, until the job is terminal; a broken stream is resumed."""
        path, about = _of_job(job_id, "events/stream"), {"job_id": job_id}
        return follow(self._server.calls, path, "event", codec.event, lambda row: row.seq, after=after, about=about)

    async def streams(self, job_id: str) -> list[StreamInfo]:
        answer = await self._server.get(_of_job(job_id, "streams"), job_id=job_id)
        return [codec.stream(one) for one in read(answer.body, codec.Page).items]

    async def effects(self, job_id: str, *, after: int = 0, limit: int = MAX_PAGE_SIZE) -> list[Effect]:
        wire.whole(after, "after", 0, LARGEST_NUMBER)
        return await self._server.pages.after(
            _of_job(job_id, "effects"), codec.effect, lambda one: one.seq, after, limit
        )  # fmt: skip

    async def chunks(self, job_id: str, name: str, *, after: int = -1, limit: int = MAX_PAGE_SIZE) -> list[Chunk]:
        query = [("after", str(after)), ("limit", str(limit))]
        answer = await self._server.get(_of_stream(job_id, name), query, job_id=job_id)
        return [codec.chunk(one) for one in read(answer.body, codec.Page).items]

    def stream(self, job_id: str, name: str, *, after: int = -1) -> AsyncGenerator[Chunk, None]:
        """Follow chunks, each once, until the job is terminal; a broken connection is resumed."""
        path, about = f"{_of_stream(job_id, name)}/follow", {"job_id": job_id}
        return follow(self._server.calls, path, "chunk", codec.chunk, lambda row: row.offset, after=after, about=about)

    async def follow(self) -> AsyncIterator[EventRow]:
        """Follow the event feed until the stream breaks; the caller must then check for missed events."""
        async with self._server.calls.stream("/v1/events/stream", {}, quiet_seconds=QUIET_SECONDS) as opened:
            if isinstance(opened, HttpResponse):
                raise refusal(opened, {})
            async for sent in opened:
                if sent.event == "event":
                    yield codec.event(sent.data.encode())
        raise Unavailable("the event stream was interrupted")

    async def list(self, filter: Filter) -> list[Job]:
        """List items. A position that this client has not seen is found by reading from the start."""
        place, query = None if filter.before_seq is None else -filter.before_seq, codec.query(filter)
        return await self._server.pages.after(
            "/v1/jobs", codec.listed_job, lambda job: -job.seq, place, filter.limit, query
        )

    async def _cancel(self, job_id: str, reason: str | None, force: bool, *, cascade: bool = False) -> bytes:
        body = {"reason": wire.remark(reason, "reason"), "force": force or None, "cascade": cascade or None}
        return (await self._server.post(_of_job(job_id, "cancel"), encoded(body), about={"job_id": job_id})).body

    async def _enqueued(
        self, requests: Sequence[JobRequest], keys: Sequence[str], headers: Mapping[str, str]
    ) -> Sequence[codec.Enqueued]:
        parts = [codec.job_body(request, key) for request, key in zip(requests, keys, strict=True)]
        if len(parts) != 1:
            wire.check_batch(parts, field="jobs")
            answer = await self._server.post("/v1/jobs/batch", codec.joined("jobs", parts), headers=headers)
            return read(answer.body, codec.EnqueuedBatch).jobs
        about = {"job_id": requests[0].parent_id or ""}
        answer = await self._server.post("/v1/jobs", parts[0], headers=headers, about=about)
        one = read(answer.body, codec.Enqueued)
        one.replayed = answer.status == 200
        return [one]


class HttpWork(Group):
    most_per_claim = MAX_PER_CLAIM

    async def claim(self, ask: ClaimFilter, *, wait_seconds: float = 0.0) -> list[LeasedJob]:
        """Claim jobs. A claim without an ID gets one, so that a resend after a lost response returns the same jobs."""
        wire.seconds(wait_seconds, "wait_seconds", 0, MAX_WAIT_SECONDS)
        worker = await self._server.worker(ask.worker)
        ask = ask if ask.claim_id is not None else ask._replace(claim_id=wire.new_id())

        async def look(wait_seconds: float) -> list[LeasedJob] | None:
            body = codec.claim_body(ask, worker, wait_seconds)
            answer = await self._server.post("/v1/claims", body, wait_seconds=wait_seconds)
            return codec.leased_jobs(answer.body) or None

        with claiming() as leased:
            leases = await polled(look, wait_seconds) or []
            leased(len(leases))
        return leases

    async def heartbeats(self, heartbeats: Sequence[Heartbeat]) -> list[HeartbeatReply | Rejected]:
        wire.check_batch(heartbeats)
        return await each(
            await together([self._heartbeat_body(heartbeat) for heartbeat in heartbeats]),
            [_lease(heartbeat.id, heartbeat.fence) for heartbeat in heartbeats],
            partial(self._server.post, "/v1/heartbeats"),
            codec.heartbeat_reply,
        )

    async def interrupted(self, leases: Sequence[tuple[str, int]], *, wait_seconds: float = 0.0) -> list[str]:
        """Poll once: the caller soon watches again, with other leases."""
        wait = min(wait_seconds, MAX_POLL_SECONDS)
        items = [{"id": id, "fence": fence} for id, fence in leases]
        body = encoded({"items": items, "wait_seconds": wait})
        answer = await self._server.post("/v1/leases/watch", body, wait_seconds=wait)
        return codec.member(answer.body, "ids", list[str])

    async def finishes(self, orders: Sequence[Finish]) -> list[Receipt | Rejected]:
        wire.check_batch(orders)
        rest = [order for order in orders if not isinstance(order, AcknowledgeCancel)]
        answers = await each(
            await together([self._finishing(order) for order in rest]),
            [_lease(order.id, order.fence) for order in rest],
            partial(self._server.post, "/v1/finishes"),
            codec.receipt,
        )
        acknowledged = await together(
            [self._acknowledge(order) for order in orders if isinstance(order, AcknowledgeCancel)]
        )
        of_rest, of_acks = iter(answers), iter(acknowledged)
        return [next(of_acks) if isinstance(order, AcknowledgeCancel) else next(of_rest) for order in orders]

    async def checkpoint(self, checkpoint: Checkpoint) -> int:
        body = codec.order_body(checkpoint, await self._server.worker(checkpoint.worker))
        about = _lease(checkpoint.id, checkpoint.fence) | {"seq": checkpoint.seq}
        answer = await self._server.put(_of_job(checkpoint.id, "checkpoint"), body, about=about)
        return codec.member(answer.body, "seq", int)

    async def save_step(self, step: Step) -> StepRow:
        body = codec.order_body(step, await self._server.worker(step.worker))
        answer = await self._server.post(_of_job(step.id, "steps"), body, about=_lease(step.id, step.fence))
        return codec.step(answer.body)._replace(job_id=wire.job_id(step.id))

    async def add_events(self, reports: Sequence[Report]) -> list[tuple[int, ...] | Rejected]:
        wire.check_batch(reports)
        return await together([self._add_events(report) for report in reports])

    async def append(self, append: Append) -> int:
        chunks = [codec.chunk_body(chunk) for chunk in append.chunks]
        worker = await self._server.worker(append.worker)
        body = encoded({"fence": append.fence, "worker": worker, "offset": append.offset, "chunks": chunks})
        about = _lease(append.id, append.fence)
        answer = await self._server.post(_of_stream(append.id, append.name), body, about=about)
        return codec.member(answer.body, "next", int)

    async def begin_effect(self, order: BeginEffect) -> Effect:
        body = codec.order_body(order, await self._server.worker(order.worker))
        answer = await self._server.post(_of_job(order.id, "effects"), body, about=_lease(order.id, order.fence))
        return codec.effect(answer.body)

    async def settle_effect(self, order: SettleEffect) -> Effect:
        body = codec.order_body(order, await self._server.worker(order.worker))
        answer = await self._server.put(_of_job(order.id, "effects"), body, about=_lease(order.id, order.fence))
        return codec.effect(answer.body)

    async def request_approval(self, approval: RequestApproval) -> Receipt:
        body = codec.order_body(approval, await self._server.worker(approval.worker))
        about = _lease(approval.id, approval.fence)
        answer = await self._server.post(_of_job(approval.id, "approvals"), body, about=about)
        return codec.receipt(codec.member(answer.body, "receipt", Raw))

    async def attach(self, holder: Holder, thing: File | Link) -> str:
        worker, about = await self._server.worker(holder.worker), _lease(holder.job_id, holder.fence)
        path = _of_job(holder.job_id, "artifacts")
        if isinstance(thing, Link):
            link = {"fence": holder.fence, "worker": worker, "name": thing.name, "url": thing.url}
            answer = await self._server.post(path, encoded(link), about=about)
        else:
            answer = await self._server.calls.send(_upload(path, holder, worker, thing, about))
        return codec.member(answer.body, "id", str)

    async def _heartbeat_body(self, heartbeat: Heartbeat) -> bytes:
        """Encode a heartbeat. Events that do not fit into one body are sent first."""
        if sum(len(one.message) + len(one.payload or "") for one in heartbeat.events) * 4 > codec.LARGEST_BODY:
            await self._add_events(Report(heartbeat.id, heartbeat.fence, heartbeat.worker, heartbeat.events))
            heartbeat = heartbeat._replace(events=())
        return codec.order_body(heartbeat, await self._server.worker(heartbeat.worker), id=heartbeat.id)

    async def _finishing(self, order: Finish) -> bytes:
        worker = await self._server.worker(order.worker)
        return codec.order_body(order, worker, id=order.id, outcome=codec.OUTCOMES[type(order)])

    async def _acknowledge(self, order: AcknowledgeCancel) -> Receipt:
        body = codec.order_body(order, await self._server.worker(order.worker))
        answer = await self._server.post(_of_job(order.id, "cancel/ack"), body, about=_lease(order.id, order.fence))
        return codec.receipt(answer.body)

    async def _add_events(self, report: Report) -> tuple[int, ...]:
        """Send events in as many bodies as needed, one after another to keep their order."""
        if not report.events:
            raise Invalid("events is empty: expected at least one", pointer="/events")
        parts = [codec.event_body(event) for event in report.events]
        lease = encoded({"fence": report.fence, "worker": await self._server.worker(report.worker)})[:-1]
        seqs: list[int] = []
        for some in codec.gathered(parts):
            body = lease + b"," + codec.joined("events", [parts[i] for i in some])[1:]
            answer = await self._server.post(_of_job(report.id, "events"), body, about=_lease(report.id, report.fence))
            seqs += codec.member(answer.body, "seqs", list[int])
        return tuple(seqs)


class HttpApprovals(Group):
    async def get(self, approval_id: str) -> Approval:
        return codec.approval((await self._server.get(_path("approvals", approval_id))).body)

    async def decide(
        self,
        approval_id: str,
        decision: Decision,
        *,
        comment: str | None = None,
        data: str | bytes | None = None,
        digest: str | None = None,
    ) -> Approval:
        body = {"decision": decision, "comment": comment, "data": _json(data), "digest": digest}
        path, about = _path("approvals", approval_id, "decide"), {"approval_id": approval_id}
        return codec.approval((await self._server.post(path, encoded(body), about=about)).body)

    async def create_link(self, approval_id: str) -> ApprovalLink:
        path, about = _path("approvals", approval_id, "token"), {"approval_id": approval_id}
        body = (await self._server.post(path, about=about)).body
        return ApprovalLink(codec.approval(codec.member(body, "approval", Raw)), codec.member(body, "token", str))

    async def list(self, filter: ApprovalFilter) -> list[Approval]:
        given = (("status", filter.status), ("job", filter.job_id))
        query = [(name, str(value)) for name, value in given if value is not None]
        place = None if filter.before is None else _down(*filter.before)
        return await self._server.pages.after(
            "/v1/approvals", codec.approval, lambda one: _down(one.opened_at, one.id), place, filter.limit, query
        )


class HttpQueues(Group):
    async def get(self, type: str) -> QueueStats:
        return codec.queue((await self._server.get(_path("queues", wire.name(type, "type")))).body)

    async def pause(self, type: str, *, reason: str | None = None) -> None:
        await self._server.post(_path("queues", type, "pause"), encoded({"reason": reason}))

    async def resume(self, type: str) -> None:
        await self._server.post(_path("queues", type, "resume"))

    async def list(self, *, after: str = "", limit: int = 50) -> list[QueueStats]:
        return await self._server.pages.after("/v1/queues", codec.queue, lambda one: one.type, after or None, limit)


class HttpLimits(Group):
    async def get(self, name: str) -> LimitState:
        return codec.limit((await self._server.get(_path("limits", name))).body)

    async def set(self, name: str, request: LimitRequest) -> LimitState:
        body = msgspec.json.encode(request)
        return codec.limit((await self._server.put(_path("limits", wire.name(name, "name")), body)).body)

    async def delete(self, name: str) -> None:
        await self._server.delete(_path("limits", name))

    async def hold(
        self, name: str, until: datetime, *, key: str | None = None, reason: str | None = None
    ) -> LimitState:
        body = encoded({"until": until.isoformat(), "key": key, "reason": reason})
        return codec.limit((await self._server.post(_path("limits", name, "hold"), body)).body)

    async def release(self, name: str, *, key: str | None = None) -> LimitState:
        return codec.limit((await self._server.post(_path("limits", name, "release"), encoded({"key": key}))).body)

    async def keys(self, name: str, *, after: str = "", limit: int = 50) -> list[BucketState]:
        path = _path("limits", name, "keys")
        return await self._server.pages.after(path, codec.bucket, lambda one: one.key, after or None, limit)

    async def list(self, *, after: str = "", limit: int = 50) -> list[LimitState]:
        return await self._server.pages.after(
            "/v1/limits", codec.limit, lambda one: one.limit.name, after or None, limit
        )


class HttpChannels(Group):
    async def get(self, name: str) -> NotificationChannel:
        return codec.channel((await self._server.get(_path("channels", name))).body)

    async def set(self, name: str, request: ChannelRequest) -> NotificationChannel:
        body = msgspec.json.encode(request)
        return codec.channel((await self._server.put(_path("channels", wire.name(name, "name")), body)).body)

    async def delete(self, name: str) -> None:
        await self._server.delete(_path("channels", name))

    async def list(self, *, after: str = "", limit: int = 50) -> list[NotificationChannel]:
        return await self._server.pages.after("/v1/channels", codec.channel, lambda one: one.name, after or None, limit)

    async def test(self, name: str) -> ChannelTest:
        return codec.channel_test((await self._server.post(_path("channels", name, "test"), b"")).body)


class HttpBudgets(Group):
    async def get(self, name: str) -> BudgetState:
        return codec.budget((await self._server.get(_path("budgets", name))).body)

    async def set(self, name: str, request: BudgetRequest) -> BudgetState:
        body = msgspec.json.encode(request)
        return codec.budget((await self._server.put(_path("budgets", wire.name(name, "name")), body)).body)

    async def raise_by(self, name: str, amount: Mapping[str, float]) -> BudgetState:
        body = encoded({"amount": amount})
        return codec.budget((await self._server.post(_path("budgets", name, "raise"), body, repeatable=False)).body)

    async def delete(self, name: str) -> None:
        await self._server.delete(_path("budgets", name))

    async def list(self, *, after: str = "", limit: int = 50) -> list[BudgetState]:
        return await self._server.pages.after("/v1/budgets", codec.budget, lambda one: one.name, after or None, limit)


class HttpSchedules(Group):
    async def get(self, name: str) -> Schedule:
        return codec.schedule((await self._server.get(_path("schedules", name))).body)

    async def set(self, name: str, request: ScheduleRequest) -> Schedule:
        body = msgspec.json.encode(request)
        return codec.schedule((await self._server.put(_path("schedules", wire.name(name, "name")), body)).body)

    async def delete(self, name: str) -> None:
        await self._server.delete(_path("schedules", name))

    async def pause(self, name: str) -> Schedule:
        return codec.schedule((await self._server.post(_path("schedules", name, "pause"))).body)

    async def resume(self, name: str) -> Schedule:
        return codec.schedule((await self._server.post(_path("schedules", name, "resume"))).body)

    async def run(self, name: str) -> Job:
        """Send the call once: a repeated call would enqueue another job."""
        return codec.job((await self._server.post(_path("schedules", name, "run"), repeatable=False)).body)

    async def preview(self, name: str, n: int = 10) -> list[int]:
        answer = await self._server.get(_path("schedules", name, "preview"), [("n", str(n))])
        return [ticks for one in read(answer.body, Ticks).items if (ticks := wire.instant(one, "items")) is not None]

    async def list(self, *, after: str = "", limit: int = 50) -> list[Schedule]:
        return await self._server.pages.after(
            "/v1/schedules", codec.schedule, lambda one: one.name, after or None, limit
        )


class HttpAgents(Group):
    async def get(self, kind: str, id: str) -> Agent:
        return codec.agent((await self._server.get(_path("agents", kind, id), kind=kind, id=id)).body)

    async def set(
        self,
        kind: str,
        id: str,
        *,
        max_concurrency: int | None = None,
        strict: bool = False,
        defaults: Mapping[str, Any] | None = None,
    ) -> Agent:
        body = encoded({"max_concurrency": max_concurrency, "strict": strict, "defaults": defaults or None})
        return codec.agent((await self._server.put(_path("agents", kind, id), body)).body)

    async def delete(self, kind: str, id: str) -> None:
        await self._server.delete(_path("agents", kind, id), kind=kind, id=id)

    async def list(self, *, after: tuple[str, str] = ("", ""), limit: int = 50) -> list[Agent]:
        place = None if after == ("", "") else after
        return await self._server.pages.after("/v1/agents", codec.agent, lambda one: (one.kind, one.id), place, limit)


class HttpTypes(Group):
    async def get(self, name: str) -> JobType:
        return codec.job_type((await self._server.get(_path("types", name))).body)

    async def set(
        self,
        name: str,
        *,
        schema: str | None = None,
        requires: Sequence[str] = (),
        defaults: Mapping[str, Any] | None = None,
    ) -> JobType:
        body = encoded({"schema": _json(schema), "requires": requires, "defaults": defaults or None})
        return codec.job_type((await self._server.put(_path("types", wire.name(name, "name")), body)).body)

    async def delete(self, name: str) -> None:
        await self._server.delete(_path("types", name))

    async def list(self) -> list[JobType]:
        return await self._server.pages.all("/v1/types", codec.job_type)


class HttpTokens(Group):
    async def create(self, request: TokenRequest) -> CreatedToken:
        body, about = encoded(msgspec.structs.asdict(request)), {"key": request.key or ""}
        answer = await self._server.post("/v1/tokens", body, repeatable=request.key is not None, about=about)
        return CreatedToken(codec.token(answer.body), codec.member(answer.body, "token", str))

    async def revoke(self, token_id: str) -> Token:
        return codec.token((await self._server.post(_path("tokens", token_id, "revoke"))).body)

    async def list(self, *, before: str | None = None, limit: int = 50) -> list[Token]:
        return await self._server.pages.after(
            "/v1/tokens", codec.token, lambda one: _down(one.id), _before(before), limit
        )


class HttpSubscriptions(Group):
    async def create(self, request: SubscriptionRequest) -> CreatedSubscription:
        body = encoded(msgspec.structs.asdict(request))
        answer = await self._server.post("/v1/subscriptions", body, repeatable=request.key is not None)
        secret = read(codec.member(answer.body, "secret", Raw), str | None)  # type: ignore[arg-type]
        return CreatedSubscription(codec.subscription(answer.body), secret, answer.status == 200)

    async def get(self, id: str) -> Subscription:
        return codec.subscription((await self._server.get(_path("subscriptions", id))).body)

    async def delete(self, id: str) -> None:
        await self._server.delete(_path("subscriptions", id))

    async def renew(self, id: str, *, expires_in_seconds: float | None = None) -> Subscription:
        body = encoded({"expires_in_seconds": expires_in_seconds})
        return codec.subscription((await self._server.post(_path("subscriptions", id, "renew"), body)).body)

    async def rotate(self, id: str) -> str:
        answer = await self._server.post(_path("subscriptions", id, "rotate"), repeatable=False)
        return codec.member(answer.body, "secret", str)

    async def deliveries(self, filter: DeliveryFilter) -> list[Delivery]:
        """List deliveries. A server lists one subscription at a time, so merge the lists for all of them."""
        ids = [filter.subscription_id] if filter.subscription_id is not None else await self._all()
        found = [one for id in ids for one in await self._deliveries(id, filter)]
        return sorted(found, key=lambda one: one.id, reverse=True)[: filter.limit]

    async def redeliver(self, id: str) -> Delivery:
        for subscription in await self._all():
            path = _path("subscriptions", subscription, "deliveries")
            if any(one.id == id for one in await self._server.pages.all(path, codec.delivery)):
                return codec.delivery((await self._server.post(f"{path}/{quote(id, safe='')}/redeliver")).body)
        raise NotFound(id, resource="delivery")

    async def _all(self) -> list[str]:
        return [one.id for one in await self._server.pages.all("/v1/subscriptions", codec.subscription)]

    async def _deliveries(self, id: str, filter: DeliveryFilter) -> list[Delivery]:
        return await self._server.pages.after(
            _path("subscriptions", id, "deliveries"),
            codec.delivery,
            lambda one: _down(one.id),
            _before(filter.before),
            filter.limit,
            [] if filter.status is None else [("status", str(filter.status))],
            keep=lambda one: filter.job_id in (None, one.job_id),
        )

    async def list(self, *, before: str | None = None, limit: int = 50) -> list[Subscription]:
        return await self._server.pages.after(
            "/v1/subscriptions", codec.subscription, lambda one: _down(one.id), _before(before), limit
        )


class HttpArtifacts(Group):
    async def get(self, job_id: str, artifact_id: str) -> Artifact:
        for one in await self._server.pages.all(_of_job(job_id, "artifacts"), codec.artifact):
            if one.id == artifact_id:
                return one
        raise NotFound(artifact_id, resource="artifact")

    async def read(self, job_id: str, artifact_id: str) -> Download:
        found = await self.get(job_id, artifact_id)
        if found.sha256 is None:
            raise Invalid(f"{found.name} is a link, not a file: {found.url}", pointer="/artifact")
        return Download(found, 0, found.size or 0, Stream(None, self._bytes(found)))

    async def _bytes(self, found: Artifact) -> AsyncGenerator[bytes]:
        answer = await self._server.get(_path("jobs", found.job_id, "artifacts", found.id))
        if hashlib.sha256(answer.body).digest() != found.sha256:
            raise ArtifactLost(found.id, "its bytes do not have its hash")
        yield answer.body

    async def list(self, job_id: str, *, before: tuple[int, str] | None = None, limit: int = 50) -> list[Artifact]:
        path, place = _of_job(job_id, "artifacts"), None if before is None else _down(*before)
        return await self._server.pages.after(
            path, codec.artifact, lambda one: _down(one.created_at, one.id), place, limit
        )


class HttpWorkers(Group):
    async def list(self, *, after: str = "", limit: int = 50) -> list[Presence]:
        return await self._server.pages.after("/v1/workers", codec.presence, lambda one: one.name, after or None, limit)


class HttpAudit(Group):
    def __init__(self, server: Server, jobs: HttpJobs) -> None:
        super().__init__(server)
        self._jobs = jobs

    async def verify(self, *, after: str | None = None, jobs: int | None = None) -> VerifiedPart:
        """Verify up to that number of jobs, or one batch of the server."""
        query: list[tuple[str, str | int]] = [("limit", min(jobs or AUDIT_BATCH_SIZE, AUDIT_BATCH_SIZE))]
        if after is not None:
            query.append(("cursor", after))
        part = read((await self._server.get("/v1/audit/verify", query)).body, codec.Verified)
        return VerifiedPart(part.jobs, part.rows, part.first_bad, part.next_cursor)

    async def head(self) -> str:
        return codec.member((await self._server.get("/v1/audit/head")).body, "head", str)

    async def log(self, *, after: int = 0, limit: int = 50) -> list[LogRow]:
        wire.whole(limit, "limit", 1, AUDIT_BATCH_SIZE)
        return await self._server.pages.after(
            "/v1/audit/log", codec.log_row, lambda row: row.seq, after, limit, size=MAX_PAGE_SIZE
        )

    async def export(self, *, after: int = 0) -> AsyncIterator[list[HistoryExport]]:
        """Export histories, oldest job first. The server lists newest first, so read the complete list before."""
        jobs = await self._server.pages.all("/v1/jobs", codec.listed_job)
        for job in reversed(jobs):
            if job.seq > after:
                yield [HistoryExport(job.seq, tuple(await self._jobs.history(job.id)))]


class HttpClient:
    """A client that calls a server; the credential determines the tenant."""

    def __init__(self, url: str, *, token: str | None = None, retry_seconds: float = RETRY_SECONDS) -> None:
        self._server = server = Server(url, token, retry_seconds)
        self.jobs = HttpJobs(server)
        self.work = HttpWork(server)
        self.approvals = HttpApprovals(server)
        self.queues = HttpQueues(server)
        self.agents = HttpAgents(server)
        self.schedules = HttpSchedules(server)
        self.limits = HttpLimits(server)
        self.budgets = HttpBudgets(server)
        self.channels = HttpChannels(server)
        self.types = HttpTypes(server)
        self.tokens = HttpTokens(server)
        self.subscriptions = HttpSubscriptions(server)
        self.artifacts = HttpArtifacts(server)
        self.workers = HttpWorkers(server)
        self.audit = HttpAudit(server, self.jobs)

    async def me(self) -> Principal:
        me = await self._server.me()
        return Principal(me.tenant, me.actor, frozenset(me.roles), worker=me.worker)

    async def now(self) -> int:
        """Return the time of this machine, which is precise enough to separate due jobs from scheduled ones."""
        return time.time_ns() // 1000

    def start_maintenance(self) -> None:
        """Do nothing: the server runs maintenance."""

    async def close(self) -> None:
        await self._server.calls.close()


def _path(*parts: str) -> str:
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


def _of_job(job_id: str, what: str = "") -> str:
    """Return the path of a job. A malformed ID is treated as an unknown one."""
    return f"/v1/jobs/{wire.job_id(job_id)}{'/' if what else ''}{what}"


def _of_stream(job_id: str, name: str) -> str:
    return _of_job(job_id, f"streams/{quote(wire.name(name, 'name'), safe='')}")


def _lease(job_id: str, fence: int) -> dict[str, object]:
    return {"job_id": job_id, "fence": fence}


def _down(*place: int | str) -> tuple[int, ...]:
    """Return the position of a time or ID in a list sorted newest first."""
    return tuple(-(part if isinstance(part, int) else int(part.replace("-", ""), 16)) for part in place)


def _before(id: str | None) -> tuple[int, ...] | None:
    return None if id is None else _down(wire.job_id(id, "before"))


def _json(given: str | bytes | None) -> Raw | None:
    """Return JSON to embed in a body, after checking it: invalid text could change the rest of the body."""
    if given is None:
        return None
    raw = given.encode("utf-8", "surrogateescape") if isinstance(given, str) else given
    try:
        json_text.loads(raw)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"this is not JSON: {error}") from None
    return Raw(raw)


def _receipt_of(answer: HttpResponse) -> Receipt:
    """Build the receipt of a call whose response is the changed job."""
    job = codec.job(answer.body)
    return Receipt(job.id, job.fence, job.status, job.attempt, job.version, job.run_at, job.finished_at)


def _refused(given: Mapping[str, Any]) -> tuple[str, Error]:
    problem, id = given.get("error") or {}, str(given.get("id", ""))
    return id, codec.rebuilt(problem, int(problem.get("status", 0)), {"job_id": id})


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
