"""A tenant in the middle of its day: jobs in every state, with text of the caller's choice in every field."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import msgspec

from interlock.domain.approval import RequestApproval
from interlock.domain.artifact import File, Holder, Link
from interlock.domain.budget import Per
from interlock.domain.decide import CompleteJob, FailJob
from interlock.domain.job import Checkpoint, Job
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import ROLES, Principal, user
from interlock.domain.progress import Event, Level, Report, Step
from interlock.domain.stream import Append, NewChunk
from interlock.domain.timestamps import EPOCH
from interlock.engine.engine import Engine
from interlock.wire import AgentName, JobRequest, SubscriptionRequest, TokenRequest, new_id
from interlock.wire.budgets import BudgetRequest
from interlock.wire.channels import ChannelRequest
from interlock.wire.limits import LimitRequest, Rate
from interlock.wire.schedule import ScheduleRequest

Words = Callable[[str], str]


@dataclass(frozen=True)
class Scene:
    """Ids of what is there; `texts` is every text that was put in."""

    tenant: str
    queued: str
    running: str
    dead: str
    done: str
    waiting: str
    approval: str
    artifact: str
    subscription: str
    token: str
    texts: tuple[str, ...]

    def fill(self, path: str, job: str | None = None) -> str:
        """A path of the table about what is there."""
        named = {
            "job_id": job or self.running,
            "artifact_id": self.artifact,
            "approval_id": self.approval,
            "type": "import-feed",
            "id": {"tokens": self.token, "agents": "solo"}.get(path.split("/")[1], self.subscription),
            "name": self._named(path),
            "kind": "steps" if "records" in path else "line",
            "delivery_id": new_id(),
        }
        for name, value in named.items():
            path = path.replace(f"{{{name}}}", value)
        return path

    def _named(self, path: str) -> str:
        parts = path.split("/")
        if "streams" in parts:
            return "answer"
        names = {"limits": "provider", "channels": "ops", "budgets": "team", "schedules": "nightly"}
        return names.get(parts[1], "payload")


def plainly(text: str) -> str:
    return text


async def play(engine: Engine, tenant: str, say: Words = plainly) -> Scene:
    """Fill a tenant; `say` makes the text of a field from a plain one."""
    texts: list[str] = []

    def word(text: str) -> str:
        texts.append(say(text))
        return texts[-1]

    who = Principal(tenant, user("maker"), ROLES)
    worker = word("macbook-7")

    async def enqueue(type: str, payload: object, **more: object) -> str:
        raw = msgspec.Raw(json.dumps(payload).encode())
        return (await engine.jobs.enqueue(who, JobRequest(type=type, payload=raw, **more))).id  # type: ignore[arg-type]

    async def claim(type: str) -> Job:
        (job,) = await engine.leases.claim(tenant, ClaimFilter(worker, frozenset({type}), lease_seconds=3600.0))
        return job

    research = word("research")
    running = await enqueue(
        research,
        {word("topic"): word("tides"), "depth": 3, "sources": [word("noaa.gov"), word("psmsl.org")]},
        agent=AgentName(kind=word("planner"), id=word("atlas")),
        tags=[word("ocean")],
        headers={word("team"): word("science")},
        priority=5,
        requested_by=word("ada@example.org"),
    )
    held = await claim(research)
    holder = Holder(held.id, held.fence, worker)
    await engine.progress.save_step(
        tenant, Step(held.id, held.fence, worker, word("search"), 0, json.dumps({"hits": 42, "top": word("a paper")}))
    )
    events = (
        Event(new_id(), Level.INFO, word("reading 42 pages"), json.dumps({"progress": word("0.4")})),
        Event(new_id(), Level.WARN, word("one source is slow")),
    )
    await engine.progress.add_events(tenant, Report(held.id, held.fence, worker, events))
    checkpoint = Checkpoint(held.id, held.fence, worker, 1, json.dumps({word("page"): 17}))
    await engine.leases.checkpoint(tenant, checkpoint)
    file, _ = await engine.artifacts.attach(
        tenant, holder, [File(word("notes.html"), b"<script>parent.xss()</script>", "text/html"),
                         Link(word("the source"), "https://outside.example/tides")],
    )  # fmt: skip
    await enqueue(word("read-page"), {"page": 1}, parent_id=held.id)
    chunks = (NewChunk(word("The moon pulls the sea").encode(), True), NewChunk(b"\xff\x00", False))
    await engine.streams.append(tenant, Append(held.id, held.fence, worker, word("answer"), 0, chunks))
    await engine.messages.send(who, held.id, word("instructions"), json.dumps({"use": word("primary sources")}))

    publish = word("publish")
    waiting = await enqueue(publish, {"title": word("What moves the sea")}, agent=AgentName(kind="editor", id="mira"))
    asks = await claim(publish)
    schema = {
        "type": "object",
        "required": ["title", "audience"],
        "properties": {
            "title": {"type": "string", "title": word("Title"), "description": word("as readers will see it")},
            "audience": {"enum": [word("everybody"), "members"]},
            "readers": {"type": "integer"},
            "notify": {"type": "boolean"},
        },
    }
    opened = await engine.approvals.open(
        who,
        RequestApproval(
            asks.id, asks.fence, worker, "", word("Publish “What moves the sea”?"),
            details=json.dumps({"title": "What moves the sea", "readers": 40_000, "why": word("it is done")}),
            risk=word("high"), schema=json.dumps(schema),
        ),
    )  # fmt: skip
    assert opened.approval is not None

    dead = await enqueue("import-feed", {"url": "https://feed.example/tides"}, max_attempts=1)
    doomed = await claim("import-feed")
    error = {"message": word("the feed does not answer"), "kind": word("ConnectionError"), "details": {"tries": 3}}
    await engine.leases.fail(tenant, FailJob(doomed.id, doomed.fence, worker, json.dumps(error)))

    done = await enqueue("summarize", {"topic": "tides"})
    finished = await claim("summarize")
    result = json.dumps({"answer": word("the moon, mostly")})
    await engine.leases.complete(
        tenant, CompleteJob(finished.id, finished.fence, worker, result, word("one sentence"))
    )  # fmt: skip

    for n in range(14):
        await enqueue("embed-page", {"page": n}, priority=n % 3)
    await enqueue("embed-page", {"page": 99}, delay_seconds=3600.0)
    queued = await enqueue("crawl", {"site": "example.org"}, requires=[word("browser")], repository=word("org/site"))
    await engine.jobs.pause(who, "crawl", reason=word("the site asked us to wait"))
    await engine.registry.set_agent(who, "line", "solo", max_concurrency=1)
    await engine.schedules.set(who, word("nightly"), ScheduleRequest(cron="0 3 * * *", job=JobRequest(type="report")))
    await engine.schedules.set(who, "nightly", ScheduleRequest(cron="0 4 * * *", job=JobRequest(type="report")))
    await engine.budgets.set(who, "team", BudgetRequest(amount={"usd": 100.0}, per=Per.DAY))
    await engine.channels.set(
        who, "ops", ChannelRequest(kind="slack", url="https://hooks.example/x", tags=["nightly"], min_risk="high")
    )
    await engine.flow.set(
        who, "provider", LimitRequest(concurrency=20, rate=Rate(units={"tokens": 40_000, "usd": 1.5}))
    )
    await engine.flow.set(who, "customer", LimitRequest(concurrency=1, keyed=True))
    soon = EPOCH + timedelta(microseconds=await engine.queries.now(), hours=1)
    await engine.flow.hold(who, "customer", soon, key="acme", reason="over quota")
    for n in range(3):
        await enqueue("solo-work", {"n": n}, agent=AgentName(kind="line", id="solo"))
    await claim("solo-work")

    wanted = SubscriptionRequest(url="https://hooks.example/interlock", events=["job.failed", "job.dead_letter"])
    subscription = (await engine.webhooks.subscribe(who, wanted)).subscription
    token = await engine.tokens.create(who, TokenRequest(roles=["read"], description=word("the wall screen")))
    await engine.workers.stop()  # so that what was noticed of the worker is encode down
    return Scene(
        tenant, queued, running, dead, done, waiting, opened.approval.id, file.id, subscription.id,
        token.token.id, tuple(texts),
    )  # fmt: skip
