"""Signing in at a real OpenID provider, in a real browser: sessions, names, fresh sign-ins and attacks."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urljoin, urlsplit

import httpx2
import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, Route

from interlock.dashboard.sessions import SIGN_IN_SECONDS
from interlock.domain.approval import ApprovalStatus
from interlock.domain.principal import Principal
from interlock.domain.retry import SECOND
from interlock.domain.sign_in import sign_in
from interlock.engine.engine import Engine
from interlock.engine.jwks import BETWEEN_FETCHES_SECONDS
from interlock.engine.outbound_http import OutboundClient
from interlock.engine.sign_in import Provider
from interlock.errors import Forbidden
from interlock.storage.batching import batched
from interlock.storage.contract import Store
from interlock.storage.object_store.filesystem import FileObjects
from tests.dashboard import scene
from tests.dashboard.conftest import Board, Ticks, a_server, follow, patient
from tests.dashboard.test_access import form_token_of
from tests.support.eventually import RETRY_SECONDS
from tests.support.identity_provider import CLIENT_SECRET, IdentityProvider, identity_provider
from tests.support.stores import ManualClock

ROLES = {"staff": "read", "leads": "approve", "admins": "admin"}


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def idp() -> AsyncIterator[IdentityProvider]:
    async with identity_provider() as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def people(
    store: Store, clock: ManualClock, tmp_path: Path, tenant: str, idp: IdentityProvider
) -> AsyncIterator[Board]:
    """A dashboard at which people sign in; decisions on high risks need a fresh sign-in."""
    clock.now = round(time.time() * SECOND)  # the provider has no clock that a test could move
    ticks, outside, made = Ticks(), OutboundClient(idp.allowance), []
    table = {
        "issuer": idp.issuer, "client_id": tenant, "scopes": ["openid", "profile", "email", "groups"],
        "claims": {"roles": "groups"}, "roles": ROLES, "tenant": tenant, "step_up_risk": "high", "label": "Example ID",
    }  # fmt: skip

    async def provider_for(url: str) -> Provider:
        await idp.register(url, client_id=tenant)
        made.append(Provider(sign_in(table, client_secret=CLIENT_SECRET, public_url=url), outside, ticks=ticks))
        return made[-1]

    found = sign_in(table, client_secret=CLIENT_SECRET, public_url="https://example.com")
    engine = Engine(batched(store), objects=FileObjects(tmp_path), step_up=found.step_up)
    try:
        async with a_server(engine, clock, ticks, auth=True, tenant=tenant, provider_for=provider_for) as board:
            yield board
    finally:
        for provider in made:
            await provider.close()
        await outside.close()
        await engine.close()


async def local_only(route: Route) -> None:
    """Let the browser load nothing from elsewhere, such as the fonts of the provider's page."""
    is_local = urlsplit(route.request.url).hostname in ("127.0.0.1", "localhost")
    await (route.continue_() if is_local else route.abort())


async def a_browser(chromium: Browser) -> BrowserContext:
    context = await patient(chromium)
    await context.route("**/*", local_only)
    return context


async def log_in(page: Page, login: str) -> None:
    """Fill in the page of the provider."""
    await page.locator("input[name=login]").fill(login)
    await page.locator("input[name=password]").fill("any")
    await page.locator("button[type=submit]").click()


async def enter(board: Board, chromium: Browser, login: str = "ada", *, path: str = "/jobs") -> Page:
    page = await (await a_browser(chromium)).new_page()
    await page.goto(f"{board.url}{path}")
    await page.get_by_role("link", name="Sign in with Example ID").click()
    await log_in(page, login)
    await page.wait_for_url(f"{board.url}{path}")
    return page


async def details_of(board: Board, tenant: str, action: str) -> list[dict[str, Any]]:
    rows = await board.engine.audit.log(tenant)
    return [{"actor": row.actor, **json.loads(row.details or "{}")} for row in rows if row.action == action]


async def test_a_person_signs_in_decides_and_signs_out(people: Board, tenant: str, chromium: Browser) -> None:
    stage = await scene.play(people.engine, tenant)
    page = await enter(people, chromium, path="/jobs?status=running")
    assert await page.inner_text("h1") == "Jobs"
    assert "Ada Example" in await page.inner_text("header")
    cookies = await page.context.cookies(people.url)
    assert [(one["name"], one["httpOnly"], one["sameSite"]) for one in cookies] == [("interlock", True, "Strict")]
    (begun,) = await details_of(people, tenant, "session.begin")
    assert (begun["actor"], begun["name"], begun["email"]) == ("user:ada", "Ada Example", "ada@example.com")
    assert begun["roles"] == ["admin", "approve", "read"]

    await page.goto(f"{people.url}/approvals/{stage.approval}")
    await page.get_by_label("audience").select_option("members")
    await follow(page.get_by_role("button", name="Approve"))
    decided = await people.engine.approvals.get(tenant, stage.approval)
    assert (decided.status, decided.closed_by) == (ApprovalStatus.APPROVED, "user:ada")
    rows = await people.engine.queries.history(tenant, decided.job_id)
    (row,) = [json.loads(row.metadata or "{}") for row in rows if row.verb == "decide"]
    assert row["person"] == {"name": "Ada Example", "email": "ada@example.com"}
    await page.goto(f"{people.url}/jobs/{decided.job_id}")
    assert "Ada Example (user:ada)" in await page.inner_text("main")

    await page.get_by_role("button", name="Sign out").click()
    await page.wait_for_url("http://localhost:*/**")
    await page.context.add_cookies(cookies)  # type: ignore[arg-type]
    await page.goto(f"{people.url}/jobs")
    assert await page.inner_text("h1") == "Sign in"
    assert [one["actor"] for one in await details_of(people, tenant, "session.end")] == ["user:ada"]


