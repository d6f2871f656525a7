"""Every action, in a real browser without script: the form, the effect, the next page."""

from __future__ import annotations

import json

from playwright.async_api import Browser, Page

from interlock.dashboard.app import pages
from interlock.domain.approval import ApprovalStatus, RequestApproval
from interlock.domain.decide import CompleteJob
from interlock.domain.job import Filter
from interlock.domain.lifecycle import Status
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import local
from interlock.wire import JobRequest
from interlock.wire.budgets import BudgetRequest
from interlock.wire.channels import ChannelRequest
from tests.dashboard.conftest import Board, follow, patient
from tests.dashboard.scene import Scene

PRESSED = {
    "/jobs/bulk", "/jobs/new", "/jobs/{job_id}/cancel", "/jobs/{job_id}/revoke", "/jobs/{job_id}/redrive", "/jobs/{job_id}/priority", "/jobs/{job_id}/acknowledge", "/jobs/{job_id}/run-now", "/jobs/{job_id}/postpone", "/jobs/{job_id}/messages", "/jobs/{job_id}/topics", "/jobs/{job_id}/budget/raise", "/budgets/{name}/raise",
    "/agents/{kind}/{id}/limit", "/webhooks/job-secret", "/webhooks/{id}/renew", "/webhooks/{id}/rotate",
    "/webhooks/deliveries/{delivery_id}/redeliver", "/approvals/{approval_id}/decide", "/approvals/{approval_id}/link", "/approve", "/approve/decide", "/queues/{type}/pause",
    "/queues/{type}/resume", "/schedules/{name}/pause", "/schedules/{name}/resume", "/schedules/{name}/run", "/schedules", "/schedules/{name}", "/schedules/{name}/delete", "/limits", "/limits/{name}", "/limits/{name}/delete", "/budgets", "/budgets/{name}", "/budgets/{name}/delete", "/limits/{name}/hold", "/channels", "/channels/{name}/test", "/channels/{name}/delete", "/limits/{name}/release", "/webhooks", "/webhooks/{id}/unsubscribe", "/webhooks/{id}/deliveries/{delivery_id}/redeliver",
    "/tokens", "/tokens/{id}/revoke", "/sign-in", "/sign-out",
    "/sign-out/everywhere", "/sessions/end",
}  # fmt: skip


def test_every_action_of_the_table_is_used_in_a_test() -> None:
    assert {page.path for page in pages() if page.method == "POST"} == PRESSED


async def test_a_waiting_job_gets_a_priority_and_is_cancelled(board: Board, stage: Scene, page: Page) -> None:
    await page.goto(f"{board.url}/jobs/{stage.queued}")
    await page.get_by_label("Priority").fill("77")
    await follow(page.get_by_role("button", name="Set"))
    assert (await board.engine.queries.job(stage.tenant, stage.queued)).priority == 77

    await page.get_by_text("Cancel…").click()
    await page.get_by_label("Reason").fill("not needed")
    await follow(page.get_by_role("button", name="Cancel job"))
    job = await board.engine.queries.job(stage.tenant, stage.queued)
    assert (job.status, job.cancel_reason) == (Status.CANCELLED, "not needed")
    assert "Job cancelled" in await page.inner_text(".notice")
    assert await page.get_by_role("button", name="Redrive").count() == 1


async def test_a_lease_is_revoked_and_a_tree_cancelled_by_force(board: Board, stage: Scene, page: Page) -> None:
    await page.goto(f"{board.url}/jobs/{stage.running}")
    await page.get_by_text("Revoke lease…").click()
    await follow(page.get_by_role("button", name="Revoke"))
    assert (await board.engine.queries.job(stage.tenant, stage.running)).worker is None

    await page.get_by_text("Cancel…").click()
    await page.get_by_label("including its descendants").check()
    await follow(page.get_by_role("button", name="Cancel job"))
    children = await board.engine.queries.jobs(stage.tenant, Filter(parent_id=stage.running))
    assert [child.status for child in children] == [Status.CANCELLED]


