"""What the overview says about limits and budgets."""

from __future__ import annotations

from datetime import timedelta

from playwright.async_api import Page, expect

from interlock.domain.decide import CompleteJob
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import local
from interlock.domain.timestamps import EPOCH
from interlock.wire import JobRequest
from interlock.wire.budgets import BudgetRequest
from interlock.wire.limits import LimitRequest
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
    await engine.jobs.enqueue(who, JobRequest(type="t", budgets=["team"]))
    (job,) = await engine.leases.claim(tenant, ClaimFilter("w", frozenset({"t"})))
    await engine.leases.complete(tenant, CompleteJob(job.id, job.fence, "w", usage='{"usd": 7.5}'))
    await page.reload()
    held = page.locator(".needs article", has_text="Held limits")
    await expect(held).to_contain_text("provider")
    await expect(held).to_contain_text("over quota")
    await expect(page.locator(".needs article", has_text="Spent budgets")).to_contain_text("usd 7.50 of 5")
