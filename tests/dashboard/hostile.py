"""A tenant whose every field is hostile: the corpus in every text field, as many strings as the field can hold."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final
from urllib.parse import quote, urlencode

import msgspec

from interlock.dashboard.sessions import Sessions
from interlock.domain.approval import Approval, Decision, RequestApproval
from interlock.domain.artifact import File, Holder, Link
from interlock.domain.decide import CompleteJob, FailJob, ReleaseJob
from interlock.domain.job import Checkpoint, Job
from interlock.domain.message import AwaitMessage
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import ROLES, Principal, user
from interlock.domain.progress import Event, Level, Report, Step
from interlock.domain.stream import Append, NewChunk
from interlock.domain.timestamps import EPOCH
from interlock.domain.webhook import Mode
from interlock.engine.engine import Engine
from interlock.wire import AgentName, JobRequest, LimitUse, SubscriptionRequest, TokenRequest, new_id
from interlock.wire.limits import LimitRequest, Rate
from interlock.wire.schedule import ScheduleRequest
from tests.dashboard.corpus import CORPUS

Ask = tuple[str, dict[str, str] | None]  # a path, and the form that is sent there if it answers forms

CROWD: Final = AgentName(kind="the whole", id="crowd")
MAX_NAME_LENGTH: Final = 190  # a name has 200 characters, and some get a word of ours before them
NAMES_OF_A_TOME: Final = 18  # what still fits into headers and errors, and in details that the inbox shows


def packed() -> Iterator[str]:
    """The corpus as names, each of as many strings as a name has room for."""
    name = ""
    for text in CORPUS:
        if len(name + text) > MAX_NAME_LENGTH:
            yield name
            name = ""
        name += text
    yield name


# Shows in how many places of a page a text stands; what addresses and JSON spell otherwise is left out as with the others.
PLAIN: Final = 'zz plain: "a" / "b" \\ ' + "and on " * 12 + "end"
NAMES: Final = tuple(packed())


def as_worker(text: str) -> str:
    """A text as the name of a worker in a token: a slash would separate it from its instance."""
    return text.replace("/", "|")


def as_address(text: str) -> str:
    """A text in the path of an address, spelled as openly as one may be."""
    return "https://hooks.example/" + quote(text, safe="!'()*,;:=@&+$/")


@dataclass
class Planted:
    """The pages that are about one thing, by what that is."""

    asks: dict[str, list[Ask]] = field(default_factory=dict)
    cookies: list[str] = field(default_factory=list)  # of those who are signed in under a hostile name
    reported: list[str] = field(default_factory=list)  # jobs with steps, events and artifacts

    def add(self, kind: str, path: str, form: dict[str, str] | None = None) -> None:
        self.asks.setdefault(kind, []).append((path, form))


class Planter:
    """Puts names into every field that there is, one by one where it takes a name, else many at once."""

    def __init__(self, engine: Engine, tenant: str, form_token: str, sessions: Sessions) -> None:
        self._engine, self._tenant, self._form_token, self._sessions = engine, tenant, form_token, sessions
        self.planted = Planted()

    async def plant(self, names: Sequence[str]) -> Planted:
        who = self._who("somebody")
        await self._engine.registry.set_agent(who, CROWD.kind, CROWD.id, max_concurrency=len(names))
        for name in names:
            await self._engine.flow.set(
                self._who(name), name, LimitRequest(concurrency=1000, rate=Rate(units={name: 1e9}))
            )
        parents = [await self._short(name) for name in names]
        for name, parent in zip(names, parents, strict=True):
            await self._waiting(name, parent)
        for at in range(0, len(names), NAMES_OF_A_TOME):
            await self._long(names[at : at + NAMES_OF_A_TOME])
        await self._held(names)
        await self._engine.workers.stop()
        return self.planted

    async def _held(self, names: Sequence[str]) -> None:
        """Limits and keys on hold."""
        flow = self._engine.flow
        await flow.set(
            self._who("somebody"),
            "per customer",
            LimitRequest(concurrency=1, keyed=True, fair=True, weights=dict.fromkeys(names, 2)),
        )
        until = EPOCH + timedelta(microseconds=await self._engine.queries.now(), hours=1)
        for name in names:
            await flow.hold(self._who(name), name, until, reason=name)
            await flow.hold(self._who(name), "per customer", until, key=name, reason=name)
            self.planted.add("a limit", f"/limits/{quote(name, safe='')}")

    async def _short(self, text: str) -> Job:
        """A text that is a name; the answer is a job that runs."""
        engine, who = self._engine, self._who(text)
        asking = await self._claimed(text, agent=CROWD)
        approval, link = await self._asked(asking, text, text)
        self.planted.add("an approval", f"/approvals/{approval.id}")
        self.planted.add("a bearer of a name", "/approve", {"token": link, "form_token": self._form_token})
        running = await self._claimed(text)
        holder = Holder(running.id, running.fence, text)
        await engine.artifacts.attach(self._tenant, holder, [Link(text, as_address(text))])
        chunks = (NewChunk(text.encode(), True),)
        await engine.streams.append(self._tenant, Append(running.id, running.fence, text, text, 0, chunks))
        await engine.messages.send(who, running.id, text, json.dumps({text: text}))
        self.planted.add("a job that runs", f"/jobs/{running.id}")
        self.planted.add("a stream", f"/jobs/{running.id}/streams/{quote(text, safe='')}")
        self.planted.add("a form of a type", f"/jobs/new?{urlencode({'type': text})}")
        for message in (AwaitMessage(text), AwaitMessage(None, topic=text)):
            waiting = await self._claimed(text, budget={text: 1e9})
            order = ReleaseJob(waiting.id, waiting.fence, text, text, message=message)
            await engine.leases.finishes(self._tenant, [order])
            self.planted.add("a job that waits for a message", f"/jobs/{waiting.id}")
        self.planted.reported.append(running.id)
        decided = await self._claimed(text)
        approval, _ = await self._asked(decided, text, text)
        await engine.approvals.decide(who, approval.id, Decision.APPROVE, comment=text, data=json.dumps({text: text}))
        self.planted.add("an approval with a vote", f"/approvals/{approval.id}")
        wanted = TokenRequest(
            roles=["work"], description=text, worker_id=as_worker(text), key=text, types=[text], repositories=[text],
            capabilities=[text],
        )  # fmt: skip
        token = await engine.tokens.create(who, wanted)
        await engine.tokens.revoke(who, token.token.id)
        await self._subscribed(who, [text], group=text)
        await self._signed_in(text)
        return running

    async def _signed_in(self, text: str) -> None:
        """A user of a tenant of that name, with that name."""
        there = Principal(text, user("somebody"), ROLES)
        wanted = TokenRequest(roles=["read", "work"], worker_id=as_worker(text))
        token = await self._engine.tokens.create(there, wanted)
        secret, cookie = self._sessions.begin(token.text)
        await self._engine.sessions.begin(secret, there, life_seconds=3600)
        self.planted.cookies.append(cookie)

    async def _waiting(self, text: str, parent: Job) -> None:
        """A job that no worker claims, for every possible reason."""
        engine, who = self._engine, self._who(text)
        child = await engine.jobs.enqueue(who, self._request(text, parent_id=parent.id, agent=CROWD))
        self.planted.add("a job that waits", f"/jobs/{child.id}")
        await engine.jobs.pause(who, text, reason=text)
        await engine.schedules.set(who, text, ScheduleRequest(every_seconds=86_400, job=JobRequest(type=text)))

    async def _long(self, names: Sequence[str]) -> None:
        """A text of many names, and lists of them."""
        engine, tome = self._engine, "".join(names)
        type, who, value = f"type {new_id()}", self._who("somebody"), json.dumps({tome: [tome]})

        asked = await self._claimed(type, tome)
        wrong = {"type": "integer", "title": tome}
        approval, link = await self._asked(asked, type, tome, schema=json.dumps({"properties": {"n": wrong}}))
        form = {"decision": "approve", "data.n": tome, "comment": tome, "digest": approval.digest}
        form["form_token"] = self._form_token
        self.planted.add("a refused decision", f"/approvals/{approval.id}/decide", form)
        self.planted.add("a refused bearer", "/approve/decide", form | {"token": link})
        self.planted.add("a bearer", "/approve", {"token": link, "form_token": self._form_token})

        done = await self._claimed(type, tome, headers={tome: tome})
        await self._recorded(done, type, names)
        await engine.jobs.cancel(who, done.id, reason=tome)
        used = json.dumps(dict.fromkeys(names, 1), ensure_ascii=False)
        await engine.leases.complete(self._tenant, CompleteJob(done.id, done.fence, type, value, tome, used))
        self.planted.add("a job that is done", f"/jobs/{done.id}")

        dead = await self._claimed(type, tome, max_attempts=1)
        error = json.dumps({"message": tome, "kind": tome, "details": {tome: tome}})
        await engine.leases.fail(self._tenant, FailJob(dead.id, dead.fence, type, error))
        await engine.jobs.acknowledge(self._who(tome), dead.id, comment=tome)
        self.planted.add("a job that failed", f"/jobs/{dead.id}")

        decided = await self._claimed(type, tome)
        approval, _ = await self._asked(decided, type, tome, schema="{}")
        await engine.approvals.decide(who, approval.id, Decision.APPROVE, comment=tome, data=value)
        self.planted.add("a decided approval", f"/approvals/{approval.id}")
        self.planted.add("a job that asked", f"/jobs/{decided.id}")

        self.planted.add("a subscription", f"/webhooks/{await self._subscribed(who, names)}")

        for given in ({"type": tome, "worker": tome, "tag": tome}, {"agent": f"{tome}/{tome}"}):
            self.planted.add("a filter of jobs", f"/jobs?{urlencode(given)}")
        self.planted.add("a search of history", f"/audit?{urlencode({'actor': tome})}")
        self.planted.add("a way on", f"/sign-in?{urlencode({'next': f'/jobs?{tome}'})}")
        self.planted.add("a job that is not there", f"/jobs/{quote(tome, safe='')}")

    async def _asked(self, job: Job, worker: str, text: str, *, schema: str | None = None) -> tuple[Approval, str]:
        """An approval with the token of its link."""
        rule = {"type": "string", "title": text, "description": text, "default": text}
        chosen = {"enum": [text], "title": text, "description": text}
        asks = schema or json.dumps({"properties": {text: rule, f"{text}, one of": chosen}})
        approval = RequestApproval(
            job.id, job.fence, worker, "", text, details=json.dumps([text] if schema else {text: [text]}), schema=asks,
            risk=None if schema else text, name=None if schema else text,
        )  # fmt: skip
        opened = await self._engine.approvals.open(self._who(worker), approval)
        assert opened.approval is not None
        assert opened.token is not None
        return opened.approval, opened.token

    async def _subscribed(self, who: Principal, types: Sequence[str], group: str = "a group") -> str:
        wanted = SubscriptionRequest(
            url=as_address(group), events=["job.failed"], types=list(types), mode=Mode.GROUP, group_id=group
        )
        return (await self._engine.webhooks.subscribe(who, wanted)).subscription.id

    async def _recorded(self, job: Job, worker: str, names: Sequence[str]) -> None:
        """Everything that a worker can report while it works."""
        engine, tenant = self._engine, self._tenant
        values = [json.dumps({name: [name]}) for name in names]
        events = [
            Event(new_id(), level, name, value)
            for name, value in zip(names, values, strict=True)
            for level in (Level.INFO, Level.ERROR)
        ]
        await engine.progress.add_events(tenant, Report(job.id, job.fence, worker, tuple(events)))
        for name, value in zip(names, values, strict=True):
            await engine.progress.save_step(tenant, Step(job.id, job.fence, worker, name, 0, value, name))
        await engine.leases.checkpoint(tenant, Checkpoint(job.id, job.fence, worker, 1, f"[{', '.join(values)}]"))
        things = [File(name, name.encode(), "text/html") for name in names]
        await engine.artifacts.attach(tenant, Holder(job.id, job.fence, worker), things)
        self.planted.reported.append(job.id)

    async def _claimed(self, type: str, tome: str | None = None, **more: object) -> Job:
        """The newest job of a type, in the hands of a worker of the same name."""
        request = self._request(type, tome, **more)
        made = await self._engine.jobs.enqueue(self._who(type), request)
        ask = ClaimFilter(
            type, frozenset({type}), frozenset({type}), frozenset({type}), frozenset({type}), lease_seconds=3600.0
        )  # fmt: skip
        (job,) = await self._engine.leases.claim(self._tenant, ask)
        assert job.id == made.id
        return job

    def _request(self, type: str, tome: str | None = None, **more: object) -> JobRequest:
        payload = msgspec.Raw(json.dumps({tome or type: [tome or type, {"in": tome or type}]}).encode())
        if tome is not None:
            return JobRequest(type=type, payload=payload, repository=type, **more)  # type: ignore[arg-type]
        fields = {
            "tags": [type, f"a {type}"], "headers": {type: type}, "agent": AgentName(kind=type, id=type),
            "requested_by": type, "idempotency_key": f"{new_id()[-8:]} {type}", "requires": [type], "repository": type,
            "affinity_key": type, "webhook": as_address(type), "limits": [LimitUse(name=type)],
        }  # fmt: skip
        return JobRequest(type=type, payload=payload, **(fields | more))  # type: ignore[arg-type]

    def _who(self, name: str) -> Principal:
        return Principal(self._tenant, user(name), ROLES, unchecked=True)