async def test_a_dead_letter_is_redriven_once_for_any_number_of_clicks(board: Board, stage: Scene, page: Page) -> None:
    await page.goto(f"{board.url}/jobs/{stage.dead}")
    before = len(await board.engine.queries.jobs(stage.tenant, Filter(type="import-feed")))
    async with page.context.expect_page() as opened:
        await page.get_by_role("button", name="Redrive").click(modifiers=["Control"])
    beside = await opened.value
    await beside.wait_for_url("**?notice=redriven")
    await follow(page.get_by_role("button", name="Redrive"))
    await page.wait_for_url("**?notice=redriven")
    assert page.url == beside.url
    again = await board.engine.queries.job(stage.tenant, page.url.rpartition("/")[2].partition("?")[0])
    assert again.redrive_of == stage.dead
    assert len(await board.engine.queries.jobs(stage.tenant, Filter(type="import-feed"))) == before + 1


async def test_a_dead_letter_is_acknowledged_with_a_comment(board: Board, stage: Scene, page: Page) -> None:
    await page.goto(f"{board.url}/jobs/{stage.dead}")
    await page.get_by_label("Comment").fill("known outage")
    await follow(page.get_by_role("button", name="Acknowledge"))
    assert await page.inner_text(".notice") == "Job acknowledged."
    assert await page.get_by_role("button", name="Acknowledge").count() == 0
    job = await board.engine.queries.job(stage.tenant, stage.dead)
    assert (job.status, job.acknowledged_at is not None) == (Status.DEAD_LETTER, True)
    assert (await board.engine.queries.history(stage.tenant, stage.dead))[-1].reason == "known outage"


async def test_a_job_of_the_future_is_run_now(board: Board, stage: Scene, page: Page) -> None:
    added = await board.engine.jobs.enqueue(local(stage.tenant), JobRequest(type="later", delay_seconds=3600.0))
    await page.goto(f"{board.url}/jobs/{added.id}")
    await follow(page.get_by_role("button", name="Run now"))
    assert await page.get_by_role("button", name="Run now").count() == 0
    job = await board.engine.queries.job(stage.tenant, added.id)
    assert (job.version, job.run_at <= await board.engine.queries.now()) == (2, True)


async def test_many_jobs_are_cancelled_after_a_page_that_counts_them(board: Board, stage: Scene, page: Page) -> None:
    await page.goto(f"{board.url}/jobs?type=embed-page")
    await page.get_by_label("Apply to").select_option("filter")
    await follow(page.get_by_role("button", name="Cancel…"))
    assert await page.inner_text("h1") == "Cancel 15 jobs?"
    await follow(page.get_by_role("button", name="Cancel 15 jobs"))
    assert await page.inner_text(".notice") == "Cancelled 15 jobs."
    left = await board.engine.queries.jobs(stage.tenant, Filter(type="embed-page", statuses=(Status.QUEUED,)))
    assert left == []

    await page.goto(f"{board.url}/jobs?status=dead_letter")
    await page.locator("tbody input[type=checkbox]").first.check()
    await follow(page.get_by_role("button", name="Redrive…"))
    await follow(page.get_by_role("button", name="Redrive 1 job"))
    assert await board.engine.queries.jobs(stage.tenant, Filter(type="import-feed", statuses=(Status.QUEUED,)))


async def test_an_approver_edits_and_approves(board: Board, stage: Scene, page: Page) -> None:
    await page.goto(f"{board.url}/approvals")
    await follow(page.get_by_role("link", name="Publish “What moves the sea”?"))
    assert await page.get_by_label("Title").input_value() == "What moves the sea"
    await page.get_by_label("Title").fill('Tides, "explained"')
    await page.get_by_label("audience").select_option("members")
    await page.get_by_label("notify").check()
    await follow(page.get_by_role("button", name="Approve"))

    approval = await board.engine.approvals.get(stage.tenant, stage.approval)
    assert approval.status is ApprovalStatus.APPROVED
    expected = {"title": 'Tides, "explained"', "audience": "members", "readers": 40_000, "notify": True}
    assert json.loads(approval.data or "") == expected
    assert await page.inner_text(".notice") == "Approved. The job will resume."


async def another_approval(board: Board, tenant: str, prompt: str, *, required: int = 1) -> str:
    worker = local(tenant)
    await board.engine.jobs.enqueue(worker, JobRequest(type=prompt))
    (job,) = await board.engine.leases.claim(tenant, ClaimFilter("w", frozenset({prompt})))
    order = RequestApproval(job.id, job.fence, "w", "", prompt, required=required, expires_in_seconds=60.0)
    opened = await board.engine.approvals.open(worker, order)
    assert opened.approval is not None
    return opened.approval.id


