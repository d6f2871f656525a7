"""The list of jobs: search, counts, waits and durations; and the form that enqueues a job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from interlock.dashboard.pages import jobs
from interlock.domain.decide import CompleteJob, FailJob
from interlock.domain.job import Filter
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import local
from interlock.wire import JobRequest
from tests.dashboard.conftest import Board, follow, patient
from tests.dashboard.scene import Scene

SCHEMA = {
    "type": "object",
    "required": ["topic", "depth"],
    "properties": {
        "topic": {"type": "string", "title": "Topic", "minLength": 3},
        "depth": {"type": "integer", "title": "Depth", "minimum": 1, "maximum": 5},
        "sources": {"type": "array", "title": "Sources", "items": {"type": "string"}},
    },
    "additionalProperties": False,
}


async def shown(page: Page) -> list[str]:
    ids = await page.locator("tr[data-row]").evaluate_all("rows => rows.map(row => row.id)")
    return [id.removeprefix("job-") for id in ids]


async def test_jobs_are_found_by_the_end_of_the_id_and_by_text(
    board: Board, stage: Scene, chromium: Browser, album: Path
) -> None:
    page = await (await patient(chromium)).new_page()
    await page.goto(f"{board.url}/jobs")
    await page.screenshot(path=album / "jobs.png", full_page=True)
    for text, id in ((stage.running[-8:], stage.running), ("ADA@example", stage.running), ("not answer", stage.dead)):
        await page.get_by_role("searchbox", name="Search").fill(text)
        await follow(page.get_by_role("button", name="Search"))
        assert await shown(page) == [id], text
        await expect(page.locator("#search-hint")).to_contain_text("newest 5\u2009000 jobs")
    assert "search=not+answer" in page.url
    await page.goto(f"{board.url}/jobs?search=nothing+like+it")
    await expect(page.locator(".empty")).to_contain_text("No jobs found")


async def test_search_filters_and_needs_attention_are_combined(board: Board, stage: Scene, chromium: Browser) -> None:
    page = await (await patient(chromium)).new_page()
    await page.goto(f"{board.url}/jobs?search=example")
    assert {stage.running, stage.dead, stage.queued} <= set(await shown(page))
    await page.locator("#type").fill("import-feed")
    await follow(page.get_by_role("button", name="Filter"))
    assert await shown(page) == [stage.dead]
    await page.get_by_role("searchbox", name="Search").fill("site")
    await follow(page.get_by_role("button", name="Search"))
    assert "type=import-feed" in page.url
    assert await shown(page) == []
    await follow(page.get_by_role("search", name="Filter jobs").get_by_role("link", name="Clear"))
    assert await shown(page) == [stage.queued]

    await follow(page.get_by_role("link", name="Needs attention"))
    everything = await shown(page)
    assert {stage.dead, stage.queued} < {*everything, stage.queued}
    await page.locator(".chip", has_text="dead letter").click()
    await follow(page.get_by_role("button", name="Filter"))
    assert "attention=true" in page.url
    assert await shown(page) == [stage.dead]
    await page.get_by_role("searchbox", name="Search").fill("no such text")
    await follow(page.get_by_role("button", name="Search"))
    assert ("attention=true" in page.url, "status=dead_letter" in page.url) == (True, True)
    assert await shown(page) == []


async def test_filters_show_counts_of_all_jobs_or_of_a_type(board: Board, stage: Scene, page: Page) -> None:
    async def counts() -> dict[str, str]:
        chips = page.locator(".chip", has=page.locator(".count"))
        texts = [text.rsplit(maxsplit=1) for text in await chips.all_inner_texts()]
        return dict(texts)

    await page.goto(f"{board.url}/jobs")
    assert await counts() == {
        "queued": "19", "retry": "0", "waiting for approval": "1", "running": "2", "succeeded": "1", "failed": "0",
        "dead letter": "1", "cancelled": "0",
    }  # fmt: skip
    await page.goto(f"{board.url}/jobs?type=embed-page&status=queued")
    assert (await counts())["queued"] == "15"
    await page.goto(f"{board.url}/jobs?tag=ocean")
    assert {name: count for name, count in (await counts()).items() if count != "0"} == {"running": "1"}
    await expect(page.locator(".filter .hint")).to_have_text(
        "The numbers are exact and count the 1 job that matches the other filters."
    )
    await page.goto(f"{board.url}/jobs?search=embed")
    assert await counts() == {}


async def test_counts_of_other_filters_are_of_the_newest_matches(
    board: Board, tenant: str, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "MAX_MATCHES", 3)
    for n in range(4):
        await board.engine.jobs.enqueue(local(tenant), JobRequest(type="t", tags=["a"], priority=n))
    await board.engine.leases.claim(tenant, ClaimFilter("w", frozenset({"t"})))
    await page.goto(f"{board.url}/jobs?tag=a&status=queued")
    chips = page.locator(".chip", has=page.locator(".count"))
    assert [text for text in await chips.all_inner_texts() if not text.endswith("0")] == ["queued 2", "running 1"]
    await expect(page.locator(".filter .hint")).to_contain_text("the newest 3 jobs that match")
    assert len(await shown(page)) == 3


async def test_a_list_shows_how_long_jobs_waited_and_ran(board: Board, tenant: str, page: Page) -> None:
    added = await board.engine.jobs.enqueue(local(tenant), JobRequest(type="t"))
    board.clock.advance(90)
    (job,) = await board.engine.leases.claim(tenant, ClaimFilter("w", frozenset({"t"})))
    board.clock.advance(2.5)
    await board.engine.leases.complete(tenant, CompleteJob(job.id, job.fence, "w"))
    await page.goto(f"{board.url}/jobs")
    row = page.locator(f"#job-{added.id}")
    assert await row.locator("[data-name=Wait]").inner_text() == "1 min 30 s"
    assert await row.locator("[data-name=Duration]").inner_text() == "2.5 s"


async def test_a_job_is_enqueued_with_the_form_of_its_type(board: Board, tenant: str, page: Page, album: Path) -> None:
    who = local(tenant)
    await board.engine.registry.set_type(who, "research", schema=json.dumps(SCHEMA))
    await page.goto(f"{board.url}/jobs")
    await follow(page.get_by_role("link", name="Enqueue a job"))
    await page.get_by_role("combobox", name="Type").fill("research")
    await follow(page.get_by_role("button", name="Choose"))
    await page.get_by_label("Topic").fill("tides")
    await page.get_by_label("Depth").fill("3")
    await page.get_by_label("Sources").fill("noaa.gov\npsmsl.org")
    await page.get_by_label("Priority").fill("5")
    await page.get_by_role("textbox", name="Tags").fill("ocean, moon")
    await page.get_by_label("Due").fill("2031-02-03T04:05:06")
    await page.screenshot(path=album / "enqueue.png", full_page=True)
    async with page.context.expect_page() as opened:
        await page.get_by_role("button", name="Enqueue").click(modifiers=["Control"])
    await (await opened.value).wait_for_url("**?notice=enqueued")
    await follow(page.get_by_role("button", name="Enqueue"))
    (listed,) = await board.engine.queries.jobs(tenant, Filter())
    job = await board.engine.queries.job(tenant, listed.id)
    assert json.loads(job.payload or "") == {"topic": "tides", "depth": 3, "sources": ["noaa.gov", "psmsl.org"]}
    assert (job.priority, sorted(job.tags), job.run_at) == (5, ["moon", "ocean"], 1_927_857_906_000_000)


async def test_a_rejected_job_has_errors_beside_its_fields(board: Board, tenant: str, page: Page) -> None:
    schema = SCHEMA["properties"] | {"topic": {"type": "string", "title": "Topic", "pattern": "^[a-z]+$"}}  # type: ignore[operator]
    await board.engine.registry.set_type(local(tenant), "research", schema=json.dumps(SCHEMA | {"properties": schema}))
    await page.goto(f"{board.url}/jobs/new?type=research")
    await page.get_by_label("Topic").fill("TIDES")
    await page.get_by_label("Depth").fill("3")
    await page.get_by_role("textbox", name="Tags").fill("moon")
    await follow(page.get_by_role("button", name="Enqueue"))
    field = page.locator(".field.invalid", has=page.get_by_label("Topic"))
    await expect(field.locator(".error")).to_be_visible()
    assert await page.get_by_label("Topic").input_value() == "TIDES"
    assert await page.get_by_label("Depth").input_value() == "3"
    assert await page.get_by_role("textbox", name="Tags").input_value() == "moon"
    await page.get_by_label("Topic").fill("tides")
    await page.get_by_role("textbox", name="Tags").fill("x" * 300)
    await follow(page.get_by_role("button", name="Enqueue"))
    await expect(
        page.locator(".field.invalid", has=page.get_by_role("textbox", name="Tags")).locator(".error")
    ).to_be_visible()
    assert await board.engine.queries.jobs(tenant, Filter()) == []


async def test_a_type_without_a_schema_takes_json(board: Board, tenant: str, page: Page) -> None:
    await page.goto(f"{board.url}/jobs/new?type=anything")
    await page.get_by_label("Data as JSON").fill("{1")
    await follow(page.get_by_role("button", name="Enqueue"))
    await expect(page.locator(".field.invalid .error")).to_contain_text("invalid JSON")
    assert await page.get_by_label("Data as JSON").input_value() == "{1"
    await page.get_by_label("Data as JSON").fill("[1.50]")
    await follow(page.get_by_role("button", name="Enqueue"))
    (listed,) = await board.engine.queries.jobs(tenant, Filter())
    assert (await board.engine.queries.job(tenant, listed.id)).payload == "[1.50]"


async def test_failures_are_counted_and_acknowledged_together(board: Board, tenant: str, page: Page) -> None:
    who, engine = local(tenant), board.engine
    ids = []
    for n in range(3):
        await engine.jobs.enqueue(who, JobRequest(type="t"))
        (job,) = await engine.leases.claim(tenant, ClaimFilter("w", frozenset({"t"})))
        error = json.dumps({"message": f"no {n}"})
        await engine.leases.fail(tenant, FailJob(job.id, job.fence, "w", error, retryable=False))
        ids.append(job.id)
    await engine.jobs.enqueue(who, JobRequest(type="nobody"))
    views = page.get_by_role("navigation", name="Views")
    await page.goto(f"{board.url}/jobs")
    assert [one.split() for one in (await views.inner_text()).splitlines() if one] == [
        ["All"], ["Needs", "attention", "4"], ["Unacknowledged", "failures", "3"], ["Without", "a", "worker", "1"],
    ]  # fmt: skip
    await follow(views.get_by_role("link", name="Unacknowledged failures"))
    await page.locator(f"#job-{ids[0]}").get_by_role("checkbox").check()
    await follow(page.get_by_role("button", name="Acknowledge…"))
    await page.get_by_label("Comment").fill("known")
    await follow(page.get_by_role("button", name="Acknowledge 1 job"))
    await expect(page.locator(".notice")).to_have_text("Acknowledged 1 job.")
    assert await shown(page) == ids[:0:-1]
    assert (await engine.queries.history(tenant, ids[0]))[-1].reason == "known"
    await follow(page.get_by_role("link", name="Acknowledge all failures…"))
    await follow(page.get_by_role("button", name="Acknowledge 2 jobs"))
    assert [(await engine.queries.job(tenant, id)).acknowledged_at is not None for id in ids] == [True] * 3
