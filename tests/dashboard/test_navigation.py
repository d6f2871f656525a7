"""Navigation shows the pages that the roles of a user allow, and no others."""

from __future__ import annotations

import httpx2
import pytest
from playwright.async_api import Browser

from interlock.dashboard.app import pages
from interlock.dashboard.navigation import NAVIGATION
from interlock.domain.approval import ApprovalStatus
from tests.dashboard import scene
from tests.dashboard.conftest import Board, follow
from tests.dashboard.test_access import form_token_of, signed_in
from tests.support.eventually import RETRY_SECONDS


def test_a_page_is_linked_for_every_role_that_may_read_it() -> None:
    roles = {page.path: page.roles for page in pages() if page.method == "GET"}
    assert {way.path: way.roles for way in NAVIGATION} == {way.path: roles[way.path] for way in NAVIGATION}


async def test_an_approver_is_led_to_pending_approvals_and_decides_one(
    guarded: Board, tenant: str, chromium: Browser
) -> None:
    stage = await scene.play(guarded.engine, tenant)
    page = await signed_in(guarded, chromium, await guarded.token("approve", tenant=tenant))
    assert page.url == f"{guarded.url}/approvals"
    assert await page.locator("header nav a").all_inner_texts() == ["Approvals"]
    await follow(page.get_by_role("link", name="Publish"))
    assert page.url == f"{guarded.url}/approvals/{stage.approval}"
    assert await page.locator("main a[href^='/jobs']").count() == 0, "which would lead to a refusal"
    await page.get_by_label("audience").select_option("members")
    await follow(page.get_by_role("button", name="Approve"))
    assert (await guarded.engine.approvals.get(tenant, stage.approval)).status is ApprovalStatus.APPROVED

    answer = await page.goto(f"{guarded.url}/jobs")
    assert answer is not None
    assert answer.status == 403
    assert "missing role: read is required" in await page.inner_text("main")
    await follow(page.get_by_role("link", name="Back to approvals"))
    assert await page.inner_text("h1") == "Approvals"


@pytest.mark.parametrize(
    ("roles", "first"), [(["operate"], "/webhooks"), (["admin"], "/tokens"), (["admin", "read"], "/")]
)
async def test_a_session_begins_at_the_first_page_that_its_roles_allow(
    guarded: Board, tenant: str, roles: list[str], first: str
) -> None:
    async with httpx2.AsyncClient(base_url=guarded.url, trust_env=False, timeout=RETRY_SECONDS) as http:
        form = {"form_token": form_token_of((await http.get("/sign-in")).text)}
        answer = await http.post("/sign-in", data=form | {"token": await guarded.token(*roles, tenant=tenant)})
        assert (answer.status_code, answer.headers["location"]) == (303, first)


async def test_a_session_without_a_page_gets_the_required_role_named(guarded: Board, tenant: str) -> None:
    async with httpx2.AsyncClient(base_url=guarded.url, trust_env=False, timeout=RETRY_SECONDS) as http:
        form = {"form_token": form_token_of((await http.get("/sign-in")).text)}
        answer = await http.post("/sign-in", data=form | {"token": await guarded.token("produce", tenant=tenant)})
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers
        assert "admin, approve, operate or read" in answer.text
