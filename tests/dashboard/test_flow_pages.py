"""The pages of limits, budgets and schedules: utilization, who waits, and what operators do about it."""

from __future__ import annotations

from datetime import timedelta

from playwright.async_api import Browser, Page, expect

from interlock.domain.decide import CompleteJob
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import local
from interlock.domain.timestamps import EPOCH
from interlock.wire import JobRequest, LimitUse
from interlock.wire.budgets import BudgetRequest
from interlock.wire.limits import LimitRequest
from interlock.wire.schedule import ScheduleRequest
from tests.dashboard.conftest import Board, follow
from tests.dashboard.test_decisions import opened


async def spend(board: Board, tenant: str, usage: str, **request: object) -> str:
    """Enqueue a job and complete it with this usage."""
    job_id = (await board.engine.jobs.enqueue(local(tenant), JobRequest(type="t", **request))).id  # type: ignore[arg-type]
    (job,) = await board.engine.leases.claim(tenant, ClaimFilter("w", frozenset({"t"})))
    await board.engine.leases.complete(tenant, CompleteJob(job.id, job.fence, "w", usage=usage))
    return job_id


async def test_a_spent_budget_shows_its_waiting_jobs_and_is_raised(board: Board, tenant: str, page: Page) -> None:
    who, engine = local(tenant), board.engine
    await page.goto(f"{board.url}/budgets")
    await expect(page.locator(".empty")).to_contain_text("interlock budgets set")
    await engine.budgets.set(who, "team/a", BudgetRequest(amount={"usd": 5, "tokens": 100}))
    await spend(board, tenant, '{"usd": 7.5, "tokens": 1}', budgets=["team/a"])
    waiting = (await engine.jobs.enqueue(who, JobRequest(type="t", budgets=["team/a"]))).id
    await page.goto(f"{board.url}/budgets")
    await expect(page.locator("#budget-1")).to_contain_text("usd 7.50 of 5")
    await expect(page.locator("#budget-1")).to_contain_text("max 150 %")
    await follow(page.get_by_role("link", name="team/a"))
    await expect(page.locator(f"#waiting-{waiting}")).to_be_visible()
    await page.get_by_label("Add usd").fill("0")
    await page.get_by_label("Add tokens").fill("12")
    await follow(page.get_by_role("button", name="Raise"))
    await expect(page.locator("#add-1-error")).to_have_text("expected more than 0")
    assert await page.get_by_label("Add tokens").input_value() == "12"
    await page.get_by_label("Add usd").fill("10")
    await follow(page.get_by_role("button", name="Raise"))
    await expect(page.locator(".notice")).to_contain_text("Raised")
    raised = await engine.budgets.get(tenant, "team/a")
    assert raised.amount == {"usd": 15, "tokens": 112}
    assert [job.id for job in await engine.leases.claim(tenant, ClaimFilter("w", frozenset({"t"})))] == [waiting]


async def test_the_budget_of_a_tree_is_raised_on_the_page_of_a_job(board: Board, tenant: str, page: Page) -> None:
    await board.engine.flow.set(local(tenant), "provider", LimitRequest(concurrency=1))
    limits = [LimitUse(name="provider")]
    job_id = (await board.engine.jobs.enqueue(local(tenant), JobRequest(type="t", budget={"usd": 1}, limits=limits))).id
    await page.goto(f"{board.url}/jobs/{job_id}")
    await expect(page.locator("#facts-part").get_by_role("link", name="provider")).to_have_attribute(
        "href", "/limits/provider"
    )
    await expect(page.locator("#budget-part")).to_contain_text("usd 0 of 1")
    await page.get_by_text("Raise…").click()
    await page.get_by_label("Add usd").fill("2.5")
    await follow(page.get_by_role("button", name="Raise"))
    await expect(page.locator("#budget-part")).to_contain_text("usd 0 of 3.50")


