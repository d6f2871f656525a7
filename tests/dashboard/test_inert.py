"""Text from jobs stays text: a corpus in every field, read by a parser on every page and by a browser on every list."""

from __future__ import annotations

import html
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from importlib.resources import files

import httpx2
import markupsafe
import msgspec
import pytest
from playwright.async_api import Browser

from interlock.dashboard.render import inert
from interlock.domain.approval import Decision, GateFilter, OpenGate
from interlock.domain.artifact import File, Holder, Link
from interlock.domain.decide import Complete, Fail
from interlock.domain.job import Checkpoint, Job
from interlock.domain.policy import ClaimAsk
from interlock.domain.principal import Principal, local
from interlock.domain.progress import Event, Level, Report, Step
from interlock.domain.webhook import MOST_SUBSCRIPTIONS, Mode
from interlock.engine.engine import Engine
from interlock.engine.webhooks import SubscriptionRequest
from interlock.wire import AgentName, JobRequest, TokenRequest, new_id
from tests.dashboard.conftest import Board, patient
from tests.dashboard.corpus import CORPUS

LISTS = ("/jobs", "/approvals", "/agents", "/workers", "/tokens", "/webhooks", "/webhooks/deliveries")
ONCE = (
    "/", "/queues", "/approvals?status=denied", "/audit?after=2000-01-01T00:00", "/jobs/bulk?action=cancel&scope=filter",
    "/audit/verify",
)  # fmt: skip

# The engines keep text byte for byte, which the contract suite holds them to; what is made of it knows no engine.
one_engine = pytest.mark.parametrize("engine", ["sqlite"])


@dataclass
class Shape(HTMLParser):
    """What a page is made of: elements, names of attributes, and where its addresses lead."""

    made_of: set[str] = field(default_factory=set)
    leads_out: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.made_of |= {tag, *(f"{tag} {name}" for name, _ in attrs)}
        for name, value in attrs:
            if name in ("href", "src", "action", "formaction") and not re.match(r"[/#](?![/\\])", value or "/"):
                self.leads_out.append(f"{tag} {name}={value}")

    def handle_comment(self, data: str) -> None:
        self.made_of.add("a comment")

    def handle_decl(self, decl: str) -> None:
        self.made_of.add(decl)


def shape(text: str) -> Shape:
    read = Shape()
    read.feed(text)
    read.close()
    return read


async def everywhere(engine: Engine, who: Principal) -> list[str]:
    """Put each string into every field that a job, its agent, type and worker, a token and a webhook have."""
    tenant = who.tenant
    requests = [
        JobRequest(
            type=text, payload=msgspec.Raw(json.dumps({text: [text, {"in": text}]}).encode()), tags=[text],
            headers={text[:60]: text}, agent=AgentName(kind=text, id=text), requested_by=text, idempotency_key=text,
            max_attempts=1,
        )
        for text in CORPUS
    ]  # fmt: skip
    jobs = [accepted.id for accepted in await engine.jobs.enqueue_batch(who, requests)]
    unfit = [
        JobRequest(type=text, requires=[text], repository=text, affinity_key=text, parent_id=id)
        for text, id in zip(CORPUS, jobs, strict=True)
    ]
    await engine.jobs.enqueue_batch(who, unfit)
    for i, text in enumerate(CORPUS):
        (job,) = await engine.leases.claim(tenant, ClaimAsk(text, frozenset({text}), lease_seconds=3600.0))
        await tell(engine, tenant, job, text)
        await end(engine, who, job, text, i)
        worker = text.replace("/", "|")  # a slash would separate it from its instance
        await engine.tokens.create(who, TokenRequest(roles=["work"], description=text, worker_id=worker))
    for text in CORPUS[: MOST_SUBSCRIPTIONS - 1]:
        wanted = SubscriptionRequest(
            url="https://hooks.example/'x", events=["job.failed"], types=[text], mode=Mode.GROUP, group_id=text
        )
        await engine.webhooks.subscribe(who, wanted)
    await engine.workers.stop()
    return jobs