async def heading_of_another_page(page: Page) -> str:
    """The heading of the same address in a new page of the browser: a page whose session ended reloads itself."""
    another = await page.context.new_page()
    await another.goto(page.url)
    return await another.inner_text("h1")


async def test_a_person_or_an_admin_ends_all_sessions_of_the_person(
    people: Board, tenant: str, chromium: Browser, album: Path
) -> None:
    ada, other, admin = [await enter(people, chromium, login) for login in ("ada", "ada", "eve")]
    await ada.set_viewport_size({"width": 360, "height": 740})
    assert await ada.evaluate("document.documentElement.scrollWidth") <= 360
    await ada.screenshot(path=album / "signed-in-on-a-phone.png")
    await ada.get_by_role("button", name="everywhere").click()
    await ada.wait_for_url("http://localhost:*/**")
    assert await heading_of_another_page(other) == "Sign in"

    again = await enter(people, chromium, "ada")
    await admin.goto(f"{people.url}/tokens")
    row = admin.get_by_role("row", name="Ada Example (user:ada)")
    await row.get_by_text("End…").click()
    await admin.screenshot(path=album / "people.png", full_page=True)
    await follow(row.get_by_role("button", name="End all sessions of this person"))
    assert await admin.get_by_role("row", name="Ada Example").count() == 0
    assert await heading_of_another_page(again) == "Sign in"
    ended = [(one["actor"]) for one in await details_of(people, tenant, "session.end")]
    assert ended == ["user:ada", "user:eve"]

    reader = Principal(tenant, "user:bob", frozenset({"read"}))
    with pytest.raises(Forbidden):
        await people.engine.sessions.end_all(reader, "user:eve")


@pytest.mark.parametrize("engine", ["sqlite"])
async def test_signing_out_at_the_provider_returns_to_the_sign_in_page(people: Board, chromium: Browser) -> None:
    page = await enter(people, chromium)
    await page.get_by_role("button", name="Sign out").click()
    await page.get_by_role("button", name="Yes, sign me out").click()
    await page.wait_for_url(f"{people.url}/sign-in")
    await page.get_by_role("link", name="Sign in with Example ID").click()
    await log_in(page, "eve")
    await page.wait_for_url(f"{people.url}/")
    assert "Eve Example" in await page.inner_text("header")


async def test_a_decision_on_a_high_risk_needs_a_fresh_sign_in(people: Board, tenant: str, chromium: Browser) -> None:
    stage = await scene.play(people.engine, tenant)
    page = await enter(people, chromium, path=f"/approvals/{stage.approval}")
    token = form_token_of(await page.content())
    people.clock.advance(400)
    await page.reload()
    assert await page.get_by_role("button", name="Approve").count() == 0
    form: dict[str, str | float | bool] = {"form_token": token, "decision": "deny"}
    for action in ("decide", "link"):
        sent = await page.context.request.post(f"{people.url}/approvals/{stage.approval}/{action}", form=form)
        assert sent.status == 403
        assert "signed in within the last 300 s" in await sent.text()
    credential = await people.token("approve", "read", tenant=tenant)
    async with httpx2.AsyncClient(base_url=people.url, trust_env=False, timeout=RETRY_SECONDS) as http:
        told = await http.post(
            f"/v1/approvals/{stage.approval}/decide",
            json={"decision": "approve"},
            headers={"authorization": f"Bearer {credential}"},
        )
        assert (told.status_code, told.json()["code"]) == (403, "fresh_sign_in_required")
    assert (await people.engine.approvals.get(tenant, stage.approval)).status is ApprovalStatus.OPEN

    (old,) = await page.context.cookies(people.url)
    await page.goto(f"{people.url}/sign-in/start?fresh=1&next=/approvals/{stage.approval}")
    await log_in(page, "ada")  # although the session at the provider is still valid
    await page.wait_for_url(f"{people.url}/approvals/{stage.approval}")
    people.clock.now = round(time.time() * SECOND)
    await page.reload()
    await page.get_by_label("audience").select_option("members")
    await follow(page.get_by_role("button", name="Approve"))
    assert (await people.engine.approvals.get(tenant, stage.approval)).status is ApprovalStatus.APPROVED
    async with httpx2.AsyncClient(base_url=people.url, trust_env=False, timeout=RETRY_SECONDS) as http:
        replaced = await http.get("/jobs", headers={"cookie": f"interlock={old['value']}"})
        assert replaced.status_code == 303, "the new session replaces the old one"


