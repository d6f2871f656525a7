"""Very many jobs, in the long form a hundred thousand: every page and every filter still answers, pages lead to the end, and bulk counts right."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator
from urllib.parse import quote

import asyncpg
import httpx2
import msgspec

from interlock.dashboard.app import pages
from interlock.domain.decide import CompleteJob, FailJob
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import Principal, local
from interlock.engine.engine import Engine
from interlock.wire import AgentName, JobRequest
from tests.dashboard.conftest import Board
from tests.dashboard.test_walk import DOWNLOADED, QUERIES
from tests.support.eventually import RETRY_SECONDS
from tests.support.forms import IS_LONG
from tests.support.postgres import Postgres

JOBS = 100_000 if IS_LONG else 15_000
BATCH = 1_000
ENDED = 1_000
RARE = 2_500
ON_A_PAGE = 50
ONE_CALL = 1_000

# Each way to narrow the list, with how many of the newest fifty it shows: some walk past everything to find nothing.
FILTERS = {
    "": 50, "status=queued": 50, "status=running": 0, "status=retry": 0, "status=waiting_for_approval": 0,
    "status=succeeded": 50, "status=failed": 50, "status=dead_letter": 0, "status=cancelled": 0, "type=crawl": 50,
    "type=rare": 50, "type=unknown": 0, "agent=crew%2F7": 50, "agent=crew%2Fnobody": 0, "tag=odd": 50, "tag=needle": 1,
    "tag=odd&tag=even": 0, "worker=w": 0, "created_before=2000-01-01T00:00": 0, "created_after=2000-01-01T00:00": 50,
    "stale_seconds=60": 0, "status=queued&type=rare&agent=crew%2F7": 50, "status=failed&tag=odd": 50,
}  # fmt: skip


async def fill(engine: Engine, who: Principal) -> None:
    """Some end, most wait; of one type there are few, and of one tag there is one."""

    async def add(type: str, first: int) -> None:
        batch = [
            JobRequest(
                type=type,
                payload=msgspec.Raw(b'{"page":%d}' % n),
                tags=["odd" if n % 2 else "even", *(["needle"] if n == 123 else [])],
                agent=AgentName(kind="crew", id=str(n % 10)),
            )
            for n in range(first, first + BATCH)
        ]
        await engine.jobs.enqueue_batch(who, batch)

    await add("crawl", 0)
    for _ in range(ENDED // 100):
        claimed = await engine.leases.claim(who.tenant, ClaimFilter("w", frozenset({"crawl"}), limit=100))
        failed = '{"message": "no such page"}'
        await engine.leases.finishes(
            who.tenant,
            [
                FailJob(job.id, job.fence, "w", failed, retryable=False)
                if i % 2
                else CompleteJob(job.id, job.fence, "w", "1")
                for i, job in enumerate(claimed)
            ],
        )
    batch = [JobRequest(type="rare", agent=AgentName(kind="crew", id="7")) for _ in range(RARE // 5)]
    for _ in range(5):
        await engine.jobs.enqueue_batch(who, batch)
    for first in range(BATCH, JOBS, BATCH):
        await add(("crawl", "embed", "index", "answer")[first // BATCH % 4], first)


async def following(http: httpx2.AsyncClient, path: str) -> AsyncIterator[list[str]]:
    """The ids of the jobs of each page, from one to the next until there is none."""
    next: str | None = path
    while next is not None:
        text = (await http.get(next)).text
        yield re.findall(r'<tr data-row id="job-([^"]+)"', text)
        found = re.search(r'<a href="([^"]+)" rel="next"', text)
        next = None if found is None else html.unescape(found[1])


async def forget_the_size(postgres: Postgres, database: str) -> None:
    """Leave the statistics of a table that was analyzed before its first jobs were committed."""
    admin = await asyncpg.connect(postgres.dsn(database))
    await admin.execute("alter table interlock.job set (autovacuum_enabled = off)")
    await admin.execute("update pg_class set reltuples = 0, relpages = 60 where oid = 'interlock.job'::regclass")
    await admin.close()


async def test_very_many_jobs_are_listed_and_operated_on(
    board: Board, tenant: str, engine: str, place: str, postgres: Postgres
) -> None:
    who = local(tenant)
    if engine == "postgres":
        await forget_the_size(postgres, place)
    await fill(board.engine, who)
    # The limit is no measure of quickness but of sense: a page that read everything for each row would not come back.
    async with httpx2.AsyncClient(base_url=board.url, trust_env=False, timeout=RETRY_SECONDS) as http:
        for query, encoded in FILTERS.items():
            answer = await http.get(f"/jobs?{query}")
            assert answer.status_code == 200, query
            assert answer.text.count("<tr data-row") == encoded, query

        for path in {page.path for page in pages() if page.method == "GET" and "{" not in page.path} - DOWNLOADED:
            assert (await http.get(path + QUERIES.get(path, ""))).status_code == 200, path

        seen = [id for page in [one async for one in following(http, "/jobs?type=rare")] for id in page]
        assert len(seen) == len(set(seen)) == RARE
        (oldest,) = [one async for one in following(http, "/jobs?before=50")]
        first = await board.engine.queries.job(tenant, oldest[-1])
        assert (len(oldest), first.seq) == (49, 1)

        left, path = RARE, "/jobs/bulk?action=cancel&scope=filter&type=rare"
        while left:
            question = (await http.get(path)).text
            matched = min(left, ONE_CALL)
            assert f"<h1>Cancel {matched:,} jobs?</h1>".replace(",", "\u2009") in question
            assert ("More jobs match." in question) == (left > ONE_CALL)
            token = question.partition('name="form_token" value="')[2].partition('"')[0]
            ids = [part.partition('"')[0] for part in question.split('name="id" value="')[1:]]
            more = "&more=1" if left > ONE_CALL else ""
            form = f"form_token={token}&action=cancel&filter={quote('type=rare')}{more}&id={'&id='.join(ids)}"
            done = await http.post(
                "/jobs/bulk", content=form, headers={"content-type": "application/x-www-form-urlencoded"}
            )
            assert done.headers["location"].startswith("/jobs?"), "and not the next ones, at the same button"
            assert done.headers["location"].endswith(f"n={matched}")
            left -= matched
        stats = await board.engine.queries.queue(tenant, "rare")
        assert (stats.cancelled, stats.ready) == (RARE, 0)
        cancelled = [page async for page in following(http, "/jobs?status=cancelled")]
        assert sum(map(len, cancelled)) == RARE
        assert [len(page) for page in cancelled] == [ON_A_PAGE] * (RARE // ON_A_PAGE)