async def tell(engine: Engine, tenant: str, job: Job, text: str) -> None:
    value = json.dumps({text: text})
    events = tuple(Event(new_id(), level, text, value) for level in Level)
    await engine.progress.add_events(tenant, Report(job.id, job.fence, text, events))
    await engine.progress.save_step(tenant, Step(job.id, job.fence, text, text, 0, value))
    await engine.leases.checkpoint(tenant, Checkpoint(job.id, job.fence, text, 1, value))
    things: list[File | Link] = [
        File(text, text.encode(), "text/html"),
        Link(f"the link {text[:150]}", "https://outside.example/'x"),
    ]
    await engine.artifacts.attach(tenant, Holder(job.id, job.fence, text), things)


async def end(engine: Engine, who: Principal, job: Job, text: str, i: int) -> None:
    """Let jobs end in every way, each string in one of them; every tenth stays as it is."""
    value = json.dumps({text: text})
    match i % 10:
        case 1 | 2 | 3:
            rule = {"type": "string", "title": text, "description": text, "default": text}
            schema = json.dumps({"properties": {text: rule, "one of": {"enum": [text]}}})
            gate = OpenGate(job.id, job.fence, text, "", text, details=value, risk=text, schema=schema)
            opened = await engine.gates.open(who, gate)
            if i % 10 == 3 and opened.approval is not None:
                await engine.gates.decide(who, opened.approval.id, Decision.DENY, comment=text)
        case 4 | 5:
            error = json.dumps({"message": text, "kind": text, "details": {text: text}})
            await engine.leases.fail(who.tenant, Fail(job.id, job.fence, text, error, retryable=i % 10 == 5))
        case 6 | 7:
            await engine.leases.complete(who.tenant, Complete(job.id, job.fence, text, value, text, value))
        case 8:
            await engine.jobs.cancel(who, job.id, reason=text, force=True)
        case 9:
            await engine.jobs.pause(who, text, reason=text)
        case _:
            pass


async def all_lists(http: httpx2.AsyncClient) -> AsyncIterator[tuple[str, str]]:
    """Each list from its first page to its last, and the pages that show much at once."""
    for path in ONCE:
        yield path, (await http.get(path)).text
    for path in LISTS:
        next: str | None = path
        while next is not None:
            at, text = next, (await http.get(next)).text
            yield at, text
            found = re.search(r'<a href="([^"]+)" rel="next"', text)
            next = None if found is None else html.unescape(found[1])


def usual() -> set[str]:
    """What our own templates are made of, whatever they show."""
    made_of = {"doctype html", "main data-live"}  # the one attribute that a child puts into a tag of its parent
    for template in (files("interlock.dashboard") / "templates").iterdir():
        made_of |= shape(re.sub(r"\{[%{#].*?[%}#]\}", "", template.read_text(), flags=re.DOTALL)).made_of
    return made_of


def as_shown(text: str) -> str:
    return str(markupsafe.escape(inert(text)))


@one_engine
async def test_no_page_is_made_of_anything_else_when_the_text_is_hostile(
    board: Board, tenant: str, chromium: Browser
) -> None:
    assert len(set(CORPUS)) == 500
    jobs = await everywhere(board.engine, local(tenant))
    ours, shown, lists = usual(), "", []
    async with httpx2.AsyncClient(base_url=board.url, trust_env=False, timeout=60) as http:
        for id, hostile in zip(jobs, CORPUS, strict=True):
            text = (await http.get(f"/jobs/{id}")).text
            found = shape(text)
            assert (found.made_of - ours, found.leads_out) == (set(), []), hostile
            assert as_shown(hostile) in text
        async for path, text in all_lists(http):
            found = shape(text)
            assert (found.made_of - ours, found.leads_out) == (set(), []), path
            shown += text
            lists.append(path)
    assert [hostile for hostile in CORPUS if as_shown(hostile) not in shown] == []

    page = await (await patient(chromium)).new_page()
    faults: list[str] = []
    page.on("request", lambda asked: None if asked.url.startswith(board.url) else faults.append(asked.url))
    page.on("dialog", lambda dialog: faults.append(dialog.message))
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: faults.append(str(error)))
    await page.add_init_script("window.pwned = () => console.error('pwned')")
    gates = [gate.id for gate in await board.engine.gates.list(tenant, GateFilter(limit=200))]
    few = [f"/jobs/{id}" for id in jobs[::25]] + [f"/approvals/{id}" for id in gates[::15]]
    for path in lists + few:
        await page.goto(board.url + path)
    assert faults == []
