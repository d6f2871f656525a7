"""Navigation: filters that combine, focus that stays, keys, copying, and readable times."""

from __future__ import annotations

import json

import pytest
from playwright.async_api import Browser, Page, expect

from interlock.dashboard.http import Fields
from interlock.dashboard.navigation import NAVIGATION
from interlock.dashboard.pages import jobs
from interlock.dashboard.render import moment
from interlock.domain.approval import Decision
from interlock.domain.decide import FailJob
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import local
from interlock.wire import JobRequest
from tests.dashboard.conftest import Board, follow, patient, press_at_once
from tests.dashboard.scene import Scene

# The next label of a button, observed because a busy machine may read the button too late.
FIRST_WORD = """button => {
  window.firstWord = new Promise((said) =>
    new MutationObserver(() => said(button.textContent)).observe(button, { childList: true }));
}"""


async def opened(board: Board, chromium: Browser, path: str, *, script: bool = True) -> Page:
    page = await (await patient(chromium, java_script_enabled=script)).new_page()
    await page.goto(board.url + path)
    return page


def test_a_narrower_query_keeps_the_rest_and_begins_at_its_first_page() -> None:
    query = Fields("status=running&tag=a&agent=x%2Fy&before=7&notice=bulk&n=3&type=")
    assert query.with_filter("tag", "b & c") == "status=running&agent=x%2Fy&tag=a&tag=b+%26+c"
    assert query.with_filter("tag", "a") == "status=running&agent=x%2Fy&tag=a"
    assert query.with_filter("agent", "u/v") == "status=running&tag=a&agent=u%2Fv"
    assert Fields("").with_filter("worker", "w") == "worker=w"


async def test_a_value_in_a_row_filters_the_list_further(board: Board, stage: Scene, chromium: Browser) -> None:
    page = await opened(board, chromium, "/jobs?status=running", script=False)
    assert await page.locator("tbody tr").count() == 2
    await follow(page.get_by_role("link", name="macbook-7").first)
    await follow(page.get_by_role("link", name="planner/atlas"))
    await follow(page.get_by_role("link", name="ocean", exact=True))
    assert page.url.partition("?")[2] == "status=running&worker=macbook-7&agent=planner%2Fatlas&tag=ocean"
    assert await page.locator("tbody tr").count() == 1
    await page.get_by_label("And tag").fill("desert")
    await follow(page.get_by_role("button", name="Filter"))
    assert "No jobs match the filter." in await page.inner_text("main")
    await follow(page.get_by_role("link", name="Show all"))
    assert await page.locator("tbody tr").count() > 20


async def test_a_filter_omits_empty_fields_from_its_url(board: Board, stage: Scene, chromium: Browser) -> None:
    page = await opened(board, chromium, "/jobs")
    await page.get_by_label("Type").fill("crawl")
    await page.locator(".chip", has_text="queued").click()
    await follow(page.get_by_role("button", name="Filter"))
    await expect(page).to_have_url(f"{board.url}/jobs?status=queued&type=crawl")


async def test_a_bulk_action_is_confirmed_with_its_filter(board: Board, stage: Scene, chromium: Browser) -> None:
    page = await opened(board, chromium, "/jobs?status=queued&type=embed-page", script=False)
    await page.get_by_label("Apply to").select_option("filter")
    await follow(page.get_by_role("button", name="Cancel…"))
    assert await page.locator("main .tag").all_inner_texts() == ["status: queued", "type: embed-page"]
    await page.goto(f"{board.url}/jobs/bulk?action=cancel&scope=filter&typ=embed-page")
    assert "all jobs" in await page.inner_text("main")


async def test_a_selected_row_stays_when_newer_ones_push_it_off_the_page(
    board: Board, stage: Scene, chromium: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "PAGE_SIZE", 5)
    page = await opened(board, chromium, "/jobs")
    row = page.locator("tbody tr").last
    id = await row.get_attribute("id")
    await row.locator("input").check()
    await page.mouse.move(0, 0)
    *_, newest = [await board.engine.jobs.enqueue(local(stage.tenant), JobRequest(type="crawl")) for _ in range(6)]
    await expect(page.locator("tbody tr").first).to_have_id(f"job-{newest.id}")
    await expect(page.locator("tbody tr")).to_have_count(6)
    await expect(page.locator(f"#{id} input")).to_be_checked()

    await page.locator(f"#{id} input").uncheck()
    await page.mouse.move(0, 0)
    await expect(page.locator(f"#{id}")).to_have_count(0)


