"""Who gets in, who may press what, and whom the pages refuse."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.async_api import Browser, Page

from interlock.api.admission import STRANGERS, Admission
from interlock.api.options import Options
from interlock.api.service import Trail
from interlock.cli import serve
from interlock.config import Settings
from interlock.dashboard.app import MAX_FORM_BYTES, Dashboard, pages
from interlock.dashboard.sessions import IDLE_SECONDS, RENEW_SECONDS, Sessions
from interlock.dashboard.sign_in_throttle import MAX_WRONG_ATTEMPTS, WINDOW_SECONDS
from interlock.domain.principal import local
from interlock.engine.engine import Engine
from interlock.storage.contract import Store
from interlock.storage.object_store.filesystem import FileObjects
from interlock.wire import TokenRequest
from tests.dashboard import scene
from tests.dashboard.conftest import Board, a_server, follow, patient
from tests.dashboard.scene import Scene
from tests.dashboard.test_walk import DOWNLOADED
from tests.support.eventually import RETRY_SECONDS, eventually

FORM = {"content-type": "application/x-www-form-urlencoded"}


async def signed_in(board: Board, chromium: Browser, token: str) -> Page:
    page = await (await patient(chromium, java_script_enabled=False)).new_page()
    await page.goto(f"{board.url}/sign-in")
    await page.get_by_label("Token").fill(token)
    await follow(page.get_by_role("button", name="Sign in"))
    return page


async def test_a_session_begins_with_a_token_and_ends_on_sign_out_or_when_idle(
    guarded: Board, tenant: str, chromium: Browser
) -> None:
    page = await signed_in(guarded, chromium, "ilk_wrong")
    assert "Invalid, expired or revoked token" in await page.inner_text("main")

    page = await (await patient(chromium, java_script_enabled=False)).new_page()
    await page.goto(f"{guarded.url}/jobs?status=running")
    await page.get_by_label("Token").fill(await guarded.token("read", tenant=tenant))
    await follow(page.get_by_role("button", name="Sign in"))
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
    await follow(page.get_by_role("button", name="Sign out"))
    await page.context.add_cookies(cookies)  # type: ignore[arg-type]
    await page.goto(guarded.url)
    assert await page.inner_text("h1") == "Sign in"


async def test_a_page_that_only_refreshes_itself_keeps_no_session_alive(
    guarded: Board, tenant: str, chromium: Browser
) -> None:
    page = await signed_in(guarded, chromium, await guarded.token("read", tenant=tenant))
    reported = []
    for _ in range(4):
        guarded.ticks.now += IDLE_SECONDS / 3
        answer = await page.context.request.get(guarded.url, headers={"interlock-live": "1"}, max_redirects=0)
        reported.append(answer.status)
    assert reported == [200, 200, 303, 303]


async def test_a_revoked_token_is_signed_out_immediately(guarded: Board, tenant: str, chromium: Browser) -> None:
    admin = await guarded.token("admin", "read", tenant=tenant)
    page = await signed_in(guarded, chromium, admin)
    await page.goto(f"{guarded.url}/tokens")
    await page.get_by_text("Revoke…").click()
    await follow(page.get_by_role("button", name="Revoke"))
    assert await page.inner_text("h1") == "Sign in"


async def test_a_reader_sees_no_buttons_and_cannot_use_them(guarded: Board, tenant: str, chromium: Browser) -> None:
    stage = await scene.play(guarded.engine, tenant)
    page = await signed_in(guarded, chromium, await guarded.token("read", tenant=tenant))
    seen = set()
    for one in (one for one in pages() if one.method == "GET" and one.needs_sign_in and one.path not in DOWNLOADED):
        answer = await page.goto(guarded.url + stage.fill(one.path))
        assert answer is not None
        assert answer.status == (200 if "read" in one.roles else 403), one.path
        assert await page.locator("main form[method=post], main #bulk, main input[type=checkbox][name=id]").count() == 0
        seen.add(one.path)
    assert {
        "/",
        "/jobs",
        "/jobs/{job_id}",
        "/approvals/{approval_id}",
        "/queues",
        "/agents",
        "/tokens",
        "/audit",
    } <= seen
    form_token = await page.locator("header input[name=form_token]").get_attribute("value")
    for action in (one for one in pages() if one.method == "POST" and one.needs_sign_in):
        pressed = await page.context.request.post(
            guarded.url + stage.fill(action.path), form={"form_token": form_token or "", "decision": "approve"}
        )
        assert pressed.status == 403, action.path


async def signed_in_cookie(http: httpx2.AsyncClient, url: str, token: str) -> str:
    form = form_token_of((await http.get(f"{url}/sign-in")).text)
    answer = await http.post(f"{url}/sign-in", data={"form_token": form, "token": token})
    assert answer.status_code == 303
    http.cookies.clear()
    return answer.headers["set-cookie"].partition(";")[0]


def form_token_of(page: str) -> str:
    return page.partition('name="form_token" value="')[2].partition('"')[0]


async def test_a_session_is_valid_on_every_server_of_one_database_until_its_token_is_revoked(
    guarded: Board, tenant: str
) -> None:
    admin = local(tenant)
    await guarded.engine.registry.set_type(admin, "t")
    created_link = await guarded.engine.tokens.create(admin, TokenRequest(roles=["read", "operate"]))
    same = a_server(guarded.engine, guarded.clock, guarded.ticks, auth=True, tenant=tenant)
    other = a_server(guarded.engine, guarded.clock, guarded.ticks, auth=True, tenant=tenant, key=b"another")
    async with same as second, other as stranger, httpx2.AsyncClient(trust_env=False, timeout=RETRY_SECONDS) as http:
        cookie = {"cookie": await signed_in_cookie(http, guarded.url, created_link.text)}
        form = form_token_of((await http.get(f"{guarded.url}/jobs", headers=cookie)).text)
        assert (await http.get(f"{second.url}/jobs", headers=cookie)).status_code == 200
        pressed = await http.post(f"{second.url}/queues/t/pause", data={"form_token": form}, headers=cookie)
        assert pressed.status_code == 303
        assert (await http.get(f"{stranger.url}/jobs", headers=cookie)).status_code == 303

        await guarded.engine.tokens.revoke(admin, created_link.token.id)
        reported = [
            (await http.get(f"{board.url}/jobs", headers=cookie)).headers["location"] for board in (guarded, second)
        ]
        assert reported == ["/sign-in?next=%2Fjobs"] * 2


async def test_signing_out_on_one_server_ends_the_session_on_the_others(guarded: Board, tenant: str) -> None:
    elsewhere = Engine(guarded.engine.store)  # another process on the same database: it has its own caches
    token = await guarded.token("read", tenant=tenant)
    second = a_server(elsewhere, guarded.clock, guarded.ticks, auth=True, tenant=tenant)
    async with second as other, httpx2.AsyncClient(trust_env=False, timeout=RETRY_SECONDS) as http:
        cookie = {"cookie": await signed_in_cookie(http, guarded.url, token)}
        page = await http.get(f"{other.url}/jobs", headers=cookie)
        assert page.status_code == 200
        form = {"form_token": form_token_of(page.text)}
        assert (await http.post(f"{guarded.url}/sign-out", data=form, headers=cookie)).status_code == 303
        assert (await http.get(f"{guarded.url}/jobs", headers=cookie)).status_code == 303

        async def is_ended() -> bool:
            return (await http.get(f"{other.url}/jobs", headers=cookie)).status_code == 303

        await eventually(is_ended)
        again = {"cookie": await signed_in_cookie(http, other.url, token)}
        assert (await http.get(f"{guarded.url}/jobs", headers=again)).status_code == 200


async def test_an_active_session_gets_a_new_cookie_with_the_same_flags(guarded: Board, tenant: str) -> None:
    async with httpx2.AsyncClient(trust_env=False, timeout=RETRY_SECONDS) as http:
        cookie = await signed_in_cookie(http, guarded.url, await guarded.token("read", tenant=tenant))
        assert "set-cookie" not in (await http.get(f"{guarded.url}/jobs", headers={"cookie": cookie})).headers
        guarded.ticks.now += RENEW_SECONDS
        fresh = (await http.get(f"{guarded.url}/jobs", headers={"cookie": cookie})).headers["set-cookie"]
        assert fresh.partition(";")[0] != cookie
        assert fresh.endswith("; Path=/; HttpOnly; SameSite=Strict")
        live = await http.get(f"{guarded.url}/jobs", headers={"cookie": cookie, "interlock-live": "1"})
        assert "set-cookie" not in live.headers


async def test_signing_out_ends_the_session_of_a_cookie_that_is_due_for_renewal(guarded: Board, tenant: str) -> None:
    async with httpx2.AsyncClient(trust_env=False, timeout=RETRY_SECONDS) as http:
        cookie = await signed_in_cookie(http, guarded.url, await guarded.token("read", tenant=tenant))
        guarded.ticks.now += RENEW_SECONDS
        page = await http.get(f"{guarded.url}/jobs", headers={"cookie": cookie})
        renewed = page.headers["set-cookie"].partition(";")[0]
        form = {"form_token": form_token_of(page.text)}
        left = await http.post(f"{guarded.url}/sign-out", data=form, headers={"cookie": cookie})
        (cleared,) = left.headers.get_list("set-cookie")
        assert cleared.startswith("interlock=; ")
        assert "Max-Age=0" in cleared
        for one in (cookie, renewed):
            assert (await http.get(f"{guarded.url}/jobs", headers={"cookie": one})).status_code == 303


async def test_servers_of_one_database_accept_each_others_cookies_and_cursors(
    store: Store, tmp_path: Path, tenant: str
) -> None:
    settings = Settings(auth=("tokens",), tenant=tenant)
    engine = Engine(store, objects=FileObjects(tmp_path))
    one, other = [await serve.application(engine, settings) for _ in range(2)]
    assert one.service.options.cursor_key == other.service.options.cursor_key != await engine.queries.signing_key()
    boards = [next(iter(app._mounts.values())) for app in (one, other)]
    _, cookie = boards[0]._sessions.begin("a credential")
    assert boards[1]._sessions.read(cookie) == boards[0]._sessions.read(cookie)
    assert boards[1]._sessions.read(cookie) is not None
    await engine.close()


@pytest.mark.parametrize("path", ["/sign-in", "/approve", "/approve/decide"])
async def test_a_caller_with_too_many_wrong_tokens_waits_and_others_behind_the_same_address_do_not(
    guarded: Board, tenant: str, path: str
) -> None:
    token = await guarded.token("read", tenant=tenant)
    async with httpx2.AsyncClient(base_url=guarded.url, trust_env=False, timeout=RETRY_SECONDS) as http:
        form = {"form_token": form_token_of((await http.get("/sign-in")).text), "decision": "approve"}
        reported = [
            (await http.post(path, data=form | {"token": f"guess {n}"})).status_code for n in range(MAX_WRONG_ATTEMPTS)
        ]
        assert reported == [401 if path == "/sign-in" else 404] * MAX_WRONG_ATTEMPTS
        refused = await http.post(path, data=form | {"token": "another guess"})
        assert (refused.status_code, refused.headers["retry-after"]) == (429, str(int(WINDOW_SECONDS)))
        assert (await http.post("/sign-in", data=form | {"token": token})).status_code == 303
        http.cookies.clear()
        guarded.ticks.now += WINDOW_SECONDS
        assert (await http.post(path, data=form | {"token": "another guess"})).status_code == reported[0]


async def test_unfinished_forms_of_unauthenticated_callers_leave_slots_to_signed_in_ones(
    guarded: Board, tenant: str
) -> None:
    dashboard = Dashboard(guarded.engine, auth=True, tenant=tenant)
    admission = Admission(Options(auth=True, most_arriving=8))

    async def fill_in(receive: Callable[[], Awaitable[object]]) -> int:
        sent: list[dict[str, Any]] = []
        seat = admission.enter()
        scope = {
            "method": "POST", "path": "/sign-in", "scheme": "http", "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in FORM.items()],
            "interlock.trail": Trail("1", "POST", seat),
        }  # fmt: skip

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        try:
            await dashboard(scope, receive, send)
        finally:
            seat.leave()
        return int(sent[0]["status"])

    endless = asyncio.create_task(fill_in(asyncio.Event().wait))

    async def is_reading() -> bool:
        return admission.by_tenant[STRANGERS, "bytes"] == MAX_FORM_BYTES

    await eventually(is_reading)
    assert await fill_in(asyncio.Event().wait) == 503
    seat = admission.enter()
    seat.belongs_to(tenant)
    with seat.arriving():
        assert admission.active == 0
    endless.cancel()
    await asyncio.gather(endless, return_exceptions=True)


async def test_a_long_quoted_cookie_is_parsed_fast(guarded: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("http.cookies._unquote", lambda value: pytest.fail("it was read"))
    async with httpx2.AsyncClient(base_url=guarded.url, trust_env=False, timeout=RETRY_SECONDS) as http:
        reported = await http.get("/jobs", headers={"cookie": 'other=1; interlock="' + "\\" * 1000 + '"'})
        assert reported.status_code == 303


async def test_two_tenants_never_see_each_other(guarded: Board, tenant: str, chromium: Browser) -> None:
    theirs = await scene.play(guarded.engine, f"{tenant}-other", lambda text: f"{text}-of-theirs")
    ours = await guarded.token("read", "operate", "admin", "produce", tenant=tenant)
    page = await signed_in(guarded, chromium, ours)
    for path in (one.path for one in pages() if one.method == "GET" and one.needs_sign_in):
        answer = await page.context.request.get(guarded.url + theirs.fill(path))
        assert answer.status == (404 if "{" in path else 200) or path == "/jobs/bulk", path
        assert "-of-theirs" not in await answer.text(), path


async def test_no_action_reaches_into_another_tenant(guarded: Board, tenant: str) -> None:
    theirs = await scene.play(guarded.engine, f"{tenant}-other")
    ours = await guarded.token("read", "operate", "admin", "produce", "approve", tenant=tenant)
    before = await everything_of(guarded, theirs)
    async with httpx2.AsyncClient(base_url=guarded.url, trust_env=False, timeout=RETRY_SECONDS) as http:
        cookie = {"cookie": await signed_in_cookie(http, guarded.url, ours)}
        form = {"form_token": form_token_of((await http.get("/queues", headers=cookie)).text), "decision": "approve"}
        form |= {"priority": "9", "max_concurrency": "9", "action": "cancel", "id": theirs.queued}
        for action in (one for one in pages() if one.method == "POST" and one.needs_sign_in):
            answer = await http.post(theirs.fill(action.path), data=form, headers=cookie)
            reported = 404 if "{" in action.path else answer.status_code
            assert answer.status_code == reported < 500, action.path
    assert await everything_of(guarded, theirs) == before


async def everything_of(board: Board, stage: Scene) -> object:
    """What an action could have changed."""
    engine, who = board.engine, local(stage.tenant)
    return (
        await engine.queries.some(stage.tenant, [stage.queued, stage.running, stage.dead, stage.done, stage.waiting]),
        await engine.approvals.get(stage.tenant, stage.approval),
        await engine.queries.queues(stage.tenant),
        await engine.registry.agents(stage.tenant),
        await engine.webhooks.subscriptions(who),
        await engine.tokens.list(who),
    )


@pytest.mark.parametrize("origin", ["https://evil.example", "null"])
async def test_a_form_of_another_site_is_rejected(board: Board, stage: Scene, origin: str) -> None:
    async with httpx2.AsyncClient(base_url=board.url, trust_env=False, timeout=RETRY_SECONDS) as http:
        page = (await http.get("/queues")).text
        token = page.partition('name="form_token" value="')[2].partition('"')[0]
        assert token
        pause, form = "/queues/embed-page/pause", f"form_token={token}"
        there = await http.post(pause, content=form, headers=FORM | {"origin": origin})
        site = await http.post(pause, content=form, headers=FORM | {"sec-fetch-site": "cross-site"})
        bare = await http.post(pause, content="reason=x", headers=FORM)
        assert [there.status_code, site.status_code, bare.status_code] == [403, 403, 403]
        assert (await board.engine.queries.queue(stage.tenant, "embed-page")).paused_at is None
        own = await http.post(pause, content=form, headers=FORM | {"origin": board.url})
        assert own.status_code == 303


async def test_every_response_has_a_strict_content_security_policy(board: Board, stage: Scene) -> None:
    async with httpx2.AsyncClient(base_url=board.url, trust_env=False, timeout=RETRY_SECONDS) as http:
        for path in (one.path for one in pages() if one.method == "GET"):
            answer = await http.get(stage.fill(path))
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy, path
            assert "frame-ancestors 'none'" in policy, path
            assert "unsafe" not in policy, path
            assert answer.headers["cache-control"] == "no-store", path
            assert answer.headers["x-content-type-options"] == "nosniff", path


async def test_an_action_is_never_performed_by_a_get(board: Board, stage: Scene) -> None:
    async with httpx2.AsyncClient(base_url=board.url, trust_env=False, timeout=RETRY_SECONDS) as http:
        for path in {one.path for one in pages() if one.method == "POST"} - {
            one.path for one in pages() if one.method == "GET"
        }:
            assert (await http.get(stage.fill(path))).status_code == 403, path


async def test_signing_in_redirects_to_no_other_site(guarded: Board, tenant: str) -> None:
    token = await guarded.token("read", tenant=tenant)
    async with httpx2.AsyncClient(base_url=guarded.url, trust_env=False, timeout=RETRY_SECONDS) as http:
        for there in ("//evil.example", "https://evil.example", "/\\evil.example", "\\\\evil.example", "/%0d%0ax"):
            page = (await http.get("/sign-in")).text
            form = page.partition('name="form_token" value="')[2].partition('"')[0]
            answer = await http.post("/sign-in", data={"form_token": form, "token": token, "next": there})
            assert answer.status_code == 303
            assert answer.headers["location"].startswith("/"), there
            assert answer.headers["location"][1:2] not in ("/", "\\"), there
            http.cookies.clear()


async def test_a_missing_page_is_html_for_a_browser_and_json_for_a_program(board: Board) -> None:
    async with httpx2.AsyncClient(base_url=board.url, trust_env=False, timeout=RETRY_SECONDS) as http:
        for path, accept, kind in (
            ("/no-such/page", "text/html,*/*;q=0.8", "text/html; charset=utf-8"),
            ("/no-such/page", "*/*", "application/problem+json"),
            ("/v1/no-such", "text/html,*/*;q=0.8", "application/problem+json"),
        ):
            response = await http.get(path, headers={"accept": accept})
            assert (response.status_code, response.headers["content-type"]) == (404, kind)


@pytest.mark.parametrize("revoked", [False, True])
@pytest.mark.parametrize("path", ["/audit/export", "/jobs/{job_id}/artifacts/{artifact_id}"])
async def test_a_download_ends_when_its_token_is_revoked(guarded: Board, tenant: str, path: str, revoked: bool) -> None:
    stage, admin, sessions = await scene.play(guarded.engine, tenant), local(tenant), Sessions()
    dashboard = Dashboard(guarded.engine, auth=True, tenant=tenant, sessions=sessions)
    created_link = await guarded.engine.tokens.create(admin, TokenRequest(roles=["admin", "read"]))
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        if revoked and not sent:
            await guarded.engine.tokens.revoke(admin, created_link.token.id)
        sent.append(message)

    cookie = f"interlock={await dashboard.begin(created_link.text)}"
    scope = {
        "method": "GET", "path": stage.fill(path), "scheme": "http", "query_string": b"",
        "headers": [(b"cookie", cookie.encode())],
    }  # fmt: skip
    await dashboard(scope, asyncio.Event().wait, send)
    assert sent[0]["status"] == 200
    assert (len(sent) == 1) is revoked
    assert sent[-1].get("more_body", True) is revoked
