"""Limits, budgets and schedules are created, edited and deleted with forms."""

from __future__ import annotations

import json

import pytest
from playwright.async_api import Page, expect

from interlock.domain.budget import OnExceed, Per
from interlock.domain.principal import local
from interlock.domain.schedule import CatchUp, Overlap
from interlock.errors import NotFound
from interlock.wire import JobRequest, LimitUse
from interlock.wire.schedule import ScheduleRequest
from tests.dashboard.conftest import Board, follow


async def test_a_limit_is_created_edited_and_deleted(board: Board, tenant: str, page: Page) -> None:
    engine = board.engine
    await page.goto(f"{board.url}/limits")
    await expect(page.locator(".empty")).to_contain_text("No limits yet")
    await page.locator("#name").fill("model/provider")
    await page.locator("#concurrency").fill("20")
    await page.locator("#rate").fill("tokens=1234567, usd = 1.5")
    await page.locator("#burst").fill("requests=5")
    await follow(page.get_by_role("button", name="Create limit"))
    await expect(page.locator("#burst-error")).to_contain_text("has no rate")
    assert await page.locator("#rate").input_value() == "tokens=1234567, usd = 1.5"
    await page.locator("#burst").fill("usd=3")
    await page.get_by_label("each key has its own room").check()
    await follow(page.get_by_role("button", name="Create limit"))
    assert await page.inner_text(".notice") == "Limit set."
    kept = (await engine.flow.get(tenant, "model/provider")).limit
    assert (kept.concurrency, kept.units, kept.keyed) == (20, {"tokens": 1234567.0, "usd": 1.5}, True)
    assert kept.burst == {"tokens": 1234567.0, "usd": 3.0}

    await page.get_by_text("Edit…").click()
    assert await page.locator("#burst").input_value() == "usd=3"
    await page.locator("#concurrency").fill("")
    await page.get_by_label("serve keys round-robin").check()
    await page.locator("#weights").fill("gold=3")
    await follow(page.get_by_role("button", name="Save"))
    changed = (await engine.flow.get(tenant, "model/provider")).limit
    assert (changed.concurrency, changed.units, changed.burst) == (None, kept.units, kept.burst)
    assert (changed.fair, changed.weights) == (True, {"gold": 3.0})

    await page.goto(f"{board.url}/limits")
    await page.locator("#name").fill("model/provider")
    await page.locator("#concurrency").fill("1")
    await follow(page.get_by_role("button", name="Create limit"))
    await expect(page.locator("#name-error")).to_contain_text("exists")
    assert (await engine.flow.get(tenant, "model/provider")).limit == changed

    await follow(page.get_by_role("link", name="model/provider"))
    await page.get_by_text("Delete…").click()
    await follow(page.get_by_role("button", name="Delete limit"))
    assert await page.inner_text(".notice") == "Limit deleted."
    with pytest.raises(NotFound):
        await engine.flow.get(tenant, "model/provider")


async def test_a_limit_that_a_job_names_is_not_deleted(board: Board, tenant: str, page: Page) -> None:
    await page.goto(f"{board.url}/limits")
    await page.locator("#name").fill("provider")
    await page.locator("#rate").fill("tokens=many")
    await follow(page.get_by_role("button", name="Create limit"))
    await expect(page.locator("#rate-error")).to_have_text("“tokens=many” is not an amount: expected UNIT=AMOUNT")
    await page.locator("#rate").fill("tokens=5")
    await follow(page.get_by_role("button", name="Create limit"))
    uses = [LimitUse(name="provider", cost={"tokens": 1})]
    await board.engine.jobs.enqueue(local(tenant), JobRequest(type="t", limits=uses))
    await page.get_by_text("Delete…").click()
    await follow(page.get_by_role("button", name="Delete limit"))
    assert "provider" in await page.inner_text("main")
    assert (await board.engine.flow.get(tenant, "provider")).limit.units == {"tokens": 5.0}


