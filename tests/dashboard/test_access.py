"""Who gets in, who may press what, and whom the pages refuse."""

from __future__ import annotations

import httpx2
import pytest
from playwright.async_api import Browser, Page

from interlock.dashboard.app import pages
from interlock.dashboard.sessions import IDLE_SECONDS
from tests.dashboard import scene
from tests.dashboard.conftest import Board
from tests.dashboard.scene import Scene

FORM = {"content-type": "application/x-www-form-urlencoded"}


async def signed_in(board: Board, chromium: Browser, token: str) -> Page:
    page = await (await chromium.new_context(java_script_enabled=False)).new_page()
    await page.goto(f"{board.url}/sign-in")
    await page.get_by_label("Token").fill(token)
    await page.get_by_role("button", name="Sign in").click()
    return page


async def test_a_session_begins_with_a_token_and_ends_when_asked_or_idle(
    guarded: Board, tenant: str, chromium: Browser
) -> None:
    page = await signed_in(guarded, chromium, "ilk_wrong")
    assert "lets nobody in" in await page.inner_text("main")

    page = await (await chromium.new_context(java_script_enabled=False)).new_page()
    await page.goto(f"{guarded.url}/jobs?status=running")
    await page.get_by_label("Token").fill(await guarded.token("read", tenant=tenant))
    await page.get_by_role("button", name="Sign in").click()
    assert page.url == f"{guarded.url}/jobs?status=running"
    (cookie,) = await page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")

    guarded.ticks.now += IDLE_SECONDS - 1
    await page.reload()
    assert await page.inner_text("h1") == "Jobs"
    guarded.ticks.now += IDLE_SECONDS
    await page.reload()
    assert await page.inner_text("h1") == "Sign in"

    page = await signed_in(guarded, chromium, await guarded.token("read", tenant=tenant))
    cookies = await page.context.cookies()
    await page.get_by_role("button", name="Sign out").click()
    await page.context.add_cookies(cookies)  # type: ignore[arg-type]
    await page.goto(guarded.url)
    assert await page.inner_text("h1") == "Sign in"


async def test_a_page_that_only_refreshes_itself_keeps_no_session_alive(
    guarded: Board, tenant: str, chromium: Browser
) -> None:
    page = await signed_in(guarded, chromium, await guarded.token("read", tenant=tenant))
    told = []
    for _ in range(4):
        guarded.ticks.now += IDLE_SECONDS / 3
        answer = await page.context.request.get(guarded.url, headers={"interlock-live": "1"}, max_redirects=0)
        told.append(answer.status)
    assert told == [200, 200, 303, 303]


async def test_a_revoked_token_is_out_at_once(guarded: Board, tenant: str, chromium: Browser) -> None:
    admin = await guarded.token("admin", "read", tenant=tenant)
    page = await signed_in(guarded, chromium, admin)
    await page.goto(f"{guarded.url}/tokens")
    await page.get_by_text("Revoke…").click()
    await page.get_by_role("button", name="Revoke").click()
    assert await page.inner_text("h1") == "Sign in"


async def test_a_reader_sees_no_buttons_and_presses_none(guarded: Board, tenant: str, chromium: Browser) -> None:
    stage = await scene.play(guarded.engine, tenant)
    page = await signed_in(guarded, chromium, await guarded.token("read", tenant=tenant))
    for path in (
        "/",
        "/jobs",
        f"/jobs/{stage.running}",
        "/approvals",
        f"/approvals/{stage.gate}",
        "/queues",
        "/agents",
    ):
        await page.goto(guarded.url + path)
        forms = await page.locator("main form[method=post], main #bulk").count()
        assert forms == 0, path
    form_token = await page.locator("header input[name=form_token]").get_attribute("value")
    for action in (one for one in pages() if one.method == "POST" and one.needs_sign_in):
        answer = await page.context.request.post(
            guarded.url + stage.fill(action.path), form={"form_token": form_token or "", "decision": "approve"}
        )
        assert answer.status == 403, action.path


async def test_two_tenants_never_see_each_other(guarded: Board, tenant: str, chromium: Browser) -> None:
    theirs = await scene.play(guarded.engine, f"{tenant}-other", lambda text: f"{text}-secret")
    ours = await guarded.token("read", "operate", "admin", "produce", tenant=tenant)
    page = await signed_in(guarded, chromium, ours)
    for path in (one.path for one in pages() if one.method == "GET" and one.needs_sign_in):
        answer = await page.context.request.get(guarded.url + theirs.fill(path))
        assert answer.status == (404 if "{" in path else 200) or path == "/jobs/bulk", path
        assert "-secret" not in await answer.text(), path


@pytest.mark.parametrize("origin", ["https://evil.example", "null"])
async def test_a_form_of_another_site_is_refused(board: Board, stage: Scene, origin: str) -> None:
    async with httpx2.AsyncClient(base_url=board.url, trust_env=False) as http:
        page = (await http.get("/queues")).text
        token = page.partition('name="form_token" value="')[2].partition('"')[0]
        assert token
        pause, form = "/queues/embed-page/pause", f"form_token={token}"
        there = await http.post(pause, content=form, headers=FORM | {"origin": origin})
        site = await http.post(pause, content=form, headers=FORM | {"sec-fetch-site": "cross-site"})
        bare = await http.post(pause, content="reason=x", headers=FORM)
        assert [there.status_code, site.status_code, bare.status_code] == [403, 403, 403]
        assert (await board.engine.reads.queue(stage.tenant, "embed-page")).paused_at is None
        own = await http.post(pause, content=form, headers=FORM | {"origin": board.url})
        assert own.status_code == 303


async def test_every_answer_has_a_policy_that_lets_nothing_in(board: Board, stage: Scene) -> None:
    async with httpx2.AsyncClient(base_url=board.url, trust_env=False) as http:
        for path in (one.path for one in pages() if one.method == "GET"):
            answer = await http.get(stage.fill(path))
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy, path
            assert "frame-ancestors 'none'" in policy, path
            assert "unsafe" not in policy, path
            assert answer.headers["cache-control"] == "no-store", path
            assert answer.headers["x-content-type-options"] == "nosniff", path


async def test_an_action_is_never_done_by_a_link(board: Board, stage: Scene) -> None:
    async with httpx2.AsyncClient(base_url=board.url, trust_env=False) as http:
        for path in {one.path for one in pages() if one.method == "POST"} - {
            one.path for one in pages() if one.method == "GET"
        }:
            assert (await http.get(stage.fill(path))).status_code == 403, path


async def test_signing_in_leads_to_no_other_site(guarded: Board, tenant: str) -> None:
    token = await guarded.token("read", tenant=tenant)
    async with httpx2.AsyncClient(base_url=guarded.url, trust_env=False) as http:
        for there in ("//evil.example", "https://evil.example", "/\\evil.example", "\\\\evil.example", "/%0d%0ax"):
            page = (await http.get("/sign-in")).text
            form = page.partition('name="form_token" value="')[2].partition('"')[0]
            answer = await http.post("/sign-in", data={"form_token": form, "token": token, "next": there})
            assert answer.status_code == 303
            assert answer.headers["location"].startswith("/"), there
            assert answer.headers["location"][1:2] not in ("/", "\\"), there
            http.cookies.clear()