def client() -> httpx2.AsyncClient:
    """A browser that follows no redirect."""
    return httpx2.AsyncClient(trust_env=False, timeout=RETRY_SECONDS)


async def callback_of(board: Board, http: httpx2.AsyncClient, login: str = "ada") -> str:
    """The address to which the provider leads a browser, which does not follow it."""
    response = await http.get(f"{board.url}/sign-in/start")
    url = response.headers["location"]
    while not url.startswith(board.url):
        response = await http.get(url)
        if response.status_code == 200:
            form = {"prompt": "login", "login": login, "password": "any"}
            response = await http.post(response.text.partition('action="')[2].partition('"')[0], data=form)
        url = urljoin(url, response.headers["location"])
    return url


@pytest.mark.parametrize("engine", ["sqlite"])
async def test_a_response_works_once_and_only_in_the_browser_that_asked(people: Board) -> None:
    async with client() as ours, client() as theirs, client() as stranger:
        attacker, mine = await callback_of(people, theirs, "eve"), await callback_of(people, ours)
        response = await stranger.get(attacker)
        assert (response.status_code, "started no sign-in" in response.text) == (403, True)
        response = await ours.get(attacker)
        assert (response.status_code, "does not belong to this browser" in response.text) == (403, True)

        code, ours_code = (parse_qs(urlsplit(url).query)["code"][0] for url in (attacker, mine))
        response = await ours.get(mine.replace(ours_code, code))
        assert (response.status_code, "rejected the code" in response.text) == (403, True), "PKCE binds a code"
        assert "set-cookie" not in response.headers

        used = ours.cookies["interlock-sign-in"]
        assert (await ours.get(mine)).status_code == 200
        assert "interlock-sign-in" not in ours.cookies
        assert (await ours.get(mine)).status_code == 403
        again = await theirs.get(mine, headers={"cookie": f"interlock-sign-in={used}"})
        assert (again.status_code, "rejected the code" in again.text) == (403, True)


@pytest.mark.parametrize("engine", ["sqlite"])
async def test_a_sign_in_that_takes_too_long_is_rejected(people: Board) -> None:
    async with client() as http:
        url = await callback_of(people, http)
        people.ticks.now += SIGN_IN_SECONDS
        assert (await http.get(url)).status_code == 403


@pytest.mark.parametrize("engine", ["sqlite"])
async def test_a_person_without_a_role_gets_no_session(people: Board, chromium: Browser) -> None:
    page = await (await a_browser(chromium)).new_page()
    await page.goto(f"{people.url}/sign-in/start?next=https://evil.example/")
    await log_in(page, "bob")
    await page.wait_for_url(f"{people.url}/sign-in/callback**")
    assert "has no role for the dashboard" in await page.inner_text("main")
    assert "interlock" not in [one["name"] for one in await page.context.cookies(people.url)]


@pytest.mark.parametrize("engine", ["sqlite"])
async def test_people_sign_in_after_the_provider_has_rotated_its_key(
    people: Board, chromium: Browser, idp: IdentityProvider
) -> None:
    await enter(people, chromium)
    await idp.rotate()
    people.ticks.now += BETWEEN_FETCHES_SECONDS
    page = await enter(people, chromium)
    assert "Ada Example" in await page.inner_text("header")


@pytest.mark.parametrize("engine", ["sqlite"])
async def test_a_session_of_a_person_ends_when_its_time_is_over_or_sign_in_is_switched_off(
    people: Board, tenant: str, chromium: Browser
) -> None:
    page = await enter(people, chromium)
    (cookie,) = await page.context.cookies(people.url)
    sent = {"cookie": f"interlock={cookie['value']}"}
    second = a_server(people.engine, people.clock, people.ticks, auth=True, tenant=tenant)
    async with second as without, httpx2.AsyncClient(trust_env=False, timeout=RETRY_SECONDS) as http:
        assert (await http.get(f"{people.url}/jobs", headers=sent)).status_code == 200
        assert (await http.get(f"{without.url}/jobs", headers=sent)).status_code == 303
        assert (await http.get(f"{without.url}/sign-in/start")).status_code == 404
        assert "Example ID" not in (await http.get(f"{without.url}/sign-in")).text
        people.clock.advance(28_801)
        people.engine.sessions._known.forget(lambda _: True)
        assert (await http.get(f"{people.url}/jobs", headers=sent)).status_code == 303