async def test_a_limit_shows_its_utilization_and_who_waits(board: Board, tenant: str, page: Page) -> None:
    who, engine = local(tenant), board.engine
    await engine.flow.set(who, "provider", LimitRequest(concurrency=2))
    jobs = [
        (await engine.jobs.enqueue(who, JobRequest(type="t", limits=[LimitUse(name="provider")]))).id for _ in range(3)
    ]
    await engine.leases.claim(tenant, ClaimFilter("w", frozenset({"t"})))
    await page.goto(f"{board.url}/limits")
    await expect(page.locator("#limit-1")).to_contain_text("max 50 %")
    board.clock.advance(5 * 60)
    await engine.leases.claim(tenant, ClaimFilter("w", frozenset({"t"}), lease_seconds=600.0))
    await page.goto(f"{board.url}/limits/provider")
    await expect(page.locator("#key-1")).to_contain_text("max 50 %")
    assert await page.locator("[id^=waiting-0]").count() == len(jobs) - 1


async def test_the_waiting_jobs_of_one_key_are_listed(board: Board, tenant: str, page: Page) -> None:
    who, engine = local(tenant), board.engine
    await engine.flow.set(who, "customer", LimitRequest(concurrency=1, keyed=True))
    until = EPOCH + timedelta(microseconds=board.clock.now, hours=1)
    ids = {}
    for key in ("acme", "other"):
        await engine.flow.hold(who, "customer", until, key=key)
        limits = [LimitUse(name="customer", key=key)]
        ids[key] = (await engine.jobs.enqueue(who, JobRequest(type="t", limits=limits))).id
    await page.goto(f"{board.url}/limits/customer")
    assert await page.locator("[id^=waiting-0]").count() == len(ids)
    await follow(page.locator("#key-1 td[data-name=Waiting] a"))
    await expect(page.locator(f"#waiting-{ids['acme']}")).to_be_visible()
    assert await page.locator("[id^=waiting-0]").count() == 1


async def test_a_schedule_shows_its_next_ticks_and_last_jobs(board: Board, tenant: str, chromium: Browser) -> None:
    who, engine = local(tenant), board.engine
    nightly = ScheduleRequest(cron="0 3 * * *", timezone="Asia/Tokyo", job=JobRequest(type="report"))
    await engine.schedules.set(who, "nightly", nightly)
    await engine.jobs.enqueue(who, JobRequest(type="report"))
    made = await engine.schedules.run(who, "nightly")
    page = await opened(board, chromium, "/schedules", java_script_enabled=False)
    await follow(page.get_by_role("link", name="nightly"))
    assert await page.locator("#ticks-part li").count() == 5
    first = await page.locator("#ticks-part li").first.inner_text()
    assert "03:00:00 Asia/Tokyo" in first
    assert "18:00:00 UTC" in first
    assert [await one.get_attribute("id") for one in await page.locator("#jobs-part li").all()] == [
        f"job-{made.job.id}"
    ]
    await follow(page.get_by_role("button", name="Pause"))
    assert page.url.startswith(f"{board.url}/schedules/nightly")
    assert await page.locator("#ticks-part li").count() == 0
    await follow(page.get_by_role("button", name="Resume"))
    assert (await engine.schedules.get(tenant, "nightly")).paused_at is None


async def test_children_are_bars_of_the_waterfall(board: Board, tenant: str, page: Page) -> None:
    who, engine = local(tenant), board.engine
    await engine.jobs.enqueue(who, JobRequest(type="parent"))
    (parent,) = await engine.leases.claim(tenant, ClaimFilter("w", frozenset({"parent"})))
    child = (await engine.jobs.enqueue(who, JobRequest(type="child", parent_id=parent.id))).id
    board.clock.advance(3)
    await page.goto(f"{board.url}/jobs/{parent.id}")
    row = page.locator(f"#bar-child-{child}")
    await expect(row).to_contain_text("3.0 s so far")
    await expect(row.get_by_role("link")).to_have_attribute("href", f"/jobs/{child}")
