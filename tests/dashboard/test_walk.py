"""Every page of the table is looked at, with script and without, and none breaks, stumbles or fetches from outside."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import Browser, Page

from interlock.dashboard.app import pages
from interlock.dashboard.pages import audit
from interlock.domain.approval import RequestApproval
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import local
from interlock.wire import JobRequest
from tests.dashboard.conftest import Board, patient
from tests.dashboard.scene import Scene

# A page that is not here fails the walk; what is downloaded, or leads to the identity provider, is not looked at.
LOOKED_AT = {
    "/", "/jobs", "/jobs/bulk", "/jobs/new", "/jobs/{job_id}", "/jobs/{job_id}/streams/{name}", "/jobs/{job_id}/records/{kind}", "/approvals", "/approvals/{approval_id}", "/approve", "/approve/decided", "/queues", "/schedules", "/schedules/{name}", "/limits", "/limits/{name}", "/budgets", "/budgets/{name}", "/channels", "/agents",
    "/workers", "/webhooks", "/webhooks/deliveries", "/webhooks/{id}", "/tokens", "/audit", "/audit/verify", "/audit/head",
    "/audit/log", "/sign-in",
}  # fmt: skip
FILES = {"/jobs/{job_id}/values/{name}", "/jobs/{job_id}/artifacts/{artifact_id}", "/audit/export"}
DOWNLOADED = FILES | {"/sign-in/start", "/sign-in/callback"}
QUERIES = {
    "/jobs/bulk": "?action=cancel&scope=filter&status=queued",
    "/audit": "?after=2000-01-01T00:00",
    "/jobs/new": "?type=research",
}


async def keep(page: Page, album: Path, path: str) -> None:
    name = "-".join(part.strip("{}") for part in path.split("/") if part) or "overview"
    await page.screenshot(path=album / f"{name}.png", full_page=True)


def test_every_page_of_the_table_is_on_the_list() -> None:
    assert {page.path for page in pages() if page.method == "GET"} == LOOKED_AT | DOWNLOADED


@pytest.mark.parametrize("script", [True, False], ids=["with_script", "without_script"])
async def test_every_page_renders_and_loads_nothing_external(
    board: Board, stage: Scene, chromium: Browser, script: bool, album: Path
) -> None:
    context = await patient(chromium, java_script_enabled=script)
    page = await context.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    page.on("request", lambda asked: None if asked.url.startswith(board.url) else faults.append(asked.url))

    for path in sorted(LOOKED_AT):
        for job in (stage.running, stage.queued, stage.dead, stage.done, stage.waiting):
            answer = await page.goto(board.url + stage.fill(path, job) + QUERIES.get(path, ""))
            assert answer is not None, path
            assert answer.status == 200, path
            assert await page.locator("h1").count() == 1, path
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth") if script else True, path
            if "{job_id}" not in path:
                break
        if script:
            await keep(page, album, path)

    assert faults == []
    await context.close()


async def test_no_page_is_wider_than_a_phone(board: Board, stage: Scene, chromium: Browser, album: Path) -> None:
    context = await patient(chromium, viewport={"width": 360, "height": 740}, color_scheme="dark")
    page = await context.new_page()

    for path in sorted(LOOKED_AT):
        await page.goto(board.url + stage.fill(path) + QUERIES.get(path, ""))
        assert await page.evaluate("document.documentElement.scrollWidth") <= 360, path
        await keep(page, album, path)


async def test_long_words_leave_room_for_the_request(board: Board, stage: Scene, chromium: Browser) -> None:
    await board.engine.jobs.enqueue(local(stage.tenant), JobRequest(type="wipe"))
    (job,) = await board.engine.leases.claim(stage.tenant, ClaimFilter("gpu", frozenset({"wipe"})))
    order = RequestApproval(job.id, job.fence, "gpu", "", "Wipe the disk? " * 100, risk="as high as it can be" * 9)
    await board.engine.approvals.open(local(stage.tenant), order)
    page = await (await patient(chromium, viewport={"width": 360, "height": 740})).new_page()

    for path in ("/", "/approvals"):
        await page.goto(board.url + path)
        assert await page.evaluate("document.documentElement.scrollWidth") <= 360, path
        box = await page.get_by_role("link", name="Wipe the disk?").bounding_box()
        assert box is not None
        assert box["width"] > 200, path
        assert box["height"] < 300, path


async def test_every_field_has_a_label_and_every_button_a_name(board: Board, stage: Scene, chromium: Browser) -> None:
    page = await (await patient(chromium)).new_page()
    unnamed = """() => [...document.querySelectorAll("input:not([type=hidden]), select, textarea, button, a")]
        .filter(one => !(one.labels?.length || one.textContent.trim() || one.getAttribute("aria-label")))
        .map(one => one.outerHTML)"""

    for path in sorted(LOOKED_AT):
        await page.goto(board.url + stage.fill(path) + QUERIES.get(path, ""))
        assert await page.evaluate(unnamed) == [], path


async def test_downloads_are_saved_and_never_rendered(board: Board, stage: Scene, chromium: Browser) -> None:
    context = await patient(chromium)
    for path in sorted(FILES):
        answer = await context.request.get(board.url + stage.fill(path))
        assert answer.status == 200, path
        assert answer.headers["content-disposition"].startswith("attachment"), path
        assert answer.headers["content-type"] == "application/octet-stream", path
        assert "sandbox" in answer.headers["content-security-policy"], path
        assert await answer.body(), path


async def test_verification_continues_part_by_part_to_the_end(
    board: Board, stage: Scene, chromium: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "MAX_JOBS", 5)
    page = await (await patient(chromium)).new_page()

    path, parts = "/audit/verify", 0
    while path:
        answer = await page.goto(board.url + path)
        assert answer is not None
        assert answer.status == 200
        parts += 1
        more = page.get_by_role("link", name="Continue")
        path = await more.get_attribute("href") or "" if await more.count() else ""
    assert "All jobs are verified" in await page.get_by_role("status").inner_text()
    assert parts > 1