async def test_after_a_decision_the_page_returns_to_the_list(board: Board, stage: Scene, page: Page) -> None:
    urgent = await another_approval(board, stage.tenant, "Delete the old index?")
    await page.goto(f"{board.url}/approvals")
    assert await page.locator(".inbox .prompt").all_inner_texts() == [
        "Delete the old index?",
        "Publish “What moves the sea”?",
    ]
    await page.goto(f"{board.url}/approvals/{stage.approval}")
    await follow(page.get_by_role("link", name="Previous"))
    assert page.url.endswith(urgent)
    await follow(page.get_by_role("button", name="Deny"))
    assert await page.inner_text(".notice") == "Denied."
    assert page.url.startswith(f"{board.url}/approvals?"), "and not the next one, whose buttons are in the same place"
    assert (await board.engine.approvals.get(stage.tenant, urgent)).status is ApprovalStatus.DENIED
    assert (await board.engine.approvals.get(stage.tenant, stage.approval)).status is ApprovalStatus.OPEN


async def test_one_vote_of_two_leaves_the_approval_pending_and_counted(board: Board, stage: Scene, page: Page) -> None:
    approval = await another_approval(board, stage.tenant, "Move the money?", required=2)
    await page.goto(f"{board.url}/approvals/{approval}")
    await follow(page.get_by_role("button", name="Approve"))
    assert await page.inner_text(".notice") == "Vote recorded; more approvals are required."
    assert "1 of 2" in await page.inner_text("main")


async def test_invalid_data_is_returned_with_the_typed_text(board: Board, stage: Scene, page: Page) -> None:
    await page.goto(f"{board.url}/approvals/{stage.approval}")
    await page.get_by_label("Title").fill("Tides")
    await page.get_by_label("Comment").fill("shorter")
    await page.get_by_label("audience").select_option("members")
    await page.get_by_label("readers").evaluate("field => { field.type = 'text'; field.value = 'many' }")
    await follow(page.get_by_role("button", name="Approve"))
    assert await page.locator(".field.invalid .error").inner_text() == "expected a number"
    assert await page.get_by_label("Title").input_value() == "Tides"
    assert await page.get_by_label("Comment").input_value() == "shorter"
    assert (await board.engine.approvals.get(stage.tenant, stage.approval)).status is ApprovalStatus.OPEN


async def test_a_link_is_created_once_and_its_bearer_denies(board: Board, stage: Scene, chromium: Browser) -> None:
    page = await (await patient(chromium)).new_page()
    sent: list[str] = []
    page.on("request", lambda asked: sent.append(asked.url))
    await page.goto(f"{board.url}/approvals/{stage.approval}")
    await follow(page.get_by_role("button", name="Create link"))
    link = await page.inner_text(".secret")

    assert link.startswith(board.url)
    await page.goto(link)
    await page.get_by_role("button", name="Deny").wait_for()
    assert (await board.engine.approvals.get(stage.tenant, stage.approval)).status is ApprovalStatus.OPEN
    await page.get_by_label("Comment").fill("not today")
    await follow(page.get_by_role("button", name="Deny"))
    await page.get_by_text("Denied.").wait_for()

    approval = await board.engine.approvals.get(stage.tenant, stage.approval)
    assert (approval.status, approval.comment) == (ApprovalStatus.DENIED, "not today")
    token = link.partition("#")[2]
    assert not [url for url in sent if token in url.partition("#")[0]]


async def test_the_bearer_of_a_link_can_paste_it_without_script(board: Board, stage: Scene, page: Page) -> None:
    created_link = await board.engine.approvals.create_link(local(stage.tenant), stage.approval)
    await page.goto(f"{board.url}/approve")
    await page.get_by_label("Token of the link").fill(created_link.token)
    await follow(page.get_by_role("button", name="Open"))
    await page.get_by_label("audience").select_option("everybody")
    await follow(page.get_by_role("button", name="Approve"))
    assert (await board.engine.approvals.get(stage.tenant, stage.approval)).status is ApprovalStatus.APPROVED