async def test_rows_stay_under_the_pointer_and_show_what_has_changed(
    board: Board, stage: Scene, chromium: Browser
) -> None:
    page = await opened(board, chromium, "/jobs?status=queued")
    first = page.locator("tbody tr").first
    id = await first.get_attribute("id")
    await page.locator(f"#job-{stage.queued}").hover()
    who = local(stage.tenant)
    newest = await board.engine.jobs.enqueue(who, JobRequest(type="crawl"))
    await board.engine.jobs.edit(who, stage.queued, priority=42)
    await expect(page.locator("[data-live-switch]")).to_have_text("live, 1 new")
    await expect(page.locator(f"#job-{stage.queued}")).to_contain_text("42")
    await expect(first).to_have_id(id or "")
    await board.engine.jobs.cancel(who, stage.queued)
    await expect(page.locator(f"#job-{stage.queued}")).to_have_class("gone")

    await page.mouse.move(0, 0)
    await expect(first).to_have_id(f"job-{newest.id}")
    await expect(page.locator(f"#job-{stage.queued}")).to_have_count(0)
    await expect(page.locator("[data-live-switch]")).to_have_text("live")


async def test_every_page_has_its_own_key(board: Board, stage: Scene, chromium: Browser) -> None:
    keys = [way.key for way in NAVIGATION]
    assert len(set(keys)) == len(keys)
    page = await opened(board, chromium, "/")
    for path, name, _, key in NAVIGATION:
        async with page.expect_navigation():  # by its end the keys of the next page are heard
            await press_at_once(page, "g", key)
        await expect(page).to_have_url(board.url + path)
        await expect(page.locator(".top nav [aria-current]")).to_have_text(name)


async def test_a_phone_shows_which_page_it_is_on(board: Board, stage: Scene, chromium: Browser) -> None:
    page = await (await patient(chromium, viewport={"width": 360, "height": 740})).new_page()
    for path, name, _, _ in NAVIGATION:
        await page.goto(board.url + path)
        await expect(page.locator(".top nav").get_by_text(name, exact=True)).to_be_in_viewport(ratio=1)


async def test_the_result_of_an_action_is_announced_at_the_focus(board: Board, stage: Scene, chromium: Browser) -> None:
    page = await opened(board, chromium, f"/jobs/{stage.queued}")
    await page.get_by_label("Priority").fill("3")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("status")).to_have_text("Job updated.")
    await expect(page.get_by_role("status")).to_be_focused()
    await expect(page).to_have_url(f"{board.url}/jobs/{stage.queued}")


async def test_the_tab_title_counts_pending_approvals(board: Board, stage: Scene, chromium: Browser) -> None:
    page = await opened(board, chromium, "/")
    await expect(page).to_have_title("(1) Overview · Interlock")
    await board.engine.approvals.decide(local(stage.tenant), stage.approval, Decision.DENY)
    await expect(page).to_have_title("Overview · Interlock")
    assert await (await opened(board, chromium, "/approvals?status=denied")).title() == "Approvals · Interlock"


async def test_a_value_is_copied_as_the_exact_text(board: Board, stage: Scene, chromium: Browser) -> None:
    context = await patient(chromium, permissions=["clipboard-read", "clipboard-write"])
    page = await context.new_page()
    await page.goto(f"{board.url}/jobs/{stage.running}")
    button = page.get_by_role("region", name="Payload").get_by_role("button", name="Copy")
    await button.evaluate(FIRST_WORD)
    await button.click()
    assert await page.evaluate("firstWord") == "Copied"
    copied = await page.evaluate("navigator.clipboard.readText()")
    assert copied == (await board.engine.queries.job(stage.tenant, stage.running)).payload
    assert json.loads(copied)["depth"] == 3


