"""Text from jobs stays text: a corpus in every field, looked at on every page by a real browser."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

import httpx2
import pytest
from playwright.async_api import Browser, Error

from interlock.dashboard.app import COOKIE, Dashboard, pages
from interlock.dashboard.pages import agents, approvals, audit, jobs, overview, tokens, webhooks, workers
from interlock.dashboard.sessions import Sessions
from interlock.domain.principal import ROLES, Principal, user
from interlock.engine.engine import Engine
from interlock.engine.queries import MAX_PAGE_SIZE
from tests.dashboard import fields
from tests.dashboard.conftest import KEY, Board, a_server
from tests.dashboard.corpus import CORPUS, VECTORS
from tests.dashboard.hostile import NAMES, PLAIN, Ask, Planted, Planter
from tests.dashboard.test_walk import DOWNLOADED, QUERIES
from tests.dashboard.watched import UNPAINTED, Watched, bundles, is_inert, shows_all, tab_of, usual
from tests.support.eventually import RETRY_SECONDS
from tests.support.forms import IS_LONG

LISTS = (
    "/", "/jobs?status=running", "/approvals?status=all", "/queues", "/schedules", "/limits", "/limits/per%20customer", "/agents", "/workers", "/tokens", "/webhooks",
    "/audit?after=2000-01-01",
)  # fmt: skip
LIVE = "/approvals?status=all"
TEXTS = (*NAMES, PLAIN)


@pytest.fixture
def tenant() -> str:
    return NAMES[0]


@pytest.fixture
def _long_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages show as much as one look can get, so that few looks see every string."""
    for module in (jobs, approvals, workers, tokens, webhooks):
        monkeypatch.setattr(module, "PAGE_SIZE", MAX_PAGE_SIZE - 1)
    monkeypatch.setattr(agents, "PAGE_SIZE", MAX_PAGE_SIZE - 1)
    monkeypatch.setattr(agents, "PREVIEW_SIZE", MAX_PAGE_SIZE)
    monkeypatch.setattr(overview, "PREVIEW_SIZE", MAX_PAGE_SIZE)
    monkeypatch.setattr(overview, "MAX_WORKERS", MAX_PAGE_SIZE)
    monkeypatch.setattr(overview, "MAX_QUEUES", MAX_PAGE_SIZE)
    monkeypatch.setattr(audit, "MAX_ROWS", 10_000)


async def answers(http: httpx2.AsyncClient, asks: Sequence[Ask]) -> list[str]:
    return [(await (http.get(path) if form is None else http.post(path, data=form))).text for path, form in asks]


def test_every_string_of_the_corpus_is_in_a_name() -> None:
    assert len(set(CORPUS)) == 500
    assert "".join(NAMES) == "".join(CORPUS)


def test_every_external_text_is_on_the_list_of_planted_ones() -> None:
    assert fields.stale() == set()
    assert {"Job.payload", "Job.tags", "Approval.risk", "Vote.comment", "QueueStats.pause_reason"} <= fields.chosen()


@pytest.mark.usefixtures("_long_pages")
async def test_no_page_changes_its_structure_for_hostile_text(board: Board, tenant: str, chromium: Browser) -> None:
    who, sessions = Principal(tenant, user("somebody"), ROLES), Sessions(KEY, seconds=board.ticks)
    another = a_server(board.engine, board.clock, board.ticks, auth=True, tenant=tenant)
    async with (
        httpx2.AsyncClient(base_url=board.url, trust_env=False, timeout=RETRY_SECONDS) as http,
        another as guarded,
    ):
        form_token = (await http.get("/tokens")).text.partition('name="form_token" value="')[2].partition('"')[0]
        planted = await Planter(board.engine, tenant, form_token, sessions).plant(TEXTS)
        assert await fields.lacking(board.engine, who, planted, TEXTS) == {}
        documents = {kind: bundles(await answers(http, asks)) for kind, asks in planted.asks.items()}
        cookies = [{"cookie": f"{COOKIE}={cookie}"} for cookie in planted.cookies]
        signed_in = [(await http.get(f"{guarded.url}/workers", headers=cookie)).text for cookie in cookies]
        documents["somebody who is signed in"] = bundles(signed_in)

    for script in (True, False) if IS_LONG else (True,):
        tab = await tab_of(chromium, board, TEXTS, script=script)
        for first in LISTS:
            await looked_through(tab, first)
        for kind, asks in planted.asks.items():
            whole = script and len(asks) < len(TEXTS)  # enough strings per page that few pages contain them all
            seen = tab.seen()
            for ask in asks if whole else asks[-1:]:
                await tab.look_at(*ask, seen)
            is_inert(seen, kind)
            if whole:
                shows_all(seen, kind)
        for path in elsewhere(board.engine, planted):
            await tab.look_at(path, None, seen := tab.seen())
            is_inert(seen, path)
        assert tab.faults == []

    tab = await tab_of(chromium, board, TEXTS)
    for kind, texts in documents.items():
        seen = tab.seen()
        for text in texts:
            await tab.read(text, seen)
        is_inert(seen, kind)
        shows_all(seen, kind)
    assert tab.faults == []


def elsewhere(engine: Engine, planted: Planted) -> list[str]:
    """The pages of the table that are not in a list above and show nothing of the hostile tenant."""
    table = Dashboard(engine, auth=False, tenant="")
    seen = {table.find("GET", urlsplit(path).path)[0].path for path in LISTS}
    for path, form in (ask for asks in planted.asks.values() for ask in asks):
        seen.add(table.find("GET" if form is None else "POST", urlsplit(path).path)[0].path)
    rest = {one.path for one in pages() if one.method == "GET"} - DOWNLOADED - seen
    return sorted(path + QUERIES.get(path, "") for path in rest)


async def looked_through(tab: Watched, first: str) -> None:
    """A list from its first page to its last."""
    seen = tab.seen()
    path: str | None = first
    while path is not None:
        path = await tab.visit(path, seen, again=first == LIVE and tab.has_script)
    is_inert(seen, first)
    shows_all(seen, first)


@pytest.mark.parametrize("engine", ["sqlite"])
async def test_the_browser_would_detect_an_injection(board: Board, chromium: Browser) -> None:
    """Where a string does become markup the page is made of something else; else the test above would prove nothing."""
    tab = await tab_of(chromium, board, [PLAIN])
    inside = [vector for vector in VECTORS if vector.startswith("<")]
    unnoticed = []
    for vector in inside:
        seen = tab.seen()
        try:
            await tab.read(f"{UNPAINTED}<p>{vector}", seen)
        except Error as error:
            if "navigation" not in str(error):
                raise
            continue  # it has led away before it was looked at
        if not seen.made_of - usual() and not seen.leads_out:
            unnoticed.append(vector)
    assert unnoticed == []
    assert "pwned" in tab.faults
    assert any("evil.example" in fault for fault in tab.faults)