async def test_a_queue_is_paused_and_resumed(board: Board, stage: Scene, page: Page) -> None:
    await page.goto(f"{board.url}/queues")
    card = page.locator("li.card", has=page.get_by_role("link", name="embed-page"))
    await card.get_by_text("Pause…").click()
    await card.get_by_label("Reason").fill("upstream is down")
    await follow(card.get_by_role("button", name="Pause"))
    queue = await board.engine.queries.queue(stage.tenant, "embed-page")
    assert queue.pause_reason == "upstream is down"

    await follow(card.get_by_role("button", name="Resume"))
    assert (await board.engine.queries.queue(stage.tenant, "embed-page")).paused_at is None


async def test_a_schedule_is_paused_resumed_and_run(board: Board, stage: Scene, page: Page) -> None:
    await page.goto(f"{board.url}/schedules")
    row = page.locator("tr", has_text="nightly")
    assert "0 4 * * *" in await row.inner_text()
    await follow(row.get_by_role("button", name="Pause"))
    assert (await board.engine.schedules.get(stage.tenant, "nightly")).paused_at is not None
    assert "paused" in await row.inner_text()
    await follow(row.get_by_role("button", name="Resume"))
    assert (await board.engine.schedules.get(stage.tenant, "nightly")).paused_at is None
    await follow(row.get_by_role("button", name="Run now"))
    job = await board.engine.queries.job(stage.tenant, page.url.rpartition("/")[2].partition("?")[0])
    assert (job.type, "nightly" in (job.headers or "")) == ("report", True)


async def test_a_channel_is_set_tested_and_deleted(board: Board, stage: Scene, page: Page) -> None:
    await page.goto(f"{board.url}/channels")
    assert "risk: high or higher" in await page.locator("tr", has_text="ops").inner_text()
    await page.locator("#name").fill("on call")
    await page.get_by_label("Kind").select_option("email")
    await page.get_by_label("Mail server").fill("nosuch.invalid.example")
    await page.locator("#from").fill("interlock@example.com")
    await page.locator("#to").fill("nobody")
    await follow(page.get_by_role("button", name="Set channel"))
    assert "'nobody' is not an e-mail address" in await page.inner_text(".field.invalid")
    await page.locator("#to").fill("ada@example.com bob@example.com")
    await follow(page.get_by_role("button", name="Set channel"))
    row = page.locator("tr", has_text="on call")
    assert "ada@example.com, bob@example.com" in await row.inner_text()
    made = await board.engine.channels.get(local(stage.tenant), "on call")
    assert made.address.port == 587
    assert made.events == ("approval.requested", "job.dead_letter", "worker.stale", "budget.spent")
    await follow(row.get_by_role("button", name="Send test"))
    assert "Test message to on call: not delivered" in await page.inner_text("main")
    row = page.locator("tr", has_text="on call")
    await row.get_by_text("Delete…").click()
    await follow(row.get_by_role("button", name="Delete channel"))
    assert [one.name for one in await board.engine.channels.page(local(stage.tenant))] == ["ops"]


async def test_a_delivery_of_a_channel_leads_to_no_subscription(board: Board, stage: Scene, page: Page) -> None:
    engine, who = board.engine, local(stage.tenant)
    await engine.channels.set(who, "all", ChannelRequest(kind="slack", url="https://hooks.example/y"))
    await engine.budgets.set(who, "small", BudgetRequest(amount={"usd": 1}))
    await engine.jobs.enqueue(who, JobRequest(type="costly", budgets=["small"]))
    (job,) = await engine.leases.claim(stage.tenant, ClaimFilter("w", types=frozenset({"costly"})))
    await engine.leases.complete(stage.tenant, CompleteJob(job.id, job.fence, "w", usage='{"usd": 1}'))
    assert await engine.spent_budgets.announce() == 1
    channels = [one.channel for one in await engine.store.outbox.due_channels(100) if one.tenant == stage.tenant]
    await engine.store.outbox.take(
        stage.tenant, [(one, 9) for one in channels], lease_seconds=60, fresh_secret="whsec_eA=="
    )
    await page.goto(f"{board.url}/webhooks/deliveries")
    row = page.locator("tr", has_text="budget.spent")
    assert "notification channel" in await row.inner_text()
    assert await row.get_by_role("link").count() == 0