async def test_a_timeline_shows_the_duration_of_each_run(board: Board, tenant: str, chromium: Browser) -> None:
    job = await board.engine.jobs.enqueue(local(tenant), JobRequest(type="slow", backoff={"kind": "fixed"}))
    for seconds in (90, 0.25):
        (held,) = await board.engine.leases.claim(tenant, ClaimFilter("w", frozenset({"slow"}), lease_seconds=600.0))
        board.clock.advance(seconds)
        await board.engine.leases.fail(tenant, FailJob(held.id, held.fence, "w", '{"message": "no"}'))
        board.clock.advance(600)
    page = await opened(board, chromium, f"/jobs/{job.id}", script=False)
    rows = await page.locator(".timeline > .to-retry p:first-child").all_inner_texts()
    assert rows == ["fail → retry by worker:w, after 1 min 30 s", "fail → retry by worker:w, after 250 ms"]


async def test_a_worker_without_a_recent_poll_is_offline_and_not_idle(
    board: Board, tenant: str, chromium: Browser
) -> None:
    await board.engine.leases.claim(tenant, ClaimFilter("nightly", frozenset({"t"})))
    await board.engine.workers.stop()
    page = await opened(board, chromium, "/", script=False)
    workers = page.locator(".workers li", has_text="nightly")
    assert "Idle." in await workers.inner_text()
    board.clock.advance(120)
    await page.reload()
    assert "Offline" in await workers.inner_text()


async def test_a_list_is_read_to_its_end_and_back(
    board: Board, stage: Scene, chromium: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "PAGE_SIZE", 4)
    page = await (await patient(chromium, java_script_enabled=False)).new_page()
    await page.goto(f"{board.url}/jobs?type=embed-page")

    seen = [await page.locator("tbody th").all_inner_texts()]
    while await page.get_by_role("link", name="Older").count():
        await follow(page.get_by_role("link", name="Older"))
        seen.append(await page.locator("tbody th").all_inner_texts())
    assert [len(rows) for rows in seen] == [4, 4, 4, 3]
    for rows in reversed(seen[:-1]):
        await follow(page.get_by_role("link", name="Newer"))
        assert await page.locator("tbody th").all_inner_texts() == rows
    assert await page.get_by_role("link", name="Newer").count() == 0


@pytest.mark.parametrize(
    ("path", "given"),
    [
        ("/jobs?status=done", "unknown status “done”: expected one of queued, "),
        ("/approvals?status=done", "unknown status “done”: expected one of open, "),
        ("/webhooks/deliveries?status=done", "unknown status “done”: expected one of pending, "),
        ("/jobs?created_after=noon", "expected a time such as 2026-01-31T12:00"),
    ],
)
async def test_an_invalid_url_gets_a_correction(
    board: Board, stage: Scene, chromium: Browser, path: str, given: str
) -> None:
    page = await opened(board, chromium, path, script=False)
    assert (await page.get_by_role("alert").inner_text()).startswith(given)
    list_of = path.split("?")[0].split("/")[1]
    if list_of != "jobs":  # whose filter is on the page
        await follow(page.get_by_role("link", name=f"Back to {list_of}"))
        assert page.url == f"{board.url}/{list_of}"


async def test_the_reason_of_a_wait_has_readable_times(board: Board, stage: Scene, chromium: Browser) -> None:
    later = JobRequest(type="later", delay_seconds=3600.0)
    made = await board.engine.jobs.enqueue(local(stage.tenant), later)
    job = await board.engine.queries.job(stage.tenant, made.id)
    page = await opened(board, chromium, f"/jobs/{job.id}", script=False)
    assert f"{moment(job.run_at)} UTC" in await page.locator(".why").inner_text()


async def test_a_time_with_an_offset_stays_in_its_field(board: Board, stage: Scene, chromium: Browser) -> None:
    page = await opened(board, chromium, "/jobs?created_after=2020-01-31T12:00:05%2B02:00", script=False)
    assert await page.get_by_label("From").input_value() == "2020-01-31T10:00:05"
    await follow(page.get_by_role("button", name="Filter"))
    assert await page.get_by_label("From").input_value() == "2020-01-31T10:00:05"
