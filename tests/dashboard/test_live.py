"""With script a page updates itself: only differences change, and user input in progress stays."""

from __future__ import annotations

import json
import re

from playwright.async_api import Browser, Page, expect

from interlock.client.local import LocalClient
from interlock.dashboard.newest import MAX_PAGE_SIZE, MAX_RECORDS, newest
from interlock.domain.principal import local
from interlock.domain.progress import Event, Level, Report
from interlock.wire import new_id
from tests.dashboard.conftest import Board, patient, press_at_once
from tests.dashboard.scene import Scene


async def opened(board: Board, chromium: Browser, path: str) -> Page:
    page = await (await patient(chromium)).new_page()
    await page.goto(board.url + path)
    return page


async def test_a_list_updates_without_a_reload(board: Board, stage: Scene, chromium: Browser) -> None:
    page = await opened(board, chromium, "/jobs?type=crawl")
    await page.evaluate("window.sameDocument = true")
    await page.locator("tbody input[type=checkbox]").check()
    await page.get_by_label("Type").fill("half a wo")

    await board.engine.jobs.cancel(local(stage.tenant), stage.queued)

    await expect(page.locator(f"#job-{stage.queued} .status")).to_have_text("cancelled")
    assert await page.evaluate("window.sameDocument")
    assert await page.get_by_label("Type").input_value() == "half a wo"
    assert await page.locator("tbody input[type=checkbox]").is_checked()


async def test_the_buttons_of_a_job_follow_its_status(board: Board, stage: Scene, chromium: Browser) -> None:
    page = await opened(board, chromium, f"/jobs/{stage.queued}")
    await expect(page.get_by_role("button", name="Redrive")).to_have_count(0)
    await board.engine.jobs.cancel(local(stage.tenant), stage.queued)
    await expect(page.get_by_role("button", name="Redrive")).to_be_visible()


async def test_an_opened_section_stays_open(board: Board, stage: Scene, chromium: Browser) -> None:
    page = await opened(board, chromium, f"/jobs/{stage.running}")
    payload = page.get_by_role("region", name="Payload")
    await payload.get_by_text("JSON").click()
    board.clock.advance(60)
    await expect(page.locator("#history-1 time")).to_have_text("1 min ago")
    await expect(payload.locator(".raw pre")).to_be_visible()


async def test_a_paused_page_does_not_change_until_resumed(board: Board, stage: Scene, chromium: Browser) -> None:
    page = await opened(board, chromium, f"/jobs/{stage.queued}")
    await page.keyboard.press("p")
    await expect(page.locator("[data-live-switch]")).to_have_text("paused")
    board.clock.advance(60)
    await page.keyboard.press("p")
    await expect(page.locator("#history-1 time")).to_have_text("1 min ago")


async def reported(board: Board, stage: Scene, *messages: str, progress: float | None = None) -> None:
    job = await board.engine.queries.job(stage.tenant, stage.running)
    payload = None if progress is None else json.dumps({"progress": progress})
    events = tuple(Event(new_id(), Level.INFO, message, payload) for message in messages)
    await board.engine.progress.add_events(stage.tenant, Report(job.id, job.fence, "macbook-7", events))


async def test_a_log_follows_its_job_and_keeps_the_scroll_position(
    board: Board, stage: Scene, chromium: Browser
) -> None:
    page = await opened(board, chromium, f"/jobs/{stage.running}")
    log = page.locator("#log-part [role=log]")
    await expect(log.locator("li").last).to_contain_text("one source is slow")
    await reported(board, stage, *(f"page {n}" for n in range(60)))
    await expect(log.locator("li").last).to_contain_text("page 59")
    await log.scroll_into_view_if_needed()
    await expect(log.locator("li").last).to_be_in_viewport()

    await log.evaluate("log => { log.scrollTop = 0 }")
    await reported(board, stage, "page 60", progress=0.25)
    await expect(log.locator("li").last).to_contain_text("page 60")
    assert await log.evaluate("log => log.scrollTop") == 0
    await expect(page.get_by_role("progressbar")).to_have_attribute("value", "0.25")
    await reported(board, stage, "page 61", progress=0.5)
    await expect(page.get_by_role("progressbar")).to_have_attribute("value", "0.5")


async def test_the_end_of_a_log_of_any_length_is_found(board: Board, stage: Scene) -> None:
    jobs, given = LocalClient(board.engine, local(stage.tenant)).jobs, ["reading 42 pages", "one source is slow"]
    for more in (90, 8, 1, 98, 1, 1, 99, 1, 200, 400, 7):
        lines = [f"line {len(given) + n}" for n in range(more)]
        await reported(board, stage, *lines)
        given += lines
        first = await jobs.events(stage.running)
        for count in (MAX_RECORDS, MAX_PAGE_SIZE, 50):
            last = await newest(lambda after, limit: jobs.events(stage.running, after=after, limit=limit), first, count)
            assert [event.message for event in last] == given[-count:], len(given)


async def test_a_row_of_approvals_is_decided_by_keyboard(board: Board, stage: Scene, chromium: Browser) -> None:
    page = await opened(board, chromium, "/approvals")
    await page.keyboard.press("j")
    await page.keyboard.press("Enter")
    await page.wait_for_url(re.compile(stage.approval))
    await page.keyboard.press("e")
    await expect(page.get_by_label("Title")).to_be_focused()
    await page.keyboard.press("Escape")
    await page.keyboard.press("c")
    await expect(page.get_by_label("Comment")).to_be_focused()
    await page.keyboard.press("Escape")
    await page.keyboard.press("u")
    await page.wait_for_url(f"{board.url}/approvals")
    await page.keyboard.press("j")
    await page.keyboard.press("Enter")
    await page.wait_for_url(re.compile(stage.approval))
    await page.keyboard.press("n")
    await expect(page.get_by_role("button", name="Deny")).to_be_focused()
    await expect(page.get_by_role("button", name="Deny")).to_be_enabled()
    await page.keyboard.press("Enter")
    await expect(page.locator(".notice")).to_have_text("Denied.")
    await expect(page).to_have_url(re.compile("/approvals$"))
    assert (await board.engine.approvals.get(stage.tenant, stage.approval)).status == "denied"


async def test_navigation_keys_never_decide(board: Board, stage: Scene, chromium: Browser) -> None:
    page = await opened(board, chromium, "/")
    await press_at_once(page, "g", "j")
    await page.wait_for_url(f"{board.url}/jobs")
    await page.keyboard.press("j")
    await page.keyboard.press("x")
    await expect(page.locator("tbody input[type=checkbox]").first).to_be_checked()
    await page.keyboard.press("/")
    await expect(page.get_by_label("Type")).to_be_focused()

    await page.goto(f"{board.url}/approvals")
    await page.keyboard.press("j")
    await page.keyboard.press("Enter")
    await page.wait_for_url(re.compile(stage.approval))
    await page.keyboard.press("y")
    await expect(page.get_by_role("button", name="Approve")).to_be_focused()
    assert (await board.engine.approvals.get(stage.tenant, stage.approval)).status == "open"