async def test_a_limit_is_held_and_released(board: Board, stage: Scene, page: Page) -> None:
    await page.goto(f"{board.url}/limits")
    await follow(page.get_by_role("link", name="provider"))
    assert "tokens 40\u2009000" in await page.inner_text("main")
    await page.get_by_text("Hold…").click()
    await page.get_by_label("Minutes").fill("5")
    await page.get_by_label("Reason").fill("429")
    await follow(page.get_by_role("button", name="Hold"))
    held = (await board.engine.flow.get(stage.tenant, "provider")).state
    assert (held.hold_reason, held.held_until is None) == ("429", False)
    assert "held" in await page.inner_text("tbody")
    await follow(page.get_by_role("button", name="Release"))
    assert (await board.engine.flow.get(stage.tenant, "provider")).state.held_until is None


async def test_one_key_of_a_limit_is_released(board: Board, stage: Scene, page: Page) -> None:
    await page.goto(f"{board.url}/limits/customer")
    row = page.locator("tr", has_text="acme")
    assert "over quota" in await row.inner_text()
    await follow(row.get_by_role("button", name="Release"))
    (state,) = await board.engine.flow.keys(stage.tenant, "customer")
    assert (state.key, state.held_until) == ("acme", None)


async def test_the_limit_of_an_agent_is_raised_and_its_backlog_is_shown(board: Board, stage: Scene, page: Page) -> None:
    backoff = {"kind": "fixed", "base_seconds": 7}
    await board.engine.registry.set_agent(
        local(stage.tenant), "line", "solo", max_concurrency=1, strict=True, backoff=backoff, defaults={"priority": 3}
    )
    before = await board.engine.registry.agent(stage.tenant, "line", "solo")
    await page.goto(f"{board.url}/agents")
    row = page.locator("tr", has=page.get_by_role("link", name="line/solo"))
    assert "2 waiting for a slot" in await row.inner_text()
    holder = (await board.engine.queries.jobs(stage.tenant, Filter(type="solo-work", statuses=(Status.RUNNING,))))[0]
    assert await row.locator('td[data-name="Blocked by"] a').get_attribute("href") == f"/jobs/{holder.id}"

    await row.get_by_text("Limit…").click()
    await row.get_by_label("Limit").fill("3")
    await row.get_by_label("strict").uncheck()
    await follow(row.get_by_role("button", name="Set"))
    agent = await board.engine.registry.agent(stage.tenant, "line", "solo")
    assert (agent.max_concurrency, agent.strict, agent.defaults) == (3, False, before.defaults)
    assert await page.locator('td[data-name="Blocked by"] a').count() == 0


async def test_a_group_subscription_is_renewed_gets_a_new_secret_and_is_deleted(
    board: Board, stage: Scene, page: Page
) -> None:
    await page.goto(f"{board.url}/webhooks")
    await page.get_by_label("URL").fill("https://receiver.example/member")
    await page.get_by_text("job.cancelled").check()
    await page.get_by_label("Group").fill("night")
    await page.get_by_label("Minimum interval").fill("90")
    await page.get_by_label("Expires after days").fill("2")
    await follow(page.get_by_role("button", name="Create subscription"))
    first = await page.inner_text(".secret")
    assert "night" in await page.locator("tr", has_text="receiver.example/member").inner_text()

    await follow(page.get_by_role("link", name="https://receiver.example/member"))
    facts = await page.inner_text("main")
    assert ["group night" in facts, "1 min 30 s" in facts, "expires in 2 d" in facts] == [True, True, True]
    await page.get_by_text("Renew…").click()
    await follow(page.get_by_role("button", name="Renew"))
    assert await page.inner_text(".notice") == "Subscription renewed."
    assert "expires in" not in await page.inner_text("main")
    await page.get_by_text("New secret…").click()
    await follow(page.get_by_role("button", name="Create new secret"))
    second = await page.inner_text(".secret")
    assert second.startswith("whsec_")
    assert second != first
    await page.get_by_text("Delete…").click()
    await follow(page.get_by_role("button", name="Delete subscription"))
    assert await page.inner_text(".notice") == "Subscription deleted."