async def test_a_budget_is_created_edited_and_deleted(board: Board, tenant: str, page: Page) -> None:
    engine = board.engine
    await page.goto(f"{board.url}/budgets")
    await page.locator("#name").fill("team a")
    await page.locator("#amount").fill("usd=100")
    await page.locator("#per").select_option("day")
    await page.locator("#timezone").fill("Mars/Olympus")
    await page.locator("#on_exceed").select_option("ask")
    await follow(page.get_by_role("button", name="Create budget"))
    await expect(page.locator("#timezone-error")).to_contain_text("IANA name")
    assert await page.locator("#on_exceed").input_value() == "ask"
    await page.locator("#timezone").fill("Europe/Berlin")
    await follow(page.get_by_role("button", name="Create budget"))
    made = await engine.budgets.get(tenant, "team a")
    assert (made.amount, made.per, made.timezone, made.on_exceed) == (
        {"usd": 100.0}, Per.DAY, "Europe/Berlin", OnExceed.ASK,
    )  # fmt: skip

    await page.get_by_text("Edit…").click()
    await page.locator("#amount").fill("usd=80.5")
    await follow(page.get_by_role("button", name="Save"))
    changed = await engine.budgets.get(tenant, "team a")
    assert (changed.amount, changed.per, changed.on_exceed) == ({"usd": 80.5}, Per.DAY, OnExceed.ASK)

    await page.get_by_text("Delete…").click()
    await follow(page.get_by_role("button", name="Delete budget"))
    with pytest.raises(NotFound):
        await engine.budgets.get(tenant, "team a")


async def test_a_schedule_is_created_edited_and_deleted(board: Board, tenant: str, page: Page) -> None:
    engine = board.engine
    await page.goto(f"{board.url}/schedules")
    await page.locator("#name").fill("nightly")
    await page.locator("#cron").fill("0 7 * *")
    await page.locator("#timezone").fill("Europe/Berlin")
    await page.locator("#type").fill("report")
    await page.locator("#payload").fill('{"pages": 12345678901234567890}')
    await page.locator("#others").fill('{"priority": 5000}')
    await follow(page.get_by_role("button", name="Create schedule"))
    await expect(page.locator("#cron-error")).to_contain_text("expected 5")
    await page.locator("#cron").fill("0 7 * * 1-5")
    await follow(page.get_by_role("button", name="Create schedule"))
    await expect(page.locator("#others-error")).to_contain_text("priority")
    await page.locator("#others").fill('{"priority": 5, "tags": ["nightly"]}')
    await page.locator("#overlap").select_option("skip")
    await page.locator("#catch_up").select_option("last")
    await follow(page.get_by_role("button", name="Create schedule"))
    assert await page.inner_text("h1") == "nightly"
    made = await engine.schedules.get(tenant, "nightly")
    assert (made.cron, made.timezone, made.overlap, made.catch_up) == (
        "0 7 * * 1-5", "Europe/Berlin", Overlap.SKIP, CatchUp.LAST,
    )  # fmt: skip
    assert "12345678901234567890" in made.job
    assert json.loads(made.job) | {"payload": None} == {
        "type": "report", "payload": None, "priority": 5, "tags": ["nightly"],
    }  # fmt: skip

    await page.get_by_text("Edit…").click()
    await page.locator("#jitter_seconds").fill("30")
    await follow(page.get_by_role("button", name="Save"))
    changed = await engine.schedules.get(tenant, "nightly")
    assert (changed.jitter_seconds, json.loads(changed.job), changed.cron) == (30, json.loads(made.job), made.cron)

    await page.get_by_text("Delete…").click()
    await follow(page.get_by_role("button", name="Delete schedule"))
    with pytest.raises(NotFound):
        await engine.schedules.get(tenant, "nightly")


async def test_an_edit_of_a_schedule_keeps_the_times_that_were_not_edited(
    board: Board, tenant: str, page: Page
) -> None:
    board.clock.advance(0.123456)
    wanted = ScheduleRequest(every_seconds=90.5, job=JobRequest(type="poll"))
    await board.engine.schedules.set(local(tenant), "poll", wanted)
    made = await board.engine.schedules.get(tenant, "poll")
    await page.goto(f"{board.url}/schedules/poll")
    await page.get_by_text("Edit…").click()
    await page.locator("#overlap").select_option("skip")
    await follow(page.get_by_role("button", name="Save"))
    changed = await board.engine.schedules.get(tenant, "poll")
    assert (changed.timing, changed.next_at, changed.overlap) == (made.timing, made.next_at, Overlap.SKIP)
