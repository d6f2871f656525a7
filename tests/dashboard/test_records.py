"""What surrounds a job, however much of it there is: all its records, page by page, and its tree."""

from __future__ import annotations

import json

import pytest
from playwright.async_api import Page, expect

from interlock.dashboard import family
from interlock.dashboard.pages import job as job_page
from interlock.dashboard.pages import records
from interlock.domain.decide import ReleaseJob
from interlock.domain.effect import BeginEffect
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import local
from interlock.domain.progress import Event, Level, Report, Step
from interlock.domain.stream import Append, NewChunk
from interlock.wire import JobRequest, new_id
from tests.dashboard.conftest import Board, follow

COUNT = 7


async def busy_job(board: Board, tenant: str) -> str:
    """Enqueue a job with several records of each kind."""
    engine, who = board.engine, local(tenant)
    id = (await engine.jobs.enqueue(who, JobRequest(type="t"))).id
    for n in range(COUNT):
        (job,) = await engine.leases.claim(tenant, ClaimFilter("w", frozenset({"t"})))
        await engine.progress.save_step(tenant, Step(job.id, job.fence, "w", f"step-{n}", 1, json.dumps({"n": n})))
        event = Event(new_id(), Level.INFO, f"event-{n}")
        await engine.progress.add_events(tenant, Report(job.id, job.fence, "w", (event,)))
        await engine.effects.begin(tenant, BeginEffect(job.id, job.fence, "w", f"effect-{n}", 1, f"key-{n}"))
        await engine.streams.append(
            tenant, Append(job.id, job.fence, "w", f"stream-{n}", 0, (NewChunk(b"text", True),))
        )
        await engine.messages.send(who, job.id, f"message-{n}", json.dumps({"n": n}))
        await engine.leases.finishes(tenant, [ReleaseJob(job.id, job.fence, "w", f"reason-{n}")])
    return id


async def count(board: Board, tenant: str, id: str, kind: str) -> int:
    """Return the number of records; an effect is also a step."""
    if kind == "transitions":
        return (await board.engine.queries.job(tenant, id)).version
    return len(await board.engine.progress.steps(tenant, id)) if kind == "steps" else COUNT


@pytest.mark.parametrize("kind", ["transitions", "steps", "events", "messages", "effects"])
async def test_every_record_of_a_job_is_on_a_page(
    board: Board, tenant: str, page: Page, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(records, "PAGE_SIZE", 3)
    id = await busy_job(board, tenant)
    path = f"{board.url}/jobs/{id}/records/{kind}"
    await page.goto(path)
    seen = list[str]()
    while True:
        entries = page.locator(".timeline > li")
        assert await entries.count() <= 3
        seen += await entries.evaluate_all("entries => entries.map(entry => entry.id)")
        if not await page.get_by_role("link", name="More").count():
            break
        await follow(page.get_by_role("link", name="More"))
    prefix = {"transitions": "history"}.get(kind, kind[:-1])
    assert seen == [f"{prefix}-{number}" for number in range(1, await count(board, tenant, id, kind) + 1)]
    await follow(page.get_by_role("link", name="Back", exact=True))
    await page.goto(f"{path}?after=1000")
    await expect(page.locator(".empty")).to_have_text(f"No more {kind}.")
    answer = await page.goto(f"{board.url}/jobs/{id}/records/secrets")
    assert answer is not None
    assert answer.status == 404


async def test_the_page_of_a_job_leads_to_what_it_leaves_out(
    board: Board, tenant: str, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MAX_MESSAGES", "MAX_EFFECTS", "MAX_STREAMS"):
        monkeypatch.setattr(job_page, name, 2)
    id = await busy_job(board, tenant)
    await page.goto(f"{board.url}/jobs/{id}")
    assert await page.locator("#messages-part li[id]").count() == 2
    assert await page.locator("#effects-part li").count() == 2
    assert f"effect-{COUNT - 1}" in await page.locator("#effects-part").inner_text()
    more = page.get_by_role("region", name="More streams")
    assert await more.get_by_role("link").all_inner_texts() == [f"stream-{n}" for n in range(2, COUNT)]
    await follow(more.get_by_role("link", name="stream-5"))
    await expect(page.locator("main pre")).to_have_text("text")
    for name in ("messages", "effects"):
        await page.goto(f"{board.url}/jobs/{id}")
        await follow(page.get_by_role("region", name=name.capitalize()).get_by_role("link", name="last 2; all"))
        assert await page.locator(".timeline > li").count() == COUNT


async def test_the_tree_of_a_job_leads_up_and_down(
    board: Board, tenant: str, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(family, "MAX_ANCESTORS", 2)
    monkeypatch.setattr(family, "MAX_GRANDCHILDREN", 2)
    engine, who = board.engine, local(tenant)

    async def job(type: str, parent: str | None = None) -> str:
        id = (await engine.jobs.enqueue(who, JobRequest(type=type, parent_id=parent))).id
        await engine.leases.claim(tenant, ClaimFilter("w", frozenset({type})))
        return id

    eldest = await job("eldest")
    root = await job("root", eldest)
    middle = await job("middle", root)
    here = await job("here", middle)
    first, second = await job("first", here), await job("second", here)
    leaves = [await job("leaf", first) for _ in range(3)]
    await page.goto(f"{board.url}/jobs/{here}")
    nodes = page.locator(".family > li[id]")
    ids = await nodes.evaluate_all("nodes => nodes.map(node => node.id.slice(5))")
    assert ids == [root, middle, here, first, leaves[1], leaves[2], second]
    depths = await nodes.evaluate_all("nodes => nodes.map(node => node.classList[0])")
    assert depths == [f"depth-{n}" for n in (0, 1, 2, 3, 4, 4, 3)]
    assert await page.locator(f"#node-{here} a").count() == 0
    more = page.locator(f"#node-{first}").get_by_role("link", name="more children")
    assert await more.get_attribute("href") == f"/jobs?parent={first}"
    await follow(page.get_by_role("link", name="older ancestors"))
    assert page.url.endswith(f"/jobs/{eldest}")
    await expect(page.locator(f"#node-{here}")).to_be_visible()
    await follow(page.locator(f"#node-{here}").get_by_role("link", name="here"))
    assert page.url.endswith(f"/jobs/{here}")
