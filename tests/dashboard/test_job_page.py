"""The page of one job: its waterfall, related jobs, streams, messages, its error, and edits of waiting and ended jobs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import msgspec
import pytest
from playwright.async_api import Browser, Page, expect

from interlock.client.local import LocalClient
from interlock.dashboard.pages import job as job_page
from interlock.dashboard.waterfall import AXIS, MAX_TRANSITIONS, Waterfall, waterfall
from interlock.domain.approval import Decision, RequestApproval
from interlock.domain.decide import CompleteJob, FailJob, ReleaseJob
from interlock.domain.job import Filter, Job
from interlock.domain.lifecycle import Status
from interlock.domain.message import AwaitMessage
from interlock.domain.operations import START
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import local
from interlock.domain.progress import Event, Level, Report, Step
from interlock.domain.stream import Append, NewChunk
from interlock.wire import JobRequest, new_id
from tests.dashboard.conftest import Board, a_server, follow, patient
from tests.dashboard.scene import Scene

WORKER = "gpu-1"


class Story:
    """A job that meets every kind of wait; each part of it lasts as long as the test says."""

    def __init__(self, board: Board, tenant: str) -> None:
        self.board, self.tenant, self.engine = board, tenant, board.engine
        self.who = local(tenant)
        self.job: Job

    async def begin(self, **more: object) -> str:
        payload = msgspec.Raw(b'{"order":  7}')
        request = JobRequest(type="order", payload=payload, delay_seconds=60.0, **more)  # type: ignore[arg-type]
        return (await self.engine.jobs.enqueue(self.who, request)).id

    def later(self, seconds: float) -> None:
        self.board.clock.advance(seconds)

    async def run(self) -> None:
        ask = ClaimFilter(WORKER, frozenset({"order"}), lease_seconds=3600.0)
        (self.job,) = await self.engine.leases.claim(self.tenant, ask)

    async def step(self, name: str, seconds: float) -> None:
        self.later(seconds)
        await self.engine.progress.save_step(self.tenant, Step(self.job.id, self.job.fence, WORKER, name, 1, "1"))

    async def release(self, reason: str | None = None, **until: object) -> None:
        order = ReleaseJob(self.job.id, self.job.fence, WORKER, reason, **until)  # type: ignore[arg-type]
        await self.engine.leases.finishes(self.tenant, [order])

    async def warn(self, text: str) -> None:
        event = Event(new_id(), Level.WARN, text)
        await self.engine.progress.add_events(self.tenant, Report(self.job.id, self.job.fence, WORKER, (event,)))

    async def fail(self, message: str, **more: object) -> None:
        error = json.dumps({"message": message, "kind": "CardError", "details": {"code": 51}})
        order = FailJob(self.job.id, self.job.fence, WORKER, error, **more)  # type: ignore[arg-type]
        await self.engine.leases.fail(self.tenant, order)

    async def play(self) -> str:
        id = await self.begin()
        self.later(62)
        await self.run()
        await self.step("load order", 3)
        await self.step("price", 0.25)
        await self.warn("the price list is old")
        await self.release("sleeping", delay_seconds=30.0)
        self.later(31)
        await self.run()
        self.later(1)
        await self.release("waiting for a message", message=AwaitMessage("paid"))
        self.later(45)
        await self.engine.messages.send(self.who, id, "paid", '{"amount": 12}')
        self.later(2)
        await self.run()
        self.later(1)
        request = RequestApproval(self.job.id, self.job.fence, WORKER, "", "Ship the order?")
        approval = (await self.engine.approvals.open(self.who, request)).approval
        assert approval is not None
        self.later(20)
        await self.engine.approvals.decide(self.who, approval.id, Decision.APPROVE)
        await self.run()
        child = await self.engine.jobs.enqueue(self.who, JobRequest(type="label", parent_id=id))
        await self.release("waiting for children", children=(child.id,))
        self.later(8)
        (label,) = await self.engine.leases.claim(self.tenant, ClaimFilter(WORKER, frozenset({"label"})))
        await self.engine.leases.complete(self.tenant, CompleteJob(label.id, label.fence, WORKER))
        await self.run()
        self.later(2)
        await self.fail("Traceback (most recent call last):\n  declined", retry_after_seconds=10.0)
        self.later(10)
        await self.run()
        chunks = (NewChunk(b"Charging the card", True), NewChunk(b"\xff", False))
        await self.engine.streams.append(self.tenant, Append(id, self.job.fence, WORKER, "output", 0, chunks))
        await self.step("charge", 4)
        return id

    async def waterfall(self, id: str) -> Waterfall:
        jobs = LocalClient(self.engine, self.who).jobs
        found, history, why = await jobs.get(id), await jobs.history(id), await jobs.why(id)
        now = await self.engine.queries.now()
        return waterfall(found, history, await jobs.steps(id), [], [], why, now)


@pytest.fixture
def story(board: Board, tenant: str) -> Story:
    return Story(board, tenant)


async def test_the_waterfall_has_every_run_step_and_wait(story: Story) -> None:
    found = await story.waterfall(await story.play())

    first, second = found.attempts
    seconds = [(span.kind, span.micros / 1e6) for span in first.spans]
    assert seconds == [
        ("queue", 62), ("run", 3.25), ("sleep", 30), ("queue", 1), ("run", 1), ("message", 45),
        ("queue", 2), ("run", 1), ("approval", 20), ("run", 0), ("children", 8), ("run", 2),
    ]  # fmt: skip
    assert [(step.label, step.micros / 1e6) for step in first.spans[1].steps] == [("load order", 3), ("price", 0.25)]
    assert [(span.kind, span.micros / 1e6) for span in second.spans] == [("backoff", 10), ("run", 4)]
    assert [span.is_open for span in second.spans] == [False, True]
    assert (first.number, second.number) == (1, 2)
    bars = [span.bar for attempt in found.attempts for span in attempt.spans]
    assert all(bar.x >= 0 and bar.x + bar.width <= AXIS + 0.2 for bar in bars)
    assert found.running == round(11.25e6)


async def test_an_open_wait_is_named_by_its_reason(story: Story) -> None:
    id = await story.begin()
    (delay,) = (await story.waterfall(id)).attempts[0].spans
    assert (delay.kind, delay.is_open) == ("delay", True)
    story.later(61)
    await story.engine.jobs.pause(story.who, "order")
    waits = (await story.waterfall(id)).attempts[0].spans
    assert [(one.kind, one.label, one.is_open) for one in waits] == [
        ("delay", "Delayed", False), ("limit", "Type paused", True),
    ]  # fmt: skip


async def test_a_job_with_many_runs_shows_the_last_ones(story: Story, chromium: Browser) -> None:
    id = await story.begin()
    story.later(60)
    for _ in range(MAX_TRANSITIONS // 2):
        await story.run()
        await story.release(delay_seconds=1.0)
        story.later(1)
    found = await story.waterfall(id)
    spans = [span for attempt in found.attempts for span in attempt.spans]
    assert [span.kind for span in spans] == ["run", "sleep"] * (MAX_TRANSITIONS // 2) + ["queue"]
    assert (found.hidden, spans[0].bar.x, spans[0].link) == (1, 0, "#history-2")
    page = await (await patient(chromium)).new_page()
    await page.goto(f"{story.board.url}/jobs/{id}")
    await expect(page.locator("#waterfall-part")).to_contain_text("of the first transition are not displayed")
    await follow(page.locator("#waterfall-part").get_by_role("link", name="Run").first)
    assert page.url.endswith(f"/jobs/{id}/records/transitions?after=1#history-2")
    await expect(page.locator("#history-2")).to_contain_text("claim")


async def test_the_page_of_a_job_tells_its_story(
    story: Story, chromium: Browser, album: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = await story.play()
    page = await (await patient(chromium)).new_page()
    response = await page.goto(f"{story.board.url}/jobs/{id}")
    assert response is not None
    assert response.status == 200
    looks: tuple[tuple[Literal["light", "dark"], int], ...] = (("light", 360), ("dark", 1280), ("light", 1280))
    for scheme, width in looks:
        await page.set_viewport_size({"width": width, "height": 800})
        await page.emulate_media(color_scheme=scheme)
        assert await page.evaluate("document.documentElement.scrollWidth") <= width
        await page.screenshot(path=album / f"job-{scheme}-{width}.png", full_page=True)
    monkeypatch.setattr(job_page, "MAX_STREAM_TEXT", 8)
    await expect(page.locator("#attempt-1 .lane-row").first).to_contain_text("Queued")
    await expect(page.locator("#attempt-1")).to_contain_text("Waiting for a message paid")
    await expect(page.locator("#attempt-1 .mark-warn title")).to_have_text("the price list is old")
    await expect(page.get_by_role("region", name="Stream output")).to_contain_text("Charging the card[1 bytes]")
    await expect(page.get_by_role("region", name="Messages")).to_contain_text("paid")
    await expect(page.get_by_role("region", name="Related jobs")).to_contain_text("label")
    await expect(page.locator("#error-part pre").first).to_have_text("Traceback (most recent call last):\n  declined")
    await expect(page.locator("#error-part")).to_contain_text("CardError")

    written = Append(id, story.job.fence, WORKER, "output", 2, (NewChunk(b" again", True),))
    await story.engine.streams.append(story.tenant, written)
    await expect(page.get_by_role("region", name="Stream output")).to_contain_text("again")
    await page.goto(f"{story.board.url}/jobs/{id}/streams/output")
    await expect(page.locator("main pre")).to_have_text("Charging the card[1 bytes]\n again")


async def test_redrives_are_linked_both_ways_and_take_an_edited_payload(
    story: Story, chromium: Browser, page: Page
) -> None:
    id = await story.begin(max_attempts=1)
    story.later(60)
    await story.run()
    await story.fail("no", retryable=False)
    await page.goto(f"{story.board.url}/jobs/{id}")
    await page.get_by_text("Edit…").click()
    assert await page.get_by_role("textbox", name="Payload").input_value() == '{"order":  7}'
    await page.get_by_role("textbox", name="Payload").fill('{"order": 8')
    await page.get_by_label("Priority").fill("9")
    await follow(page.get_by_role("button", name="Redrive"))
    await expect(page.locator("#redrive-payload-error")).to_contain_text("invalid JSON")
    assert await page.get_by_role("textbox", name="Payload").input_value() == '{"order": 8'
    assert await page.get_by_label("Priority").input_value() == "9"
    await page.get_by_role("textbox", name="Payload").fill('{"order": 8}')
    await follow(page.get_by_role("button", name="Redrive"))
    await expect(page.get_by_role("region", name="Related jobs")).to_contain_text("redrive of")
    (made,) = await story.engine.queries.redrives(story.tenant, id, limit=10)
    assert (made.payload, made.priority, made.redrive_of) == ('{"order": 8}', 9, id)

    await page.goto(f"{story.board.url}/jobs/{id}")
    await expect(page.get_by_role("region", name="Related jobs")).to_contain_text("redriven as")
    await follow(page.get_by_role("button", name="Redrive"))
    again, _ = await story.engine.queries.redrives(story.tenant, id, limit=10)
    assert (again.payload, again.priority) == ('{"order":  7}', 0)


async def test_a_waiting_job_is_postponed(story: Story, page: Page) -> None:
    id = await story.begin()
    await page.goto(f"{story.board.url}/jobs/{id}")
    await page.get_by_label("Due").fill("2031-02-03T04:05:06")
    await follow(page.get_by_role("button", name="Postpone"))
    assert await page.get_by_label("Due").input_value() == "2031-02-03T04:05:06"
    job = await story.engine.queries.job(story.tenant, id)
    assert (job.status, job.run_at) == (Status.QUEUED, 1_927_857_906_000_000)


async def test_a_message_is_sent_once_and_a_rejected_one_keeps_its_text(board: Board, stage: Scene, page: Page) -> None:
    await page.goto(f"{board.url}/jobs/{stage.running}")
    await page.get_by_text("Send a message…").click()
    await page.get_by_role("textbox", name="Name").fill("stop")
    await page.get_by_role("textbox", name="Payload").fill("{now")
    await follow(page.get_by_role("button", name="Send"))
    await expect(page.locator("#message-payload-error")).to_contain_text("invalid JSON")
    assert await page.get_by_role("textbox", name="Name").input_value() == "stop"
    await page.get_by_role("textbox", name="Payload").fill('"now"')
    async with page.context.expect_page() as opened:
        await page.get_by_role("button", name="Send").click(modifiers=["Control"])
    await (await opened.value).wait_for_url("**?notice=sent")
    await follow(page.get_by_role("button", name="Send"))
    sent = await board.engine.messages.of_job(stage.tenant, stage.running)
    assert [(one.name, one.payload) for one in sent] == [
        ("instructions", '{"use": "primary sources"}'), ("stop", '"now"'),
    ]  # fmt: skip


async def test_a_message_is_published_once_to_the_topic_of_a_wait(story: Story, page: Page) -> None:
    id = await story.begin()
    story.later(60)
    await story.run()
    await story.release(message=AwaitMessage(None, topic="prices"))
    await page.goto(f"{story.board.url}/jobs/{id}")
    await page.get_by_text("Send to topic prices…").click()
    await page.get_by_role("textbox", name="Payload").last.fill('{"oil":')
    await follow(page.get_by_role("button", name="Publish"))
    await expect(page.locator("#topic-payload-error")).to_contain_text("invalid JSON")
    await page.get_by_role("textbox", name="Payload").last.fill('{"oil": 70}')
    async with page.context.expect_page() as opened:
        await page.get_by_role("button", name="Publish").click(modifiers=["Control"])
    await (await opened.value).wait_for_url("**?notice=sent")
    await follow(page.get_by_role("button", name="Publish"))
    (sent,) = await story.engine.messages.of_job(story.tenant, id)
    assert (sent.topic, sent.payload) == ("prices", '{"oil": 70}')
    assert await page.get_by_text("Send to topic").count() == 0


async def test_a_job_links_to_its_trace(board: Board, tenant: str, page: Page) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    request = JobRequest(type="t")
    parent = f"00-{trace}-b7ad6b7169203331-01"
    traced = await board.engine.jobs.enqueue(local(tenant), request, traceparent=parent)
    plain = await board.engine.jobs.enqueue(local(tenant), request)
    url = "https://tempo.example/trace/{trace_id}"
    async with a_server(board.engine, board.clock, board.ticks, auth=False, tenant=tenant, trace_url=url) as server:
        await page.goto(f"{server.url}/jobs/{traced.id}")
        link = page.locator(".facts a[rel=noreferrer]")
        assert await link.get_attribute("href") == f"https://tempo.example/trace/{trace}"
        await page.goto(f"{server.url}/jobs/{plain.id}")
        assert await link.count() == 0
    await page.goto(f"{board.url}/jobs/{traced.id}")
    assert await link.count() == 0


async def test_redriven_jobs_are_listed_newest_first(story: Story) -> None:
    id = await story.begin(max_attempts=1)
    story.later(60)
    await story.run()
    await story.fail("no", retryable=False)
    made = [(await story.engine.operations.redrive(story.who, id, start_from=START)).id for _ in range(3)]
    found = await story.engine.queries.redrives(story.tenant, id, limit=2)
    assert [job.id for job in found] == made[:0:-1]
    assert await story.engine.queries.redrives(story.tenant, made[0], limit=2) == []
    assert await story.engine.queries.jobs(story.tenant, Filter(parent_id=id)) == []