async def test_deliveries_to_webhooks_of_jobs_are_signed_listed_and_sent_again(
    board: Board, stage: Scene, page: Page
) -> None:
    await page.goto(f"{board.url}/webhooks")
    await page.get_by_text("New secret…").click()
    await follow(page.get_by_role("button", name="Create new secret"))
    assert (await page.inner_text(".secret")).startswith("whsec_")
    who = local(stage.tenant)
    job = await board.engine.jobs.enqueue(who, JobRequest(type="t", webhook="https://receiver.example/own"))
    await board.engine.jobs.cancel(who, job.id)

    await follow(page.get_by_role("link", name="All deliveries"))
    row = page.locator("tr", has=page.locator(f'a[href="/jobs/{job.id}"]'))
    await follow(row.get_by_role("button", name="Send again"))
    assert await page.inner_text(".notice") == "Delivery scheduled."
    await follow(page.get_by_role("link", name="dead", exact=True))
    assert "No deliveries with this status." in await page.inner_text("main")


async def test_history_is_searched_and_verified_and_has_a_head(board: Board, stage: Scene, page: Page) -> None:
    await page.goto(f"{board.url}/audit")
    await page.get_by_label("Job").fill(stage.dead)
    await page.get_by_label("Actor").fill("worker:macbook-7")
    await follow(page.get_by_role("button", name="Search"))
    assert await page.locator("tbody td[data-name=Transition]").all_inner_texts() == [
        "claim → running",
        "fail → dead letter",
    ]

    await page.goto(f"{board.url}/audit?actor=maker&after=2000-01-01T00:00&before=2000-01-02T00:00")
    assert "No matching rows" in await page.inner_text("main")
    await page.goto(f"{board.url}/audit?actor=nobody&from_seq=3")
    assert "No matching rows" in await page.inner_text("main")

    await follow(page.get_by_role("link", name="Verify"))
    assert "all chains are valid" in await page.get_by_role("status").inner_text()
    await follow(page.get_by_role("link", name="Show head"))
    assert await page.inner_text(".digest") == await board.engine.queries.head(stage.tenant)


async def test_a_subscription_gets_deliveries_resends_and_is_deleted(board: Board, stage: Scene, page: Page) -> None:
    await page.goto(f"{board.url}/webhooks")
    await page.get_by_label("URL").fill("https://receiver.example/hook")
    await page.get_by_text("job.cancelled").check()
    await follow(page.get_by_role("button", name="Create subscription"))
    assert (await page.inner_text(".secret")).startswith("whsec_")
    await board.engine.jobs.cancel(local(stage.tenant), stage.queued)

    await page.goto(f"{board.url}/webhooks")
    await follow(page.get_by_role("link", name="https://receiver.example/hook"))
    await follow(page.get_by_role("button", name="Send again"))
    assert await page.inner_text(".notice") == "Delivery scheduled."

    await page.goto(f"{board.url}/webhooks")
    row = page.locator("tr", has=page.get_by_role("link", name="https://receiver.example/hook"))
    await row.get_by_text("Delete…").click()
    await follow(row.get_by_role("button", name="Delete subscription"))
    assert await page.get_by_text("https://receiver.example/hook").count() == 0


async def test_a_token_is_shown_once_and_revoked(board: Board, stage: Scene, page: Page) -> None:
    await page.goto(f"{board.url}/tokens")
    await page.get_by_label("Description").fill("the night shift")
    await page.get_by_text("operate", exact=True).check()
    await follow(page.get_by_role("button", name="Create token"))
    text = await page.inner_text(".secret")
    assert (await board.engine.tokens.authenticate(text)).roles == {"operate"}
    made = len(await board.engine.tokens.list(local(stage.tenant)))
    await page.reload()
    assert "has already created its token" in await page.inner_text("main")
    assert len(await board.engine.tokens.list(local(stage.tenant))) == made

    await page.goto(f"{board.url}/tokens")
    assert text not in await page.content()
    row = page.locator("tr", has_text="the night shift")
    await row.get_by_text("Revoke…").click()
    await follow(row.get_by_role("button", name="Revoke"))
    assert "revoked" in await page.locator("tr", has_text="the night shift").inner_text()
