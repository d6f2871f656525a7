"""A click, a key or a submitted form acts on what was on the screen, once, and never on what comes next."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2
import pytest
from playwright.async_api import Browser, Locator, Page, Route, expect

from interlock.domain.approval import ApprovalFilter, ApprovalStatus
from interlock.domain.decide import CompleteJob, FailJob
from interlock.domain.job import Filter
from interlock.domain.lifecycle import Status
from interlock.domain.operations import Action
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import local
from interlock.wire import JobRequest
from tests.dashboard.conftest import Board, follow, patient
from tests.dashboard.scene import Scene
from tests.dashboard.test_access import form_token_of
from tests.dashboard.test_actions import another_approval
from tests.dashboard.test_forms import an_approval
from tests.support.eventually import RETRY_SECONDS

PHONE = {"width": 360, "height": 740}


async def opened(board: Board, chromium: Browser, path: str, **options: Any) -> Page:
    page = await (await patient(chromium, **options)).new_page()
    await page.goto(board.url + path)
    return page


async def middle(button: Locator) -> tuple[float, float]:
    await expect(button).to_be_enabled()
    box = await button.bounding_box()
    assert box is not None
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


async def still_open(board: Board, tenant: str) -> set[str]:
    found = await board.engine.approvals.list(tenant, ApprovalFilter(status=ApprovalStatus.OPEN))
    return {one.id for one in found}


@pytest.mark.parametrize("decision", ["Approve", "Deny"])
async def test_repeated_clicks_decide_one_approval(
    board: Board, stage: Scene, chromium: Browser, decision: str
) -> None:
    asked = [await another_approval(board, stage.tenant, f"Number {n}?") for n in range(3)]
    page = await opened(board, chromium, f"/approvals/{asked[0]}")
    at = await middle(page.get_by_role("button", name=decision))
    await page.mouse.click(*at, click_count=2)
    await expect(page.locator(".notice")).to_be_visible()
    for _ in range(8):
        await page.mouse.click(*at)
    assert await still_open(board, stage.tenant) == {*asked[1:], stage.approval}


async def test_enter_pressed_again_decides_nothing_else(board: Board, stage: Scene, chromium: Browser) -> None:
    asked = [await another_approval(board, stage.tenant, f"Number {n}?") for n in range(2)]
    page = await opened(board, chromium, f"/approvals/{asked[0]}")
    await expect(page.get_by_role("button", name="Approve")).to_be_enabled()
    for key in ("y", "Enter", "Enter"):
        await page.keyboard.press(key)
    await expect(page.locator(".notice")).to_be_focused()
    for key in ("Enter", "y", "Enter", "Enter"):
        await page.keyboard.press(key)
    assert await still_open(board, stage.tenant) == {asked[1], stage.approval}


async def test_an_approval_that_just_appeared_ignores_the_first_click(
    board: Board, stage: Scene, chromium: Browser
) -> None:
    asked = await another_approval(board, stage.tenant, "Really?")
    page = await (await patient(chromium)).new_page()
    await page.add_init_script("window.setTimeout = () => 0")  # the moment after loading does not pass
    await page.goto(f"{board.url}/approvals/{asked}")
    approve = page.get_by_role("button", name="Approve")
    await expect(approve).to_be_disabled()
    await approve.click(force=True)
    await approve.press("Enter")
    await page.goto(f"{board.url}/approvals")
    assert asked in await still_open(board, stage.tenant)


async def test_a_slow_network_gets_one_decision(board: Board, stage: Scene, chromium: Browser) -> None:
    asked = await another_approval(board, stage.tenant, "Slowly?")
    page = await opened(board, chromium, f"/approvals/{asked}")
    sent: list[str] = []
    may_pass = asyncio.Event()

    async def delay(route: Route) -> None:
        sent.append(route.request.url)
        await may_pass.wait()
        await route.continue_()

    await page.route("**/decide", delay)
    at = await middle(page.get_by_role("button", name="Approve"))
    for _ in range(3):
        await page.mouse.click(*at)
    may_pass.set()
    await expect(page.locator(".notice")).to_have_text("Approved. The job will resume.")
    assert len(sent) == 1


async def test_the_back_button_leads_to_a_decided_approval(board: Board, stage: Scene, chromium: Browser) -> None:
    asked = await another_approval(board, stage.tenant, "And back?")
    page = await opened(board, chromium, f"/approvals/{asked}")
    await expect(page.get_by_role("button", name="Approve")).to_be_enabled()
    await follow(page.get_by_role("button", name="Approve"))
    await page.go_back()
    await expect(page.locator(".standing")).to_contain_text("approved")
    await expect(page.get_by_role("button", name="Approve")).to_have_count(0)


async def test_a_second_tab_shows_the_decision_of_the_first(board: Board, stage: Scene, chromium: Browser) -> None:
    asked = await another_approval(board, stage.tenant, "Twice?")
    one, other = [await opened(board, chromium, f"/approvals/{asked}", java_script_enabled=False) for _ in range(2)]
    await follow(one.get_by_role("button", name="Approve"))
    await follow(other.get_by_role("button", name="Deny"))
    assert await other.get_by_role("alert").count() == 1
    assert await other.get_by_role("button", name="Deny").count() == 0
    assert (await board.engine.approvals.get(stage.tenant, asked)).status is ApprovalStatus.APPROVED


async def test_the_bearer_of_a_link_does_not_enter_the_token_again(
    board: Board, stage: Scene, chromium: Browser
) -> None:
    asked = await another_approval(board, stage.tenant, "By link?")
    link = await board.engine.approvals.create_link(local(stage.tenant), asked)
    page = await opened(board, chromium, f"/approve#{link.token}")
    at = await middle(page.get_by_role("button", name="Approve"))
    await page.mouse.click(*at, click_count=2)
    await expect(page.get_by_role("heading", name="Decision recorded")).to_be_visible()
    await page.reload()
    await expect(page.get_by_role("heading", name="Decision recorded")).to_be_visible()
    assert await page.locator("main input").count() == 0
    assert (await board.engine.approvals.get(stage.tenant, asked)).status is ApprovalStatus.APPROVED


async def test_an_empty_required_field_is_rejected_beside_it(board: Board, stage: Scene, chromium: Browser) -> None:
    schema = {
        "type": "object",
        "required": ["title", "to"],
        "properties": {
            "title": {"type": "string"},
            "note": {"type": "string"},
            "to": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}},
        },
    }
    asked = await an_approval(board, stage.tenant, schema, {"title": "Tides", "to": {"name": "Ada"}})
    page = await opened(board, chromium, f"/approvals/{asked}", java_script_enabled=False)
    await page.get_by_label("title").fill("   ")
    await page.get_by_label("name").fill("")
    await page.get_by_label("note").fill("typed")
    await page.get_by_label("Comment").fill("kept")
    await page.get_by_label("name").evaluate("field => { field.required = false }")
    await follow(page.get_by_role("button", name="Approve"))
    assert await page.locator(".field.invalid .error").all_inner_texts() == ["required: enter a value"] * 2
    assert await page.get_by_label("note").input_value() == "typed"
    assert await page.get_by_label("Comment").input_value() == "kept"
    assert (await board.engine.approvals.get(stage.tenant, asked)).status is ApprovalStatus.OPEN
    await page.get_by_label("title").fill("Moon")
    await page.get_by_label("name").fill("Mira")
    await follow(page.get_by_role("button", name="Approve"))
    data = (await board.engine.approvals.get(stage.tenant, asked)).data
    assert json.loads(data or "") == {"title": "Moon", "note": "typed", "to": {"name": "Mira"}}


async def test_a_confirmed_action_reaches_exactly_the_confirmed_jobs(
    board: Board, stage: Scene, chromium: Browser
) -> None:
    page = await opened(board, chromium, "/jobs?type=embed-page")
    await page.get_by_label("Apply to").select_option("filter")
    await follow(page.get_by_role("button", name="Cancel…"))
    late = await board.engine.jobs.enqueue(local(stage.tenant), JobRequest(type="embed-page"))
    at = await middle(page.get_by_role("button", name="Cancel 15 jobs"))
    await page.mouse.click(*at, click_count=2)
    await expect(page.locator(".notice")).to_have_text("Cancelled 15 jobs.")
    left = await board.engine.queries.jobs(stage.tenant, Filter(type="embed-page", statuses=(Status.QUEUED,)))
    assert [job.id for job in left] == [late.id]


async def test_an_action_on_selected_jobs_needs_a_selection(board: Board, stage: Scene, chromium: Browser) -> None:
    page = await opened(board, chromium, "/jobs")
    await expect(page.get_by_role("button", name="Cancel…")).to_be_disabled()
    await expect(page.get_by_text("Select jobs first.")).to_be_visible()
    await page.locator("tbody input[type=checkbox]").first.check()
    await expect(page.get_by_role("button", name="Cancel…")).to_be_enabled()
    plain = await opened(board, chromium, "/jobs?type=crawl", java_script_enabled=False)
    await follow(plain.get_by_role("button", name="Redrive…"))
    assert "No job is selected" in await plain.locator("#bulk .error").inner_text()
    assert await plain.get_by_label("Type").input_value() == "crawl"


LONG = "x" * 9_000
FORMS = [
    ("/tokens", {"description": "night", "expires_in_days": "2"}, "role"),
    ("/tokens", {"description": "night", "role": "read", "expires_in_days": "-1"}, "expires_in_days"),
    ("/tokens", {"description": "night", "role": "read", "expires_in_days": "soon"}, "expires_in_days"),
    ("/tokens", {"description": "night", "role": "work", "worker_id": "a b/c/d"}, "worker_id"),
    ("/agents/line/solo/limit", {"max_concurrency": "0"}, "max_concurrency"),
    ("/agents/line/solo/limit", {"max_concurrency": "many"}, "max_concurrency"),
    ("/webhooks", {"url": "gopher://x", "event": "job.failed"}, "url"),
    ("/webhooks", {"url": "https://hooks.example/x", "types": "a"}, "event"),
    ("/webhooks", {"url": "https://hooks.example/x", "event": "job.failed", "min_interval_seconds": "-2"}, "min_interval_seconds"),
    ("/webhooks/{id}/renew", {"expires_in_days": "-3"}, "expires_in_days"),
    ("/jobs/{queued}/priority", {"priority": "5000"}, "priority"),
    ("/jobs/{queued}/priority", {"priority": ""}, "priority"),
    ("/jobs/{queued}/cancel", {"reason": LONG}, "reason"),
    ("/jobs/{running}/revoke", {"revoke_reason": LONG}, "revoke_reason"),
    ("/queues/embed-page/pause", {"reason": LONG}, "reason"),
    ("/limits/provider/hold", {"minutes": "0"}, "minutes"),
    ("/channels", {"name": "ops", "kind": "slack", "url": "gopher://x", "event": "job.failed"}, "url"),
    ("/channels", {"name": "ops", "kind": "slack", "url": "https://hooks.example/x"}, "event"),
    ("/channels", {"name": "ops", "kind": "email", "host": "mail.example.com", "from": "x", "to": "a@b.c", "event": "job.failed"}, "from"),
    ("/limits/provider/hold", {"minutes": "5", "reason": LONG}, "reason"),
]  # fmt: skip


@pytest.mark.parametrize(("action", "form", "field"), FORMS)
async def test_the_errors_of_a_form_are_beside_its_fields_and_its_values_are_kept(
    board: Board, stage: Scene, action: str, form: dict[str, str], field: str
) -> None:
    action = action.format(id=stage.subscription, queued=stage.queued, running=stage.running)
    async with httpx2.AsyncClient(base_url=board.url, trust_env=False, timeout=RETRY_SECONDS) as http:
        token = form_token_of((await http.get("/tokens")).text)
        answer = await http.post(action, data=form | {"form_token": token})
    assert answer.status_code == (413 if LONG in form.values() else 422), answer.text
    assert "<h1>Invalid request</h1>" not in answer.text
    page = answer.text.partition("<main")[2]
    if field in ("role", "event"):
        assert 'class="error" role="alert"' in page
    else:
        marked = [part.partition("</div>")[0] for part in page.split('<div class="field invalid">')[1:]]
        assert [f'name="{field}"' in part and 'class="error"' in part for part in marked] == [True]
    for value in form.values():
        assert value in page, value


async def test_the_errors_of_a_filter_are_beside_its_fields(board: Board, stage: Scene) -> None:
    async with httpx2.AsyncClient(base_url=board.url, trust_env=False, timeout=RETRY_SECONDS) as http:
        jobs = await http.get("/jobs", params={"agent": "planner", "type": "kept"})
        audit = await http.get("/audit", params={"job": "nonsense", "actor": "kept"})
    for answer, message in (
        (jobs, "agent is &#39;planner&#39;: expected KIND/ID, such as planner/7"),
        (audit, "expected a job id"),
    ):
        assert (answer.status_code, "<h1>Invalid request</h1>" in answer.text) == (422, False)
        assert f'role="alert">{message}</p>' in answer.text
        assert 'value="kept"' in answer.text


async def test_a_traceback_is_in_a_monospace_font_and_copied_as_it_is(
    board: Board, stage: Scene, chromium: Browser
) -> None:
    text = 'Traceback (most recent call last):\n  File "a.py", line 1\nValueError: no'
    made = await board.engine.jobs.enqueue(local(stage.tenant), JobRequest(type="crashes", max_attempts=1))
    (job,) = await board.engine.leases.claim(stage.tenant, ClaimFilter("w", frozenset({"crashes"})))
    error = json.dumps({"message": "no", "kind": "ValueError", "details": {"traceback": text}})
    await board.engine.leases.fail(stage.tenant, FailJob(job.id, job.fence, "w", error))
    page = await opened(board, chromium, f"/jobs/{made.id}", permissions=["clipboard-read", "clipboard-write"])
    await page.get_by_role("region", name="Error").get_by_text("Details", exact=True).click()
    block = page.get_by_role("region", name="Error").locator(".block", has_text="Traceback")
    assert "mono" in await block.locator("pre").evaluate("pre => getComputedStyle(pre).fontFamily")
    await block.get_by_role("button", name="Copy").click()
    await expect(block.get_by_role("button", name="Copied")).to_be_visible()
    assert await page.evaluate("navigator.clipboard.readText()") == text
    whole = page.get_by_role("region", name="Error").locator(".value-view > button")
    await whole.click()
    await expect(whole).to_have_text("Copied")
    assert json.loads(await page.evaluate("navigator.clipboard.readText()")) == {"traceback": text}


async def test_an_invalid_field_is_not_covered_by_the_header(board: Board, stage: Scene, chromium: Browser) -> None:
    fields = {f"field {n}": {"type": "string"} for n in range(20)}
    asked = await an_approval(board, stage.tenant, {"required": ["field 3"], "properties": fields}, {})
    page = await opened(board, chromium, f"/approvals/{asked}", viewport=PHONE)
    approve = page.get_by_role("button", name="Approve")
    await expect(approve).to_be_enabled()
    await approve.click()
    invalid = page.get_by_label("field 3", exact=True)
    await expect(invalid).to_be_focused()
    await expect(invalid).to_be_in_viewport()
    below = (
        "label => label.getBoundingClientRect().top >= document.querySelector('.top').getBoundingClientRect().bottom"
    )
    assert await page.locator("label", has_text="field 3").first.evaluate(below)


async def test_nothing_is_wider_than_a_phone(board: Board, stage: Scene, chromium: Browser) -> None:
    page = await (await patient(chromium, viewport=PHONE)).new_page()
    for path in ("/", "/jobs", f"/jobs/{stage.dead}", "/approvals", f"/approvals/{stage.approval}", "/queues", "/agents",
                 "/workers", "/webhooks", "/tokens", "/channels", "/audit", "/docs"):  # fmt: skip
        await page.goto(board.url + path)
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path


async def test_buttons_and_names_of_agents_are_not_wrapped(board: Board, stage: Scene, chromium: Browser) -> None:
    await board.engine.registry.set_agent(
        local(stage.tenant), "research-planner", "atlas-of-the-oceans", max_concurrency=3
    )
    page = await opened(board, chromium, "/agents", viewport={"width": 1000, "height": 700})
    row = page.locator("tr", has_text="atlas-of-the-oceans")
    name = row.locator("a.agent")
    lines = "part => { const range = document.createRange(); range.selectNodeContents(part); return new Set([...range.getClientRects()].map(one => Math.round(one.top))).size }"
    assert await name.evaluate(lines) <= 2, "broken between kind and id at most"
    await row.get_by_text("Limit…").click()
    assert await row.get_by_role("button", name="Set").evaluate(lines) == 1


async def test_workers_leave_the_overview_when_they_stop_or_miss_heartbeats(board: Board, stage: Scene) -> None:
    async def overview() -> str:
        async with httpx2.AsyncClient(base_url=board.url, trust_env=False, timeout=RETRY_SECONDS) as http:
            return (await http.get("/")).text

    for name in ("stops-by-itself", "falls-silent"):
        await board.engine.leases.claim(stage.tenant, ClaimFilter(name, frozenset({"t"})))
    await board.engine.workers.stop()
    page = await overview()
    assert ["stops-by-itself" in page, "falls-silent" in page] == [True, True]
    await board.engine.leases.claim(stage.tenant, ClaimFilter("stops-by-itself", frozenset()))
    await board.engine.workers.stop()
    page = await overview()
    assert ["stops-by-itself" in page, "falls-silent" in page] == [False, True]
    board.clock.advance(301)
    assert "falls-silent" not in await overview()


async def test_a_redriven_dead_letter_needs_no_attention(board: Board, stage: Scene) -> None:
    async with httpx2.AsyncClient(base_url=board.url, trust_env=False, timeout=RETRY_SECONDS) as http:
        assert "1 unacknowledged failure</a>" in (await http.get("/")).text
        done = await board.engine.operations.bulk(local(stage.tenant), Action.REDRIVE, ids=[stage.dead])
        assert done.done == 1
        assert "0 unacknowledged failures</a>" in (await http.get("/")).text
        assert stage.dead not in (await http.get("/jobs?attention=true")).text
        assert "redriven" in (await http.get("/jobs?status=dead_letter")).text


async def test_a_job_that_does_not_match_the_deployed_code_needs_attention(board: Board, stage: Scene) -> None:
    engine, title = board.engine, "Jobs that do not match the deployed code"

    async def retried(kind: str, message: str) -> str:
        (job,) = await engine.leases.claim(stage.tenant, ClaimFilter("w9", frozenset({"flow"})), wait_seconds=5)
        error = json.dumps({"message": message, "kind": kind})
        order = FailJob(job.id, job.fence, "w9", error, retry_after_seconds=30.0)
        await engine.leases.fail(stage.tenant, order)
        return job.id

    await engine.jobs.enqueue_batch(local(stage.tenant), [JobRequest(type="flow"), JobRequest(type="flow")])
    async with httpx2.AsyncClient(base_url=board.url, trust_env=False, timeout=RETRY_SECONDS) as http:
        other = await retried("Error", "not a step_mismatch")
        assert title not in (await http.get("/")).text
        id = await retried("step_mismatch", "a step where an approval was recorded")
        card = (await http.get("/")).text.partition(title)[2].partition("</article>")[0]
        assert [f"/jobs/{one}" in card for one in (id, other)] == [True, False]
        board.clock.advance(31)
        (job,) = await engine.leases.claim(stage.tenant, ClaimFilter("w9", frozenset({"flow"}), limit=1))
        (again,) = await engine.leases.claim(stage.tenant, ClaimFilter("w9", frozenset({"flow"}), limit=1))
        for one in (job, again):
            await engine.leases.complete(stage.tenant, CompleteJob(one.id, one.fence, "w9"))
        assert title not in (await http.get("/")).text


async def test_queues_are_listed_in_pages(board: Board, stage: Scene) -> None:
    many = [JobRequest(type=f"type-{n:03}") for n in range(130)]
    for some in (many[:100], many[100:]):
        await board.engine.jobs.enqueue_batch(local(stage.tenant), some)
    async with httpx2.AsyncClient(base_url=board.url, trust_env=False, timeout=RETRY_SECONDS) as http:
        seen, path = list[str](), "/queues"
        while path:
            page = (await http.get(path)).text
            found = [part.partition('"')[0] for part in page.split('href="/jobs?type=')[1:]]
            assert len(found) <= 25
            seen += found
            link = page.partition('rel="next"')[0].rpartition('href="')[2].partition('"')[0]
            path = link.replace("&amp;", "&") if 'rel="next"' in page else ""
        assert len(set(seen)) == len(seen) == len(await board.engine.queries.queues(stage.tenant))
        assert (await http.get("/")).text.count('id="queue-') <= 20
