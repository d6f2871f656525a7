"""The plots of the last hour are computed from the database: a new server shows them at the first request, with and without script."""

from __future__ import annotations

import re

import httpx2
from playwright.async_api import Browser, expect

from interlock.dashboard import plots
from interlock.dashboard.queue_metrics import (
    MAX_MINUTES,
    MAX_TENANTS,
    MIN_MINUTES,
    MINUTE,
    AgeSamples,
    MinuteSeries,
    age_series,
    minute_series,
    plotted_minutes,
)
from interlock.domain.decide import CompleteJob, FailJob
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import local
from interlock.domain.registry import Minute, QueueStats
from interlock.wire import JobRequest
from tests.dashboard.conftest import Board, patient
from tests.support.eventually import RETRY_SECONDS

NOW = 100 * MINUTE + 1


def heights(path: str, top: float) -> list[float]:
    """The values that a path was drawn from, as far as its points show them."""
    drawn = [float(y) for _, y in re.findall(r"([\d.]+),([\d.]+)", path)]
    return [round((plots.BASELINE - y) / (plots.BASELINE - 2) * top, 1) for y in drawn]


async def quarter_of_an_hour(board: Board, tenant: str) -> None:
    """Each minute two jobs come, one succeeds; in the last one another fails permanently."""
    who = local(tenant)
    for minute in range(15):
        for _ in range(2):
            await board.engine.jobs.enqueue(who, JobRequest(type="crawl"))
        (job,) = await board.engine.leases.claim(tenant, ClaimFilter("w", frozenset({"crawl"})))
        await board.engine.leases.complete(tenant, CompleteJob(job.id, job.fence, "w", "1"))
        if minute < 14:
            board.clock.advance(60)
    (job,) = await board.engine.leases.claim(tenant, ClaimFilter("w", frozenset({"crawl"})))
    await board.engine.leases.fail(tenant, FailJob(job.id, job.fence, "w", '{"message": "no"}', retryable=False))


async def test_the_first_view_shows_the_last_hour(board: Board, tenant: str) -> None:
    await quarter_of_an_hour(board, tenant)
    async with httpx2.AsyncClient(base_url=board.url, trust_env=False, timeout=RETRY_SECONDS) as http:
        for path in ("/", "/queues"):
            text = (await http.get(path)).text
            svgs = re.findall(r'aria-label="([^"]+) in the last 15 minutes, maximum ([^"]+)">(.*?)</svg>', text, re.S)
            found = {name: (float(top.split()[0]), re.findall(r' d="([^"]*)"', svg)) for name, top, svg in svgs}
            waiting, ended, oldest = (
                ("depth of crawl", "jobs of crawl finished per minute", "age of the oldest ready job of crawl")
                if path == "/"
                else ("depth of crawl", "finished / min of crawl", "oldest of crawl")
            )
            top, (_, line) = found[waiting]
            assert heights(line, top) == [*range(15), 14]
            top, (_, line, failed) = found[ended]
            assert heights(line, top) == [1, 1, 2, 2]  # thirteen even minutes are one level, the last one a step
            assert max(heights(failed, top)) == 1
            _, (_, line) = found[oldest]
            assert heights(line, 1.0) == sorted(heights(line, 1.0))  # what is the oldest now grew older all the time
            assert heights(line, 1.0)[-1] == 1


async def test_a_plot_updates_while_it_is_viewed(board: Board, tenant: str, chromium: Browser) -> None:
    await quarter_of_an_hour(board, tenant)
    page = await (await patient(chromium)).new_page()
    await page.goto(board.url)
    plot = page.get_by_role("img", name="depth in the last", exact=False)
    await expect(plot).to_have_attribute("aria-label", "depth in the last 15 minutes, maximum 14")
    for _ in range(6):
        await board.engine.jobs.enqueue(local(tenant), JobRequest(type="crawl"))
    await expect(plot).to_have_attribute("aria-label", "depth in the last 15 minutes, maximum 20")
    board.clock.advance(60 * 60)
    await expect(plot).to_have_attribute("aria-label", "depth in the last hour, maximum 20")


