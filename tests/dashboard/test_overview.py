"""What the overview says about limits and budgets."""

from __future__ import annotations

from datetime import timedelta

from playwright.async_api import Page, expect

from interlock.domain.decide import CompleteJob
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import local
from interlock.domain.timestamps import EPOCH
from interlock.wire import JobRequest, LimitUse
from interlock.wire.budgets import BudgetRequest
from interlock.wire.limits import LimitRequest, Rate
from tests.dashboard.conftest import Board


async def test_held_limits_and_spent_budgets_need_attention(board: Board, tenant: str, page: Page) -> None:
    who, engine = local(tenant), board.engine
    await engine.flow.set(who, "provider", LimitRequest(concurrency=1))
    await engine.budgets.set(who, "team", BudgetRequest(amount={"usd": 5}))
    await page.goto(board.url)
    await expect(page.locator(".needs")).not_to_contain_text("Held limits")
    await expect(page.locator(".needs")).not_to_contain_text("Spent budgets")

    until = EPOCH + timedelta(microseconds=board.clock.now, hours=1)
    await engine.flow.hold(who, "provider", until, reason="over quota")
    await engine.flow.set(who, "customer", LimitRequest(concurrency=1, keyed=True))
    await engine.flow.hold(who, "customer", until, key="acme", reason="asked us to wait")
    await engine.jobs.enqueue(who, JobRequest(type="t", budgets=["team"]))
    (job,) = await engine.leases.claim(tenant, ClaimFilter("w", frozenset({"t"})))
    await engine.leases.complete(tenant, CompleteJob(job.id, job.fence, "w", usage='{"usd": 7.5}'))
    await page.reload()
    held = page.locator(".needs article", has_text="Held limits")
    await expect(held).to_contain_text("provider")
    await expect(held).to_contain_text("over quota")
    await expect(held).to_contain_text("customer key acme")
    await expect(held).to_contain_text("asked us to wait")
    await expect(page.locator(".needs article", has_text="Spent budgets")).to_contain_text("usd 7.50 of 5")


async def test_a_budget_with_too_little_left_for_a_due_job_needs_attention(
    board: Board, tenant: str, page: Page
) -> None:
    who, engine = local(tenant), board.engine
    await engine.flow.set(who, "provider", LimitRequest(rate=Rate(units={"usd": 100})))
    await engine.budgets.set(who, "team", BudgetRequest(amount={"usd": 1}))
    needs = [LimitUse(name="provider", cost={"usd": 4})]
    await engine.jobs.enqueue(who, JobRequest(type="t", budgets=["team"], limits=needs))
    await page.goto(board.url)
    spent = page.locator(".needs article", has_text="Spent budgets")
    await expect(spent.get_by_role("link", name="team")).to_be_visible()
    await expect(spent).to_contain_text("usd 0 of 1, 1 waiting")


async def test_the_spent_budget_of_a_tree_needs_attention_until_it_is_raised(
    board: Board, tenant: str, page: Page
) -> None:
    who, engine = local(tenant), board.engine
    root = await engine.jobs.enqueue(who, JobRequest(type="plan", budget={"usd": 2}))
    (job,) = await engine.leases.claim(tenant, ClaimFilter("w", frozenset({"plan"})))
    await engine.jobs.enqueue(who, JobRequest(type="part", parent_id=root.id))
    await engine.leases.complete(tenant, CompleteJob(job.id, job.fence, "w", usage='{"usd": 3}'))
    assert not await engine.leases.claim(tenant, ClaimFilter("w", frozenset({"part"})))
    await page.goto(board.url)
    spent = page.locator(".needs article", has_text="Spent budgets")
    await expect(spent).to_contain_text("usd 3 of 2, 1 waiting")
    await expect(spent.get_by_role("link", name="tree of plan")).to_have_attribute("href", f"/jobs/{root.id}")
    await engine.budgets.raise_of_job(who, root.id, {"usd": 5})
    await page.reload()
    await expect(page.locator(".needs")).not_to_contain_text("Spent budgets")