def test_an_hour_begins_with_the_previous_level() -> None:
    rows = [
        Minute("t", 0, waiting=7, running=2, enqueued=50, succeeded=40),
        Minute("t", 98 * MINUTE, waiting=-1, running=1),
        Minute("t", 100 * MINUTE, running=-2, succeeded=2),
        Minute("t", 101 * MINUTE, waiting=1, enqueued=1),  # encode while the page was being made
    ]
    assert minute_series(rows, NOW, 3) == MinuteSeries((7, 6, 6, 7), (2, 3, 3, 1), (0, 0, 1), (0, 0, 2), (0, 0, 0))


def test_a_plot_is_as_long_as_its_data() -> None:
    assert plotted_minutes([], NOW) == MIN_MINUTES
    assert plotted_minutes([Minute("t", 100 * MINUTE)], NOW) == MIN_MINUTES
    assert plotted_minutes([Minute("t", 76 * MINUTE), Minute("u", 90 * MINUTE)], NOW) == 25
    assert plotted_minutes([Minute("t", 0)], NOW) == MAX_MINUTES


def test_a_plot_stays_in_its_box() -> None:
    for drawn in (plots.line([0, 5, None, 1000, 3]), plots.steps([0, 5, 1000, 3])):
        points = [(float(x), float(y)) for x, y in re.findall(r"([\d.]+),([\d.]+)", drawn.line + drawn.area)]
        assert all(0 <= x <= plots.WIDTH and 0 < y < plots.HEIGHT for x, y in points)
        assert max(x for x, _ in points) == plots.WIDTH


def test_a_line_is_broken_where_data_is_missing_and_a_level_has_two_ends() -> None:
    assert plots.line([1, 1, 1, None, 0, 1]).line == "M0.0,2.0 L96.0,2.0 M192.0,47.0 L240.0,2.0"
    assert plots.line([None, None]).line == ""
    assert plots.steps([0.0] * 60).line == "M0.0,47.0 L240.0,47.0"


def test_failures_are_drawn_on_the_scale_of_finished_jobs() -> None:
    flow = plots.queue_plots(MinuteSeries((0, 0), (0, 0), (0,), (3,), (1,)))
    assert flow.failed is not None
    assert (flow.ended.top, flow.failed.top) == (4, 4)
    assert plots.queue_plots(MinuteSeries((0, 0), (0, 0), (0,), (3,), (0,))).failed is None


def test_ages_are_observed_or_inferred() -> None:
    oldest = QueueStats("t", ready=2, oldest_ready_at=98 * MINUTE + MINUTE // 2)
    waiting = (3, 0, 4, 5, 5, 2)  # five minutes: up to the ends of minutes 95, 96, 97, 98 and 99, and now
    assert age_series(oldest, {}, waiting, NOW) == [None, 0, None, 30, 90, 90.000001]
    assert age_series(oldest, {95: 44.0, 97: 7.0}, waiting, NOW) == [44, 0, 7, 30, 90, 90.000001]
    assert age_series(QueueStats("t"), {}, waiting, NOW)[-1] == 0


def test_ages_are_kept_for_an_hour_and_a_limited_number_of_tenants() -> None:
    ages = AgeSamples()
    for minute in range(200):
        for second in (0, 30):
            ages.record("a", [QueueStats("t", ready=1, oldest_ready_at=0)], minute * MINUTE + second * 1_000_000)
    assert list(ages.of("a", "t").items())[-1] == (199, 199 * 60 + 30)
    assert len(ages.of("a", "t")) == MAX_MINUTES
    assert ages.of("b", "t") == {}
    for tenant in range(MAX_TENANTS):
        ages.record(str(tenant), [QueueStats("t")], NOW)
    assert ages.of("a", "t") == {}
